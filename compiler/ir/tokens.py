"""The order in which the streams of a Program may run: a machine of tokens without time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from compiler.errors import VerifyError
from compiler.isa import Instr, Program, unroll

Env = dict[str, int]
Step = tuple[str, Instr, Env]


class ProgramDeadlock(VerifyError):
    """No stream can go on; the message says who waits for which channel and who should fill it."""


def program_order(program: Program) -> Iterator[Step]:
    """Every dynamic instruction (stream, instr, loop counters), in one order the channels allow.

    Each stream runs until a token is missing; a stream is woken when its channel is filled. The
    loop counters are reused by the stream, so copy them to keep them. Raises ProgramDeadlock.
    """
    tokens = {channel.name: channel.initial for channel in program.channels}
    consumer = {channel.name: channel.consumer for channel in program.channels}
    pending = {name: unroll(nodes) for name, nodes in program.streams}
    blocked: dict[str, tuple[Instr, Env]] = {}
    done = dict.fromkeys(pending, 0)
    ready = deque(pending)
    while ready:
        stream = ready.popleft()
        steps = pending[stream]
        step = blocked.pop(stream, None) or next(steps, None)
        while step is not None:
            instr, env = step
            if any(tokens[name] < count for name, count in instr.waits):
                blocked[stream] = step
                break
            for name, count in instr.waits:
                tokens[name] -= count
            yield stream, instr, env
            done[stream] += 1
            for name, count in instr.signals:
                tokens[name] += count
                waiter = consumer[name]
                if waiter in blocked and waiter not in ready:
                    ready.append(waiter)
            step = next(steps, None)
    if blocked:
        raise ProgramDeadlock(_describe(program, blocked, done, tokens))


def _describe(
    program: Program, blocked: dict[str, tuple[Instr, Env]], done: dict[str, int], tokens: dict[str, int]
) -> str:
    """Who waits, for what, and what became of the stream that should have signalled."""
    producer = {channel.name: channel.producer for channel in program.channels}
    lines = [f"[deadlock] program {program.name!r}: {len(blocked)} stream(s) cannot go on"]
    for stream, (instr, env) in blocked.items():
        for name, count in instr.waits:
            if tokens[name] >= count:
                continue
            source = producer[name]
            state = "is blocked too" if source in blocked else "has finished"
            lines.append(
                f"  {stream}: {type(instr).__name__} (op {instr.op!r}, dynamic instruction {done[stream]}, "
                f"counters {env}) waits for {count} of channel {name!r}, which holds {tokens[name]}; "
                f"its producer {source!r} {state} after {done[source]} instructions"
            )
    return "\n".join(lines)
