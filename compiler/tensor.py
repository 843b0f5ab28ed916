"""Operands by index: shaped views of buffers, cut and turned without moving data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import CompileError
from compiler.isa import ZERO, Access, Affine

Index = int | Affine | tuple[int | Affine, int] | tuple[int | Affine, int, int] | slice


@dataclass(frozen=True, slots=True)
class Range:
    """A piece of an axis: where it starts and how long it is."""

    start: Affine
    size: int
    index: Affine  # which piece


@dataclass(frozen=True, slots=True)
class Tensor:
    """A buffer with a shape: index it to get an operand.

    Each index is an int or Affine (drops the axis), `(start, size)`, `(start, size, step)` or `:`;
    missing ones select everything. On chip, axis 0 is the partition axis: its start is a number.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements; unused for a partition axis
    on_chip: bool
    slot: Affine = ZERO
    offset: Affine = ZERO  # elements in front of the first

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Access:
        """The operand that `index` selects."""
        items: list[Index] = list(index) if isinstance(index, tuple) else [index]
        items += [slice(None)] * (len(self.shape) - len(items))
        offset, dims = self.offset, []
        partition, partitions = 0, 0
        for axis, item in enumerate(items):
            start, size, step = _range(item, self.shape[axis])
            if self.on_chip and axis == 0:
                if not isinstance(start, int) or size is None or step != 1:
                    raise CompileError(
                        f"{self.name}: want partitions as (start, size) with a number to start"
                    )
                partition, partitions = start, size
                continue
            offset = offset + start * self.strides[axis]
            if size is not None:
                dims.append((self.strides[axis] * step, size))
        return Access(
            self.name, self.dtype, tuple(dims) or ((1, 1),), offset, partition, partitions, self.slot
        )

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie side by side in the order of the axes."""
        run = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != run:
                return False
            run *= size
        return True

    def at_slot(self, slot: Affine) -> Tensor:
        """The copy `slot` of a stacked tensor."""
        return replace(self, slot=slot)

    def part(self, axis: int, start: Affine | int, size: int) -> Tensor:
        """Elements `start .. start + size` of a free axis."""
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        return replace(self, shape=shape, offset=self.offset + start * self.strides[axis])

    def pick(self, axis: int, index: Affine | int) -> Tensor:
        """The tensor at `index` of a free axis."""
        shape, strides = (t[:axis] + t[axis + 1 :] for t in (self.shape, self.strides))
        offset = self.offset + index * self.strides[axis]
        return replace(self, shape=shape, strides=strides, offset=offset)

    def permute(self, *order: int) -> Tensor:
        """The same elements with the axes in another order."""
        shape, strides = (tuple(t[i] for i in order) for t in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def split(self, axis: int, size: int) -> Tensor:
        """Axis `axis` as two: which piece of `size`, and where in it (the last piece may be short)."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis : axis + 1] = [-(-shape[axis] // size), size]
        strides[axis : axis + 1] = [strides[axis] * size, strides[axis]]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def merge(self, axis: int) -> Tensor:
        """Axes `axis` and `axis + 1` as one: the second is whole within the first, or one has size 1."""
        shape, strides = list(self.shape), list(self.strides)
        outer, inner = shape[axis : axis + 2]
        assert 1 in (outer, inner) or strides[axis] == inner * strides[axis + 1], (self, axis)
        shape[axis : axis + 2] = [outer * inner]
        del strides[axis + (inner == 1)]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def with_strides(self, strides: tuple[int, ...]) -> Tensor:
        """The same shape with other distances between elements."""
        return replace(self, strides=strides)

    def repeat(self, axis: int, size: int) -> Tensor:
        """A new axis of `size` in front of `axis` that repeats the elements."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, size)
        strides.insert(axis, 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def stretch(self, size: int) -> Tensor:
        """A new last axis of `size` that repeats each element."""
        return self.repeat(len(self.shape), size)


def _range(item: Index, extent: int) -> tuple[int | Affine, int | None, int]:
    if isinstance(item, slice):
        return 0, extent, 1
    if isinstance(item, tuple):
        return (item[0], item[1], item[2]) if len(item) == 3 else (item[0], item[1], 1)
    return item, None, 1


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense tensor, last axis contiguous."""
    strides: list[int] = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(strides[::-1])


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A dense DRAM tensor under another shape of as many elements."""
    assert tensor.is_dense, f"{tensor.name}: got strides {tensor.strides}, want a dense tensor"
    return replace(tensor, shape=tuple(shape), strides=row_major(shape))


def rows_of(access: Access, first: int, count: int) -> Access:
    """Rows `first .. first + count` of the outermost axis (the partitions, on chip)."""
    if access.partitions:
        return replace(access, partition=access.partition + first, partitions=count)
    stride, _ = access.dims[0]
    return replace(access, dims=((stride, count), *access.dims[1:]), offset=access.offset + first * stride)


def spread(access: Access, parts: int) -> Access:
    """The same elements in row-major order; one contiguous run cut in up to `parts` equal rows."""
    total = access.elements
    if access.partitions or access.run_elements() != total:
        return access
    rows = next(n for n in range(min(parts, total), 0, -1) if total % n == 0)
    return replace(access, dims=((total // rows, rows), (1, total // rows)))
