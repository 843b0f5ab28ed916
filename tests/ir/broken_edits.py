"""Mutations that take more than other fields: of the machine, of several places, of whole streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from broken_forms import Broken, Kinds, at, home, machine, op
from mutations import Found, edit, find, instructions, loops, move, swap, swap_loop
from real_programs import Case

from compiler.ir.dtype import dtype_bytes
from compiler.isa import (
    Access,
    Activate,
    Copy,
    Dma,
    Instr,
    Loop,
    Matmul,
    Memset,
    Sync,
    TensorScalar,
    Transpose,
    operands,
    walk,
)


def elsewhere(kinds: Kinds, to: Callable[[Case, Found], str | None]) -> Callable[[Case], Iterator[Broken]]:
    """The first instruction of a kind goes to another stream, without its tokens."""

    def apply(case: Case) -> Iterator[Broken]:
        for found in instructions(case.program):
            target = to(case, found) if isinstance(found[2], kinds) else None
            if target is not None:
                bare = replace(found[2], waits=(), signals=())
                streams = tuple((n, (*ns, bare) if n == target else ns) for n, ns in case.program.streams)
                yield replace(case.program, streams=streams), case.arch, op(found)
                return

    return apply


def to_tensor(case: Case, found: Found) -> str | None:
    return case.arch.tensor if case.arch.tensor in dict(case.program.streams) else None


def to_less_able(case: Case, found: Found) -> str | None:
    """A vector engine of the program that does not list activations."""
    for name, engine in case.arch.engines.items():
        if (
            name in dict(case.program.streams)
            and getattr(engine, "ops", None)
            and "activate" not in engine.ops
        ):
            return name
    return None


def smaller_array(field: str) -> Callable[[Case], Iterator[Broken]]:
    """The machine's array is one short of what a matmul needs."""

    def apply(case: Case) -> Iterator[Broken]:
        needs = [(_needs(found[2])[field], found) for found in instructions(case.program) if _needs(found[2])]
        most = max((need for need, _ in needs), default=1)
        if most > 1:
            first = next(found for need, found in needs if need == most)
            yield case.program, machine(case, **{field: most - 1}), op(first)

    return apply


def _needs(instr: Instr) -> dict[str, int]:
    if isinstance(instr, Matmul):
        k, m, n = instr.stationary.partitions, instr.stationary.free_elements, instr.moving.free_elements
    elif isinstance(instr, Transpose):
        k, m, n = instr.src.partitions, instr.src.free_elements, instr.src.partitions
    else:
        return {}
    return {"rows": k, "cols": m, "moving_max": n}


def into_scratchpad(case: Case) -> Iterator[Broken]:
    """The sums of a matmul lie in another memory, which the array is said to reach."""
    found = find(case.program, Matmul)
    if found is None:
        return
    instr = found[2]
    assert isinstance(instr, Matmul)
    memory = home(case, instr.stationary).memory
    reach = (case.arch.accumulator, memory)
    program = move(case.program, instr.dst.buffer, memory=memory, address=0)
    yield program, machine(case, reads=reach, writes=reach), op(found)


def over_a_bank(case: Case) -> Iterator[Broken]:
    """A tile of sums begins at the last element of a bank."""
    for found in instructions(case.program):
        instr = found[2]
        if isinstance(instr, Matmul | Transpose) and instr.dst.free_elements > 1:
            bank = case.arch.bank_bytes(case.arch.accumulator)
            if 2 * bank >= home(case, instr.dst).nbytes + bank - 4 and _banks(case) > 1:
                yield move(case.program, instr.dst.buffer, address=bank - 4), case.arch, op(found)
                return


def _banks(case: Case) -> int:
    name = case.arch.accumulator
    return case.arch.partition_bytes(name) // case.arch.bank_bytes(name)


def odd_operand(case: Case) -> Iterator[Broken]:
    """A tile of a narrow type at an odd place is read as a wide type."""
    for found in instructions(case.program):
        instr = found[2]
        if isinstance(instr, Copy | Activate | TensorScalar) and home(case, instr.src).dtype == "bf16":
            at = home(case, instr.src).address + 2
            moved = move(case.program, instr.src.buffer, address=at)
            yield edit(moved, found, src=replace(instr.src, dtype="fp32")), case.arch, op(found)
            return


def over_another(case: Case) -> Iterator[Broken]:
    lasting = [b for b in case.program.buffers if b.kind in ("input", "weight", "state")]
    if len(lasting) > 1:
        one, other = lasting[:2]
        yield move(case.program, other.name, address=one.address), case.arch, repr(other.name)


def twice_named(case: Case) -> Iterator[Broken]:
    program = case.program
    yield replace(program, buffers=(*program.buffers, program.buffers[0])), case.arch, program.buffers[0].name


def twice_a_channel(case: Case) -> Iterator[Broken]:
    program = case.program
    yield replace(program, channels=(*program.channels, program.channels[0])), case.arch, "channel"


def twice_a_stream(case: Case) -> Iterator[Broken]:
    program = case.program
    yield replace(program, streams=(*program.streams, (program.streams[0][0], ()))), case.arch, "stream"


def no_such_queue(case: Case) -> Iterator[Broken]:
    program = case.program
    yield replace(program, streams=(*program.streams, ("dma99", ()))), case.arch, "'dma99'"


def no_such_memory(case: Case) -> Iterator[Broken]:
    buffer = case.program.buffers[0]
    yield move(case.program, buffer.name, memory="l3"), case.arch, repr(buffer.name)


def lost_output(case: Case) -> Iterator[Broken]:
    program, name = case.program, case.program.outputs[0]
    for buffer in program.buffers:
        if (buffer.tensor or buffer.name) == name and not buffer.partitions:
            program = move(program, buffer.name, tensor="another")
    yield program, case.arch, repr(name)


def looped(
    want: Callable[[Loop], bool], change: Callable[[Loop], Loop], name: Callable[[Loop], str]
) -> Callable[[Case], Iterator[Broken]]:
    """Another first loop of those wanted."""

    def apply(case: Case) -> Iterator[Broken]:
        for stream, loop in loops(case.program):
            if want(loop):
                yield swap_loop(case.program, stream, loop, change(loop)), case.arch, name(loop)
                return

    return apply


def walks_a_buffer(loop: Loop) -> bool:
    """Whether operands move with the loop."""
    return any(
        name == loop.var
        for instr, _ in walk(loop.body)
        for _, access in operands(instr)
        for name, _ in access.offset.terms
    )


def endless_credit(case: Case) -> Iterator[Broken]:
    """A loop without a wait signals 70000 times."""
    channel = case.program.channels[0]
    signal = Sync(signals=((channel.name, 1),), op="burst")
    burst = Loop("burst", 70_000, (signal,), 999)
    streams = tuple((n, (burst, *ns) if n == channel.producer else ns) for n, ns in case.program.streams)
    yield replace(case.program, streams=streams), case.arch, "op 'burst'"


def tokens(side: str, change: Callable[[str, Case], tuple[tuple[str, int], ...]]) -> Any:
    """Other waits or signals in the first instruction that has any."""

    def inside(instr: Instr, case: Case) -> dict[str, Any] | None:
        old = getattr(instr, side)
        return {side: (*old[1:], *change(old[0][0], case))} if old else None

    return at(Instr, inside)


def without_signal(instr: Instr, case: Case) -> dict[str, Any] | None:
    """One signal less, of a channel that starts empty: others may begin with more than is ever used."""
    empty = [c.name for c in case.program.channels if not c.initial]
    for token in instr.signals:
        if token[0] in empty:
            return {"signals": tuple(t for t in instr.signals if t != token)}
    return None


def foreign(side: str) -> Callable[[str, Case], tuple[tuple[str, int], ...]]:
    """A channel between two other streams."""

    def change(name: str, case: Case) -> tuple[tuple[str, int], ...]:
        ends = {c.name: (c.producer, c.consumer) for c in case.program.channels}
        end = 1 if side == "consumer" else 0
        others = [other for other, both in ends.items() if both[end] != ends[name][end]]
        return ((others[0], 1),) if others else ((name, 1),)

    return change


def each_wait_dropped(case: Case) -> Iterator[Broken]:
    """Every wait, one at a time, until nothing orders two accesses."""
    for found in instructions(case.program):
        for token in found[2].waits:
            rest = tuple(t for t in found[2].waits if t != token)
            yield edit(case.program, found, waits=rest), case.arch, "op "


def each_pair_overlapped(case: Case) -> Iterator[Broken]:
    """Tiles of one memory at one address, pair by pair."""
    chip = [b for b in case.program.buffers if b.partitions]
    for one in chip:
        for other in chip:
            if one.name < other.name and one.memory == other.memory and one.address != other.address:
                yield move(case.program, other.name, address=one.address), case.arch, "op "


def each_load_lost(case: Case) -> Iterator[Broken]:
    """Every instruction that writes, one at a time, leaves only its tokens."""
    for found in instructions(case.program):
        if isinstance(found[2], Dma | Memset | Copy):
            keep = Sync(waits=found[2].waits, signals=found[2].signals, op=found[2].op)
            yield swap(case.program, found[0], found[1], lambda i: (keep,)), case.arch, "op "  # noqa: B023


def not_loaded(case: Case) -> Iterator[Broken]:
    found = find(case.program, Matmul)
    if found is not None:
        yield edit(case.program, found, load=False), case.arch, op(found)


def half_of(access: Access, case: Case) -> dict[str, Any] | None:
    return {"partition": 1, "partitions": access.partitions - 1} if access.partitions > 2 else None


def one_less(access: Access, case: Case) -> dict[str, Any] | None:
    for axis, (stride, size) in enumerate(access.dims):
        if size > 1:
            dims = (*access.dims[:axis], (stride, size - 1), *access.dims[axis + 1 :])
            return {"dims": dims}
    return None


def fewer(access: Access, case: Case) -> dict[str, Any] | None:
    return {"partitions": access.partitions - 1} if access.partitions > 1 else None


def one_byte_type(case: Case) -> str | None:
    """An element type of one byte that the array takes."""
    return next((name for name in case.arch.array.passes if dtype_bytes(name) == 1), None)


def unlisted(access: Access, case: Case) -> dict[str, Any] | None:
    others = [t for t in ("fp16", "int8", "fp8e5") if t not in case.arch.array.passes]
    return {"dtype": others[0]} if others else None


def narrower(access: Access, case: Case) -> dict[str, Any] | None:
    name = one_byte_type(case) if access.dtype == "bf16" else None
    return {"dtype": name} if name else None


def stride_0(access: Access, case: Case) -> dict[str, Any] | None:
    for axis, (_, size) in enumerate(access.dims):
        if size > 1:
            return {"dims": (*access.dims[:axis], (0, size), *access.dims[axis + 1 :])}
    return None
