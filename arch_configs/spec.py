"""The vocabulary of hardware: what an architecture file may say, and what each key means.

All quantities are integers in base units (bytes, bytes/s, hertz, picoseconds, cycles of the
engine they stand in). Everything is frozen; `ArchSpec` is the only type other packages need.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from arch_configs.units import Bytes, BytesPerSecond, Hertz, Picoseconds


def _fraction(value: object) -> Fraction:
    """A positive exact ratio: ``0.25``, ``2`` or ``"1/3"``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction)):
        raise ValueError(f"got {value!r}, want a positive number")
    try:
        ratio = Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"got {value!r}, want a positive number") from error
    if ratio <= 0:
        raise ValueError(f"got {value!r}, want a positive number")
    return ratio


Ratio = Annotated[Fraction, BeforeValidator(_fraction)]
DTYPES = ("fp32", "bf16", "fp16", "fp8e4", "fp8e5", "int8", "int32")
DTypeName = Literal["fp32", "bf16", "fp16", "fp8e4", "fp8e5", "int8", "int32"]
VectorOp = Literal["copy", "scalar_op", "tensor_op", "reduce", "activate", "memset", "select"]


class Spec(BaseModel):
    """Base of every section: unknown keys are errors, values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class RampSpec(Spec):
    """A current (dI/dt) limiter: after idling the array starts slow and ramps up."""

    start: Ratio  # share of the full rate right after idling
    time: Picoseconds  # until the full rate is reached


class SystolicSpec(Spec):
    """A matrix engine: `out[m, n] += stationary[k, m] * moving[k, n]`, contraction on partitions."""

    kind: Literal["systolic"]
    rows: PositiveInt  # contraction (k) extent held at once
    cols: PositiveInt  # stationary free (m) extent held at once
    units: PositiveInt = 1  # identical arrays fed side by side; the moving columns are split over them
    clock: Hertz
    moving_max: PositiveInt = 512  # moving columns one instruction may stream
    min_interval: PositiveInt = 1  # cycles between two matmul issues, at least
    weight_load: PositiveInt = 1  # cycles to load a full stationary tile
    background_load: bool = True  # the next stationary tile loads while the present one is used
    passes: dict[DTypeName, PositiveInt]  # cycles per moving column, per operand dtype
    latency: PositiveInt = 1  # cycles from the last column issued until the result is visible
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
    lanes: PositiveInt
    clock: Hertz
    overhead: PositiveInt = 1  # fixed cycles of every instruction
    min_interval: PositiveInt = 1  # cycles an instruction takes beyond the overhead, at least
    ops: dict[VectorOp, Annotated[VectorCost, BeforeValidator(_cost)]]
    table_load: Picoseconds = 0  # changing the activation-function table
    latency: PositiveInt = 1  # cycles from the end of an instruction until others see its signal
    reads: tuple[str, ...]
    writes: tuple[str, ...]


EngineSpec = Annotated[SystolicSpec | VectorSpec, Field(discriminator="kind")]


class MemorySpec(Spec):
    """One on-chip or off-chip memory, as one core sees it."""

    kind: Literal["dram", "scratchpad", "accumulator"]
    capacity: Bytes
    bandwidth: BytesPerSecond | None = None  # dram: what one core can draw; on chip: not a limit if absent
    partitions: PositiveInt | None = None  # on chip; default: the larger side of the array
    banks: PositiveInt = 1  # accumulator: accumulation groups that may be open at once
    reserved: Bytes = 0  # kept back for the runtime
    shared_by: PositiveInt = 1  # cores that share this capacity and bandwidth


class DmaSpec(Spec):
    """The engines that move data between DRAM and the on-chip memories."""

    queues: PositiveInt  # rings that one core may use, each in order
    engines: PositiveInt  # transfer engines behind the queues
    engine_bandwidth: BytesPerSecond  # sustained, per engine
    queue_bandwidth: BytesPerSecond | None = None  # most that one queue can carry; default: all engines
    issue: Picoseconds = 0  # time a queue is occupied by starting one transfer
    latency: Picoseconds = 0  # from the start of a transfer to its first byte
    completion: Picoseconds = 0  # from the last byte until the waiting engine sees it
    descriptor_bytes: Bytes = 1  # a contiguous run shorter than this costs as much as this
    gather: bool = True  # can gather rows by an index list


class ExclusionSpec(Spec):
    """Engines that cannot use a memory at the same time; the hardware serialises them."""

    engines: tuple[str, ...]
    memory: str


class LinkSpec(Spec):
    """A chip-to-chip link, one direction."""

    bandwidth: BytesPerSecond
    latency: Picoseconds = 0


class MeshSpec(Spec):
    """How chips are connected; single-core runs do not use it."""

    axes: dict[str, PositiveInt]
    topology: Literal["ring", "torus", "switch"] = "torus"
    link: LinkSpec


class ArchSpec(Spec):
    """A resolved architecture."""

    name: str
    description: str = ""
    cores: PositiveInt = 1  # per chip
    engines: dict[str, EngineSpec]
    memories: dict[str, MemorySpec]
    dma: DmaSpec
    exclusions: tuple[ExclusionSpec, ...] = ()
    mesh: MeshSpec | None = None
    launch_overhead: Picoseconds = 0  # host or runtime gap in front of each run

    @model_validator(mode="after")
    def _names_exist(self) -> ArchSpec:
        """Every memory and engine that is named exists, and the roles the compiler needs are filled."""
        problems = [
            f"engines.{name}.{side}: no memory {memory!r}, have {', '.join(self.memories)}"
            for name, engine in self.engines.items()
            for side in ("reads", "writes")
            for memory in getattr(engine, side)
            if memory not in self.memories
        ]
        for rule in self.exclusions:
            problems += [f"exclusions: no engine {e!r}" for e in rule.engines if e not in self.engines]
            if rule.memory not in self.memories:
                problems.append(f"exclusions: no memory {rule.memory!r}")
        for kind in ("dram", "scratchpad", "accumulator"):
            found = [n for n, m in self.memories.items() if m.kind == kind]
            if len(found) != 1:
                problems.append(f"memories: want exactly one of kind {kind}, got {found or 'none'}")
        if sum(e.kind == "systolic" for e in self.engines.values()) != 1:
            problems.append("engines: want exactly one of kind systolic")
        if not any(e.kind == "vector" for e in self.engines.values()):
            problems.append("engines: want at least one of kind vector")
        if problems:
            raise ValueError("; ".join(problems))
        return self

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
        """Bytes of one bank of one partition: the largest accumulation group."""
        return self.partition_bytes(memory) // self.memories[memory].banks

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Names of the DMA queues, in order; each is an instruction stream."""
        return tuple(f"dma{i}" for i in range(self.dma.queues))

    @property
    def dram_bandwidth(self) -> int:
        """Bytes/s one core can draw from DRAM; without a stated limit, what its DMA can move."""
        return self.memories[self.dram].bandwidth or self.dma.engines * self.dma.engine_bandwidth

    def peak_flops(self, dtype: str) -> int:
        """Peak FLOP/s of the array of one core for `dtype` (1 MAC = 2 FLOPs); 0 if it has none."""
        passes = self.array.passes.get(dtype)  # type: ignore[call-overload]
        spec = self.array
        return 0 if passes is None else 2 * spec.rows * spec.cols * spec.units * spec.clock // passes

    def canonical(self) -> dict[str, Any]:
        """Plain data that says everything about this architecture (for digests and `dse check`)."""
        return self.model_dump(mode="json")
