"""The interpreter against numpy written by hand, in program order and in simulated time order."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from programs import edit, first, small_arch, tile_matmul

from compiler.errors import CompileError, VerifyError
from compiler.ir.interpret import run_program
from compiler.ir.layout import feature_blocked
from compiler.ir.tokens import ProgramDeadlock, program_order
from compiler.ir.verify_program import check_races, verify_program
from compiler.isa import Access, Affine, Buffer, Dma, Loop, Program, var

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


def test_layouts_copies_and_states() -> None:
    """A stacked weight in blocks, a state kept in place: y = h + sum of the copies' tiles."""
    layout = feature_blocked(8)
    tile = Access("tile", "bf16", ((1, 15),), partitions=8)
    state = Access("kv", "bf16", ((15, 8), (1, 15)), slot=var("c"))
    load = Dma(dst=tile, src=Access("w", "bf16", ((30, 8), (1, 15)), Affine(15), slot=var("c")))
    program = Program(
        name="copies",
        streams=(("dma0", (Loop("c", 3, (load, Dma(dst=state, src=tile)), 1),)),),
        buffers=(
            Buffer("w", "hbm", "bf16", 64, 8 * 2 * 15 * 2, 3, tensor="weight", kind="weight"),
            Buffer("kv", "hbm", "bf16", 4096, 8 * 15 * 2, 3, tensor="cache", kind="state"),
            Buffer("tile", "sbuf", "bf16", 0, 30, partitions=8),
        ),
        channels=(),
        layouts=(("weight", layout), ("cache", feature_blocked(8))),
        shapes=(("weight", (3, 15, 13)), ("cache", (3, 15, 8))),
    )
    verify_program(program, ARCH)
    check_races(program, ARCH)
    weight = RNG.standard_normal((3, 15, 13))
    result = run_program(program, ARCH, {"weight": weight, "cache": np.zeros((3, 15, 8))}, strict=True)
    # the second block of 8 features has 5 of the 13, then padding
    want = np.concatenate([bf16(weight[:, :, 8:]), np.zeros((3, 15, 3), np.float32)], axis=2)
    np.testing.assert_array_equal(result["cache"], want)


def test_one_copy_is_told_from_none_by_its_layout() -> None:
    """A region of one layer still has a leading axis of copies."""
    layout = feature_blocked(8)
    image = Access("w", "fp32", ((1, 120),))
    program = Program(
        name="one-copy",
        streams=(("dma0", (Dma(dst=replace(image, buffer="y"), src=image),)),),
        buffers=(
            Buffer("w", "hbm", "fp32", 0, 480, tensor="w", kind="weight"),
            Buffer("y", "hbm", "fp32", 480, 480, tensor="y", kind="output"),
        ),
        channels=(),
        outputs=("y",),
        layouts=(("w", layout), ("y", layout)),
        shapes=(("w", (1, 15, 8)), ("y", (15, 8))),
    )
    weight = RNG.standard_normal((1, 15, 8)).astype(np.float32)
    np.testing.assert_array_equal(run_program(program, ARCH, {"w": weight})["y"], weight[0])
