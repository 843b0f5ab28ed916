"""Flat code of one stream: loops become jumps, and what cannot wait is fused into one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compiler.isa import Loop, Node, Sync

if TYPE_CHECKING:
    from eventsim.bind import BoundStream

# Kinds of a step, by how often they run; the interpreter relies on this order.
EXEC = 0  # occupy the engine, then signal
RAMP = 1  # the same on a matrix engine with a power ramp
SPECIAL = 2  # may change the activation table or need a port
TRANSFER = 3  # issue a transfer (queues)
BARRIER = 4  # signal after all earlier transfers (queues)
LOOP_END = 5
LOOP_BEGIN = 6
ANCHOR = 7  # a LOOP_END at which folding looks for a repeat
END = 8


@dataclass(slots=True)
class Op:
    """One step of flat code; channels are indices into the program's."""

    kind: int
    waits: tuple[tuple[int, int], ...] = ()  # (channel, tokens)
    duration: int = 0
    signals: tuple[tuple[int, int, int], ...] = ()  # (channel, tokens, ps after the start)
    index: int = -1  # static instruction (the first of a fused run)
    label: str = ""  # graph op
    slot: int = -1  # loop counter
    target: int = -1  # where a loop end jumps to
    count: int = 0
    region: int = -1
    weight: int = 1  # instructions fused into this step


@dataclass(slots=True)
class Code:
    """The flat code of a stream."""

    ops: list[Op] = field(default_factory=list)
    active: list[tuple[int, ...]] = field(default_factory=list)  # loop counters around each step
    num_slots: int = 0


@dataclass(slots=True)
class _Repeat:
    """A loop that stays a loop."""

    count: int
    region: int
    body: list[Op | _Repeat]


def assemble(stream: BoundStream, *, fuse: bool) -> Code:
    """Flat code of `stream`; with `fuse`, runs of steps that cannot wait become one step.

    Fusing changes no time: a step without waits starts when the one before it ends. Loops that run
    once are inlined, loops that never run are dropped. Of a grid it is the busiest core's stream.
    """
    code = Code()
    counter = iter(range(len(stream.instrs)))
    _emit(_tree(stream, stream.nodes, counter, fuse), code, ())
    code.ops.append(Op(END))
    code.active.append(())
    return code


def _tree(
    stream: BoundStream, nodes: tuple[Node, ...], counter: Iterator[int], fuse: bool
) -> list[Op | _Repeat]:
    out: list[Op | _Repeat] = []
    for node in nodes:
        if not isinstance(node, Loop):
            _append(out, _op(stream, next(counter)), fuse)
            continue
        body = _tree(stream, node.body, counter, fuse)
        count = node.times(own=True)
        if count == 0 or not body:
            continue
        if count == 1:
            for inner in body:
                _append(out, inner, fuse)
        elif fuse and len(body) == 1 and _is_pure(body[0]):
            _append(out, _repeated(body[0], count), fuse)
        else:
            out.append(_Repeat(count, node.region, body))
    return out


def _op(stream: BoundStream, index: int) -> Op:
    bound = stream.instrs[index]
    instr = bound.instr
    waits = tuple((stream.channels[name], n) for name, n in instr.waits if n)
    # A queue's signals wait for the data: they are posted by the transfer, not at its issue.
    offset = stream.latency if stream.is_queue else bound.duration + stream.latency
    signals = tuple((stream.channels[name], n, offset) for name, n in instr.signals if n)
    if bound.transfer is not None:
        kind = TRANSFER
    elif stream.is_queue:
        kind = BARRIER
    elif bound.table is not None or bound.ports:
        kind = SPECIAL
    else:
        kind = RAMP if stream.ramp is not None and not isinstance(instr, Sync) else EXEC
    return Op(kind, waits, bound.duration, signals, index, instr.op)


def _is_pure(op: Op | _Repeat) -> bool:
    return isinstance(op, Op) and op.kind <= RAMP and not op.waits and not op.signals


def _repeated(op: Op | _Repeat, count: int) -> Op:
    assert isinstance(op, Op)
    return Op(op.kind, (), op.duration * count, (), op.index, op.label, weight=op.weight * count)


def _append(out: list[Op | _Repeat], new: Op | _Repeat, fuse: bool) -> None:
    last = out[-1] if out else None
    if not (fuse and isinstance(last, Op) and isinstance(new, Op)):
        out.append(new)
        return
    if new.waits or new.kind > RAMP or last.kind > RAMP or new.label != last.label:
        out.append(new)
        return
    out[-1] = Op(
        kind=max(last.kind, new.kind),
        waits=last.waits,
        duration=last.duration + new.duration,
        signals=last.signals + tuple((c, n, last.duration + off) for c, n, off in new.signals),
        index=last.index,
        label=last.label,
        weight=last.weight + new.weight,
    )


def _emit(nodes: list[Op | _Repeat], code: Code, stack: tuple[int, ...]) -> None:
    for node in nodes:
        code.active.append(stack)
        if isinstance(node, Op):
            code.ops.append(node)
            continue
        slot = code.num_slots
        code.num_slots += 1
        code.ops.append(Op(LOOP_BEGIN, slot=slot, count=node.count, region=node.region))
        start = len(code.ops)
        inner = (*stack, slot)
        _emit(node.body, code, inner)
        code.active.append(inner)
        code.ops.append(Op(LOOP_END, slot=slot, target=start, count=node.count, region=node.region))
