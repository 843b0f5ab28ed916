"""Each rule of the program level fails when, and only when, it is broken."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from programs import edit, first, move, small_arch, tile_matmul

from compiler.ir.interpret import run_program
from compiler.ir.tokens import ProgramDeadlock
from compiler.ir.verify_program import (
    MAX_CREDITS,
    RULES,
    RuleError,
    check_races,
    program_macs,
    verify_program,
)
from compiler.isa import (
    Access,
    Activate,
    Affine,
    Buffer,
    Channel,
    Copy,
    Gather,
    Instr,
    Loop,
    Matmul,
    Memset,
    Program,
    Reduce,
    TensorScalar,
    TensorTensor,
    Transpose,
    var,
)

ARCH = small_arch()
BASE = tile_matmul(6)


def broken(rule: str, program: Program, *words: str) -> None:
    with pytest.raises(RuleError) as caught:
        verify_program(program, ARCH)
    assert caught.value.rule == rule, str(caught.value)
    for word in words:
        assert word in str(caught.value)


def sb(free: int, partitions: int = 8, start: int = 0, dtype: str = "fp32", buffer: str = "s") -> Access:
    return Access(buffer, dtype, ((1, free),), partition=start, partitions=partitions)


def ps(free: int, partitions: int = 8, dtype: str = "fp32") -> Access:
    return Access("p", dtype, ((1, free),), partitions=partitions)


def single(instr: Instr, stream: str = "vector") -> Program:
    buffers = (
        Buffer("s", "sbuf", "fp32", 0, 512, partitions=8),
        Buffer("p", "psum", "fp32", 0, 256, partitions=8),
        Buffer("d", "hbm", "fp32", 0, 4096),
    )
    return Program("single", ((stream, (instr,)),), buffers, ())


def test_the_unbroken_programs_are_legal() -> None:
    for tiles in (1, 2, 6):
        for slots in (1, 2, 3):
            program = tile_matmul(tiles, slots)
            verify_program(program, ARCH)
            check_races(program, ARCH)


def dma(**changes: object) -> Program:
    load = first(BASE, "dma0", "load")
    return edit(BASE, "dma0", "load", dst=replace(load.dst, **changes))


def matmul(field: str, **changes: object) -> Program:
    instr = first(BASE, "tensor", "matmul")
    return edit(BASE, "tensor", "matmul", **{field: replace(getattr(instr, field), **changes)})


STRUCTURE: list[tuple[str, Callable[[], Program]]] = [
    ("undefined-stream", lambda: replace(BASE, streams=(*BASE.streams, ("warp", ())))),
    ("undefined-stream", lambda: replace(BASE, channels=(*BASE.channels, Channel("c", "warp", "tensor")))),
    ("duplicate-name", lambda: replace(BASE, streams=(*BASE.streams, BASE.streams[0]))),
    ("duplicate-name", lambda: replace(BASE, channels=BASE.channels + BASE.channels[:1])),
    ("duplicate-name", lambda: replace(BASE, buffers=BASE.buffers + BASE.buffers[:1])),
    ("undefined-memory", lambda: move(BASE, "acc", memory="l2")),
    ("memory-capacity", lambda: move(BASE, "x_tile", address=4096 - 62)),
    ("memory-capacity", lambda: move(BASE, "y", address=(1 << 20) - 1534)),
    ("partition-limit", lambda: move(BASE, "x_tile", partitions=9)),
    ("partition-limit", lambda: move(BASE, "x_tile", partitions=0)),
    ("partition-limit", lambda: move(BASE, "x", partitions=8)),
    ("buffer-size", lambda: move(BASE, "x_tile", slots=0)),
    ("alignment", lambda: move(BASE, "x_tile", address=65)),
    ("unknown-dtype", lambda: move(BASE, "x_tile", dtype="bf8")),
    ("buffer-overlap", lambda: move(BASE, "w", address=128)),
    ("channel-consumer", lambda: edit(BASE, "vector", "evict", waits=(("x_ready", 1),))),
    ("channel-producer", lambda: edit(BASE, "vector", "evict", signals=(("x_ready", 1),))),
    ("undefined-channel", lambda: edit(BASE, "vector", "evict", signals=(("nowhere", 1),))),
    ("token-count", lambda: edit(BASE, "vector", "evict", signals=(("acc_free", 0),))),
    ("token-balance", lambda: edit(BASE, "vector", "evict", signals=(("acc_free", 1),))),
    ("token-balance", lambda: edit(BASE, "dma0", "load", signals=())),
    ("buffer-bounds", lambda: dma(offset=Affine(1))),
    ("buffer-bounds", lambda: dma(offset=var("i"))),
    ("buffer-bounds", lambda: dma(offset=Affine(-1))),
    ("buffer-bounds", lambda: dma(dims=((2, 16),))),
    ("unbound-variable", lambda: dma(offset=var("j"))),
    ("unbound-variable", lambda: dma(slot=var("j"))),
    ("undefined-buffer", lambda: dma(buffer="nothing")),
    ("unknown-dtype", lambda: dma(dtype="bf8")),
    ("empty-operand", lambda: dma(dims=((1, 0),))),
    ("partition-limit", lambda: dma(partition=1)),
    ("partition-limit", lambda: dma(partitions=0)),
    ("repeated-write", lambda: dma(dims=((0, 16),))),
    ("dma-size", lambda: dma(dims=((1, 15),))),
    ("dma-dtype", lambda: dma(dtype="fp16")),
    ("shape-mismatch", lambda: matmul("moving", dims=((1, 15),))),
    ("shape-mismatch", lambda: matmul("moving", partitions=4)),
    ("array-dtype", lambda: matmul("moving", dtype="int8")),
    ("array-dtype", lambda: matmul("moving", dtype="fp16")),
    ("accumulator-bank", lambda: move(BASE, "acc", address=4)),
    ("engine-memory", lambda: matmul("dst", buffer="x_tile")),
    ("loop-variable", lambda: nest(BASE, "i")),
    ("loop-count", lambda: nest(BASE, "j", -1)),
    ("loop-share", lambda: nest(BASE, "j", 2, 3)),
]  # fmt: skip


def nest(program: Program, variable: str, count: int = 1, share: int | None = None) -> Program:
    streams = tuple((s, (Loop(variable, count, n, 9, share),)) for s, n in program.streams)
    return replace(program, streams=streams)


@pytest.mark.parametrize("case", range(len(STRUCTURE)), ids=[rule for rule, _ in STRUCTURE])
def test_structure_rule(case: int) -> None:
    rule, program = STRUCTURE[case]
    broken(rule, program())


WIDE = Access("s", "fp32", ((1, 17),), partitions=8)
INSTRUCTIONS: list[tuple[str, str, Instr]] = [
    ("engine-instruction", "dma0", Copy(dst=sb(4), src=sb(4))),
    ("engine-instruction", "tensor", Copy(dst=sb(4), src=sb(4))),
    ("engine-instruction", "vector", Transpose(dst=ps(8, 4), src=sb(4, 8))),
    ("engine-op", "pool", Memset(dst=sb(4), value=0.0)),
    ("engine-memory", "pool", Copy(dst=sb(4), src=ps(4))),
    ("engine-memory", "vector", Copy(dst=sb(4), src=Access("d", "fp32", ((1, 4),)))),
    ("shape-mismatch", "vector", Copy(dst=sb(4), src=sb(5))),
    ("shape-mismatch", "vector", Copy(dst=sb(4, 4), src=sb(4, 8))),
    ("unknown-function", "vector", Activate(dst=sb(4), src=sb(4), func="gello")),
    ("scalar-operand", "vector", Activate(dst=sb(4), src=sb(4), func="exp", scale=sb(2))),
    ("scalar-operand", "vector", Activate(dst=sb(4), src=sb(4), func="exp", bias=sb(1, 4))),
    ("scalar-operand", "vector", Activate(dst=sb(4), src=sb(4), func="exp", accumulate=sb(2))),
    ("unknown-function", "vector", TensorScalar(dst=sb(4), src=sb(4), op0="plus", a=1.0)),
    ("unknown-function", "vector", TensorScalar(dst=sb(4), src=sb(4), op0="add", a=1.0, op1="plus")),
    ("scalar-operand", "vector", TensorScalar(dst=sb(4), src=sb(4), op0="add", a=sb(4))),
    ("unknown-function", "vector", TensorTensor(dst=sb(4), lhs=sb(4), rhs=sb(4), operation="plus")),
    ("shape-mismatch", "vector", TensorTensor(dst=sb(4), lhs=sb(4), rhs=sb(1), operation="add")),
    ("unknown-function", "vector", Reduce(dst=sb(1), src=sb(4), operation="multiply")),
    ("shape-mismatch", "vector", Reduce(dst=sb(2), src=sb(4), operation="add")),
    ("reduce-axes", "vector", Reduce(dst=sb(1), src=sb(4), operation="add", axes=2)),
    ("matmul-limit", "tensor", Matmul(dst=ps(17), stationary=sb(8), moving=WIDE)),
    ("accumulate-dtype", "tensor", Matmul(dst=ps(4, 8, "bf16"), stationary=sb(8), moving=sb(4), reset=None)),
    ("unbound-variable", "tensor", Matmul(dst=ps(4), stationary=sb(8), moving=sb(4), reset=(var("k"),))),
    ("shape-mismatch", "tensor", Transpose(dst=ps(4, 8), src=sb(4, 8))),
    ("gather-index", "dma0", Gather(
        dst=sb(4), src=Access("d", "fp32", ((1, 4),)), index=sb(1), row_stride=4)),
    ("gather-table", "dma0", Gather(dst=sb(4), src=sb(4), index=sb(1, dtype="int32"), row_stride=4)),
    ("dma-size", "dma0", Gather(
        dst=sb(4), src=Access("d", "fp32", ((1, 5),)), index=sb(1, dtype="int32"), row_stride=4)),
    ("gather-table", "dma0", Gather(
        dst=sb(4), src=Access("d", "fp32", ((1, 4),)), index=sb(1, dtype="int32"), row_stride=0)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(INSTRUCTIONS)), ids=[rule for rule, _, _ in INSTRUCTIONS])
def test_instruction_rule(case: int) -> None:
    rule, stream, instr = INSTRUCTIONS[case]
    broken(rule, single(instr, stream), "program 'single'", f"stream '{stream}'", "instruction 0")


def test_array_limits_name_value_and_limit() -> None:
    arch = small_arch(rows=4, cols=4)
    for k, m, text in (
        (5, 4, "k is 5, the array takes at most 4"),
        (4, 5, "m is 5, the array takes at most 4"),
    ):
        instr = Matmul(dst=ps(4, m), stationary=sb(m, k), moving=sb(4, k))
        with pytest.raises(RuleError, match=text):
            verify_program(single(instr, "tensor"), arch)
    verify_program(single(Matmul(dst=ps(4, 4), stationary=sb(4, 4), moving=sb(4, 4)), "tensor"), arch)


@pytest.mark.parametrize("partitions", [8, 12, 10, 7])
def test_start_partition_against_the_published_table(partitions: int) -> None:
    """> P/2: 0; P/4 to P/2: 0, P/2; <= P/4: multiples of P/4; any where P does not divide by 4."""
    arch = small_arch(partitions=partitions, rows=4, cols=4)
    for count in range(1, partitions + 1):
        for start in range(partitions - count + 1):
            if partitions % 4:
                legal = True
            elif count > partitions / 2:
                legal = start == 0
            elif count > partitions / 4:
                legal = start in (0, partitions / 2)
            else:
                legal = start in [partitions / 4 * i for i in range(4)]
            program = single(Memset(dst=sb(4, count, start), value=0.0))
            program = move(move(program, "s", partitions=partitions), "p", partitions=partitions)
            if legal:
                verify_program(program, arch)
            else:
                with pytest.raises(RuleError, match="start-partition"):
                    verify_program(program, arch)


def test_bank_rule_follows_slots_and_offsets() -> None:
    """Banks have 64 B: two tiles of 32 B share one, a slot of 48 B would straddle the second."""

    def program(slot_bytes: int, slots: int, free: int, offset: Affine) -> Program:
        instr = Matmul(
            dst=Access("p", "fp32", ((1, free),), offset, partitions=8, slot=var("i")),
            stationary=sb(8), moving=sb(free),
        )  # fmt: skip
        base = move(single(instr, "tensor"), "p", slot_bytes=slot_bytes, slots=slots)
        return nest(base, "i", 4)

    verify_program(program(32, 4, 8, Affine()), ARCH)
    verify_program(program(32, 4, 2, var("i") * 2), ARCH)
    verify_program(program(256, 1, 16, var("i") * 16), ARCH)
    broken("accumulator-bank", program(48, 2, 8, Affine()))
    broken("accumulator-bank", program(256, 1, 16, var("i") * 8))


def test_credits_bound_what_a_loop_without_waits_may_post() -> None:
    def program(count: int) -> Program:
        post = Memset(dst=sb(1), value=0.0, signals=(("c", 1),))
        take = Copy(dst=sb(1), src=sb(1), waits=(("c", 1),))
        streams = (("vector", (Loop("i", count, (post,), 1),)), ("pool", (Loop("i", count, (take,), 1),)))
        return Program("free", streams, single(post).buffers, (Channel("c", "vector", "pool"),))

    verify_program(program(MAX_CREDITS), ARCH)
    broken("credits", program(MAX_CREDITS + 1), "limit 65536")


def test_the_array_writes_the_accumulator_only() -> None:
    """Even where the architecture lets it reach another memory."""
    plain = ARCH.engines["tensor"]
    arch = ARCH.model_copy(
        update={"engines": {**ARCH.engines, "tensor": plain.model_copy(update={"writes": ("psum", "sbuf")})}}
    )
    instr = Matmul(dst=sb(4), stationary=sb(8), moving=sb(4))
    with pytest.raises(RuleError, match=r"matmul-memory.*dst is in 'sbuf', want 'psum'"):
        verify_program(single(instr, "tensor"), arch)


def test_every_rule_has_a_test() -> None:
    alone = {"start-partition", "credits", "matmul-memory", "race"}
    alone |= {"array-chain", "array-held", "tensor-image", "uninitialised-read"}  # in test_mutations
    tested = {rule for rule, _ in STRUCTURE} | {rule for rule, _, _ in INSTRUCTIONS} | alone
    assert tested == set(RULES)


def test_errors_survive_a_process_pool() -> None:
    error = RuleError("race", "here")
    again = pickle.loads(pickle.dumps(error))
    assert (again.rule, str(again)) == ("race", "[race] here")


def test_macs_count_loops_and_leave_out_what_the_model_does_not_ask() -> None:
    assert program_macs(BASE) == (6 * 8 * 8 * 16, 6 * 8 * 8 * 16)
    assert program_macs(edit(BASE, "tensor", "matmul", model=False)) == (0, 6 * 8 * 8 * 16)
    assert program_macs(single(Transpose(dst=ps(8, 4), src=sb(4, 8)), "tensor")) == (0, 4 * 8 * 8)


# ---- races ---------------------------------------------------------------------------------------


def without(program: Program, channel: str) -> Program:
    """`program` with one channel cut out of every instruction."""

    def strip(node: Instr | Loop) -> Instr | Loop:
        if isinstance(node, Loop):
            return replace(node, body=tuple(strip(n) for n in node.body))
        return replace(
            node,
            waits=tuple(t for t in node.waits if t[0] != channel),
            signals=tuple(t for t in node.signals if t[0] != channel),
        )

    streams = tuple((name, tuple(strip(n) for n in nodes)) for name, nodes in program.streams)
    return replace(program, streams=streams)


@pytest.mark.parametrize("channel", [c.name for c in BASE.channels if c.name != "w_ready"])
def test_every_channel_is_needed(channel: str) -> None:
    """Without it some pair is a race, and the message names a buffer the channel guarded."""
    guarded = channel.split("_")[0]
    with pytest.raises(RuleError, match=rf"\[race\].*'({guarded}_tile|{guarded})'"):
        check_races(without(BASE, channel), ARCH)


def test_a_queue_orders_its_own_transfers() -> None:
    """The weight is loaded before the first tile by the same queue, so that tile's token vouches for it."""
    check_races(without(BASE, "w_ready"), ARCH)


@pytest.mark.parametrize("channel", ["x_free", "acc_free", "y_free"])
def test_one_credit_too_many_is_a_race(channel: str) -> None:
    channels = tuple(replace(c, initial=c.initial + (c.name == channel)) for c in BASE.channels)
    with pytest.raises(RuleError, match="race"):
        check_races(replace(BASE, channels=channels), ARCH)


def test_overlap_of_unordered_buffers_is_a_race_and_of_ordered_ones_is_not() -> None:
    """The output tile over the input tile races; the weight, loaded twice in order, does not."""
    with pytest.raises(RuleError, match=r"race.*'y_tile' \(sbuf bytes 96 to 160\).*'x_tile' \(sbuf bytes 64"):
        check_races(move(BASE, "y_tile", address=96), ARCH)
    serial = tile_matmul(4, slots=1)
    # one tile at a time: y_tile lies where x_tile was; the next load waits until y is stored
    chained = replace(
        edit(
            edit(move(serial, "y_tile", address=64), "dma1", "store", signals=(("y_free", 1), ("x_free", 1))),
            "tensor", "matmul", signals=(("acc_ready", 1),),
        ),
        channels=tuple(replace(c, producer="dma1") if c.name == "x_free" else c for c in serial.channels),
    )  # fmt: skip
    verify_program(chained, ARCH)
    check_races(chained, ARCH)
    x, w = np.random.default_rng(0).standard_normal((4, 8, 16)), np.eye(8)
    result = run_program(chained, ARCH, {"x": x, "w": w}, strict=True)["y"]
    np.testing.assert_allclose(result, x, rtol=2**-7)


def test_strided_accesses_interleave_without_a_race() -> None:
    """Two engines write even and odd elements of one buffer: no byte is shared."""

    def program(offset: int) -> Program:
        even = Access("s", "fp32", ((2, 8),), partitions=8)
        base = single(Memset(dst=even, value=0.0))
        odd = Copy(dst=replace(even, offset=Affine(offset)), src=replace(even, offset=Affine(32)))
        return replace(base, streams=(*base.streams, ("pool", (odd,))))

    check_races(program(1), ARCH)
    with pytest.raises(RuleError, match="race"):
        check_races(program(2), ARCH)


def test_check_races_reports_deadlock() -> None:
    with pytest.raises(ProgramDeadlock):
        check_races(edit(BASE, "vector", "evict", signals=(("y_ready", 1),)), ARCH)
