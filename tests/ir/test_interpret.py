"""The interpreter against numpy written by hand, in program order and in simulated time order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from programs import edit, first, small_arch, tile_matmul

from compiler.errors import CompileError, VerifyError
from compiler.ir.interpret import run_program
from compiler.ir.tokens import ProgramDeadlock, program_order
from compiler.isa import Program

ARCH = small_arch()
RNG = np.random.default_rng(0)


def feeds(tiles: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((tiles, 8, 16)), "w": RNG.standard_normal((8, 8))}


def bf16(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    return np.einsum("km,tkn->tmn", bf16(given["w"]), bf16(given["x"]))


def as_soon_as_possible(program: Program, durations: dict[str, int]) -> list[tuple]:
    """A time order: each stream in order, each instruction at the arrival of its last token."""
    arrivals: dict[str, list[int]] = {c.name: [0] * c.initial for c in program.channels}
    free = dict.fromkeys(dict(program.streams), 0)
    order = []
    for stream, instr, env in program_order(program):
        start = max([free[stream], *(arrivals[name].pop(0) for name, n in instr.waits for _ in range(n))])
        free[stream] = end = start + durations[stream]
        for name, count in instr.signals:
            arrivals[name] += [end] * count
        order.append((start, end, stream, instr, dict(env)))
    return order


@pytest.mark.parametrize("tiles", [1, 2, 7])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_tile_matmul_matches_numpy(tiles: int, slots: int) -> None:
    given = feeds(tiles)
    result = run_program(tile_matmul(tiles, slots), ARCH, given, strict=True)
    np.testing.assert_allclose(result["y"], bf16(expected(given)), rtol=2**-7)


@pytest.mark.parametrize("slow", ["dma0", "dma1", "tensor", "vector"])
def test_time_order_gives_the_same_bits(slow: str) -> None:
    program, given = tile_matmul(7), feeds(7)
    times = {**dict.fromkeys(dict(program.streams), 10), slow: 95}
    timed = run_program(program, ARCH, given, as_soon_as_possible(program, times), strict=True)
    np.testing.assert_array_equal(timed["y"], run_program(program, ARCH, given)["y"])


def test_time_order_shows_a_missing_semaphore() -> None:
    """Without the free token the loader overwrites a tile that the array has not read yet."""
    program, given = tile_matmul(7), feeds(7)
    broken = edit(program, "dma0", "load", waits=())
    times = {"dma0": 1, "dma1": 10, "tensor": 50, "vector": 10}
    np.testing.assert_array_equal(
        run_program(program, ARCH, given, as_soon_as_possible(program, times))["y"],
        run_program(program, ARCH, given)["y"],
    )
    wrong = run_program(broken, ARCH, given, as_soon_as_possible(broken, times))["y"]
    assert not np.allclose(wrong, expected(given), rtol=0.05, atol=0.05)


def test_time_order_must_be_complete_and_in_order() -> None:
    program, given = tile_matmul(3), feeds(3)
    order = as_soon_as_possible(program, dict.fromkeys(dict(program.streams), 1))
    with pytest.raises(VerifyError, match=r"time-order.*ends before"):
        run_program(program, ARCH, given, order[:-1])
    with pytest.raises(VerifyError, match=r"time-order.*stream 'dma0': got Dma"):
        run_program(program, ARCH, given, order[1:])


def test_deadlock_names_who_waits_for_whom() -> None:
    program = edit(tile_matmul(3), "vector", "evict", signals=(("y_ready", 1),))
    with pytest.raises(ProgramDeadlock) as caught:
        run_program(program, ARCH, feeds(3))
    text = str(caught.value)
    assert "tensor: Matmul (op 'matmul', dynamic instruction 2, counters {'i': 1})" in text
    assert "waits for 1 of channel 'acc_free', which holds 0; its producer 'vector' is blocked too" in text


def test_uninitialised_read_is_nan_or_an_error() -> None:
    program = tile_matmul(2)
    load = first(program, "dma0", "load")
    matmul_only = edit(program, "tensor", "matmul", reset=None)
    assert np.isnan(run_program(matmul_only, ARCH, feeds(2))["y"]).all()
    with pytest.raises(VerifyError, match=r"uninitialised-read.*'acc'") as caught:
        run_program(matmul_only, ARCH, feeds(2), strict=True)
    assert "in stream 'tensor': Matmul of op 'matmul'" in caught.value.__notes__[0]
    assert load.op == "load"


def test_feeds_are_checked() -> None:
    with pytest.raises(CompileError, match="got no array for 'w', have x"):
        run_program(tile_matmul(2), ARCH, {"x": np.zeros((2, 8, 16))})
    with pytest.raises(CompileError, match=r"'x': got shape \(3, 8, 16\), want \(2, 8, 16\)"):
        run_program(tile_matmul(2), ARCH, feeds(3))
