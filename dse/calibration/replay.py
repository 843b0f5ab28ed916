"""Measured rows as programs that are bound and simulated again and again, under other constants."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from typing import TypeVar

from arch_configs import ArchSpec
from compiler import CompileError, Infeasible, compile_fused, compile_kernel, optimise
from compiler.errors import VerifyError
from compiler.ir.verify_program import program_macs
from compiler.isa import Program
from dse.costs import LawCost
from dse.errors import SpaceError
from dse.evaluation import USER_ERRORS, check_dram, resolve
from dse.kernel import parse_sizes
from dse.kernel_files import load_kernel
from dse.measured import Measured
from dse.point import Point
from dse.pool import process_pool
from dse.predict import PS_PER_S, Timed, prediction
from dse.roles import by_name, load_with_roles
from eventsim import Deadlock, bind, simulate_bound

T = TypeVar("T")
R = TypeVar("R")
KERNEL = "kernel"  # op kind of a tile kernel: it has no graph


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture with constants: the overrides that set them."""

    arch: str
    constants: Mapping[str, str]

    def spec(self, row: Measured) -> ArchSpec:
        """The architecture of a row: its own overrides come last."""
        return load_with_roles(self.arch, self.overrides(row))

    def overrides(self, row: Measured) -> dict[str, str]:
        """The constants, and the row's own overrides over them."""
        own = by_name(dict(row.overrides), load_with_roles(self.arch, {}))
        return {**self.constants, **own}


@dataclass(frozen=True, slots=True)
class Replay:
    """A row with its program, pickled: it goes with each task, which takes less than its simulation."""

    row: Measured
    program: bytes
    macs: int
    unit: str  # what the workload counts, and how much of it a run does
    work: int
    kinds: tuple[str, ...]  # of ops


@dataclass(frozen=True, slots=True)
class Run:
    """What a row came to under one set of constants."""

    error: float  # log(predicted / measured)
    time_ps: int  # of the run with its launch
    dram_bytes: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """A row that cannot be used, and why."""

    row: Measured
    reason: str


def compile_row(task: tuple[Measured, Target]) -> Replay | Unfit:
    """Compile a row for an architecture, and try it once."""
    row, target = task
    try:
        replay = _kernel(row, target) if row.is_kernel else _graph(row, target)
        run_row((replay, (target,)))
    except Infeasible as problem:
        return Unfit(row, f"does not fit: {problem}")
    except (CompileError, VerifyError, Deadlock, ValueError, *USER_ERRORS) as problem:
        return Unfit(row, " ".join(str(problem).split()))
    return replay


def _graph(row: Measured, target: Target) -> Replay:
    point = Point(target.arch, row.workload, tuple(target.overrides(row).items()), row.options)
    arch, graph, options = resolve(point)
    check_dram(graph, arch)
    fused = optimise(graph, arch, options)
    program = compile_fused(fused, arch, options, LawCost(arch))
    meta = dict(graph.meta)
    unit, work = meta.get("unit"), meta.get("work")
    kinds = tuple(sorted({node.op.kind for node, _ in fused.walk()}))
    return Replay(row, pickle.dumps(program), graph.macs, str(unit or ""), int(work or 0), kinds)


def _kernel(row: Measured, target: Target) -> Replay:
    name, *texts = row.workload.split(",")
    sizes = dict(text.partition("=")[::2] for text in texts)
    dtype = sizes.pop("dtype", None)
    arch, kernel = target.spec(row), load_kernel(name)
    values = kernel.resolve(parse_sizes(tuple(sizes.items())))
    program = compile_kernel(kernel, arch, values, dtype=dtype, cost=LawCost(arch))
    return Replay(row, pickle.dumps(program), program_macs(program)[0], "ops", 1, (KERNEL,))


def run_row(task: tuple[Replay, Sequence[Target]]) -> list[Run]:
    """Bind and simulate a row's program under each of several sets of constants.

    Raises: ValueError where the row's metric or unit has no meaning for it.
    """
    replay, targets = task
    program: Program = pickle.loads(replay.program)
    return [_run(replay, program, target.spec(replay.row)) for target in targets]


def _run(replay: Replay, program: Program, arch: ArchSpec) -> Run:
    bound = bind(program, arch)
    trace = simulate_bound(bound)
    time_ps = trace.time_ps + bound.launch_ps
    timed = Timed(
        time_ps=time_ps,
        launch_ps=bound.launch_ps,
        compute_ps=0,  # bounds have no part in an error
        memory_ps=0,
        busy_ps={stream.name: stream.busy_ps for stream in trace.streams},
        dram_bytes=trace.dram_read_bytes + trace.dram_write_bytes,
        flops=2 * replay.macs,
        throughput={f"{replay.unit}_per_s": replay.work * PS_PER_S / time_ps},
    )
    found = prediction(replay.row, timed, arch)
    if found.ratio is None:
        raise ValueError(found.reason)
    return Run(log(found.ratio), time_ps, timed.dram_bytes)


class Workers:
    """A `map` that keeps the order, over worker processes or in this process."""

    def __init__(self, executor: ProcessPoolExecutor | None) -> None:
        self._executor = executor

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Results in the order of `tasks`. Raises: SpaceError where a worker died."""
        if self._executor is None:
            return [function(task) for task in tasks]
        try:
            return list(self._executor.map(function, tasks))
        except BrokenProcessPool as error:
            raise SpaceError(["a worker process died (killed, or out of memory); try -j 1"]) from error


@contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """Workers as long as they are needed."""
    if jobs == 1:
        yield Workers(None)
        return
    with process_pool(jobs) as executor:
        yield Workers(executor)
