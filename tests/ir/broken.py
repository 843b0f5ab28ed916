"""One mutation for each way to break each rule of the program level, for any compiled program."""

from __future__ import annotations

from dataclasses import replace

from broken_edits import (
    each_load_lost,
    each_pair_overlapped,
    each_wait_dropped,
    elsewhere,
    endless_credit,
    fewer,
    foreign,
    half_of,
    into_scratchpad,
    looped,
    lost_output,
    narrower,
    no_such_memory,
    no_such_queue,
    not_loaded,
    odd_operand,
    one_less,
    over_a_bank,
    over_another,
    smaller_array,
    stride_0,
    to_less_able,
    to_tensor,
    tokens,
    twice_a_channel,
    twice_a_stream,
    twice_named,
    unlisted,
    walks_a_buffer,
    without_signal,
)
from broken_forms import VECTOR, Mutation, at, buffers, channels, home, in_dram, on_chip, op, operand
from mutations import instructions

from compiler.isa import (
    Access,
    Activate,
    AffineSelect,
    Copy,
    Dma,
    Gather,
    Instr,
    Matmul,
    Reduce,
    TensorScalar,
    TensorTensor,
    Transpose,
    var,
)

MUTATIONS: tuple[Mutation, ...] = (
    # what an engine can run and reach
    Mutation("engine-instruction", "a vector instruction on the array", elsewhere(VECTOR, to_tensor)),
    Mutation("engine-instruction", "a matmul in a queue", elsewhere(
        Matmul, lambda case, found: case.arch.queue_names[0]
        if case.arch.queue_names[0] in dict(case.program.streams) else None)),
    Mutation("engine-op", "an activation on an engine without", elsewhere(Activate, to_less_able)),
    Mutation("engine-op", "a gather where queues cannot", lambda case: (
        (case.program, case.arch.model_copy(
            update={"dma": case.arch.dma.model_copy(update={"gather": False})}), op(found))
        for found in instructions(case.program) if isinstance(found[2], Gather))),
    Mutation("engine-memory", "the array reads its own sums", at(
        Matmul, lambda i, case: {"moving": replace(i.moving, buffer=i.dst.buffer)})),
    Mutation("engine-memory", "the array writes where it reads", at(
        Matmul, lambda i, case: {"dst": replace(i.dst, buffer=i.moving.buffer)})),
    Mutation("engine-memory", "an engine reads DRAM", at(
        VECTOR, lambda i, case: {"src": replace(i.src, buffer=next(
            b.name for b in case.program.buffers if not b.partitions))} if hasattr(i, "src") else None)),
    # operands
    Mutation("undefined-buffer", "read", operand(Matmul, "moving", lambda a, case: {"buffer": "nowhere"})),
    Mutation("undefined-buffer", "written", operand(VECTOR, "dst", lambda a, case: {"buffer": "nowhere"})),
    Mutation("unknown-dtype", "of an operand", operand(Dma, "src", lambda a, case: {"dtype": "fp12"})),
    Mutation("unknown-dtype", "of a buffer", buffers(on_chip, lambda b, case: {"dtype": "fp12"})),
    Mutation("empty-operand", "a Dma of nothing", operand(Dma, "src", lambda a, case: {"dims": ((1, 0),)})),
    Mutation("buffer-bounds", "beyond the end", operand(
        Instr, "dst", lambda a, case: {"offset": a.offset + home(case, a).slot_bytes})),
    Mutation("buffer-bounds", "before the start", operand(
        VECTOR, "src", lambda a, case: {"offset": a.offset - home(case, a).slot_bytes})),
    Mutation("buffer-bounds", "a backward stride", operand(
        Dma, "src", lambda a, case: {"dims": tuple((-s, n) for s, n in a.dims)} if a.elements > 1 else None)),
    Mutation("buffer-bounds", "a loop that runs on", looped(
        walks_a_buffer, lambda loop: replace(loop, count=loop.count * 10_000), lambda loop: "op ")),
    Mutation("unbound-variable", "in an offset", operand(
        Dma, "dst", lambda a, case: {"offset": a.offset + var("nowhere")})),
    Mutation("unbound-variable", "in a slot", operand(
        VECTOR, "dst", lambda a, case: {"slot": var("nowhere")})),
    Mutation("unbound-variable", "in a reset", at(Matmul, lambda i, case: {"reset": (var("nowhere"),)}
        if i.dst.dtype == "fp32" else None)),
    Mutation("unbound-variable", "in a mask", at(AffineSelect, lambda i, case: {"base": var("nowhere")})),
    Mutation("partition-limit", "more than the buffer has", operand(
        Instr, "dst", lambda a, case: {"partitions": 1000} if a.partitions else None)),
    Mutation("partition-limit", "partitions in DRAM", operand(
        Dma, "src", lambda a, case: {"partitions": 1} if not a.partitions else None)),
    Mutation("partition-limit", "a buffer of too many", buffers(
        on_chip, lambda b, case: {"partitions": 1000})),
    Mutation("partition-limit", "a DRAM buffer with some", buffers(
        in_dram, lambda b, case: {"partitions": -1})),
    Mutation("start-partition", "a tile that starts at 1", operand(VECTOR, "src", half_of)),
    Mutation("start-partition", "sums that start at 1", operand(Matmul, "stationary", half_of)),
    Mutation("repeated-write", "all in one place", operand(VECTOR, "dst", stride_0)),
    Mutation("scalar-operand", "too few partitions", at(
        (Activate, TensorScalar, TensorTensor), lambda i, case: next(
            ({n: replace(a, partitions=a.partitions - 1)} for n in ("scale", "bias", "a", "b")
             if isinstance(a := getattr(i, n, None), Access) and a.partitions > 1), None))),
    Mutation("scalar-operand", "a sum over too few partitions", operand(Activate, "accumulate", fewer)),
    Mutation("alignment", "of a buffer", buffers(
        lambda b, case: b.dtype != "fp8e4", lambda b, case: {"address": b.address + 1})),
    Mutation("alignment", "of an operand", odd_operand),
    # shapes
    Mutation("shape-mismatch", "a matmul of another k", operand(Matmul, "moving", fewer)),
    Mutation("shape-mismatch", "a matmul of another n", operand(Matmul, "moving", one_less)),
    Mutation("shape-mismatch", "a transpose that is none", operand(Transpose, "src", one_less)),
    Mutation("shape-mismatch", "an element too few", operand(
        (Copy, Activate, TensorScalar, AffineSelect), "src", one_less)),
    Mutation("shape-mismatch", "two shapes", operand(TensorTensor, "rhs", one_less)),
    Mutation("shape-mismatch", "a reduction to fewer", operand(Reduce, "dst", fewer)),
    Mutation("reduce-axes", "more than there are", at(Reduce, lambda i, case: {"axes": 9})),
    Mutation("dma-size", "an element lost", operand(Dma, "src", one_less)),
    Mutation("dma-dtype", "bits of another type", operand(
        Dma, "src", lambda a, case: {"dtype": "fp16"} if a.dtype == "bf16" else None)),
    Mutation("gather-index", "floats", operand(Gather, "index", lambda a, case: {"dtype": "fp32"})),
    Mutation("gather-table", "on chip", at(Gather, lambda i, case: {"src": i.dst})),
    Mutation("gather-table", "rows on one another", at(Gather, lambda i, case: {"row_stride": 0})),
    Mutation("dma-size", "a row too short", operand(Gather, "src", one_less)),
    Mutation("unknown-function", "func", at(Activate, lambda i, case: {"func": "relux"})),
    Mutation("unknown-function", "op1", at(TensorScalar, lambda i, case: {"op1": "plus"})),
    Mutation("unknown-function", "operation", at(Reduce, lambda i, case: {"operation": "multiply"})),
    # the array
    Mutation("matmul-limit", "k", smaller_array("rows")),
    Mutation("matmul-limit", "m", smaller_array("cols")),
    Mutation("matmul-limit", "n", smaller_array("moving_max")),
    Mutation("array-dtype", "no rate", operand(Matmul, "stationary", unlisted)),
    Mutation("array-dtype", "two widths", operand(Matmul, "moving", narrower)),
    Mutation("accumulate-dtype", "sums in bf16", at(
        Matmul, lambda i, case: {"dst": replace(i.dst, dtype="bf16"), "reset": None})),
    Mutation("matmul-memory", "sums in the scratchpad", into_scratchpad),
    Mutation("accumulator-bank", "over the end of a bank", over_a_bank),
    Mutation("array-held", "no load of a new tile", not_loaded),
    Mutation("array-chain", "more than add up", at(Matmul, lambda i, case: {"chain": 99})),
    # buffers
    Mutation("buffer-size", "no slot", buffers(on_chip, lambda b, case: {"slots": 0})),
    Mutation("buffer-size", "below 0", buffers(on_chip, lambda b, case: {"address": -64})),
    Mutation("memory-capacity", "beyond the chip", buffers(on_chip, lambda b, case: {"address": 1 << 40})),
    Mutation("memory-capacity", "beyond the DRAM", buffers(in_dram, lambda b, case: {"address": 1 << 50})),
    Mutation("buffer-overlap", "two inputs", over_another),
    Mutation("tensor-image", "too small", buffers(
        in_dram, lambda b, case: {"slot_bytes": b.slot_bytes // 4 * 2})),
    Mutation("tensor-image", "a copy too many", buffers(
        lambda b, case: b.tensor == case.program.outputs[0] and not b.partitions,
        lambda b, case: {"slots": b.slots + 2})),
    Mutation("tensor-image", "an output without a place", lost_output),
    Mutation("duplicate-name", "of buffers", twice_named),
    Mutation("duplicate-name", "of channels", twice_a_channel),
    Mutation("duplicate-name", "of streams", twice_a_stream),
    Mutation("undefined-memory", "of a buffer", no_such_memory),
    # streams, channels and loops
    Mutation("undefined-stream", "a queue that does not exist", no_such_queue),
    Mutation("undefined-stream", "the end of a channel", channels(lambda case: {"consumer": "warp"})),
    Mutation("undefined-channel", "waited for", tokens("waits", lambda name, case: (("c999", 1),))),
    Mutation("undefined-channel", "signalled", tokens("signals", lambda name, case: (("c999", 1),))),
    Mutation("channel-consumer", "another's token", tokens("waits", foreign("consumer"))),
    Mutation("channel-producer", "another's signal", tokens("signals", foreign("producer"))),
    Mutation("token-count", "a wait for none", tokens("waits", lambda name, case: ((name, 0),))),
    Mutation("token-count", "a debt at the start", channels(lambda case: {"initial": -1})),
    Mutation("token-balance", "a signal dropped", at(Instr, without_signal)),
    Mutation("token-balance", "a wait too many", tokens("waits", lambda name, case: ((name, 1000),))),
    Mutation("credits", "a loop that only signals", endless_credit),
    Mutation("loop-count", "below 0", looped(
        lambda loop: True, lambda loop: replace(loop, count=-1), lambda loop: f"loop {loop.var!r}")),
    Mutation("loop-share", "more than all", looped(
        lambda loop: True, lambda loop: replace(loop, share=loop.count + 1),
        lambda loop: f"loop {loop.var!r}")),
    Mutation("loop-variable", "a loop in itself", looped(
        lambda loop: True, lambda loop: replace(loop, body=(loop,)),
        lambda loop: f"loop variable {loop.var!r}")),
)  # fmt: skip

# One of many edits of a kind breaks the rule; others break another rule, or nothing.
SEARCHED: tuple[Mutation, ...] = (
    Mutation("race", "a wait dropped", each_wait_dropped),
    Mutation("race", "two tiles overlap", each_pair_overlapped),
    Mutation("uninitialised-read", "a tile that nothing fills", each_load_lost),
)
