"""Random kernels with stages, slots and tiles that outlive a loop: what is compiled has no race."""

from __future__ import annotations

import random

import pytest

from arch_configs import load_arch
from compiler.allocation import allocate
from compiler.builder import Builder, Tensor
from compiler.codegen import emit
from compiler.errors import CompileError
from compiler.ir.tokens import ProgramDeadlock, program_order
from compiler.ir.verify_program import check_races
from compiler.isa import Program
from compiler.sync import plan_sync

ARCH = load_arch("trn1")
ENGINES = ("vector", "scalar", "gpsimd", "dma")
KERNELS = 500


def program(b: Builder) -> Program:
    placement = allocate(b.graph, b.arch)
    return emit(b.graph, placement, plan_sync(b.graph, placement))


def random_kernel(rng: random.Random) -> Builder:
    """Moves between tiles of all lifetimes and two tensors, in nested loops, at up to three stages."""
    b = Builder(ARCH, "random")
    b.begin("random")

    def moves(tiles: list[Tensor], count: int) -> None:
        for _ in range(count):
            dst, src = rng.sample(tiles, 2)
            low = rng.choice((0, 8))
            high = 16 if low else rng.choice((8, 16))
            engine = "dma" if "d" in (dst.name[0], src.name[0]) else rng.choice(ENGINES)
            b.op = f"op{rng.random()}"  # of its own, so that two writes of a tensor are in order too
            if engine == "dma":
                b.dma(dst[low:high], src[low:high], rng.choice(("input", "output")), lanes=1)
            else:
                b.copy(dst[low:high], src[low:high], engine)

    def body(depth: int, outer: list[Tensor]) -> None:
        own = [b.scratch((16, 16), "fp32", slots=rng.choice((1, 2, 3))) for _ in range(rng.choice((1, 2)))]
        tiles = outer + own
        moves(tiles, rng.randint(1, 3))
        for stage in (1, 2):
            if rng.random() < 0.5:
                with b.stage(stage):
                    moves(tiles, rng.randint(1, 3))
        if depth < 2 and rng.random() < 0.5:
            with b.loop(rng.randint(2, 4)):
                body(depth + 1, tiles)

    outer = [b.dram(f"d{i}", (16, 16), "fp32") for i in range(2)]
    outer += [b.scratch((16, 16), "fp32", name="state") for _ in range(2)]
    moves(outer, 2)
    with b.loop(rng.randint(2, 5)):
        body(0, outer)
    moves(outer, 2)
    return b


def test_random_kernels_are_refused_stuck_or_free_of_races() -> None:
    """A stage that feeds a lower one breaks the rules of the API: it is refused, or seen to be stuck."""
    right = 0
    for seed in range(KERNELS):
        try:
            made = program(random_kernel(random.Random(seed)))
            list(program_order(made))
        except CompileError:  # which a deadlock is too
            continue
        check_races(made, ARCH)
        right += 1
    assert right > KERNELS // 4


def two_reads(stage: int) -> Program:
    """One engine reads a tile early, and again at `stage`; another writes it in between."""
    b = Builder(ARCH, "two reads")
    b.begin("two reads")
    state = b.scratch((16, 16), "fp32", name="state")
    b.memset(state[:], 0.0)
    with b.loop(8):
        early, late = (b.scratch((16, 16), "fp32", slots=4) for _ in range(2))
        b.copy(early[:], state[:], "vector")
        b.copy(state[:], early[:], "scalar")
        with b.stage(stage):
            b.copy(late[:], state[:], "vector")
    return program(b)


def test_an_early_read_does_not_stand_for_a_late_one_of_the_iteration_before() -> None:
    """The next write must wait for the late read, which is the last to run."""
    for stage in (0, 1):
        check_races(two_reads(stage), ARCH)
    with pytest.raises(ProgramDeadlock):  # two iterations late, the one slot cannot do
        check_races(two_reads(2), ARCH)
