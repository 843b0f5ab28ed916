"""The kernel API: buffers, loops and instructions, written in program order.

A kernel is a Python function that calls a `Builder`. It says which tile is moved or computed when;
which engine waits for which, addresses and multi-buffering hazards are derived later, for users'
kernels as for ours. Loops stay symbolic: a loop variable is an `Affine`, never a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

from arch_configs.spec import ArchSpec
from compiler.cost import CostModel, Roofline
from compiler.engines import EngineChooser
from compiler.errors import CompileError
from compiler.ir.dtype import dtype_bytes
from compiler.ir.tiles import TileBuffer, TileGraph, TileInstr, TileLoop
from compiler.isa import (
    Access,
    Activate,
    Affine,
    AffineSelect,
    Copy,
    Dma,
    Gather,
    Instr,
    Matmul,
    Memset,
    Operand,
    Reduce,
    TensorScalar,
    TensorTensor,
    Transpose,
    operands,
    reads,
    var,
)
from compiler.tensor import Range, Tensor, row_major, rows_of, spread

__all__ = ["Builder", "Range", "Tensor"]

ROLES = ("weight", "input", "output", "aux")  # each role has DMA queues of its own while there are enough


class Builder:
    """Builds one TileGraph. See the module text."""

    def __init__(
        self, arch: ArchSpec, name: str, cost: CostModel | None = None, *, pipelined: bool = True
    ) -> None:
        """An empty program for `arch`.

        `cost` balances work over engines (default: a roofline). Without `pipelined`, stages are ignored.
        """
        self.arch = arch
        self._pipelined = pipelined
        self.cost: CostModel = cost or Roofline(arch)
        self.root = TileLoop("root", 1, 0)
        self.graph = TileGraph(name, self.root, {})
        self.op = ""
        self._piece = 0
        self._floor = self._origin = 1  # loops open when the op, or its piece of a grid, began
        self._engines = EngineChooser(arch, self.cost, self.graph.buffers)
        self._stack = [self.root]
        self._stage = 0
        self._preferred: tuple[str, ...] = ()
        self._loops = 0
        self._memories = {name: spec.kind for name, spec in arch.memories.items()}

    def begin(self, op: str, *, pipelined: bool | None = None) -> None:
        """Instructions from here on belong to `op`; its stages do not reach loops around it."""
        self.op, self._floor, self._origin = op, len(self._stack), len(self._stack)
        self._pipelined = self._pipelined if pipelined is None else pipelined
        self._engines.start()

    def begin_piece(self) -> None:
        """A piece of the op on a grid: its stages do not reach the loops that deal the pieces out."""
        self._floor = len(self._stack)
        self._piece += 1

    # ---- structure -------------------------------------------------------------------------------
    @contextmanager
    def loop(self, count: int, name: str = "i", *, share: int | None = None) -> Iterator[Affine]:
        """A loop; yields its variable. A single iteration is no loop.

        With `share`, the cores of a grid deal the iterations out, and the busiest runs so many.
        """
        if count == 1 and share != 0:
            yield Affine()
            return
        self._loops += 1
        node = TileLoop(f"{name}{self._loops}", count, self._loops, stage=self._stage, share=share)
        self._stack[-1].body.append(node)
        self._stack.append(node)
        outer, self._stage = self._stage, 0
        try:
            yield var(node.var)
            node.check_stages()
        finally:
            node.body.sort(key=lambda child: child.stage)  # program order within an iteration: by stage
            self._stage = outer
            self._stack.pop()

    def tiles(self, extent: int, size: int, name: str = "i") -> Iterator[Range]:
        """Cut `extent` in pieces of `size`: a loop over the whole ones, then the rest.

        The body of the caller's `for` is run once for each of the two, so it must not keep state.
        """
        whole, rest = divmod(extent, size)
        if whole:
            with self.loop(whole, name) as i:
                yield Range(i * size, size, i)
        if rest:
            yield Range(Affine(whole * size), rest, Affine(whole))

    @contextmanager
    def stage(self, number: int) -> Iterator[None]:
        """Instructions inside run `number` iterations of the innermost loop later on their stream.

        Within an iteration they come behind all of lower stages; a stage must not feed a lower one.
        """
        outer, self._stage = self._stage, number if self._pipelined and len(self._stack) > self._floor else 0
        try:
            yield
        finally:
            self._stage = outer

    @property
    def times(self) -> int:
        """How often the present place runs."""
        count = 1
        for node in self._stack:
            count *= node.count
        return count

    # ---- memory ----------------------------------------------------------------------------------
    def tile(
        self,
        memory: str,
        shape: Sequence[int],
        dtype: str,
        *,
        slots: int = 1,
        need: int = 1,
        name: str = "t",
    ) -> Tensor:
        """A new on-chip tile, [partitions, free...], in each iteration of the innermost loop.

        With `slots` n, n iterations of a loop of the op may be under way at once (multi-buffering); where
        memory is short the allocator gives slots up, down to `need`.
        """
        full = f"{name}.{len(self.graph.buffers)}"
        limit = self.arch.partitions(memory)
        if shape[0] > limit:
            raise CompileError(f"{self.op} {full}: {shape[0]} partitions, {memory} has {limit}")
        in_a_loop_of_the_op = len(self._stack) > self._origin
        slots = max(slots, need) if in_a_loop_of_the_op else 1
        slot = Affine()
        if slots > 1:
            for node in self._stack[1:]:
                slot = slot * node.count + var(node.var)
        self.graph.buffers[full] = TileBuffer(
            name=full,
            memory=memory,
            dtype=dtype,
            slot_bytes=prod(shape[1:]) * dtype_bytes(dtype),
            slots=slots,
            partitions=shape[0],
            home=self._stack[-1],
            slot=slot,
            tensor=f"{self.op}:{name}",
            need=min(need, slots),
            piece=self._piece,
        )
        return Tensor(full, dtype, tuple(shape), (0, *row_major(shape[1:])), True, slot)

    def scratch(
        self, shape: Sequence[int], dtype: str, *, slots: int = 1, need: int = 1, name: str = "t"
    ) -> Tensor:
        """A tile in the scratchpad."""
        return self.tile(self.arch.scratchpad, shape, dtype, slots=slots, need=need, name=name)

    def accumulator(
        self, shape: Sequence[int], *, slots: int = 1, need: int = 1, dtype: str = "fp32", name: str = "acc"
    ) -> Tensor:
        """A tile in the accumulator memory."""
        return self.tile(self.arch.accumulator, shape, dtype, slots=slots, need=need, name=name)

    def dram(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        *,
        kind: str = "activation",
        slots: int = 1,
        tensor: str = "",
    ) -> Tensor:
        """A tensor in DRAM of stored `shape`; `slots` copies one behind the other.

        Among pieces of a grid it is a copy for each: cores must not write into one another's.
        """
        slot = Affine()
        for loop in self._stack:
            if loop.share is not None:
                slots, slot = slots * loop.count, slot * loop.count + var(loop.var)
        self.graph.buffers[name] = TileBuffer(
            name=name,
            memory=self.arch.dram,
            dtype=dtype,
            slot_bytes=prod(shape) * dtype_bytes(dtype),
            slots=slots,
            partitions=0,
            home=self._stack[-1],
            slot=slot,
            kind=kind,
            tensor=tensor or name,
        )
        return Tensor(name, dtype, tuple(shape), row_major(shape), False, slot)

    # ---- instructions ----------------------------------------------------------------------------
    def _emit(self, stream: str, instr: Instr) -> None:
        self._stack[-1].body.append(TileInstr(stream, instr, self._stage))
        if self._stage or any(loop.stage for loop in self._stack):
            self._keep(instr)

    def _keep(self, instr: Instr) -> None:
        """Tiles that a late instruction reads need a slot more for each iteration it is late.

        Else its queue could have work of the next iteration in front of it that waits for the tile.
        """
        stages = [loop.stage for loop in self._stack[1:]] + [self._stage]  # of what each loop holds of us
        for access in reads(instr):
            tile = self.graph.buffers[access.buffer]
            if tile.partitions and tile.slots > 1:
                tile.need = max(tile.need, 1 + stages[self._stack.index(tile.home)])
                tile.slots = max(tile.slots, tile.need)

    def _kind(self, access: Access) -> str:
        return self._memories[self.graph.buffers[access.buffer].memory]

    @contextmanager
    def on(self, engines: tuple[str, ...]) -> Iterator[None]:
        """Prefer these vector engines inside, where they can run the instruction."""
        outer, self._preferred = self._preferred, engines
        try:
            yield
        finally:
            self._preferred = outer

    @property
    def load(self) -> dict[str, int]:
        """Picoseconds of vector work given to each engine by the present op."""
        return self._engines.load

    def _vector(self, instr: Instr, engine: str | None) -> None:
        """Emit on the engine picked; where none reaches an operand in the accumulators, on a copy of it."""
        dst: Access = instr.dst  # type: ignore[attr-defined]
        if not self._engines.able(instr) and not isinstance(instr, Copy):
            copies: dict[str, Access] = {}
            for name, access in operands(instr):
                if self._kind(access) == "accumulator":
                    sizes = (access.partitions, *(size for _, size in access.dims))
                    copies[name] = self.scratch(sizes, access.dtype, name="near")[:]
                    if name != "dst":
                        self.copy(copies[name], access)
            instr = replace(instr, **copies)  # type: ignore[arg-type]
        preferred = (engine,) if engine else self._preferred
        self._emit(self._engines.pick(instr, self.times, preferred, self.op), instr)
        if instr.dst is not dst:  # type: ignore[attr-defined]
            self.copy(dst, instr.dst)  # type: ignore[attr-defined]

    def either(self, *ways: Instr) -> str:
        """Emit the one of several equivalent vector instructions that is done first; return its engine."""
        best = self._engines.best(ways, self.times, self._preferred)
        if best is None:
            self._vector(ways[0], None)
            return ""
        way, engine = best
        self._vector(ways[way], engine)
        return engine

    def queues(self, role: str, nbytes: int, lanes: int | None = None) -> tuple[str, ...]:
        """The DMA queues a transfer of `role` uses: `lanes`, or as many as the full rate needs."""
        dma, names, apart = self.arch.dma, self.arch.queue_names, lanes or 1
        if lanes is None:
            lanes = 1
            if dma.queue_bandwidth:
                total = min(self.arch.dma_bandwidth, self.arch.dram_bandwidth)
                apart = min(len(names), -(-total // dma.queue_bandwidth))
            if nbytes >= dma.engines * dma.descriptor_bytes * 4:
                lanes = apart
        if role not in ROLES or not 1 <= lanes <= len(names):
            want = f"one of {', '.join(ROLES)} and 1 to {len(names)} lanes"
            raise CompileError(f"{self.op}: dma: got role {role!r} and {lanes} lanes, want {want}")
        first = ROLES.index(role) * apart  # however few lanes this transfer takes, others may take all
        return tuple(names[(first + i) % len(names)] for i in range(lanes))

    def dma(self, dst: Access, src: Access, role: str = "input", *, lanes: int | None = None) -> None:
        """Move `src` to `dst`, over as many queues as the rate needs (split along partitions).

        With `lanes`, over that many: queues `i * lanes ...` for role number `i` of ROLES, so one lane is
        one queue of its own for each role.
        """
        if not dst.partitions and not src.partitions:  # one long run would keep one engine busy
            dst, src = (spread(access, self.arch.dma.engines) for access in (dst, src))
        queues = self.queues(role, src.nbytes, lanes)
        parts = max(dst.partitions, src.partitions)
        if len(queues) == 1 or parts < len(queues):
            self._emit(queues[0], Dma(dst=dst, src=src, op=self.op))
            return
        bounds = [parts * i // len(queues) for i in range(len(queues) + 1)]
        for queue, lo, hi in zip(queues, bounds, bounds[1:], strict=False):
            self._emit(queue, Dma(dst=rows_of(dst, lo, hi - lo), src=rows_of(src, lo, hi - lo), op=self.op))

    def gather(self, dst: Access, table: Access, index: Access, row_stride: int, role: str = "input") -> None:
        """`dst[p] = table[index[p]]`, rows of `row_stride` elements."""
        instr = Gather(dst=dst, src=table, index=index, row_stride=row_stride, op=self.op)
        self._emit(self.queues(role, 0)[0], instr)

    def matmul(
        self,
        dst: Access,
        stationary: Access,
        moving: Access,
        *,
        reset: tuple[Affine, ...] | None = (),
        load: bool = True,
        model: bool = True,
    ) -> None:
        """`dst (+)= stationary^T moving`; see `isa.Matmul`."""
        instr = Matmul(
            dst=dst, stationary=stationary, moving=moving, reset=reset, load=load, model=model, op=self.op
        )
        self._emit(self.arch.tensor, instr)

    def transpose(self, dst: Access, src: Access) -> None:
        """`dst = src^T` through the array; dst lies in the accumulator memory."""
        self._emit(self.arch.tensor, Transpose(dst=dst, src=src, op=self.op))

    def activate(
        self,
        dst: Access,
        src: Access,
        func: str = "copy",
        *,
        scale: Operand = 1.0,
        bias: Operand = 0.0,
        accumulate: Access | None = None,
        engine: str | None = None,
    ) -> None:
        """`dst = func(src * scale + bias)`; see `isa.Activate`."""
        instr = Activate(
            dst=dst, src=src, func=func, scale=scale, bias=bias, accumulate=accumulate, op=self.op
        )
        self._vector(instr, engine)

    def tensor_scalar(
        self, dst: Access, src: Access, op0: str, a: Operand, op1: str | None = None, b: Operand = 0.0
    ) -> None:
        """`dst = (src op0 a) op1 b`."""
        self._vector(TensorScalar(dst=dst, src=src, op0=op0, a=a, op1=op1, b=b, op=self.op), None)

    def tensor_tensor(
        self, dst: Access, lhs: Access, rhs: Access, operation: str, *, scale: Operand = 1.0
    ) -> None:
        """`dst = (lhs * scale) operation rhs`."""
        instr = TensorTensor(dst=dst, lhs=lhs, rhs=rhs, operation=operation, scale=scale, op=self.op)
        self._vector(instr, None)

    def reduce(self, dst: Access, src: Access, operation: str, axes: int = 1) -> None:
        """Reduce the last `axes` free axes of `src`."""
        self._vector(Reduce(dst=dst, src=src, operation=operation, axes=axes, op=self.op), None)

    def copy(self, dst: Access, src: Access, engine: str | None = None) -> None:
        """`dst = src`, converting the type."""
        self._vector(Copy(dst=dst, src=src, op=self.op), engine)

    def memset(self, dst: Access, value: float) -> None:
        """`dst = value`."""
        self._vector(Memset(dst=dst, value=value, op=self.op), None)

    def affine_select(
        self, dst: Access, src: Access, base: Affine, partition_step: int, free_step: int, fill: float
    ) -> None:
        """Keep `src` where the affine expression is not negative, else `fill`."""
        instr = AffineSelect(
            dst=dst,
            src=src,
            base=base,
            partition_step=partition_step,
            free_step=free_step,
            fill=fill,
            op=self.op,
        )
        self._vector(instr, None)
