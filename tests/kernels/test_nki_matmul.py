"""The published ladder of matmul kernels on one core of Trainium1: measured times, bytes and numbers.

Measured: aws-neuron-sdk v2.26.0, general/nki/tutorials/matrix_multiplication.rst, m=4096 k=8192 n=8192 bf16.
The rate of one queue was calibrated on the first three; the fourth is a prediction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import CompileError, compile_graph, compile_kernel
from dse.costs import LawCost
from dse.kernel import check_numbers
from dse.kernel_files import load_kernel
from eventsim import simulate
from workloads import build

FILE = Path(__file__).parents[2] / "examples" / "kernels" / "nki_matmul.py"
M, K, N, WORD = 4096, 8192, 8192, 2
MEASURED_MS = {"basic": 51.8, "hoisted_loads": 42.96, "blocked_free": 22.07, "fully_blocked": 6.97}
TOLERANCE = {"basic": 0.05, "hoisted_loads": 0.05, "blocked_free": 0.05, "fully_blocked": 0.15}
LOADED = {  # tiles of 128 x 128 and 128 x 512; blocks as in the tutorial
    "basic": (M // 128) * (N // 512) * K * (128 + 512) * WORD,
    "hoisted_loads": (M * K + (M // 128) * K * N) * WORD,
    "blocked_free": (M * K + (M // 256) * K * N) * WORD,
    "fully_blocked": ((N // 1024) * M * K + K * N) * WORD,
}


def time_ms(name: str) -> float:
    arch = load_arch("trn1")
    program = compile_kernel(load_kernel(f"{FILE}:{name}"), arch, cost=LawCost(arch))
    trace = simulate(program, arch)
    assert trace.dram_read_bytes == LOADED[name]
    assert trace.dram_write_bytes == M * N * WORD
    assert [s.name for s in trace.streams if s.name.startswith("dma")] == ["dma1", "dma2"]
    return trace.time_ps / 1e9


@pytest.mark.parametrize("name", MEASURED_MS)
def test_time_is_the_measured_one(name: str) -> None:
    assert time_ms(name) == pytest.approx(MEASURED_MS[name], rel=TOLERANCE[name])


def test_each_step_is_faster() -> None:
    times = [time_ms(name) for name in MEASURED_MS]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", MEASURED_MS)
def test_numbers_in_both_orders(name: str) -> None:
    errors = check_numbers(load_kernel(f"{FILE}:{name}"), load_arch("trn1"))
    assert [e.order for e in errors] == ["program", "time"]
    assert all(e.passed for e in errors), errors
    assert all(e.relative > 0 for e in errors)  # bf16 rounds: an exact zero would compare nothing


def test_reference_is_the_product() -> None:
    left, right = np.arange(6.0).reshape(3, 2), np.arange(12.0).reshape(3, 4)
    want = [[sum(left[k, m] * right[k, n] for k in range(3)) for n in range(4)] for m in range(2)]
    np.testing.assert_array_equal(load_kernel(f"{FILE}:basic").reference(lhs_t=left, rhs=right), want)


def test_pieces_must_be_whole() -> None:
    with pytest.raises(CompileError, match=r"nki_matmul.py:\d+: kernel basic: n: got 1000, want a multiple"):
        compile_kernel(load_kernel(f"{FILE}:basic"), load_arch("trn1"), {"n": 1000})


@pytest.mark.parametrize(
    ("arch", "workload", "measured_ms", "tolerance"),
    [  # the best kernel measured for the shape
        (
            "trn1",
            "gemm:m=4096,k=2048,n=10944,dtype=fp32",
            9.356,
            0.01,
        ),  # the sustained rate is calibrated here
        ("trn1", "gemm:m=4096,k=8192,n=8192,dtype=bf16", 6.97, 0.10),
        ("trn1", "gemm:m=4096,k=8192,n=4096,dtype=bf16", 3.539, 0.10),
        ("trn1", "gemm:m=8192,k=4096,n=4096,dtype=bf16", 3.876, 0.10),
        ("trn1", "gemm:m=8192,k=4096,n=8192,dtype=bf16", 7.516, 0.10),
        ("trn2", "gemm:m=4096,k=8192,n=8192,dtype=fp32", 28.2, 0.03),
    ],
)
def test_compiled_gemm_beside_the_best_measured_kernel(
    arch: str, workload: str, measured_ms: float, tolerance: float
) -> None:
    spec = load_arch(arch)
    trace = simulate(compile_graph(build(workload), spec, cost=LawCost(spec)), spec)
    assert trace.time_ps / 1e9 == pytest.approx(measured_ms, rel=tolerance)
