"""What the kernel tests share: compile a graph, run it on its addresses and in time, compare."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from arch_configs import ArchSpec, load_arch
from compiler import CompileOptions, Infeasible, Program, compile_graph
from compiler.grid import undivided
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ir.interpret import run_graph, run_program
from compiler.ir.reference import random_feeds
from compiler.ir.run_rules import check_run
from compiler.ops.base import Op
from eventsim import instances, simulate
from tests.strategies import random_arch

TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 5e-3, "int32": 0.0}  # of the largest: some roundings
Operand = tuple[tuple[int, ...], str]
Check = Callable[[Graph, ArchSpec], Program | None]


def one_op(op: Op, *operands: Operand, dtype: str = "bf16") -> Graph:
    """A graph of one op; an operand is (shape, kind), its type `dtype` unless kind says int32."""
    values = []
    for i, (shape, kind) in enumerate(operands):
        kind, _, own = kind.partition(":")
        values.append(Value(f"v{i}", TensorType(shape, own or dtype), kind))
    names = tuple(value.name for value in values)
    (out,) = op.infer(tuple(value.type for value in values))
    return Graph("one", (*values, Value("y", out)), (Node("y", op, names, ("y",)),), ("y",))


def agrees(graph: Graph, arch: ArchSpec, options: CompileOptions | None = None) -> Program | None:
    """Compile and hold the program against the reference, in program order and in simulated time.

    Returns None if the op does not fit.
    """
    try:
        program = compile_graph(graph, arch, options)
    except Infeasible:
        return None
    feeds = random_feeds(graph, 0)
    want = run_graph(graph, feeds)
    trace = simulate(undivided(program), arch, fold=False, record=True)
    types = {value.name: value.type.dtype for value in graph.values}
    for order in (None, tuple(instances(trace, program))):
        got = run_program(program, arch, feeds, order, strict=order is None)
        for name, array in want.items():
            expected = array.astype(np.float32)
            scale = float(np.abs(expected).max()) + 1e-9
            error = float(np.abs(got[name].astype(np.float32) - expected).max()) / scale
            assert error <= TOLERANCE[types[name]], f"{arch.name}: {name}: error {error}"
    check_run(program, arch)
    return program


@pytest.fixture(scope="session")
def archs() -> tuple[ArchSpec, ...]:
    """Three shipped architectures and a few random ones, some of them tiny."""
    rng = random.Random(7)
    return (
        *(load_arch(name) for name in ("trn1", "trn2", "edge-npu")),
        *(random_arch(rng) for _ in range(4)),
    )


@pytest.fixture
def check(archs: tuple[ArchSpec, ...]) -> Callable[[Graph], int]:
    """`check(graph)`: it agrees on all architectures; the shipped ones must fit. Returns how many fit."""

    def run(graph: Graph) -> int:
        programs = [agrees(graph, arch) for arch in archs]
        assert all(programs[:3])
        return sum(program is not None for program in programs)

    return run
