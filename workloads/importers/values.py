"""Values of a graph that an importer writes: given, or known while importing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.ir.graph import TensorType, Value
from compiler.ops.base import Array


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph."""

    name: str


Known = Ref | Array


class Values:
    """The values of a graph by name, and the arrays of those that a file or the importer knows."""

    def __init__(self, name: str) -> None:
        """No values yet."""
        self.name = name
        self.values: dict[str, Value] = {}
        self.weights: dict[str, Array] = {}
        self.logical: dict[str, tuple[int, ...]] = {}  # shapes of indices, which are kept flat
        self._tables: dict[tuple[bytes, str, tuple[int, ...]], str] = {}

    def add(self, name: str, kind: str, shape: Sequence[int], dtype: str) -> Ref:
        """A value that nodes do not make."""
        assert name not in self.values, f"{self.name}: value {name!r} made twice"
        self.values[name] = Value(name, TensorType(tuple(shape), dtype), kind)
        return Ref(name)

    def type(self, ref: Ref) -> TensorType:
        """Shape and dtype."""
        return self.values[ref.name].type

    def shape(self, x: Known) -> tuple[int, ...]:
        """Shape of a value or array."""
        return self.type(x).shape if isinstance(x, Ref) else x.shape

    def restated(self, weight: Ref, shape: tuple[int, ...]) -> Ref:
        """A weight under another shape: it is stored so in the first place."""
        value = self.values[weight.name]
        if value.type.shape == shape:
            return weight
        name = f"{weight.name}{list(shape)}"
        if name not in self.values:
            self.add(name, value.kind, shape, value.type.dtype)
            if weight.name in self.weights:
                self.weights[name] = self.weights[weight.name].reshape(shape)
        return Ref(name)

    def indices(self, name: str, shape: Sequence[int]) -> Ref:
        """Whole numbers that the host gives: kept flat, with their shape noted."""
        self.logical[name] = tuple(shape)
        return self.add(name, "input", (prod(shape),), "int32")

    def transposed(self, weight: Ref) -> Ref:
        """A matrix of weights stored the other way round."""
        name = f"{weight.name}.T"
        if name not in self.values:
            value = self.values[weight.name]
            self.add(name, value.kind, value.type.shape[::-1], value.type.dtype)
            if weight.name in self.weights:
                self.weights[name] = self.weights[weight.name].T
        return Ref(name)

    def ref(self, x: Known, dtype: str) -> Ref:
        """`x` as a value; an array becomes a table of `dtype`."""
        if isinstance(x, Ref):
            return x
        array = np.asarray(x)
        if array.dtype.kind == "f":
            array = np.clip(array, -3.0e38, 3.0e38)  # a mask of -inf: programs need finite numbers
        key = (array.tobytes(), dtype, array.shape)
        if key not in self._tables:
            name = f"const{len(self._tables)}"
            self._tables[key] = name
            self.add(name, "table", array.shape or (1,), dtype)
            self.weights[name] = array.reshape(array.shape or (1,))
        return Ref(self._tables[key])

    def array(self, x: Ref) -> Known:
        """The array of a table, else the value itself."""
        return self.weights[x.name] if self.values[x.name].kind == "table" else x
