"""How a logical tensor lies in DRAM: axes may be split into blocks, then all axes are ordered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Layout:
    """Each `(axis, block)` of `splits` pads that axis to whole blocks and splits it in (outer, inner).

    `order` lists the axes after all splits: a split axis `a` became `a` and `a + 1`, so later axes
    moved up by one for each split before them. An empty order keeps them as they are.
    """

    splits: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()

    def _expanded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        blocks = dict(self.splits)
        full: list[int] = []
        for axis, size in enumerate(shape):
            full += [-(-size // blocks[axis]), blocks[axis]] if axis in blocks else [size]
        return tuple(full)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape in memory of a tensor of logical `shape`, padding included."""
        full = self._expanded(shape)
        return tuple(full[i] for i in self.order) if self.order else full

    def stored_elements(self, shape: tuple[int, ...]) -> int:
        """Elements in memory, padding included."""
        count = 1
        for size in self._expanded(shape):
            count *= size
        return count

    def pack(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The flat memory image of a logical array; padding is zero."""
        shape = array.shape
        pads = [(0, 0)] * array.ndim
        for axis, block in self.splits:
            pads[axis] = (0, -shape[axis] % block)
        array = np.pad(array, pads).reshape(self._expanded(shape))
        if self.order:
            array = array.transpose(self.order)
        return np.ascontiguousarray(array).reshape(-1)

    def unpack(self, flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The logical array of `shape` from its flat memory image."""
        array = flat.reshape(self.stored_shape(shape))
        if self.order:
            array = array.transpose(tuple(int(i) for i in np.argsort(self.order)))
        blocks = dict(self.splits)
        padded = tuple(-(-size // blocks.get(a, 1)) * blocks.get(a, 1) for a, size in enumerate(shape))
        return array.reshape(padded)[tuple(slice(0, size) for size in shape)]


ROW_MAJOR = Layout()


def has_copies(slots: int, layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether the leading axis of `shape` counts copies, one a slot of the tensor's buffer."""
    if layout.order:
        return len(shape) > len(layout.order) - len(layout.splits)
    return slots > 1


def feature_blocked(block: int) -> Layout:
    """[tokens, features] stored as [feature in block, block, tokens]: features on partitions."""
    return Layout(((1, block),), (2, 1, 0))


def channel_blocked(block: int) -> Layout:
    """[n, c, h, w] stored as [channel in block, block, n, h, w]: channels on partitions."""
    return Layout(((1, block),), (2, 1, 0, 3, 4))


def weight_blocked(rows: int, cols: int) -> Layout:
    """[k, n] stored as [n block, k in block, k block, n in block]: one column block, one transfer."""
    return Layout(((0, rows), (1, cols)), (2, 1, 0, 3))
