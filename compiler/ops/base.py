"""What an op is: a declaration from which shapes, FLOPs and the reference follow."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from compiler.ir.graph import TensorType

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Op(abc.ABC):
    """An operation on tensors. Subclasses are frozen dataclasses; their fields are the attributes."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """Types of the results; raises CompileError naming what does not match."""

    @abc.abstractmethod
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        """The meaning, in numpy float32 (int32 for indices): the oracle of every lowering."""

    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Multiply-accumulates of true extents; 0 for ops without contraction."""
        return 0

    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """FLOPs: 2 per MAC, or one per output element per elementary function."""
        return 2 * self.macs(ins) or sum(out.elements for out in self.infer(ins))


def f32(x: Array) -> Array:
    """`x` as float32."""
    return np.asarray(x, dtype=np.float32)
