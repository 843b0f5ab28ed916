"""Laws against closed forms worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from arch_configs.spec import ArchSpec, VectorSpec
from compiler.isa import (
    Access,
    Activate,
    Affine,
    AffineSelect,
    Copy,
    Dma,
    Gather,
    Instr,
    Memset,
    Reduce,
    TensorScalar,
    TensorTensor,
    Transpose,
)
from eventsim.clock import cycles_to_ps
from eventsim.dma import transfer_of
from eventsim.engines.systolic import Ramp, matmul_cycles, systolic_ps, transpose_cycles
from eventsim.engines.vector import vector_cycles, vector_ps
from eventsim.errors import SimError
from eventsim.sharing import FlowClass, max_min_rates
from tests.eventsim.sim_programs import BUFFERS, make_arch, matmul, rows, tile

KINDS = {b.name: {"hbm": "dram", "sbuf": "scratchpad", "psum": "accumulator"}[b.memory] for b in BUFFERS}


def test_a_number_of_cycles_is_rounded_once() -> None:
    assert cycles_to_ps(1000, 1_400_000_000) == 714_286  # not 1000 * 715
    assert cycles_to_ps(0, 7) == 0
    assert cycles_to_ps(7, 7) == 10**12


@pytest.mark.parametrize(
    ("columns", "m", "load", "cycles"),
    [(512, 128, True, 512), (1, 128, True, 64), (1, 128, False, 16), (30, 64, True, 32), (0, 1, True, 16)],
)
def test_matmul_with_background_load(columns: int, m: int, load: bool, cycles: int) -> None:
    arch = make_arch(engines__tensor__weight_load=64, engines__tensor__min_interval=16)
    assert matmul_cycles(matmul(columns, m=m, load=load), arch.array) == cycles


def test_matmul_variants() -> None:
    serial = make_arch(engines__tensor__weight_load=128, engines__tensor__background_load=False).array
    assert matmul_cycles(matmul(256), serial) == 256 + 128
    assert matmul_cycles(matmul(256, load=False), serial) == 256
    assert matmul_cycles(matmul(256, m=50), serial) == 256 + 50
    assert matmul_cycles(matmul(256, dtype="fp32"), serial) == 4 * 256 + 128
    assert matmul_cycles(matmul(250), make_arch(engines__tensor__units=4).array) == 63
    dealt = make_arch(engines__tensor__units=4, engines__tensor__weight_load=128).array
    assert matmul_cycles(matmul(8), dealt) == 32, "four arrays load four tiles at once"


def test_matmul_takes_the_passes_of_the_slower_operand() -> None:
    spec = make_arch().array
    mixed = matmul(100)
    slow = matmul(100, dtype="fp32")
    for stationary, moving in ((mixed.stationary, slow.moving), (slow.stationary, mixed.moving)):
        instr = type(mixed)(dst=mixed.dst, stationary=stationary, moving=moving)
        assert matmul_cycles(instr, spec) == 400


def test_an_unsupported_dtype_names_what_there_is() -> None:
    with pytest.raises(SimError, match="got an operand of int8, want one of bf16, fp32"):
        matmul_cycles(matmul(8, dtype="int8"), make_arch().array)


@pytest.mark.parametrize(
    ("p", "f", "cycles"), [(128, 128, 128), (128, 512, 128), (32, 128, 64), (100, 7, 100)]
)
def test_transpose_follows_the_published_formula(p: int, f: int, cycles: int) -> None:
    """max(P, min(64, F)), nki.isa.nc_transpose."""
    spec = make_arch(engines__tensor__weight_load=64).array
    instr = Transpose(dst=tile("psum", p), src=tile("sbuf", min(f, 128), partitions=p))
    assert transpose_cycles(instr, spec) == cycles == max(p, min(64, f))


def test_systolic_time_in_ps() -> None:
    arch = make_arch(engines__tensor__clock="2800000000 Hz")
    assert systolic_ps(matmul(512), arch.array) == -(-512 * 10**12 // 2_800_000_000)


# -- the ramp ------------------------------------------------------------------------------------
def test_ramp_closed_form() -> None:
    """From half rate to full in T: work (1/2 + 1) / 2 * T = 0.75 T takes T; a third of the way is exact."""
    ramp = Ramp(3_000_000, 1, 2)
    assert ramp.elapsed(0) == 0
    assert ramp.elapsed(ramp.full_work) == 3_000_000
    assert ramp.full_work == 2_250_000
    assert ramp.elapsed(2_250_000 + 77) == 3_000_077
    b = 1_000_000  # work of [0, b]: b/2 + b^2 / (4 T)
    work = Fraction(b, 2) + Fraction(b * b, 4 * 3_000_000)
    assert ramp.elapsed(-(-work.numerator // work.denominator)) in (b, b + 1)


def test_ramp_is_monotone_and_never_faster_than_full_rate() -> None:
    for ramp in (Ramp(1, 1, 3), Ramp(300_001, 1, 4), Ramp(997, 99, 100)):
        points = sorted({0, 1, 2, ramp.full_work - 1, ramp.full_work, ramp.full_work + 5, *range(0, 3000, 7)})
        elapsed = [ramp.elapsed(w) for w in points if w >= 0]
        assert elapsed == sorted(elapsed)
        assert all(e >= w for e, w in zip(elapsed, [p for p in points if p >= 0], strict=True))


# -- vector engines -------------------------------------------------------------------------------
def _vector(**ops: object) -> VectorSpec:
    arch = make_arch(
        engines__vector__lanes=64,
        engines__vector__overhead=60,
        engines__vector__min_interval=50,
        **{f"engines__vector__ops__{name}": value for name, value in ops.items()},
    )
    spec = arch.engines["vector"]
    assert isinstance(spec, VectorSpec)
    return spec


@pytest.mark.parametrize(
    ("instr", "cycles"),
    [
        (Copy(dst=tile("sbuf", 200), src=tile("sbuf", 200)), 60 + 400),  # 128 partitions on 64 lanes
        (Copy(dst=tile("sbuf", 200, partitions=64), src=tile("sbuf", 200, partitions=64)), 60 + 200),
        (Copy(dst=tile("sbuf", 3), src=tile("sbuf", 3)), 60 + 50),
        (Reduce(dst=tile("sbuf", 1), src=tile("sbuf", 300), operation="add"), 60 + 600),
        (Memset(dst=tile("sbuf", 100), value=0.0), 60 + 200),
        (TensorScalar(dst=tile("sbuf", 100), src=tile("sbuf", 100), op0="add", a=1.0), 60 + 200),
        (Activate(dst=tile("sbuf", 100), src=tile("sbuf", 100), func="exp"), 60 + 200),
        (
            Activate(
                dst=tile("sbuf", 100),
                src=tile("sbuf", 100),
                func="exp",
                accumulate=tile("sbuf", 1, dtype="fp32"),
            ),
            60 + 200 + 50,
        ),
        (
            AffineSelect(
                dst=tile("sbuf", 100),
                src=tile("sbuf", 100),
                base=Affine(),
                partition_step=1,
                free_step=1,
                fill=0.0,
            ),
            60 + 200,
        ),
    ],
)
def test_vector_instructions(instr: Instr, cycles: int) -> None:
    assert vector_cycles(instr, _vector(), KINDS) == cycles
    assert vector_ps(instr, _vector(), KINDS) == cycles * 1000


@pytest.mark.parametrize(
    ("operands", "factor"),
    [
        (("sbuf:bf16", "sbuf:bf16", "sbuf:bf16"), 1),  # narrow
        (("sbuf:bf16", "psum:bf16", "sbuf:bf16"), 2),  # narrow_mixed
        (("sbuf:bf16", "psum:fp32", "sbuf:bf16"), 3),  # accumulator
        (("sbuf:bf16", "sbuf:fp32", "sbuf:bf16"), 4),  # base
    ],
)
def test_fast_modes(operands: tuple[str, str, str], factor: int) -> None:
    spec = _vector(tensor_op={"base": 4, "narrow": 1, "narrow_mixed": 2, "accumulator": 3})
    dst, lhs, rhs = (tile(o.split(":")[0], 500, dtype=o.split(":")[1], partitions=64) for o in operands)
    instr = TensorTensor(dst=dst, lhs=lhs, rhs=rhs, operation="add")
    assert vector_cycles(instr, spec, KINDS) == 60 + 500 * factor


def test_per_partition_scalars_do_not_spoil_the_fast_mode() -> None:
    spec = _vector(scalar_op={"base": 4, "narrow": "1/4"})
    scalar = tile("sbuf", 1, dtype="fp32", partitions=64)
    wide = tile("sbuf", 1001, partitions=64)
    instr = TensorScalar(dst=wide, src=wide, op0="multiply", a=scalar)
    assert vector_cycles(instr, spec, KINDS) == 60 + 251


# -- DMA -------------------------------------------------------------------------------------------
def _dma(**changes: object) -> ArchSpec:
    return make_arch(dma__descriptor_bytes="512 B", **changes)


def test_a_contiguous_tile_is_one_descriptor_a_partition() -> None:
    t = transfer_of(Dma(dst=tile("sbuf", 1024), src=tile("hbm", 1024)), _dma().dma, KINDS)
    assert (t.descriptors, t.nbytes, t.effective_bytes) == (128, 128 * 2048, 128 * 2048)
    assert (t.dram_read_bytes, t.dram_write_bytes) == (128 * 2048, 0)
    assert t.cap == 16 * 20 * 10**9


def test_short_runs_cost_as_much_as_a_full_descriptor() -> None:
    instr = Dma(dst=tile("sbuf", 64), src=rows(64, 4096))
    t = transfer_of(instr, _dma().dma, KINDS)
    assert (t.descriptors, t.nbytes, t.effective_bytes) == (128, 128 * 128, 128 * 512)


def test_the_shorter_run_of_both_sides_counts() -> None:
    strided = Access("hbm_bf16", "bf16", ((1, 128), (128, 64)))  # a transposing load: runs of one element
    t = transfer_of(Dma(dst=tile("sbuf", 64), src=strided), _dma().dma, KINDS)
    assert t.descriptors == 128 * 64
    assert t.effective_bytes == 128 * 64 * 512


def test_few_descriptors_use_few_engines_and_a_queue_has_a_limit() -> None:
    one = Dma(dst=tile("sbuf", 4096, partitions=1), src=tile("hbm", 4096, partitions=1))
    assert transfer_of(one, _dma().dma, KINDS).cap == 20 * 10**9
    assert transfer_of(one, _dma(dma__queue_bandwidth="3 GB/s").dma, KINDS).cap == 3 * 10**9


def test_dram_to_dram_crosses_the_pins_twice() -> None:
    t = transfer_of(Dma(dst=tile("hbm", 512), src=tile("hbm", 512)), _dma().dma, KINDS)
    assert t.dram_bytes == 2 * t.nbytes


def test_gathered_rows_are_a_descriptor_each() -> None:
    instr = Gather(
        dst=tile("sbuf", 256),
        src=Access("hbm_bf16", "bf16", ((1, 256),)),
        index=tile("sbuf", 1),
        row_stride=256,
    )
    t = transfer_of(instr, _dma().dma, KINDS)
    assert (t.descriptors, t.nbytes) == (128, 128 * 512)


# -- sharing -----------------------------------------------------------------------------------------
FULL = FlowClass(Fraction(1), 10**12)


@pytest.mark.parametrize(
    ("flows", "dma", "dram", "rates"),
    [
        ([(FULL, 1)], 100, 60, [60]),
        ([(FULL, 4)], 100, 60, [15]),
        ([(FULL, 3)], 100, 1000, [33]),
        ([(FlowClass(Fraction(1), 10), 2), (FULL, 2)], 100, 60, [10, 20]),  # capped ones leave the rest
        ([(FlowClass(Fraction(0), 10**12), 1), (FULL, 1)], 100, 20, [80, 20]),  # on-chip copies need no DRAM
        ([(FlowClass(Fraction(1, 4), 10**12), 1), (FULL, 1)], 100, 50, [40, 40]),  # DRAM: 40/4 + 40
    ],
)
def test_max_min(flows: list[tuple[FlowClass, int]], dma: int, dram: int, rates: list[int]) -> None:
    assert max_min_rates(flows, dma, dram) == rates


def test_sharing_conserves_work_and_never_exceeds_a_link() -> None:
    """U046: whatever the mix, no link above 100 %, and none idle while a flow could use more."""
    shares = [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(2)]
    caps = [7 * 10**9, 31 * 10**9, 10**12]
    classes = [FlowClass(s, c) for s in shares for c in caps]
    for i in range(400):
        flows = [(f, 1 + i * 7 % 5) for k, f in enumerate(classes) if (i * 2654435761 >> k) & 1]
        dma, dram = 272 * 10**9, (40 + i) * 10**9
        rates = max_min_rates(flows, dma, dram) if flows else []
        used_dma = sum(r * n for r, (_, n) in zip(rates, flows, strict=True))
        used_dram = sum(r * n * f.dram_share for r, (f, n) in zip(rates, flows, strict=True))
        assert used_dma <= dma
        assert used_dram <= dram
        for rate, (flow, _) in zip(rates, flows, strict=True):
            full = used_dma > dma - 200 or (flow.dram_share and used_dram > dram - 200)
            assert rate == flow.cap or full
