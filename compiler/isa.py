"""The machine language: instructions, loops, buffers, channels and the Program they make.

A Program says everything the hardware needs and nothing about timing. Per core it holds one in-order
stream per engine and per DMA queue; a loop stays a loop. Streams meet only through channels: counting
semaphores with one producing and one consuming stream (rules R1, R2), whose tokens are consumed in
order, so timing does not depend on who is simulated first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.ir.dtype import dtype_bytes
from compiler.ir.layout import Layout


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + sum(coefficient * loop variable)`; terms are sorted by variable and never zero."""

    const: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        """Sum with another expression or an int."""
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        merged = dict(self.terms)
        for name, factor in other.terms:
            merged[name] = merged.get(name, 0) + factor
        return Affine(self.const + other.const, tuple(sorted((n, f) for n, f in merged.items() if f)))

    __radd__ = __add__

    def __mul__(self, factor: int) -> Affine:
        """Product with an int."""
        if factor == 0:
            return Affine()
        return Affine(self.const * factor, tuple((n, f * factor) for n, f in self.terms))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Affine:
        """Exact quotient; every part must be divisible."""
        assert all(f % divisor == 0 for f in (self.const, *(f for _, f in self.terms))), (self, divisor)
        return Affine(self.const // divisor, tuple((n, f // divisor) for n, f in self.terms))

    def __sub__(self, other: Affine | int) -> Affine:
        """Difference."""
        return self + (-other if isinstance(other, int) else other * -1)

    def at(self, env: dict[str, int]) -> int:
        """Value under the loop counters `env`."""
        value = self.const
        for name, factor in self.terms:
            value += factor * env[name]
        return value

    def shifted(self, var: str, by: int) -> Affine:
        """The same expression with `var + by` in place of `var`."""
        for name, factor in self.terms:
            if name == var:
                return Affine(self.const + factor * by, self.terms)
        return self


ZERO = Affine()


def var(name: str) -> Affine:
    """The loop variable `name` as an expression."""
    return Affine(0, ((name, 1),))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A placed piece of memory.

    On chip, `address` and `slot_bytes` count bytes within each partition, and the buffer covers
    `partitions` partitions from 0. In DRAM they count bytes. `slots` copies lie one behind the other.
    """

    name: str
    memory: str
    dtype: str
    address: int
    slot_bytes: int
    slots: int = 1
    partitions: int = 0  # 0 in DRAM
    tensor: str = ""  # the graph value or tile role it serves, for reports
    kind: str = "tile"  # tile | weight | input | output | state | activation

    @property
    def nbytes(self) -> int:
        """Bytes over all slots (per partition on chip)."""
        return self.slot_bytes * self.slots


@dataclass(frozen=True, slots=True)
class Access:
    """A strided view of a buffer: one operand.

    `dims` are (stride, size) in elements, outermost first. On chip they are the free axes of each
    of `partitions` partitions from `partition`; in DRAM all axes are in `dims` (`partitions` is 0),
    and a transfer pairs the elements of both sides in row-major order, partitions outermost.
    `slot` selects the copy: its value modulo the buffer's slots.
    """

    buffer: str
    dtype: str
    dims: tuple[tuple[int, int], ...]
    offset: Affine = Affine()  # elements
    partition: int = 0
    partitions: int = 0
    slot: Affine = Affine()

    @property
    def free_elements(self) -> int:
        """Elements per partition (on chip) or in all (DRAM)."""
        count = 1
        for _, size in self.dims:
            count *= size
        return count

    @property
    def elements(self) -> int:
        """Elements in all."""
        return self.free_elements * max(1, self.partitions)

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.elements * dtype_bytes(self.dtype)

    def run_elements(self) -> int:
        """Length in elements of the contiguous runs the view falls into (within a partition)."""
        run = 1
        for stride, size in reversed(self.dims):
            if size == 1:
                continue
            if stride != run:
                break
            run *= size
        return run


Token = tuple[str, int]  # (channel name, how many)
Operand = Access | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instr:
    """Base of all instructions. `op` names the graph op it came from.

    It starts when every token of `waits` is there (they are consumed) and posts `signals` at its end.
    """

    waits: tuple[Token, ...] = ()
    signals: tuple[Token, ...] = ()
    op: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Instr):
    """Only waits and signals; in a DMA queue it signals after all earlier transfers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul(Instr):
    """`dst[m, n] (+)= stationary[k, m] * moving[k, n]`, k on partitions, fp32 accumulation.

    `reset` lists expressions: when all are zero dst is overwritten, else accumulated. An empty
    tuple always overwrites; None always accumulates.
    `load` is false when the stationary tile is the one already in the array. `chain` matmuls like this
    one, with it, add to the same sums one after the other; it matters to types of less than one pass.
    """

    dst: Access
    stationary: Access
    moving: Access
    reset: tuple[Affine, ...] | None = ()
    load: bool = True
    model: bool = True  # False: array work that the model does not ask for (ones-reductions)
    chain: int = 1

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the true extents."""
        return self.stationary.elements * self.moving.free_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose(Instr):
    """`dst[f, p] = src[p, f]` through the array (a matmul by the identity)."""

    dst: Access
    src: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate(Instr):
    """`dst = func(src * scale + bias)`; `scale`/`bias` are numbers or one value a partition.

    With `accumulate`, the sum of the results over the free axes is also written there, [p, 1].
    """

    dst: Access
    src: Access
    func: str
    scale: Operand = 1.0
    bias: Operand = 0.0
    accumulate: Access | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorScalar(Instr):
    """`dst = (src op0 a) op1 b`; a, b are numbers or one value a partition ([p, 1])."""

    dst: Access
    src: Access
    op0: str
    a: Operand
    op1: str | None = None
    b: Operand = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTensor(Instr):
    """`dst = (lhs * scale) operation rhs`, element by element; `scale`: a number or one value a partition."""

    dst: Access
    lhs: Access
    rhs: Access
    operation: str
    scale: Operand = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Instr):
    """`dst[p, outer...] = reduce(operation) of src[p, outer..., inner]` over the last `axes` free axes."""

    dst: Access
    src: Access
    operation: str  # add | max | min
    axes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Instr):
    """`dst = src`, converting the type."""

    dst: Access
    src: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Memset(Instr):
    """`dst = value`."""

    dst: Access
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineSelect(Instr):
    """`dst[p, f] = src[p, f] if base + p*partition_step + f*free_step >= 0 else fill`; f is flat."""

    dst: Access
    src: Access
    base: Affine
    partition_step: int
    free_step: int
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dma(Instr):
    """Move `src` to `dst` (at least one on chip or both in DRAM); the same dtype and element count."""

    dst: Access
    src: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Instr):
    """`dst[p, :] = src[index[p], :]`: rows of a DRAM table, one a partition; `src.dims` is one row."""

    dst: Access
    src: Access
    index: Access  # int32 [p, 1] on chip
    row_stride: int  # elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Instr):
    """A collective over mesh axes; reserved for multi-chip programs."""

    kind: str
    dst: Access
    src: Access
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` `count` times; `var` counts from 0. Equal `region` in several streams: the same loop.

    A software-pipelined stream may run fewer iterations of a region than the others. The cores of a grid
    deal the iterations of a loop with a `share` among them: the busiest core runs so many.
    """

    var: str
    count: int
    body: tuple[Instr | Loop, ...]
    region: int
    share: int | None = None

    def times(self, *, own: bool) -> int:
        """Iterations: of all cores, or of the busiest core alone."""
        return self.share if own and self.share is not None else self.count


Node = Instr | Loop


@dataclass(frozen=True, slots=True)
class Channel:
    """A counting semaphore from one stream to one other; `initial` tokens are there at time 0."""

    name: str
    producer: str
    consumer: str
    initial: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program of one core: a value, printable, parseable and hashable."""

    name: str
    streams: tuple[tuple[str, tuple[Node, ...]], ...]  # (engine or queue name, nodes)
    buffers: tuple[Buffer, ...]
    channels: tuple[Channel, ...]
    outputs: tuple[str, ...] = ()  # graph values
    layouts: tuple[tuple[str, Layout], ...] = ()  # graph value -> how it lies in DRAM (default: row-major)
    shapes: tuple[
        tuple[str, tuple[int, ...]], ...
    ] = ()  # graph value -> logical shape (stacked: copies first)
    launches: int = 0  # ops that start on all cores of a grid, one after the other

    def buffer_map(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}


OPERAND_FIELDS = (
    "dst", "src", "lhs", "rhs", "stationary", "moving", "scale", "bias", "a", "b", "accumulate", "index",
)  # fmt: skip
WRITTEN_FIELDS = ("dst", "accumulate")


def operands(instr: Instr) -> Iterator[tuple[str, Access]]:
    """All (field name, access) of an instruction."""
    for name in OPERAND_FIELDS:
        value = getattr(instr, name, None)
        if isinstance(value, Access):
            yield name, value


def reads(instr: Instr) -> list[Access]:
    """What an instruction reads (an accumulating matmul also reads its dst)."""
    found = [access for name, access in operands(instr) if name not in WRITTEN_FIELDS]
    if isinstance(instr, Matmul) and instr.reset != ():
        found.append(instr.dst)
    return found


def writes(instr: Instr) -> list[Access]:
    """What an instruction writes."""
    return [access for name, access in operands(instr) if name in WRITTEN_FIELDS]


def walk(nodes: tuple[Node, ...], times: int = 1, *, own: bool = False) -> Iterator[tuple[Instr, int]]:
    """Every static instruction with how often it runs, on all cores of a grid or on the busiest `own`."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from walk(node.body, times * node.times(own=own), own=own)
        else:
            yield node, times


def unroll(
    nodes: tuple[Node, ...], env: dict[str, int] | None = None, *, own: bool = False
) -> Iterator[tuple[Instr, dict[str, int]]]:
    """Every dynamic instruction of a stream in order, with its loop counters (the dict is reused).

    `own`: of the busiest core of a grid, else of all cores, one after the other.
    """
    env = {} if env is None else env
    for node in nodes:
        if isinstance(node, Loop):
            for i in range(node.times(own=own)):
                env[node.var] = i
                yield from unroll(node.body, env, own=own)
            env.pop(node.var, None)
        else:
            yield node, env
