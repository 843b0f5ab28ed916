"""The walk over an ONNX graph: what each name stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from compiler.errors import CompileError
from compiler.ops import Opaque
from compiler.ops.base import Array
from workloads.errors import WorkloadError
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.onnx_model.reader import Attribute, OnnxModel, OnnxNode, Tensor, int_list

FLOATS = {"fp64": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
Translation = Callable[["Translator", OnnxNode], Known | None]


class CannotTranslateError(Exception):
    """An operator in a form that is not understood; told with all others."""


class Translator:
    """Walks the nodes in order; `env` holds what each name stands for."""

    def __init__(
        self,
        flat: FlatGraph,
        model: OnnxModel,
        operators: Mapping[str, Translation],
        bound: Mapping[str, int],
        opaque: Sequence[str] = (),
    ) -> None:
        """`bound` gives sizes to named dimensions; `opaque` names operators that are elementwise work."""
        self.flat, self.model, self.operators, self.opaque = flat, model, operators, opaque
        self.env: dict[str, Known] = {}
        self._declare(bound)

    def _declare(self, bound: Mapping[str, int]) -> None:
        missing: dict[str, str] = {}
        for name, (dims, dtype) in self.model.inputs.items():
            missing |= {
                d: f"axis {i} of {name}" for i, d in enumerate(dims) if isinstance(d, str) and d not in bound
            }
            shape = tuple(d if isinstance(d, int) else bound.get(d, 1) for d in dims)
            if dtype in FLOATS:
                self.env[name] = self.flat.add(name, "input", shape or (1,), FLOATS[dtype])
            else:
                self._indices(name, shape)
        if missing:
            have = ", ".join(f"{name} ({place})" for name, place in missing.items())
            example = f"{self.flat.name}:{next(iter(missing))}=128"
            raise WorkloadError(f"{self.flat.name}: symbolic sizes {have}: want each bound, as in {example}")

    def _indices(self, name: str, shape: tuple[int, ...]) -> Ref:
        """Whole numbers that the host gives."""
        self.env[name] = given = self.flat.indices(name, shape)
        return given

    def run(self) -> None:
        """Translate everything."""
        for node in self.model.nodes:
            self.flat.path = node.path
            self._node(node)

    def _node(self, node: OnnxNode) -> None:
        translate = self.operators.get(node.kind)
        if node.kind in self.opaque:
            self._declared(node)
            return
        if translate is not None and any(self.flat.is_stand_in(x) for x in self._given(node)):
            for name in node.outputs:  # behind an operator that was not translated: not its fault
                self.env[name] = self.flat.stand_in(name)
            return
        try:
            if translate is None:
                raise CannotTranslateError
            found = translate(self, node)
        except (IndexError, ValueError, CompileError, WorkloadError) as error:
            raise WorkloadError(f"{self.flat.name}: {node.name}: {node.kind}: {error}") from error
        except CannotTranslateError as error:
            if all(name in self.model.indices for name in node.outputs):
                # Arithmetic on indices that follow from inputs only is the host's work.
                for name in node.outputs:
                    self._indices(name, self.model.indices[name])
                return
            reason = f" ({error})" if str(error) else ""
            size = max((prod(self.flat.shape(x)) for x in self._given(node)), default=1)
            for name in node.outputs:
                self.env[name] = self.flat.opaque(f"{node.kind}{reason}", name, (size,), "fp32")
            return
        if found is not None:
            self.env[node.outputs[0]] = found

    def _given(self, node: OnnxNode) -> list[Known]:
        return [self.env[n] for n in node.inputs if n in self.env]

    def _declared(self, node: OnnxNode) -> None:
        x = self.ref(node, 0)
        self.env[node.outputs[0]] = self.flat.op(node.name, Opaque(node.kind), x)

    # ---- operands --------------------------------------------------------------------------------
    def value(self, node: OnnxNode, i: int) -> Known | None:
        """Operand `i`, or None if it is left out."""
        name = node.inputs[i] if i < len(node.inputs) else ""
        if not name:
            return None
        if name in self.env:
            return self.env[name]
        if name in self.model.tensors:
            self.env[name] = self._initializer(self.model.tensors[name])
            return self.env[name]
        raise WorkloadError(f"{self.flat.name}: {node.name}: operand {name!r} comes from nowhere")

    def need(self, node: OnnxNode, i: int) -> Known:
        """Operand `i`, which must be there."""
        x = self.value(node, i)
        if x is None:
            raise CannotTranslateError(f"operand {i} is left out")
        return x

    def ref(self, node: OnnxNode, i: int, dtype: str = "") -> Ref:
        """Operand `i` as a value of the graph."""
        return self.flat.ref(self.need(node, i), dtype or self.dtype(node))

    def array(self, node: OnnxNode, i: int) -> Array | None:
        """Operand `i` if it is known while importing."""
        x = self.value(node, i)
        return x if isinstance(x, np.ndarray) else None

    def dtype(self, node: OnnxNode) -> str:
        """The type that arrays beside values of the graph take: that of the first of these."""
        return next((self.flat.type(x).dtype for x in self._given(node) if isinstance(x, Ref)), "fp32")

    def numbers(self, node: OnnxNode, i: int, attribute: str = "") -> list[int] | None:
        """Whole numbers given as operand `i`, or in older versions as an attribute."""
        if attribute and attribute in node.attributes:
            return int_list(node.attributes[attribute])
        x = self.value(node, i)
        if isinstance(x, Ref):
            raise CannotTranslateError(f"operand {i} is not known while importing")
        return None if x is None else int_list(x)

    def _initializer(self, tensor: Tensor) -> Known:
        """Small or whole-number ones are known; others are weights."""
        if tensor.dtype not in FLOATS or (tensor.array is not None and tensor.array.size == 1):
            if tensor.array is None:
                return self._indices(tensor.name, tensor.shape)
            return np.asarray(tensor.array)
        weight = self.flat.add(tensor.name, "weight", tensor.shape or (1,), FLOATS[tensor.dtype])
        if tensor.array is not None:
            self.flat.weights[tensor.name] = np.asarray(tensor.array, np.float32)
        return weight


def number(attributes: Mapping[str, Attribute], name: str, default: float) -> float:
    """A number among the attributes."""
    value = attributes.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default
