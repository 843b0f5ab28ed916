"""The array's overhead and fractional passes, against the published figures they are derived from."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from sim_programs import make_arch, matmul, tile

from arch_configs import load_arch
from compiler.cost import Roofline
from compiler.ir.tiles import TileInstr, TileLoop
from compiler.isa import Access, Affine, Dma, Instr, Matmul, Transpose
from compiler.rows import share_of_passes, share_passes
from dse import Point, evaluate
from dse.roofline import array_ps
from eventsim.engines.systolic import matmul_cycles, systolic_ps, transpose_cycles


def test_an_fp32_instruction_of_trn2_starts_as_often_as_measured() -> None:
    """429 to 432 ns for two cycles a column; our instruction is the pair of them, with one overhead."""
    arch = load_arch("trn2")
    half = systolic_ps(matmul(512, dtype="fp32"), arch.array) / 2e3
    assert 426.7 < half < 432
    assert half + arch.array.overhead / 2 / arch.array.clock * 1e9 == pytest.approx(430.5, abs=1.5)


@pytest.mark.parametrize("columns", [1, 64, 512])
def test_overhead_is_added_to_every_instruction_and_known_to_the_compiler(columns: int) -> None:
    plain, slow = make_arch(), make_arch(engines__tensor__overhead=9)
    assert matmul_cycles(matmul(columns), slow.array) == matmul_cycles(matmul(columns), plain.array) + 9
    turned = Transpose(dst=tile("psum", 100), src=tile("sbuf", 64, partitions=100))
    assert transpose_cycles(turned, slow.array) == transpose_cycles(turned, plain.array) + 9
    instr = matmul(columns, load=False)
    assert Roofline(slow).matmul_ps(columns, "bf16") == systolic_ps(instr, slow.array)


@pytest.mark.parametrize(("share", "divisor"), [("1/2", "1/2"), ("0.87", "87/100"), ("1", "1")])
def test_the_sustained_share_stretches_time_but_not_the_peak(share: str, divisor: str) -> None:
    plain, slow = make_arch(), make_arch(engines__tensor__sustained=share)
    for columns in (1, 511, 512):
        instr = matmul(columns, load=False)
        exact = matmul_cycles(instr, plain.array) * 10**12 / (plain.array.clock * Fraction(divisor))
        assert systolic_ps(instr, slow.array) == ceil(exact) == Roofline(slow).matmul_ps(columns, "bf16")
    assert slow.peak_flops("bf16") == plain.peak_flops("bf16")


@pytest.mark.parametrize(
    ("passes", "chain", "total", "issued"),
    [
        *(("1/2", 1, 1, 1), ("1/2", 2, 1, 1), ("1/2", 3, 2, 2), ("1/2", 8, 4, 4)),
        *(("1/4", 3, 1, 1), ("1/4", 6, 2, 2), ("2/3", 1, 1, 1), ("2/3", 2, "4/3", 1)),
        *(("1", 5, 5, 5), ("4", 2, 8, 2)),
    ],
)
def test_a_pass_is_shared_by_matmuls_that_add_up(
    passes: str, chain: int, total: int | str, issued: int
) -> None:
    share, instructions = share_of_passes(Fraction(passes), chain)
    assert (chain * share, chain * instructions) == (Fraction(total), issued)


@pytest.mark.parametrize(("k", "share"), [(96, 1.0), (128, 1.0), (256, 0.5), (384, 2 / 3), (1024, 0.5)])
def test_double_rows_gain_only_where_there_are_two_tiles_of_k(k: int, share: float) -> None:
    def busy(dtype: str) -> int:
        record = evaluate(Point("trn2", f"gemm:m=512,k={k},n=512,dtype={dtype}"))
        return record["engines"]["tensor"]["busy_ps"]

    assert busy("fp8e4") / busy("bf16") == pytest.approx(share, rel=0.02)


def test_matmuls_of_other_sums_or_of_k_that_is_still_to_come_share_nothing() -> None:
    arch = load_arch("trn2")
    left, right = (Access(name, "fp8e4", ((1, 128),), partitions=128) for name in ("left", "right"))
    loaded = Dma(dst=left, src=Access("x", "fp8e4", ((128, 128), (1, 128))))
    sums = [Access("sums", "fp32", ((1, 128),), offset=Affine(128 * i), partitions=128) for i in range(2)]

    def chains(*body: Instr) -> list[int]:
        loop = TileLoop("k", 6, 1, [TileInstr("any", instr) for instr in body])
        share_passes(TileLoop("", 1, 0, [loop]), arch)
        return [node.instr.chain for node in loop.instructions() if isinstance(node.instr, Matmul)]

    def add(i: int, reset: tuple[Affine, ...] | None) -> Matmul:
        return Matmul(dst=sums[i], stationary=left, moving=right, reset=reset)

    steps = (Affine(0, (("k", 1),)),)
    assert chains(add(0, ()), add(1, ())) == [1, 1]
    assert chains(add(0, ()), add(0, None)) == [2, 2]
    assert chains(add(0, ()), add(0, ())) == [1, 1]
    assert chains(add(0, steps)) == [6]
    assert chains(loaded, add(0, steps)) == [1]


def test_half_a_pass_is_twice_the_rate_but_not_for_transposes() -> None:
    arch = make_arch(engines__tensor__passes__bf16="1/2")
    assert matmul_cycles(matmul(511, chain=2), arch.array) == 256  # 255.5, rounded up
    assert matmul_cycles(matmul(511), arch.array) == 511
    turned = Transpose(dst=tile("psum", 128), src=tile("sbuf", 64, partitions=128))
    assert transpose_cycles(turned, arch.array) == 128
    assert array_ps(10**6, "bf16", arch) == -(-array_ps(10**6, "bf16", make_arch()) // 2)


@pytest.mark.parametrize(
    ("name", "dtype", "tera"), [("trn2", "fp8e4", 158), ("tpu-v5e", "int8", 394), ("trn1", "int8", 190)]
)
def test_narrow_types_reach_the_published_peak(name: str, dtype: str, tera: int) -> None:
    """Per core: Trainium2 1.3 PFLOPS of 8 cores, TPU v5e 394 TOPS, Trainium1 380 TOPS of 2 cores."""
    assert load_arch(name).peak_flops(dtype) / 1e12 == pytest.approx(tera, rel=0.04)
