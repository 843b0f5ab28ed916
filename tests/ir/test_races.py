"""The race detector against the transitive closure of the order, on random small programs."""

from __future__ import annotations

import random

from programs import small_arch

from compiler.ir.races import check_races
from compiler.ir.rules import RuleError
from compiler.ir.tokens import ProgramDeadlock, program_order
from compiler.isa import (
    Access,
    Affine,
    Buffer,
    Channel,
    Copy,
    Instr,
    Loop,
    Memset,
    Program,
    reads,
    unroll,
    writes,
)

ARCH = small_arch()
STREAMS = ("tensor", "vector", "pool", "dma0")
BUFFERS = (
    Buffer("s", "sbuf", "bf16", 0, 128, 2, partitions=4),
    Buffer("t", "sbuf", "bf16", 64, 128, partitions=4),
)


def random_program(rng: random.Random) -> Program:
    """Copies and fills on two to four streams, channels between random pairs, some loops."""
    used = rng.sample(STREAMS, rng.randint(2, 4))
    often = rng.choice((0.3, 0.6, 1.0))
    channels = [Channel(f"c{i}", *rng.sample(used, 2), initial=rng.choice((0, 1, 2))) for i in range(5)]

    def access(loop: bool) -> Access:
        step = Affine(0, (("i", rng.randint(1, 4)),)) if loop and rng.random() < 0.5 else Affine()
        dims = ((rng.randint(1, 2), rng.randint(1, 3)), (rng.choice((1, 4)), rng.randint(1, 2)))
        slot = Affine(0, (("i", 1),)) if loop and rng.random() < 0.5 else Affine(rng.randint(0, 1))
        height = rng.randint(1, 3)
        return Access(
            rng.choice("st"),
            "bf16",
            dims,
            step + rng.randint(0, 45),
            rng.randint(0, 4 - height),
            height,
            slot,
        )

    def instr(stream: str, loop: bool) -> Instr:
        waits = tuple((c.name, 1) for c in channels if c.consumer == stream and rng.random() < often)
        signals = tuple((c.name, 1) for c in channels if c.producer == stream and rng.random() < often)
        if rng.random() < 0.5:
            return Memset(dst=access(loop), value=0.0, waits=waits, signals=signals)
        return Copy(dst=access(loop), src=access(loop), waits=waits, signals=signals)

    def stream(name: str) -> tuple[str, tuple[Instr | Loop, ...]]:
        straight = tuple(instr(name, False) for _ in range(rng.randint(0, 1)))
        body = tuple(instr(name, True) for _ in range(rng.randint(0, 2)))
        return name, (*straight, Loop("i", rng.randint(1, 3), body, 1))

    return Program("random", tuple(stream(name) for name in used), BUFFERS, tuple(channels))


def touched(access: Access, env: dict[str, int]) -> set[tuple[int, int]]:
    """(partition, byte) of every byte, element by element."""
    buffer = next(b for b in BUFFERS if b.name == access.buffer)
    base = buffer.address + access.slot.at(env) % buffer.slots * buffer.slot_bytes
    (s0, n0), (s1, n1) = access.dims
    return {
        (access.partition + p, base + 2 * (access.offset.at(env) + i * s0 + j * s1) + byte)
        for p in range(access.partitions)
        for i in range(n0)
        for j in range(n1)
        for byte in (0, 1)
    }


def has_race(program: Program) -> bool:
    """By the closure of: order within a stream, and the n-th token waited for after its signal."""
    events, by_token, edges = [], {}, set()
    for name, nodes in program.streams:
        taken: dict[str, int] = {}
        posted: dict[str, int] = {c.name: c.initial for c in program.channels}
        for number, (instr, env) in enumerate(unroll(nodes)):
            me = len(events)
            events.append((name, instr, dict(env)))
            if number:
                edges.add((me - 1, me))
            for channel, count in instr.waits:
                for _ in range(count):
                    by_token.setdefault((channel, taken.get(channel, 0)), [None, None])[1] = me
                    taken[channel] = taken.get(channel, 0) + 1
            for channel, count in instr.signals:
                for _ in range(count):
                    by_token.setdefault((channel, posted[channel]), [None, None])[0] = me
                    posted[channel] += 1
    edges |= {(a, b) for a, b in by_token.values() if a is not None and b is not None}
    before: list[set[int]] = [set() for _ in events]
    changed = True
    while changed:
        changed = False
        for a, b in edges:
            grown = before[b] | before[a] | {a}
            changed |= grown != before[b]
            before[b] = grown
    marks = [
        (
            set().union(*(touched(a, env) for a in reads(instr))),
            set().union(*(touched(a, env) for a in writes(instr))),
        )
        for _, instr, env in events
    ]
    return any(
        a not in before[b] and b not in before[a]
        and (marks[a][1] & (marks[b][0] | marks[b][1]) or marks[a][0] & marks[b][1])
        for a in range(len(events))
        for b in range(a)
    )  # fmt: skip


def test_random_programs_against_the_closure() -> None:
    rng = random.Random(5)
    seen = {"race": 0, "clean": 0, "deadlock": 0}
    while seen["race"] + seen["clean"] < 600:
        program = random_program(rng)
        try:
            for _ in program_order(program):
                pass
        except ProgramDeadlock:
            seen["deadlock"] += 1
            continue
        expected = has_race(program)
        try:
            check_races(program, ARCH)
            found = False
        except RuleError as error:
            found = error.rule == "race"
        assert found == expected, program
        seen["race" if found else "clean"] += 1
    assert seen["race"] > 200, seen
    assert seen["clean"] > 200, seen
