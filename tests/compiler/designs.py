"""Random designs: a random architecture and a small workload, checked through the whole compiler.

`check(seed)` compiles, verifies, looks for races, executes in program order and in simulated-time
order, and compares both with the graph's reference and the folded with the unfolded simulation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from arch_configs.spec import ArchSpec
from compiler import Infeasible, Program, compile_graph
from compiler.ir.graph import Graph
from compiler.ir.interpret import run_program
from compiler.ir.reference import random_feeds, run_graph
from compiler.ir.verify_program import check_run
from eventsim import instances, simulate
from tests.strategies import random_arch
from workloads import build

TEMPLATES = (
    "gemm:m={a},k={b},n={c},dtype={t}",
    "gemm:m={b},k={a},n={c},dtype={t}",
    "gemv:k={b},n={c},dtype={t}",
    "rmsnorm:rows={a},cols={b},dtype={t}",
    "layernorm:rows={a},cols={b},dtype={t}",
    "softmax:rows={a},cols={b},dtype={t}",
    "attention:batch={s},heads={h},kv_heads={kv},seq={a},head_dim={hd},causal={z},dtype={t}",
    "attention:decode,batch={s},heads={h},kv_heads={kv},context={a},head_dim={hd},dtype={t}",
    "conv:n={s},c={b},k={c},h=9,w={s}7,r=3,s=3,stride={s},padding=1,dtype={t}",
)
TOLERANCE = {"bf16": 4e-2, "fp32": 1e-3}  # of the largest value; bf16 rounds each stored step to 2^-8
UNFOLDED_LIMIT = 6000  # dynamic instructions that are also executed in simulated-time order

Results = Mapping[str, npt.NDArray[np.float32]]


def design(seed: int) -> tuple[ArchSpec, str]:
    """The architecture and workload of `seed`."""
    rng = random.Random(seed)
    arch = random_arch(rng)
    kv = rng.choice([1, 2, 3])
    fields = {
        "a": rng.choice([1, 2, 7, 33, 64, 100, 130, 257]),
        "b": rng.choice([1, 5, 32, 100, 128, 200, 300]),
        "c": rng.choice([1, 3, 64, 129, 256]),
        "s": rng.choice([1, 2, 3]),
        "kv": kv,
        "h": kv * rng.choice([1, 2, 3, 4]),
        "hd": rng.choice([2, 16, 32, 64, 80, 128]),
        "z": rng.choice([0, 1]),
        "t": rng.choice([t for t in ("bf16", "fp32") if t in arch.array.passes] or ["bf16"]),
    }
    return arch, rng.choice(TEMPLATES).format(**fields)


def check(seed: int) -> str:
    """Run one design; "ok" or "infeasible: code". Raises if anything is wrong."""
    arch, workload = design(seed)
    graph = build(workload)
    try:
        program = compile_graph(graph, arch)
    except Infeasible as error:
        shortfall = error.shortfall
        assert shortfall.needed > shortfall.available
        assert shortfall.fix
        return f"infeasible: {shortfall.code}"
    check_program(graph, program, arch, seed)
    return "ok"


def check_program(graph: Graph, program: Program, arch: ArchSpec, seed: int = 0) -> None:
    """Races, numerics in both orders, and folding, of a compiled program."""
    feeds = random_feeds(graph, seed)
    check_run(program, arch)
    result = run_program(program, arch, feeds)
    compare(run_graph(graph, feeds), result, graph)
    folded = simulate(program, arch)
    if sum(stream.instructions for stream in folded.streams) > UNFOLDED_LIMIT:
        return
    trace = simulate(program, arch, fold=False, record=True)
    assert trace.time_ps == folded.time_ps
    timed = run_program(program, arch, feeds, order=instances(trace, program))
    for name, value in result.items():
        np.testing.assert_array_equal(value, timed[name], err_msg=f"{name}: order of simulated time")


def compare(expected: Results, got: Results, graph: Graph) -> None:
    """Every result within the tolerance of its dtype, relative to its largest value."""
    types = {value.name: value.type for value in graph.values}
    for name, want in expected.items():
        want32, got32 = np.asarray(want, np.float32), np.asarray(got[name], np.float32)
        scale = float(np.abs(want32).max()) or 1.0
        error = float(np.abs(got32 - want32).max()) / scale
        assert error <= TOLERANCE.get(types[name].dtype, 1e-6), f"{graph.name}: {name} is off by {error:.1e}"
