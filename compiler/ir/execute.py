"""What each instruction does to the bytes of the memories: the numpy half of the interpreter.

A static instruction is prepared once into a `Step`, which for given loop counters returns its effects
(where, what, whether to add). Reading and writing are apart so that execution in simulated time can
read at an instruction's start and write at its end. Inside, numbers are float32; results are cast to
the type of the destination (floats round to nearest even, integers round and saturate).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt

from arch_configs.spec import ArchSpec
from compiler.errors import VerifyError
from compiler.ir.dtype import numpy_dtype
from compiler.ir.functions import FUNCTIONS, OPERATIONS, REDUCTIONS
from compiler.isa import (
    Access,
    Activate,
    AffineSelect,
    Buffer,
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

Array = npt.NDArray[Any]
Env = dict[str, int]
View = Callable[[Env], Array]
Effect = tuple[Array, Array, bool]  # (view of memory, value, add to what is there)
Step = Callable[[Env], tuple[Effect, ...]]

_F32 = np.dtype(np.float32)
_POISON = 0xFF  # NaN in every float type, -1 in the integers
_PITCH = 64  # bytes; partitions start aligned, so that views of wide types are aligned too
_CACHED_VIEWS = 4096  # views kept per on-chip operand


class Memory:
    """The bytes of one memory, poisoned; `written` marks bytes that were ever written (strict only)."""

    def __init__(self, buffers: tuple[Buffer, ...], strict: bool) -> None:
        """Hold just enough to cover `buffers`, all of one memory."""
        used = max(buffer.address + buffer.nbytes for buffer in buffers)
        partitions = max(buffer.partitions for buffer in buffers)
        self.pitch = -(-used // _PITCH) * _PITCH
        # DRAM may be large and sparse: only the buffers' own ranges are poisoned
        size = self.pitch * max(1, partitions)
        self.data: Array = np.zeros(size, np.uint8) if not partitions else np.full(size, _POISON, np.uint8)
        if not partitions:
            for buffer in buffers:
                self.data[buffer.address : buffer.address + buffer.nbytes] = _POISON
        self.written: Array | None = np.zeros(self.data.size, np.bool_) if strict else None
        self.start: int = self.data.ctypes.data

    def mask(self, view: Array) -> Array | None:
        """The part of `written` under `view` (one more axis: bytes of an element), if it lies here."""
        offset = view.ctypes.data - self.start
        if self.written is None or not 0 <= offset < self.data.size:
            return None
        shape, strides = (*view.shape, view.itemsize), (*view.strides, 1)
        return np.ndarray(shape, np.bool_, self.written.data, offset, strides)


class Machine:
    """The memories of one core, and the prepared steps of a program."""

    def __init__(self, program: Program, arch: ArchSpec, strict: bool = False) -> None:
        """Lay out the memories that `program` uses."""
        self.arch = arch
        self.strict = strict
        self.buffers = program.buffer_map()
        names = dict.fromkeys(buffer.memory for buffer in program.buffers)
        self.memories = {
            name: Memory(tuple(b for b in program.buffers if b.memory == name), strict) for name in names
        }
        self._steps: dict[int, tuple[Instr, Step]] = {}  # by id; kept alive, so unique

    def step(self, instr: Instr) -> Step:
        """What `instr` does; prepared the first time."""
        known = self._steps.get(id(instr))
        if known is None:
            known = self._steps[id(instr)] = (instr, prepare(instr, self))
        return known[1]

    def apply(self, effects: tuple[Effect, ...]) -> None:
        """Write the results of one instruction."""
        for view, value, add in effects:
            if add:
                value = view.astype(value.dtype) + value
            kind = view.dtype.kind
            if kind == "i" and value.dtype.kind == "f":
                limits = np.iinfo(view.dtype)
                value = np.clip(np.rint(np.nan_to_num(value)).astype(np.float64), limits.min, limits.max)
            view[...] = value
            if self.strict:
                for memory in self.memories.values():
                    mask = memory.mask(view)
                    if mask is not None:
                        mask[...] = True

    def view(self, access: Access) -> View:
        """The elements of `access`, shape (partitions, *dims) on chip and dims in DRAM."""
        buffer = self.buffers[access.buffer]
        memory = self.memories[buffer.memory]
        dtype = numpy_dtype(access.dtype)
        size = dtype.itemsize
        shape = tuple(count for _, count in access.dims)
        strides = tuple(stride * size for stride, _ in access.dims)
        base = buffer.address + access.offset.const * size
        if buffer.partitions:
            shape, strides = (access.partitions, *shape), (memory.pitch, *strides)
            base += access.partition * memory.pitch
        terms = tuple((name, factor * size) for name, factor in access.offset.terms)
        slot, slots, slot_bytes = access.slot, buffer.slots, buffer.slot_bytes
        data = memory.data.data
        if not terms and not slot.terms:
            fixed: Array = np.ndarray(shape, dtype, data, base + slot.const % slots * slot_bytes, strides)
            return lambda env: fixed
        known: dict[int, Array] = {}
        keep = _CACHED_VIEWS if buffer.partitions else 0

        def moving_view(env: Env) -> Array:
            at = base + slot.at(env) % slots * slot_bytes
            for name, factor in terms:
                at += factor * env[name]
            found = known.get(at)
            if found is None:
                found = np.ndarray(shape, dtype, data, at, strides)
                if len(known) < keep:
                    known[at] = found
            return found

        return moving_view

    def raw(self, access: Access) -> View:
        """A view to read from; in strict mode reading a byte never written is an error."""
        view = self.view(access)
        return self._checked(access, view) if self.strict else view

    def read(self, access: Access) -> View:
        """The operand as float32."""
        raw = self.raw(access)
        if access.dtype == "fp32":
            return raw
        return lambda env: raw(env).astype(_F32)

    def scalar(self, operand: Operand, ndim: int) -> View:
        """A number, or one value a partition, shaped to broadcast against an operand of `ndim` axes."""
        if not isinstance(operand, Access):
            value = np.asarray(operand, _F32)
            return lambda env: value
        read = self.read(operand)
        shape = (operand.partitions,) + (1,) * (ndim - 1)
        return lambda env: read(env).reshape(shape)

    def _checked(self, access: Access, view: View) -> View:
        memory = self.memories[self.buffers[access.buffer].memory]

        def checked(env: Env) -> Array:
            found = view(env)
            mask = memory.mask(found)
            if mask is not None and not mask.all():
                where = np.argwhere(~mask)[0][:-1].tolist()
                raise VerifyError(
                    f"[uninitialised-read] buffer {access.buffer!r}, counters {env}: element {where} of the "
                    f"operand (partition first) was never written"
                )
            return found

        return checked


def _shape(access: Access) -> tuple[int, ...]:
    sizes = tuple(size for _, size in access.dims)
    return (access.partitions, *sizes) if access.partitions else sizes


@singledispatch
def prepare(instr: Instr, machine: Machine) -> Step:
    """The step of a static instruction on the memories of `machine`."""
    raise VerifyError(
        f"[unsupported-instruction] {type(instr).__name__} of op {instr.op!r} cannot be executed"
    )


@prepare.register
def _sync(instr: Sync, machine: Machine) -> Step:
    return lambda env: ()


@prepare.register
def _matmul(instr: Matmul, machine: Machine) -> Step:
    k, m, n = instr.stationary.partitions, instr.stationary.free_elements, instr.moving.free_elements
    whole = instr.stationary.dtype.startswith("int") and instr.moving.dtype.startswith("int")
    # NOTE: integer products accumulate in float64, which is exact below 2**53 and still uses BLAS
    stationary, moving = (
        _as_float64(machine.raw(a)) if whole else machine.read(a) for a in (instr.stationary, instr.moving)
    )
    dst, old, shape, resets = machine.view(instr.dst), machine.raw(instr.dst), _shape(instr.dst), instr.reset

    def step(env: Env) -> tuple[Effect, ...]:
        value = stationary(env).reshape(k, m).T @ moving(env).reshape(k, n)
        add = resets is None or any(affine.at(env) for affine in resets)
        where = old(env) if add else dst(env)
        return ((where, value.reshape(shape), add),)

    return step


def _as_float64(view: View) -> View:
    return lambda env: view(env).astype(np.float64)


@prepare.register
def _transpose(instr: Transpose, machine: Machine) -> Step:
    dst, src, shape = machine.view(instr.dst), machine.raw(instr.src), _shape(instr.dst)
    flat = (instr.src.partitions, instr.src.free_elements)
    return lambda env: ((dst(env), src(env).reshape(flat).T.reshape(shape), False),)


@prepare.register
def _activate(instr: Activate, machine: Machine) -> Step:
    shape = _shape(instr.dst)
    dst, src = machine.view(instr.dst), _shaped(machine.read(instr.src), instr.src, shape)
    scale = machine.scalar(instr.scale, len(shape)) if instr.scale != 1.0 else None
    bias = machine.scalar(instr.bias, len(shape)) if instr.bias != 0.0 else None
    func = FUNCTIONS[instr.func]
    total = machine.view(instr.accumulate) if instr.accumulate is not None else None
    total_shape = _shape(instr.accumulate) if instr.accumulate is not None else ()
    axes = tuple(range(1, len(shape)))

    def step(env: Env) -> tuple[Effect, ...]:
        value = src(env)
        if scale is not None:
            value = value * scale(env)
        if bias is not None:
            value = value + bias(env)
        value = func(value)
        effect = (dst(env), value, False)
        if total is None:
            return (effect,)
        return (effect, (total(env), value.sum(axis=axes, dtype=_F32).reshape(total_shape), False))

    return step


@prepare.register
def _tensor_scalar(instr: TensorScalar, machine: Machine) -> Step:
    shape = _shape(instr.dst)
    dst, src = machine.view(instr.dst), _shaped(machine.read(instr.src), instr.src, shape)
    first, a = OPERATIONS[instr.op0], machine.scalar(instr.a, len(shape))
    if instr.op1 is None:
        return lambda env: ((dst(env), first(src(env), a(env)), False),)
    second, b = OPERATIONS[instr.op1], machine.scalar(instr.b, len(shape))

    def step(env: Env) -> tuple[Effect, ...]:
        # a comparison gives bools: back to numbers before the second operation
        value = np.asarray(first(src(env), a(env)), _F32)
        return ((dst(env), second(value, b(env)), False),)

    return step


@prepare.register
def _tensor_tensor(instr: TensorTensor, machine: Machine) -> Step:
    shape = _shape(instr.dst)
    dst, operation = machine.view(instr.dst), OPERATIONS[instr.operation]
    lhs = _shaped(machine.read(instr.lhs), instr.lhs, shape)
    rhs = _shaped(machine.read(instr.rhs), instr.rhs, shape)
    if instr.scale == 1.0:
        return lambda env: ((dst(env), operation(lhs(env), rhs(env)), False),)
    scale = machine.scalar(instr.scale, len(shape))
    return lambda env: ((dst(env), operation(lhs(env) * scale(env), rhs(env)), False),)


@prepare.register
def _reduce(instr: Reduce, machine: Machine) -> Step:
    dst, src, shape = machine.view(instr.dst), machine.read(instr.src), _shape(instr.dst)
    ndim = len(instr.src.dims) + 1
    axes = tuple(range(ndim - instr.axes, ndim))
    reduce = REDUCTIONS[instr.operation]
    return lambda env: ((dst(env), reduce(src(env), axis=axes).reshape(shape), False),)


@prepare.register
def _move(instr: Copy | Dma, machine: Machine) -> Step:
    shape = _shape(instr.dst)
    # the same type passes through bit by bit; otherwise by way of float32
    read = machine.raw if instr.dst.dtype == instr.src.dtype else machine.read
    dst, src = machine.view(instr.dst), _shaped(read(instr.src), instr.src, shape)
    return lambda env: ((dst(env), src(env), False),)


@prepare.register
def _memset(instr: Memset, machine: Machine) -> Step:
    dst, value = machine.view(instr.dst), np.asarray(instr.value, _F32)
    return lambda env: ((dst(env), value, False),)


@prepare.register
def _affine_select(instr: AffineSelect, machine: Machine) -> Step:
    shape = _shape(instr.dst)
    dst, src = machine.view(instr.dst), _shaped(machine.read(instr.src), instr.src, shape)
    rows = np.arange(instr.dst.partitions)[:, None] * instr.partition_step
    grid = (rows + np.arange(instr.dst.free_elements) * instr.free_step).reshape(shape)
    fill, base = np.float32(instr.fill), instr.base
    return lambda env: ((dst(env), np.where(grid >= -base.at(env), src(env), fill), False),)


@prepare.register
def _gather(instr: Gather, machine: Machine) -> Step:
    dst, index, shape = machine.view(instr.dst), machine.raw(instr.index), _shape(instr.dst)
    src, buffer = machine.raw(instr.src), machine.buffers[instr.src.buffer]
    step_bytes = instr.row_stride * numpy_dtype(instr.src.dtype).itemsize
    span = sum(stride * (size - 1) for stride, size in instr.src.dims) + 1
    row_bytes = span * numpy_dtype(instr.src.dtype).itemsize
    row_limit = (buffer.slot_bytes - row_bytes) // step_bytes

    def step(env: Env) -> tuple[Effect, ...]:
        rows, first = index(env).reshape(-1).astype(np.int64), src(env)
        if rows.min() < 0 or rows.max() > row_limit:
            raise VerifyError(
                f"[gather-index] op {instr.op!r}: index {rows.min()}..{rows.max()} outside the table "
                f"{instr.src.buffer!r}, rows 0..{row_limit}"
            )
        table: Array = np.lib.stride_tricks.as_strided(
            first, (int(rows.max()) + 1, *first.shape), (step_bytes, *first.strides)
        )
        return ((dst(env), table[rows].reshape(shape), False),)

    return step


def _shaped(view: View, access: Access, shape: tuple[int, ...]) -> View:
    """The same elements in row-major order as an array of `shape`."""
    if _shape(access) == shape:
        return view
    return lambda env: view(env).reshape(shape)
