"""How a logical tensor lies in DRAM: one axis may be split into blocks, then the axes are ordered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Layout:
    """Axis `block_axis` is padded to a multiple of `block` and split into (outer, inner); then `order`.

    `order` lists the axes after the split, where the split axis `a` became `a` (outer) and `a + 1`
    (inner), so later axes moved up by one. `block` 0 means no split. An empty order keeps the order.
    """

    block_axis: int = 0
    block: int = 0
    order: tuple[int, ...] = ()

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape in memory of a tensor of logical `shape`, padding included."""
        full = list(shape)
        if self.block:
            outer = -(-shape[self.block_axis] // self.block)
            full[self.block_axis : self.block_axis + 1] = [outer, self.block]
        return tuple(full[i] for i in self.order) if self.order else tuple(full)

    def stored_elements(self, shape: tuple[int, ...]) -> int:
        """Elements in memory, padding included."""
        count = 1
        for size in self.stored_shape(shape):
            count *= size
        return count

    def pack(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The flat memory image of a logical array; padding is zero."""
        if self.block:
            size = array.shape[self.block_axis]
            pad = -size % self.block
            if pad:
                width = [(0, 0)] * array.ndim
                width[self.block_axis] = (0, pad)
                array = np.pad(array, width)
            axis, shape = self.block_axis, array.shape
            array = array.reshape(*shape[:axis], shape[axis] // self.block, self.block, *shape[axis + 1 :])
        if self.order:
            array = array.transpose(self.order)
        return np.ascontiguousarray(array).reshape(-1)

    def unpack(self, flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The logical array of `shape` from its flat memory image."""
        array = flat.reshape(self.stored_shape(shape))
        if self.order:
            array = array.transpose(tuple(int(i) for i in np.argsort(self.order)))
        if self.block:
            axis = self.block_axis
            merged = array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
            array = merged.take(range(shape[axis]), axis=axis)
        return array


def feature_blocked(partitions: int) -> Layout:
    """[tokens, features] stored as [partition, feature block, tokens]: features on partitions."""
    return Layout(block_axis=1, block=partitions, order=(2, 1, 0))


def channel_blocked(partitions: int) -> Layout:
    """[n, c, h, w] stored as [partition, channel block, n, h, w]: channels on partitions."""
    return Layout(block_axis=1, block=partitions, order=(2, 1, 0, 3, 4))
