"""Rules of a single instruction: its shapes and the engine that runs it (operands: `verify_operand`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from compiler.cost import vector_class
from compiler.ir.functions import FUNCTIONS, OPERATIONS, REDUCTIONS
from compiler.ir.verify_operand import SIZES, Place, check_affine, check_read, check_scalar, check_write
from compiler.isa import (
    Access,
    Activate,
    AffineSelect,
    Collective,
    Copy,
    Dma,
    Gather,
    Instr,
    Matmul,
    Memset,
    Reduce,
    Sync,
    TensorScalar,
    TensorTensor,
    Transpose,
)


def check_instr(place: Place, instr: Instr) -> None:
    """All rules of one instruction."""
    if not isinstance(instr, place.port.types):
        names = ", ".join(kind.__name__ for kind in place.port.types)
        place.fail("engine-instruction", f"got {type(instr).__name__}, want one of: {names}")
    if place.port.ops:
        check_class(place, instr)
    _SHAPES[type(instr)](instr, place)


def check_class(place: Place, instr: Instr) -> None:
    """A vector engine runs only the classes of operation its specification lists."""
    if isinstance(instr, Sync):
        return
    need = vector_class(instr)
    if need not in place.port.ops:
        place.fail("engine-op", f"the engine cannot run {need!r}, only: {', '.join(place.port.ops)}")


def _same_shape(place: Place, field: str, dst: Access, dst_free: int, src: Access, src_free: int) -> None:
    """Element by element: as many partitions and as many elements in each."""
    if src.partitions != dst.partitions or src_free != dst_free:
        place.fail(
            "shape-mismatch",
            f"{field} is [{src.partitions}, {src_free}], dst is [{dst.partitions}, {dst_free}]",
        )


def _one_to_one(place: Place, dst: Access, src: Access) -> None:
    """A source and a destination of the same shape."""
    src_free = check_read(place, "src", src)
    _same_shape(place, "src", dst, check_write(place, "dst", dst), src, src_free)


def _known(place: Place, field: str, name: str, table: Mapping[str, Callable[..., object]]) -> None:
    """The name of a function stands in its table."""
    if name not in table:
        place.fail("unknown-function", f"{field}: got {name!r}, want one of: {', '.join(table)}")


def _matmul(instr: Matmul, place: Place) -> None:
    stationary, moving, dst = instr.stationary, instr.moving, instr.dst
    m, n = check_read(place, "stationary", stationary), check_read(place, "moving", moving)
    k, free = stationary.partitions, check_write(place, "dst", dst)
    if moving.partitions != k or dst.partitions != m or free != n:
        place.fail(
            "shape-mismatch",
            f"stationary [{k}, {m}] and moving [{moving.partitions}, {n}] do not give "
            f"dst [{dst.partitions}, {free}]",
        )
    _check_array(place, k, m, n)
    _check_array_dtypes(place, stationary, moving)
    if instr.reset != () and dst.dtype not in ("fp32", "int32"):
        place.fail("accumulate-dtype", f"dst accumulates in {dst.dtype!r}, want fp32 or int32")
    for affine in instr.reset or ():
        check_affine(place, "reset", affine)
    check_bank(place, dst)


def _check_array(place: Place, k: int, m: int, n: int) -> None:
    """One matmul fits the array: k rows, m columns, n moving columns."""
    rows, cols, moving = place.array_limits
    if k <= rows and m <= cols and n <= moving:
        return
    name, got, limit = ("k", k, rows) if k > rows else ("m", m, cols) if m > cols else ("n", n, moving)
    place.fail("matmul-limit", f"{name} is {got}, the array takes at most {limit}")


def _check_array_dtypes(place: Place, one: Access, other: Access) -> None:
    """The array has a rate for the operands' types, and they are equally wide."""
    for access in (one, other):
        if access.dtype not in place.passes:
            have = ", ".join(place.passes)
            place.fail("array-dtype", f"the array cannot multiply {access.dtype!r}, only: {have}")
    if SIZES[one.dtype] != SIZES[other.dtype]:
        place.fail("array-dtype", f"operands are {one.dtype} and {other.dtype}: element sizes differ")


def check_bank(place: Place, dst: Access) -> None:
    """The array writes the accumulator, and what one instruction writes lies in one bank."""
    home = place.homes[dst.buffer]
    if home.buffer.memory != place.accumulator:
        place.fail("matmul-memory", f"dst is in {home.buffer.memory!r}, want {place.accumulator!r}")
    size, bank, buffer = SIZES[dst.dtype], home.bank_bytes, home.buffer
    span = size
    for stride, count in dst.dims:
        span += stride * (count - 1) * size
    start = buffer.address + dst.offset.const * size
    if not dst.slot.terms:
        start += dst.slot.const % buffer.slots * buffer.slot_bytes
    starts = {start % bank}
    for name, factor in dst.offset.terms:
        starts = _reached(starts, factor * size, place.last[name] + 1, bank)
    if dst.slot.terms and buffer.slots > 1:
        starts = _reached(starts, buffer.slot_bytes, buffer.slots, bank)
    if max(starts) + span > bank:
        place.fail(
            "accumulator-bank",
            f"dst {dst.buffer!r} takes {span} B from byte {max(starts)} of a bank, it has {bank} B",
        )


def _reached(starts: set[int], step: int, count: int, bank: int) -> set[int]:
    """All `start + i * step` within a bank, `i < count`; at most `bank` of them differ."""
    distinct = min(count, bank // math.gcd(step, bank))
    return {(start + i * step) % bank for start in starts for i in range(distinct)}


def _transpose(instr: Transpose, place: Place) -> None:
    src, dst = instr.src, instr.dst
    columns, free = check_read(place, "src", src), check_write(place, "dst", dst)
    if dst.partitions != columns or free != src.partitions:
        place.fail(
            "shape-mismatch",
            f"src [{src.partitions}, {columns}] transposed is not dst [{dst.partitions}, {free}]",
        )
    _check_array(place, src.partitions, columns, src.partitions)
    _check_array_dtypes(place, src, src)
    check_bank(place, dst)


def _activate(instr: Activate, place: Place) -> None:
    _known(place, "func", instr.func, FUNCTIONS)
    _one_to_one(place, instr.dst, instr.src)
    check_scalar(place, "scale", instr.scale, instr.src.partitions)
    check_scalar(place, "bias", instr.bias, instr.src.partitions)
    if instr.accumulate is not None:
        check_write(place, "accumulate", instr.accumulate)
        if instr.accumulate.free_elements != 1 or instr.accumulate.partitions != instr.src.partitions:
            place.fail("scalar-operand", f"accumulate: want 1 value on {instr.src.partitions} partitions")


def _tensor_scalar(instr: TensorScalar, place: Place) -> None:
    _known(place, "op0", instr.op0, OPERATIONS)
    if instr.op1 is not None:
        _known(place, "op1", instr.op1, OPERATIONS)
    _one_to_one(place, instr.dst, instr.src)
    check_scalar(place, "a", instr.a, instr.src.partitions)
    check_scalar(place, "b", instr.b, instr.src.partitions)


def _tensor_tensor(instr: TensorTensor, place: Place) -> None:
    _known(place, "operation", instr.operation, OPERATIONS)
    lhs, rhs = check_read(place, "lhs", instr.lhs), check_read(place, "rhs", instr.rhs)
    free = check_write(place, "dst", instr.dst)
    _same_shape(place, "lhs", instr.dst, free, instr.lhs, lhs)
    _same_shape(place, "rhs", instr.dst, free, instr.rhs, rhs)
    check_scalar(place, "scale", instr.scale, instr.lhs.partitions)


def _reduce(instr: Reduce, place: Place) -> None:
    _known(place, "operation", instr.operation, REDUCTIONS)
    check_read(place, "src", instr.src)
    check_write(place, "dst", instr.dst)
    sizes = [size for _, size in instr.src.dims]
    if not 1 <= instr.axes <= len(sizes):
        place.fail("reduce-axes", f"axes is {instr.axes}, src has {len(sizes)} free axes")
    kept = 1
    for size in sizes[: len(sizes) - instr.axes]:
        kept *= size
    if instr.dst.partitions != instr.src.partitions or instr.dst.free_elements != kept:
        place.fail(
            "shape-mismatch",
            f"src reduces to [{instr.src.partitions}, {kept}], "
            f"dst is [{instr.dst.partitions}, {instr.dst.free_elements}]",
        )


def _copy(instr: Copy, place: Place) -> None:
    _one_to_one(place, instr.dst, instr.src)


def _memset(instr: Memset, place: Place) -> None:
    check_write(place, "dst", instr.dst)


def _affine_select(instr: AffineSelect, place: Place) -> None:
    _one_to_one(place, instr.dst, instr.src)
    check_affine(place, "base", instr.base)


def _dma(instr: Dma, place: Place) -> None:
    src, dst = instr.src, instr.dst
    got = check_read(place, "src", src) * (src.partitions or 1)
    want = check_write(place, "dst", dst) * (dst.partitions or 1)
    if src.dtype != dst.dtype:
        place.fail("dma-dtype", f"src is {src.dtype}, dst is {dst.dtype}: a transfer does not convert")
    if got != want:
        place.fail("dma-size", f"src has {got} elements, dst has {want}")


def _gather(instr: Gather, place: Place) -> None:
    src, dst, index = instr.src, instr.dst, instr.index
    if not place.arch.dma.gather:
        place.fail("engine-op", "the DMA queues of this architecture cannot gather")
    check_read(place, "src", src)
    check_read(place, "index", index)
    check_write(place, "dst", dst)
    if src.partitions:
        place.fail("gather-table", f"src {src.buffer!r} is on chip, want a table in DRAM")
    if src.dtype != dst.dtype or src.elements != dst.free_elements:
        place.fail(
            "dma-size", f"a row is {src.elements} {src.dtype}, dst takes {dst.free_elements} {dst.dtype}"
        )
    if index.dtype != "int32" or index.free_elements != 1 or index.partitions != dst.partitions:
        place.fail("gather-index", f"index: want one int32 on each of the {dst.partitions} partitions of dst")
    if instr.row_stride < 1:
        place.fail("gather-table", f"row_stride is {instr.row_stride}, want >= 1")


def _nothing(instr: Sync | Collective, place: Place) -> None:
    """Sync has no operands; collectives are reserved for programs of several chips."""


_SHAPES: dict[type[Instr], Callable[[Any, Place], None]] = {
    Activate: _activate,
    AffineSelect: _affine_select,
    Collective: _nothing,
    Copy: _copy,
    Dma: _dma,
    Gather: _gather,
    Matmul: _matmul,
    Memset: _memset,
    Reduce: _reduce,
    Sync: _nothing,
    TensorScalar: _tensor_scalar,
    TensorTensor: _tensor_tensor,
    Transpose: _transpose,
}
