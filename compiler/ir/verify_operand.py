"""Rules of one operand: where it may lie and what it may cover.

The messages begin with the rule's code (`compiler.ir.rules`) and say what was got and the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from arch_configs.spec import ArchSpec, SystolicSpec, VectorSpec
from compiler.ir.dtype import dtype_bytes
from compiler.ir.rules import RuleError
from compiler.isa import (
    Access,
    Activate,
    Affine,
    AffineSelect,
    Buffer,
    Collective,
    Copy,
    Dma,
    Gather,
    Instr,
    Matmul,
    Memset,
    Operand,
    Program,
    Reduce,
    Sync,
    TensorScalar,
    TensorTensor,
    Transpose,
)

_DTYPES = ("fp32", "bf16", "fp16", "fp8e4", "fp8e5", "int8", "int32")
SIZES = {name: dtype_bytes(name) for name in _DTYPES}
_QUEUE_TYPES = (Dma, Gather, Sync, Collective)
_ARRAY_TYPES = (Matmul, Transpose, Sync)
_VECTOR_TYPES = (Activate, TensorScalar, TensorTensor, Reduce, Copy, Memset, AffineSelect)


@dataclass(frozen=True, slots=True)
class Home:
    """A buffer and the limits of the memory it lies in."""

    buffer: Buffer
    partitions: int  # of the memory; 0 in DRAM
    bank_bytes: int


@dataclass(frozen=True, slots=True)
class Port:
    """What one stream may do."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    types: tuple[type[Instr], ...]
    ops: tuple[str, ...] = ()  # classes of a vector engine
    queue: bool = False


class Place:
    """Where the verifier stands: the stream, the instruction and the loops around it."""

    def __init__(self, program: Program, arch: ArchSpec) -> None:
        """Look up the limits once."""
        self.program = program
        self.arch = arch
        self.array_limits = (arch.array.rows, arch.array.cols, arch.array.moving_max)
        self.accumulator = arch.accumulator
        self.passes: tuple[str, ...] = tuple(arch.array.passes)
        self.homes = {buffer.name: _home(buffer, arch) for buffer in program.buffers}
        self.ports = _ports(arch)
        self.port = next(iter(self.ports.values()))
        self.index = 0
        self.instr: Instr = Sync()
        self.last: dict[str, int] = {}  # loop variable -> its last value

    def fail(self, rule: str, text: str) -> NoReturn:
        """Raise for the instruction at hand."""
        raise RuleError(
            rule,
            f"program {self.program.name!r}, stream {self.port.name!r}, instruction {self.index} "
            f"({type(self.instr).__name__}, op {self.instr.op!r}): {text}",
        )


def _home(buffer: Buffer, arch: ArchSpec) -> Home:
    if arch.memories[buffer.memory].kind == "dram":
        return Home(buffer, 0, 0)
    return Home(buffer, arch.partitions(buffer.memory), arch.bank_bytes(buffer.memory))


def _ports(arch: ArchSpec) -> dict[str, Port]:
    ports: dict[str, Port] = {}
    for name, engine in arch.engines.items():
        if isinstance(engine, SystolicSpec):
            ports[name] = Port(name, engine.reads, engine.writes, _ARRAY_TYPES)
        elif isinstance(engine, VectorSpec):
            types = (*_VECTOR_TYPES, Sync)
            ports[name] = Port(name, engine.reads, engine.writes, types, tuple(engine.ops))
    everything = tuple(arch.memories)
    for name in arch.queue_names:
        ports[name] = Port(name, everything, everything, _QUEUE_TYPES, queue=True)
    return ports


def check_read(place: Place, field: str, access: Access) -> int:
    """A source operand: in a memory the engine reads, within its buffer and partitions.

    Returns the elements per partition (in DRAM: in all), which the shape rules need.
    """
    home = _home_of(place, field, access)
    if home.buffer.memory not in place.port.reads:
        _unreachable(place, field, home, "reads", place.port.reads)
    _check_partitions(place, field, access, home)
    return _check_bounds(place, field, access, home.buffer)


def check_write(place: Place, field: str, access: Access) -> int:
    """A destination operand: as a source, in a memory the engine writes, each element once."""
    home = _home_of(place, field, access)
    if home.buffer.memory not in place.port.writes:
        _unreachable(place, field, home, "writes", place.port.writes)
    for stride, size in access.dims:
        if stride == 0 and size > 1:
            place.fail("repeated-write", f"{field} {access.buffer!r}: {size} elements at stride 0 are one")
    _check_partitions(place, field, access, home)
    return _check_bounds(place, field, access, home.buffer)


def _home_of(place: Place, field: str, access: Access) -> Home:
    """The buffer of an operand exists."""
    home = place.homes.get(access.buffer)
    if home is None:
        have = ", ".join(sorted(place.homes)) or "none"
        place.fail("undefined-buffer", f"{field}: no buffer {access.buffer!r}, have {have}")
    return home


def _unreachable(place: Place, field: str, home: Home, verb: str, memories: tuple[str, ...]) -> NoReturn:
    place.fail(
        "engine-memory",
        f"{field} {home.buffer.name!r} lies in {home.buffer.memory!r}, but the engine {verb} only: "
        f"{', '.join(memories)}",
    )


def _check_bounds(place: Place, field: str, access: Access, buffer: Buffer) -> int:
    """The elements of an operand lie inside one slot of its buffer for all values of the loop counters."""
    size = SIZES.get(access.dtype)
    if size is None:
        place.fail("unknown-dtype", f"{field}: got {access.dtype!r}, want one of: {', '.join(SIZES)}")
    if buffer.address % size or (buffer.slots > 1 and buffer.slot_bytes % size):
        place.fail(
            "alignment",
            f"{field}: {access.dtype} in buffer {buffer.name!r} at {buffer.address}, slots of "
            f"{buffer.slot_bytes} B: want multiples of {size}",
        )
    low = high = access.offset.const
    free = 1
    for stride, count in access.dims:
        if count < 1:
            place.fail("empty-operand", f"{field} {access.buffer!r}: an axis has {count} elements, want >= 1")
        free *= count
        if stride > 0:
            high += stride * (count - 1)
        else:
            low += stride * (count - 1)
    last = place.last
    for name, factor in access.offset.terms:
        if name not in last:
            _unbound(place, field, name)
        if factor > 0:
            high += factor * last[name]
        else:
            low += factor * last[name]
    for name, _ in access.slot.terms:
        if name not in last:
            _unbound(place, field, name)
    if low < 0 or (high + 1) * size > buffer.slot_bytes:
        place.fail(
            "buffer-bounds",
            f"{field} reaches bytes {low * size} to {(high + 1) * size} of buffer {buffer.name!r}, "
            f"a slot has {buffer.slot_bytes}",
        )
    return free


def check_affine(place: Place, field: str, affine: Affine) -> None:
    """An expression names only the variables of enclosing loops."""
    for name, _ in affine.terms:
        if name not in place.last:
            _unbound(place, field, name)


def _unbound(place: Place, field: str, name: str) -> NoReturn:
    have = ", ".join(place.last) or "none"
    place.fail("unbound-variable", f"{field} uses loop variable {name!r}, enclosing loops have: {have}")


def _check_partitions(place: Place, field: str, access: Access, home: Home) -> None:
    """On chip: at least one partition, none beyond the buffer's, and an allowed start for an engine."""
    limit, start, count = home.buffer.partitions, access.partition, access.partitions
    if not home.partitions:
        if count or start:
            place.fail("partition-limit", f"{field} {access.buffer!r} is in DRAM: got partitions, want none")
        return
    if count < 1 or start < 0 or start + count > limit:
        place.fail(
            "partition-limit",
            f"{field}: partitions {start} to {start + count} of buffer {access.buffer!r}, it has {limit}",
        )
    if start and not place.port.queue:
        _check_start(place, field, access, home.partitions)


def _check_start(place: Place, field: str, access: Access, whole: int) -> None:
    """More than half of the P partitions start at 0, more than a quarter at 0 or P/2, others at k*P/4.

    DMA queues may start anywhere, as may all where P does not divide by 4.
    Source: NeuronCore partition start rule (> 64: 0; 33 to 64: 0, 64; <= 32: 0, 32, 64, 96 of 128).
    """
    if whole % 4:
        return
    count = access.partitions
    step = whole if count > whole // 2 else whole // 2 if count > whole // 4 else whole // 4
    if access.partition % step:
        place.fail(
            "start-partition",
            f"{field} {access.buffer!r}: {count} partitions start at {access.partition}, want a multiple "
            f"of {step} below {whole}",
        )


def check_scalar(place: Place, field: str, operand: Operand, partitions: int) -> None:
    """A number, or one value for each partition of the source."""
    if not isinstance(operand, Access):
        return
    free = check_read(place, field, operand)
    if free != 1 or operand.partitions != partitions:
        place.fail(
            "scalar-operand",
            f"{field} {operand.buffer!r}: got {free} values on {operand.partitions} "
            f"partitions, want 1 on {partitions}",
        )
