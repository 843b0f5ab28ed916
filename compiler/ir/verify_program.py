"""What is legal in a Program: capacities, channels, loops and, by `verify_instr`, each instruction.

Buffers of one on-chip memory may share addresses when synchronisation keeps their uses apart; that
cannot be seen from addresses alone, so `check_races` proves it on the unrolled program.
"""

from __future__ import annotations

from itertools import pairwise

from arch_configs.spec import ArchSpec
from compiler.ir.layout import ROW_MAJOR, has_copies
from compiler.ir.races import check_races
from compiler.ir.rules import RULES, RuleError
from compiler.ir.run_rules import check_run
from compiler.ir.verify_instr import check_instr
from compiler.ir.verify_operand import SIZES, Place
from compiler.isa import Buffer, Channel, Instr, Loop, Matmul, Node, Program, Transpose, walk

__all__ = ["RULES", "RuleError", "check_races", "check_run", "program_macs", "verify_program"]

MAX_CREDITS = 1 << 16  # tokens a loop may post without waiting for any; assumed: far beyond any buffering
_LASTING = ("input", "weight", "table", "state", "output")  # kinds that live for the whole program


def verify_program(program: Program, arch: ArchSpec) -> None:
    """Raise RuleError (a VerifyError), naming the rule and the place, unless `program` is legal.

    Not checked here: what needs every dynamic instruction (`check_run`), numerics (`run_program`).
    """
    check_buffers(program, arch)
    check_channels(program, arch)
    place = Place(program, arch)
    checker = _Streams(place, program)
    for stream, nodes in program.streams:
        checker.stream(stream, nodes)
    checker.balance(program)


def program_macs(program: Program) -> tuple[int, int]:
    """(model, hardware) multiply-accumulates of true extents.

    `model` is what the graph asks for; `hardware` adds transposes through the array (one MAC per
    element and row of the identity) and matmuls marked as not the model's. Padding is in neither.
    """
    model = hardware = 0
    for _, nodes in program.streams:
        for instr, times in walk(nodes):
            if isinstance(instr, Matmul):
                hardware += times * instr.macs
                model += times * instr.macs if instr.model else 0
            elif isinstance(instr, Transpose):
                hardware += times * instr.src.elements * instr.src.partitions
    return model, hardware


# ---- buffers -------------------------------------------------------------------------------------


def check_buffers(program: Program, arch: ArchSpec) -> None:
    """Names are unique, memories exist, and each buffer fits its memory."""
    seen: set[str] = set()
    for buffer in program.buffers:
        where = f"program {program.name!r}, buffer {buffer.name!r}"
        if buffer.name in seen:
            raise RuleError("duplicate-name", f"{where}: the name is used twice")
        seen.add(buffer.name)
        if buffer.memory not in arch.memories:
            have = ", ".join(arch.memories)
            raise RuleError("undefined-memory", f"{where}: no memory {buffer.memory!r}, have {have}")
        check_capacity(where, buffer, arch)
        check_alignment(where, buffer)
    check_lasting(program)
    check_tensors(program)


def check_capacity(where: str, buffer: Buffer, arch: ArchSpec) -> None:
    """A buffer ends inside its memory, and on chip has no more partitions than that."""
    spec = arch.memories[buffer.memory]
    if spec.kind == "dram":
        limit, have = max(0, spec.capacity - spec.reserved), 0
    else:
        limit, have = arch.partition_bytes(buffer.memory), arch.partitions(buffer.memory)
    if not min(have, 1) <= buffer.partitions <= have:
        raise RuleError(
            "partition-limit", f"{where}: got {buffer.partitions} partitions, {buffer.memory!r} has {have}"
        )
    if buffer.slots < 1 or buffer.slot_bytes < 0 or buffer.address < 0:
        raise RuleError(
            "buffer-size",
            f"{where}: got {buffer.slots} slots of {buffer.slot_bytes} B at {buffer.address}, "
            "want at least 1 slot, 0 B, address 0",
        )
    end = buffer.address + buffer.nbytes
    if end > limit:
        per = " per partition" if have else ""
        raise RuleError("memory-capacity", f"{where}: ends at byte {end}{per}, {buffer.memory!r} has {limit}")


def check_alignment(where: str, buffer: Buffer) -> None:
    """Every slot starts at a multiple of the element size."""
    size = SIZES.get(buffer.dtype)
    if size is None:
        have = ", ".join(SIZES)
        raise RuleError("unknown-dtype", f"{where}: got {buffer.dtype!r}, want one of: {have}")
    if buffer.address % size or (buffer.slots > 1 and buffer.slot_bytes % size):
        raise RuleError(
            "alignment",
            f"{where}: address {buffer.address} and slot {buffer.slot_bytes} B, want multiples of {size}",
        )


def check_lasting(program: Program) -> None:
    """DRAM tensors that live for the whole program do not overlap."""
    lasting = [b for b in program.buffers if not b.partitions and b.kind in _LASTING and b.nbytes]
    lasting.sort(key=lambda b: (b.address, b.name))
    for one, other in pairwise(lasting):
        if one.address + one.nbytes > other.address:
            raise RuleError(
                "buffer-overlap",
                f"program {program.name!r}: {one.kind} {one.name!r} ends at byte "
                f"{one.address + one.nbytes}, {other.kind} {other.name!r} starts at {other.address}",
            )


def check_tensors(program: Program) -> None:
    """The DRAM buffer of a tensor holds its image: all elements, padding included, of all copies."""
    shapes, layouts = dict(program.shapes), dict(program.layouts)
    homes = set()
    for buffer in program.buffers:
        name = buffer.tensor or buffer.name
        if buffer.partitions or name not in shapes:
            continue
        homes.add(name)
        layout, shape = layouts.get(name, ROW_MAJOR), shapes[name]
        stacked = has_copies(buffer.slots, layout, shape)
        copies, shape = (shape[0], shape[1:]) if stacked else (1, shape)
        need = layout.stored_elements(shape) * SIZES[buffer.dtype]
        if need > buffer.slot_bytes or copies != buffer.slots:
            raise RuleError(
                "tensor-image",
                f"program {program.name!r}, buffer {buffer.name!r}: got {buffer.slots} slots of "
                f"{buffer.slot_bytes} B, want {copies} of {need} B for tensor {name!r}",
            )
    for name in program.outputs:
        if name in shapes and name not in homes:
            raise RuleError("tensor-image", f"program {program.name!r}: no DRAM buffer holds output {name!r}")


# ---- channels and streams ------------------------------------------------------------------------


def check_channels(program: Program, arch: ArchSpec) -> None:
    """Streams are engines or queues, each once; a channel joins two of them (R1, R2)."""
    streams = [name for name, _ in program.streams]
    known = (*arch.engines, *arch.queue_names)
    for name in streams:
        if name not in known:
            raise RuleError(
                "undefined-stream",
                f"program {program.name!r}: no engine or queue {name!r}, have {', '.join(known)}",
            )
    seen: set[str] = set()
    for channel in program.channels:
        where = f"program {program.name!r}, channel {channel.name!r}"
        if channel.name in seen:
            raise RuleError("duplicate-name", f"{where}: the name is used twice")
        seen.add(channel.name)
        for side in (channel.producer, channel.consumer):
            if side not in streams:
                raise RuleError("undefined-stream", f"{where}: no stream {side!r}, have {', '.join(streams)}")
        if channel.initial < 0:
            raise RuleError("token-count", f"{where}: got {channel.initial} initial tokens, want >= 0")
    if len(set(streams)) < len(streams):
        raise RuleError("duplicate-name", f"program {program.name!r}: a stream is listed twice: {streams}")


class _Streams:
    """Walks the streams, counting tokens on the way."""

    def __init__(self, place: Place, program: Program) -> None:
        self.place = place
        self.channels: dict[str, Channel] = {channel.name: channel for channel in program.channels}
        self.produced = dict.fromkeys(self.channels, 0)
        self.consumed = dict.fromkeys(self.channels, 0)
        self.first_wait: dict[str, Instr] = {}

    def stream(self, name: str, nodes: tuple[Node, ...]) -> None:
        """Check one stream."""
        self.place.port = self.place.ports[name]
        self.place.index = 0
        self.nodes(nodes, 1)

    def nodes(self, nodes: tuple[Node, ...], times: int) -> None:
        """Check `nodes`, which run `times` times in all."""
        place = self.place
        for node in nodes:
            if isinstance(node, Loop):
                self.loop(node, times)
                continue
            place.instr = node
            if node.waits or node.signals:
                self.tokens(times)
            check_instr(place, node)
            place.index += 1

    def loop(self, loop: Loop, times: int) -> None:
        """A loop has a variable of its own and a count of at least 0; its body is checked once."""
        last = self.place.last
        for instr, _ in walk(loop.body):  # what a message about the loop names
            self.place.instr = instr
            break
        if loop.var in last:
            self.place.fail("loop-variable", f"loop variable {loop.var!r} is used by an enclosing loop")
        if loop.count < 0:
            self.place.fail("loop-count", f"loop {loop.var!r} runs {loop.count} times, want >= 0")
        if loop.share is not None and not 0 <= loop.share <= loop.count:
            self.place.fail(
                "loop-share", f"loop {loop.var!r}: a core runs {loop.share} of {loop.count} iterations"
            )
        if not last:
            self.credits(loop)
        if not loop.count:
            self.place.index += sum(1 for _ in walk(loop.body))
            return
        last[loop.var] = loop.count - 1
        self.nodes(loop.body, times * loop.count)
        del last[loop.var]

    def tokens(self, times: int) -> None:
        """R1, R2: only a channel's consumer waits for it, only its producer signals it."""
        place, stream = self.place, self.place.port.name
        for verb, side, tokens, total in (
            ("waits for", "consumer", place.instr.waits, self.consumed),
            ("signals", "producer", place.instr.signals, self.produced),
        ):
            for name, count in tokens:
                channel = self.channels.get(name)
                if channel is None:
                    have = ", ".join(self.channels) or "none"
                    place.fail("undefined-channel", f"{verb} channel {name!r}, have {have}")
                owner = channel.consumer if side == "consumer" else channel.producer
                if owner != stream:
                    place.fail(f"channel-{side}", f"{verb} channel {name!r}, whose {side} is {owner!r}")
                if count < 1:
                    place.fail("token-count", f"{verb} {count} of channel {name!r}, want >= 1")
                total[name] += count * times
                if side == "consumer":
                    self.first_wait.setdefault(name, place.instr)

    def credits(self, loop: Loop) -> None:
        """R5: an outermost loop without any wait posts a bounded number of tokens."""
        totals: dict[str, int] = {}
        for instr, times in walk(loop.body, loop.count):
            if instr.waits:
                return
            for name, count in instr.signals:
                totals[name] = totals.get(name, 0) + count * times
        for name, total in totals.items():
            if total > MAX_CREDITS:
                self.place.fail(
                    "credits",
                    f"loop {loop.var!r} posts {total} tokens of channel {name!r} and never waits, "
                    f"limit {MAX_CREDITS}",
                )

    def balance(self, program: Program) -> None:
        """Every token that is waited for is there at the start or produced."""
        for channel in program.channels:
            have = channel.initial + self.produced[channel.name]
            if have < self.consumed[channel.name]:
                first = self.first_wait[channel.name]
                raise RuleError(
                    "token-balance",
                    f"program {program.name!r}, channel {channel.name!r}: {channel.consumer!r} waits for "
                    f"{self.consumed[channel.name]} tokens (first {type(first).__name__}, op {first.op!r}), "
                    f"{channel.producer!r} gives {have}",
                )
