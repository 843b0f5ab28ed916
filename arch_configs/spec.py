"""The vocabulary of hardware: what an architecture file may say, and what each key means.

All quantities are integers in base units (bytes, bytes/s, hertz, picoseconds, cycles of the
engine they stand in). Everything is frozen; `ArchSpec` is the only type other packages need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from arch_configs.fitted import CalibrationSpec
from arch_configs.rules import Outline, Problem, RuleError, outline_problems
from arch_configs.units import Bytes, BytesPerSecond, Hertz, Picoseconds

MAX_COUNT = 1 << 20  # assumed; no array side, lane or queue count comes near
MAX_SIDE = 1 << 16  # assumed; the largest arrays built are 256 a side
MAX_RINGS = 1024  # assumed; each queue is a stream of instructions, and 16 is usual
MAX_CLOCK = 10**12  # one cycle is at least the 1 ps that time is counted in
MAX_RATIO = 1 << 16  # assumed
MIN_BANK_BYTES = 4  # one fp32 accumulator


def _whole(limit: int, least: int = 1) -> Callable[[object], int]:
    """A check for a whole number from `least` to `limit`; `true` and text are not numbers here."""

    def check(value: object) -> int:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(whole, bool) or not isinstance(whole, int) or not least <= whole <= limit:
            raise ValueError(f"got {value!r}, want a whole number from {least} to {limit}")
        return whole

    return check


def _ratio(value: object) -> Fraction:
    """A positive exact ratio: ``0.25``, ``2`` or ``"1/3"``."""
    problem = ValueError(f"got {value!r}, want a number or ratio such as 2, 0.5 or 1/3, up to {MAX_RATIO}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)) or len(str(value)) > 40:
        raise problem
    try:
        ratio = Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise problem from error
    if not Fraction(1, MAX_RATIO) <= ratio <= MAX_RATIO:
        raise problem
    return ratio


def _share(value: Fraction) -> Fraction:
    if value > 1:
        raise ValueError(f"got {value}, want a share of at most 1")
    return value


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("got 0, want more than 0")
    return value


def _clock(value: int) -> int:
    if not 1 <= value <= MAX_CLOCK:
        raise ValueError(f"got {value} Hz, want a frequency from 1 Hz to 1000 GHz")
    return value


Count = Annotated[
    int,
    BeforeValidator(_whole(MAX_COUNT)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_COUNT}),
]
CountOrZero = Annotated[
    int,
    BeforeValidator(_whole(MAX_COUNT, 0)),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_COUNT}),
]
Side = Annotated[
    int,
    BeforeValidator(_whole(MAX_SIDE)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_SIDE}),
]
Rings = Annotated[
    int,
    BeforeValidator(_whole(MAX_RINGS)),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_RINGS}),
]
Ratio = Annotated[
    Fraction,
    BeforeValidator(_ratio),
    PlainSerializer(str),
    WithJsonSchema({"type": ["number", "string"], "examples": [2, 0.5, "1/3"]}),
]
Share = Annotated[Ratio, AfterValidator(_share)]
Capacity = Annotated[Bytes, AfterValidator(_not_zero)]
Bandwidth = Annotated[BytesPerSecond, AfterValidator(_not_zero)]
Clock = Annotated[Hertz, AfterValidator(_clock)]
DTYPES = ("fp32", "bf16", "fp16", "fp8e4", "fp8e5", "int8", "int32")
DTypeName = Literal["fp32", "bf16", "fp16", "fp8e4", "fp8e5", "int8", "int32"]
VectorOp = Literal["copy", "scalar_op", "tensor_op", "reduce", "activate", "memset", "select"]


class Spec(BaseModel):
    """Base of every section: unknown keys are errors, values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class RampSpec(Spec):
    """A current (dI/dt) limiter: after idling the array starts slow and ramps up."""

    start: Share  # share of the full rate right after idling
    time: Picoseconds  # until the full rate is reached


class SystolicSpec(Spec):
    """A matrix engine: `out[m, n] += stationary[k, m] * moving[k, n]`, contraction on partitions."""

    kind: Literal["systolic"]
    rows: Side  # contraction (k) extent held at once
    cols: Side  # stationary free (m) extent held at once
    units: Count = 1  # identical arrays; successive matmuls are dealt over them
    clock: Clock
    moving_max: Count = 512  # moving columns one instruction may stream
    min_interval: Count = 1  # cycles between two matmul issues, at least
    weight_load: Count = 1  # cycles to load a full stationary tile
    background_load: bool = True  # the next stationary tile loads while the present one is used
    sustained: Share = Fraction(1)  # share of the clock's rate that is kept up; peaks are without it
    overhead: CountOrZero = 0  # cycles that every instruction loses, whatever its size
    passes: dict[DTypeName, Ratio]  # cycles per moving column, per operand dtype; 1/2: two rows a cell
    latency: Count = 1  # cycles from the last column issued until the result is visible
    ramp: RampSpec | None = None
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class VectorCost(Spec):
    """Cycles per element and lane of one class of vector operation."""

    base: Ratio
    narrow: Ratio | None = None  # every operand 16 bit or less and in the scratchpad
    narrow_mixed: Ratio | None = None  # every operand 16 bit or less, one of them in the accumulator
    accumulator: Ratio | None = None  # an operand is in the accumulator memory


def _cost(value: object) -> object:
    return value if isinstance(value, (dict, VectorCost)) else {"base": value}


class VectorSpec(Spec):
    """An engine that works on `lanes` partitions at once, element by element along the free axis."""

    kind: Literal["vector"]
    lanes: Side
    clock: Clock
    overhead: Count = 1  # fixed cycles of every instruction
    min_interval: Count = 1  # cycles an instruction takes beyond the overhead, at least
    ops: dict[VectorOp, Annotated[VectorCost, BeforeValidator(_cost)]]
    table_load: Picoseconds = 0  # changing the activation-function table
    latency: Count = 1  # cycles from the end of an instruction until others see its signal
    reads: tuple[str, ...]
    writes: tuple[str, ...]


EngineSpec = Annotated[SystolicSpec | VectorSpec, Field(discriminator="kind")]


class MemorySpec(Spec):
    """One on-chip or off-chip memory, as one core sees it."""

    kind: Literal["dram", "scratchpad", "accumulator"]
    capacity: Capacity
    bandwidth: Bandwidth | None = None  # dram only: what one core can draw; on chip the engines' rates limit
    sustained: Share = Fraction(1)  # dram only: share of the bandwidth that is kept up; peaks are without it
    partitions: Count | None = None  # on chip; default: the larger side of the array
    banks: Count = 1  # accumulator: accumulation groups that may be open at once
    reserved: Bytes = 0  # kept back for the runtime
    shared_by: Count = 1  # cores that share this capacity and bandwidth


class DmaSpec(Spec):
    """The engines that move data between DRAM and the on-chip memories."""

    queues: Rings  # rings that one core may use, each in order
    engines: Rings  # transfer engines behind the queues
    engine_bandwidth: Bandwidth  # sustained, per engine
    queue_bandwidth: Bandwidth | None = None  # most that one queue can carry; default: all engines
    issue: Picoseconds = 0  # time a queue is occupied by starting one transfer
    latency: Picoseconds = 0  # from the start of a transfer to its first byte
    completion: Picoseconds = 0  # from the last byte until the waiting engine sees it
    descriptor_bytes: Capacity = 1  # a contiguous run shorter than this costs as much as this
    gather: bool = True  # can gather rows by an index list


class ExclusionSpec(Spec):
    """Engines that cannot use a memory at the same time; the hardware serialises them."""

    engines: tuple[str, ...]
    memory: str


class GridSpec(Spec):
    """How one op runs on all cores of a chip: they deal its tiles, one op after the other.

    The DRAM's bandwidth is then that of the chip, and what one core can draw is what its DMA can move.
    """

    launch: Picoseconds = 0  # from one op to the next: launch and barrier over all cores
    cache: Bytes = 0  # last-level cache between the cores and the DRAM


class LinkSpec(Spec):
    """A chip-to-chip link, one direction."""

    bandwidth: Bandwidth
    latency: Picoseconds = 0


class MeshSpec(Spec):
    """How chips are connected; single-core runs do not use it."""

    axes: dict[str, Count]
    topology: Literal["ring", "torus", "switch"] = "torus"
    link: LinkSpec


class ArchSpec(Spec):
    """A resolved architecture."""

    name: str
    description: str = ""
    cores: Count = 1  # per chip
    engines: dict[str, EngineSpec]
    memories: dict[str, MemorySpec]
    dma: DmaSpec
    exclusions: tuple[ExclusionSpec, ...] = ()
    mesh: MeshSpec | None = None
    grid: GridSpec | None = None  # default: a run uses one core
    launch_overhead: Picoseconds = 0  # host or runtime gap in front of each run
    calibration: CalibrationSpec | None = None  # what fitted values were fitted to

    @model_validator(mode="after")
    def _rules_hold(self) -> ArchSpec:
        """Every name that is used exists, every role is filled, and the numbers fit each other."""
        problems = outline_problems(self._outline())
        if not problems:
            problems = self._misfits()
        if problems:
            raise RuleError(problems)
        return self

    def _outline(self) -> Outline:
        return Outline(
            engines={name: spec.kind for name, spec in self.engines.items()},
            reads={name: spec.reads for name, spec in self.engines.items()},
            writes={name: spec.writes for name, spec in self.engines.items()},
            memories={name: spec.kind for name, spec in self.memories.items()},
            exclusions=[(rule.engines, rule.memory) for rule in self.exclusions],
        )

    def _misfits(self) -> list[Problem]:
        """Numbers that are valid alone but not together, and keys that nothing would read."""
        found: list[Problem] = []
        for name in self.memories:
            found += [(("memories", name, key), text) for key, text in self._memory_misfits(name)]
        for side, memory in (("rows", self.scratchpad), ("cols", self.accumulator)):
            size, partitions = getattr(self.array, side), self.partitions(memory)
            if size > partitions:
                text = f"got {size}, want at most the {partitions} partitions of {memory}"
                found.append((("engines", self.tensor, side), text))
        for index, rule in enumerate(self.exclusions):
            if len(set(rule.engines)) < 2:
                text = f"got {', '.join(rule.engines) or 'none'}, want at least two different engines"
                found.append((("exclusions", index, "engines"), text))
        return found

    def _memory_misfits(self, name: str) -> Iterator[tuple[str, str]]:
        spec = self.memories[name]
        usable = spec.capacity - spec.reserved
        if usable <= 0:
            yield "reserved", f"got {spec.reserved} B of {spec.capacity} B, want less than the capacity"
        if spec.kind != "accumulator" and spec.banks != 1:
            yield "banks", f"got {spec.banks}, want banks on the accumulator only"
        if spec.kind == "dram":
            if spec.partitions is not None:
                yield "partitions", "got a value, want none: DRAM has no partitions"
            return
        if spec.sustained != 1:
            yield "sustained", f"got {spec.sustained}, want none: only DRAM loses time to refresh and turns"
        if spec.bandwidth is not None:
            yield "bandwidth", "got a value, want none: on chip the engines' lanes and clocks are the limit"
        if usable > 0 and self.bank_bytes(name) < MIN_BANK_BYTES:
            yield (
                "capacity",
                f"got {usable} B usable for {self.partitions(name)} partitions x {spec.banks} banks, "
                f"want at least {MIN_BANK_BYTES} B in each",
            )

    def memory_of_kind(self, kind: str) -> str:
        """Name of the one memory of `kind`."""
        return next(name for name, memory in self.memories.items() if memory.kind == kind)

    @property
    def dram(self) -> str:
        """Name of the off-chip memory."""
        return self.memory_of_kind("dram")

    @property
    def scratchpad(self) -> str:
        """Name of the on-chip working memory."""
        return self.memory_of_kind("scratchpad")

    @property
    def accumulator(self) -> str:
        """Name of the memory the array accumulates into."""
        return self.memory_of_kind("accumulator")

    @property
    def tensor(self) -> str:
        """Name of the matrix engine."""
        return next(name for name, engine in self.engines.items() if engine.kind == "systolic")

    @property
    def array(self) -> SystolicSpec:
        """The matrix engine."""
        engine = self.engines[self.tensor]
        assert isinstance(engine, SystolicSpec)
        return engine

    @property
    def vectors(self) -> dict[str, VectorSpec]:
        """The vector engines, in file order."""
        return {n: e for n, e in self.engines.items() if isinstance(e, VectorSpec)}

    def partitions(self, memory: str) -> int:
        """Partitions of an on-chip memory (default: the larger side of the array)."""
        return self.memories[memory].partitions or max(self.array.rows, self.array.cols)

    def partition_bytes(self, memory: str) -> int:
        """Usable bytes of one partition of an on-chip memory."""
        spec = self.memories[memory]
        return max(0, spec.capacity - spec.reserved) // self.partitions(memory)

    def bank_bytes(self, memory: str) -> int:
        """Bytes of one bank of one partition, whole 4-byte sums: the largest accumulation group."""
        return self.partition_bytes(memory) // self.memories[memory].banks // 4 * 4

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Names of the DMA queues, in order; each is an instruction stream."""
        return tuple(f"dma{i}" for i in range(self.dma.queues))

    @property
    def dram_bandwidth(self) -> int:
        """Bytes/s one core can draw from DRAM; without a stated limit, what its DMA can move."""
        return self.memories[self.dram].bandwidth or self.dma_bandwidth * self.run_cores

    @property
    def dram_sustained(self) -> int:
        """Bytes/s that DRAM keeps up, with refresh and turns between reads and writes."""
        return int(self.dram_bandwidth * self.memories[self.dram].sustained)

    @property
    def dma_bandwidth(self) -> int:
        """Bytes/s that the DMA engines of one core can move."""
        return self.dma.engines * self.dma.engine_bandwidth

    @property
    def run_cores(self) -> int:
        """Cores that one run uses: one, or all of a grid."""
        return self.cores if self.grid else 1

    def peak_flops(self, dtype: str) -> int:
        """Peak FLOP/s of the arrays of a run's cores for `dtype` (1 MAC = 2 FLOPs); 0 if it has none."""
        passes = self.array.passes.get(dtype)  # type: ignore[call-overload]
        spec = self.array
        cells = spec.rows * spec.cols * spec.units * self.run_cores
        return 0 if passes is None else 2 * cells * spec.clock // passes

    def canonical(self) -> dict[str, Any]:
        """Plain data that says everything about this architecture (for digests and `dse check`)."""
        return self.model_dump(mode="json")
