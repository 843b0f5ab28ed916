"""Edits of compiled programs: one thing changed at one place, everything else as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from compiler.ir.functions import FUNCTIONS, OPERATIONS, REDUCTIONS
from compiler.isa import (
    Access,
    Affine,
    AffineSelect,
    Buffer,
    Channel,
    Gather,
    Instr,
    Loop,
    Matmul,
    Node,
    Program,
    Reduce,
    Sync,
    Token,
    operands,
    walk,
)

Nodes = tuple[Node, ...]
Found = tuple[str, int, Instr]  # stream, position in it, instruction


def instructions(program: Program) -> Iterator[Found]:
    """Every static instruction with its stream and its position there."""
    for stream, nodes in program.streams:
        for index, (instr, _) in enumerate(walk(nodes)):
            yield stream, index, instr


def find(program: Program, kind: type[Instr] | tuple[type[Instr], ...], **having: object) -> Found | None:
    """The first instruction of a kind; `having` are fields and their values."""
    for found in instructions(program):
        instr = found[2]
        if isinstance(instr, kind) and all(getattr(instr, k) == v for k, v in having.items()):
            return found
    return None


def swap(program: Program, stream: str, index: int, by: Callable[[Instr], Nodes]) -> Program:
    """The program with the instruction at `index` of `stream` replaced by others, or by none."""
    left = index

    def inside(nodes: Nodes) -> Nodes:
        nonlocal left
        out: list[Node] = []
        for node in nodes:
            if isinstance(node, Loop):
                out.append(replace(node, body=inside(node.body)))
                continue
            out.extend(by(node) if left == 0 else (node,))
            left -= 1
        return tuple(out)

    streams = tuple((name, inside(nodes) if name == stream else nodes) for name, nodes in program.streams)
    return replace(program, streams=streams)


def edit(program: Program, found: Found, **changes: Any) -> Program:
    """The program with other fields in one instruction."""
    return swap(program, found[0], found[1], lambda instr: (replace(instr, **changes),))


def move(program: Program, name: str, **changes: Any) -> Program:
    """The program with one buffer changed."""
    buffers = tuple(replace(b, **changes) if b.name == name else b for b in program.buffers)
    return replace(program, buffers=buffers)


def rewire(program: Program, name: str, **changes: Any) -> Program:
    """The program with one channel changed."""
    channels = tuple(replace(c, **changes) if c.name == name else c for c in program.channels)
    return replace(program, channels=channels)


def loops(program: Program) -> Iterator[tuple[str, Loop]]:
    """Every loop with its stream, outer ones first."""

    def inside(nodes: Nodes) -> Iterator[Loop]:
        for node in nodes:
            if isinstance(node, Loop):
                yield node
                yield from inside(node.body)

    for stream, nodes in program.streams:
        for loop in inside(nodes):
            yield stream, loop


def swap_loop(program: Program, stream: str, old: Loop, new: Loop) -> Program:
    """The program with one loop (by identity) replaced."""

    def inside(nodes: Nodes) -> Nodes:
        return tuple(
            node
            if not isinstance(node, Loop)
            else new
            if node is old
            else replace(node, body=inside(node.body))
            for node in nodes
        )

    streams = tuple((name, inside(nodes) if name == stream else nodes) for name, nodes in program.streams)
    return replace(program, streams=streams)


# ---- random edits --------------------------------------------------------------------------------


def mutate(program: Program, rng: random.Random) -> tuple[str, Program]:
    """One random edit: what it was, and the program with it. It may be the same program."""
    choices: list[tuple[int, Callable[[Program, random.Random], tuple[str, Program]]]] = [
        (10, _operand),
        (6, _token),
        (4, _whole_instruction),
        (4, _parameter),
        (3, _buffer),
        (2, _channel),
        (2, _loop),
    ]
    kinds = [kind for weight, kind in choices for _ in range(weight)]
    return rng.choice(kinds)(program, rng)


def _pick(program: Program, rng: random.Random) -> Found:
    return rng.choice(list(instructions(program)))


def _where(found: Found) -> str:
    return f"{found[0]}[{found[1]}] {type(found[2]).__name__} of {found[2].op!r}"


def _operand(program: Program, rng: random.Random) -> tuple[str, Program]:
    found = _pick(program, rng)
    named = list(operands(found[2]))
    if not named:
        return "nothing: no operand", program
    field, access = rng.choice(named)
    what, changed = _other_access(access, program, rng)
    return f"{_where(found)}: {field}: {what}", edit(program, found, **{field: changed})


def _other_access(access: Access, program: Program, rng: random.Random) -> tuple[str, Access]:
    def step(axis: int, by: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return tuple((s + by[0], n + by[1]) if i == axis else (s, n) for i, (s, n) in enumerate(access.dims))

    one = rng.choice((-1, 1))
    axis = rng.randrange(len(access.dims)) if access.dims else 0
    kind = rng.choice(("offset", "stride", "size", "start", "partitions", "slot", "dtype", "buffer", "term"))
    changed = access
    if kind == "offset":
        changed = replace(access, offset=access.offset + one * rng.choice((1, 2, 16, 64)))
    elif kind == "stride":
        changed = replace(access, dims=step(axis, (one, 0)))
    elif kind == "size":
        changed = replace(access, dims=step(axis, (0, one)))
    elif kind == "start":
        changed = replace(access, partition=access.partition + one * rng.choice((1, 32)))
    elif kind == "partitions":
        changed = replace(access, partitions=access.partitions + one)
    elif kind == "slot":
        changed = replace(access, slot=access.slot + one)
    elif kind == "dtype":
        changed = replace(access, dtype=rng.choice(("fp32", "bf16", "fp16", "int8", "int32")))
    elif kind == "buffer":
        changed = replace(access, buffer=rng.choice(program.buffers).name)
    elif access.offset.terms:
        name, factor = rng.choice(access.offset.terms)
        changed = replace(access, offset=access.offset - Affine(0, ((name, rng.choice((1, factor))),)))
    return f"{kind} of {access} -> {changed}", changed


def _token(program: Program, rng: random.Random) -> tuple[str, Program]:
    found = _pick(program, rng)
    side = rng.choice(("waits", "signals"))
    tokens: tuple[Token, ...] = getattr(found[2], side)
    if not tokens:
        return "nothing: no token", program
    i = rng.randrange(len(tokens))
    name, count = tokens[i]
    other = rng.choice(program.channels).name
    changed = rng.choice(((), ((name, count + 1),), ((name, count - 1),), ((other, count),)))
    what = f"{_where(found)}: {side} {tokens[i]} -> {changed}"
    return what, edit(program, found, **{side: (*tokens[:i], *changed, *tokens[i + 1 :])})


def _whole_instruction(program: Program, rng: random.Random) -> tuple[str, Program]:
    stream, index, instr = found = _pick(program, rng)
    kind = rng.choice(("drop", "only tokens", "twice", "elsewhere", "exchange"))
    if kind == "drop":
        return f"{_where(found)}: dropped", swap(program, stream, index, lambda i: ())
    if kind == "only tokens":
        keep = Sync(waits=instr.waits, signals=instr.signals, op=instr.op)
        return f"{_where(found)}: dropped, tokens kept", swap(program, stream, index, lambda i: (keep,))
    if kind == "twice":
        again = replace(instr, waits=(), signals=())
        return f"{_where(found)}: twice", swap(program, stream, index, lambda i: (again, i))
    if kind == "elsewhere":
        target = rng.choice(program.streams)[0]
        moved = swap(program, stream, index, lambda i: ())
        streams = tuple((n, (*nodes, instr) if n == target else nodes) for n, nodes in moved.streams)
        return f"{_where(found)}: moved to the end of {target}", replace(moved, streams=streams)
    after = [f for f in instructions(program) if f[0] == stream and f[1] == index + 1]
    if not after:
        return "nothing: the last", program
    later = after[0][2]
    changed = swap(program, stream, index, lambda i: (later,))
    return f"{_where(found)}: exchanged with the next", swap(changed, stream, index + 1, lambda i: (instr,))


def _parameter(program: Program, rng: random.Random) -> tuple[str, Program]:
    found = _pick(program, rng)
    instr = found[2]
    options: list[dict[str, Any]] = []
    for name in ("func", "operation", "op0", "op1"):
        if getattr(instr, name, None):
            table = FUNCTIONS if name == "func" else REDUCTIONS if isinstance(instr, Reduce) else OPERATIONS
            options.append({name: rng.choice(sorted(table))})
    for name in ("scale", "bias", "a", "b", "value", "fill"):
        old = getattr(instr, name, None)
        if isinstance(old, float | int):
            options.append({name: old + rng.choice((-1.0, 0.5, 100.0))})
    if isinstance(instr, Matmul):
        options += [{"reset": ()}, {"reset": None}, {"load": False}, {"model": False}, {"chain": 2}]
    if isinstance(instr, Reduce):
        options.append({"axes": instr.axes + rng.choice((-1, 1))})
    if isinstance(instr, AffineSelect):
        options += [
            {"base": instr.base + rng.choice((-1, 1))},
            {"free_step": -instr.free_step},
            {"partition_step": instr.partition_step + 1},
        ]
    if isinstance(instr, Gather):
        options.append({"row_stride": instr.row_stride + rng.choice((-1, 1))})
    if not options:
        return "nothing: no parameter", program
    changes = rng.choice(options)
    old = {name: getattr(instr, name) for name in changes}
    return f"{_where(found)}: {old} -> {changes}", edit(program, found, **changes)


def _buffer(program: Program, rng: random.Random) -> tuple[str, Program]:
    buffer: Buffer = rng.choice(program.buffers)
    other: Buffer = rng.choice(program.buffers)
    changes: dict[str, Any] = rng.choice(
        (
            {"address": other.address},
            {"address": buffer.address + rng.choice((-64, -2, -1, 1, 2, 64))},
            {"slot_bytes": buffer.slot_bytes + rng.choice((-4, -2, 2))},
            {"slots": buffer.slots + rng.choice((-1, 1))},
            {"partitions": buffer.partitions + rng.choice((-1, 1))},
            {"memory": other.memory},
            {"dtype": rng.choice(("fp32", "bf16", "int8"))},
        )
    )
    return f"buffer {buffer}: {changes}", move(program, buffer.name, **changes)


def _channel(program: Program, rng: random.Random) -> tuple[str, Program]:
    channel: Channel = rng.choice(program.channels)
    other = rng.choice(program.streams)[0]
    changes: dict[str, Any] = rng.choice(
        (
            {"initial": channel.initial + 1},
            {"initial": channel.initial - 1},
            {"producer": other},
            {"consumer": other},
        )
    )
    return f"channel {channel}: {changes}", rewire(program, channel.name, **changes)


def _loop(program: Program, rng: random.Random) -> tuple[str, Program]:
    found = list(loops(program))
    if not found:
        return "nothing: no loop", program
    stream, loop = rng.choice(found)
    count = rng.choice((0, loop.count - 1, loop.count + 1, 2 * loop.count))
    changed = swap_loop(program, stream, loop, replace(loop, count=count))
    return f"{stream}: loop {loop.var} of {loop.count} runs {count} times", changed
