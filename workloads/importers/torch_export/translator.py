"""The walk over an exported program: what each name stands for, and which weights there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

import numpy as np

from compiler.ops import Opaque
from compiler.ops.base import Array
from workloads.errors import WorkloadError
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.torch_export.reader import Argument, Call, Exported, Name

FLOATS = {"fp64": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8e4": "fp8e4", "fp8e5": "fp8e5"}
Translation = Callable[["Translator", Call], Known]


class Translator:
    """Walks the calls in order; `env` holds what each name stands for."""

    def __init__(
        self,
        flat: FlatGraph,
        program: Exported,
        operators: Mapping[str, Translation],
        opaque: Sequence[str] = (),
        arrays: Mapping[str, Array] | None = None,
    ) -> None:
        """`opaque` names operators that count as elementwise work; `arrays` are weights by dotted name."""
        self.flat, self.program, self.operators, self.opaque = flat, program, operators, opaque
        self.arrays = arrays or {}
        self.env: dict[str, Known] = {}
        self._weights: dict[tuple[str, str], Ref] = {}

    def run(self) -> None:
        """Translate everything."""
        for call in self.program.calls:
            self.flat.path = call.path
            self._call(call)

    def _call(self, call: Call) -> None:
        kind = call.target.removeprefix("aten.").rpartition(".")[0]
        if not call.outputs:  # assertions, and arithmetic on sizes, which the reader has done
            return
        translate = self.operators.get(kind)
        dtype = self.program.dtypes.get(call.outputs[0], "") if call.outputs else ""
        if dtype not in FLOATS and not self._is_known(call):
            self._host(call)
        elif translate is not None and not (call.target in self.opaque or kind in self.opaque):
            self.env[call.outputs[0]] = translate(self, call)
        elif call.target in self.opaque or kind in self.opaque:
            self._declared(call, kind)
        else:
            for name in call.outputs:
                shape = self.program.shapes[name]
                self.env[name] = self.flat.opaque(call.target, name, shape, FLOATS.get(dtype, "fp32"))

    def _is_known(self, call: Call) -> bool:
        return all(isinstance(self.env.get(n), np.ndarray) for n in _names(call.args.values()))

    def _host(self, call: Call) -> None:
        """Indices that follow from inputs only: worked out by the host, given to the program."""
        for name in call.outputs:
            if name in self.program.shapes:
                self.env[name] = self.flat.indices(name, self.program.shapes[name])

    def _declared(self, call: Call, kind: str) -> None:
        """An operator that the user declared: elementwise, if its result is as large as its operand."""
        x = next((self.value(v) for v in call.args.values() if isinstance(v, Name)), None)
        shape = self.program.shapes[call.outputs[0]]
        if not isinstance(x, Ref) or prod(self.flat.shape(x)) != prod(shape):
            where = f"{self.flat.name}: {call.name}"
            raise WorkloadError(f"{where}: {kind} cannot be opaque: its result has another size")
        from_op = self.flat.op(call.name, Opaque(kind), x)
        self.env[call.outputs[0]] = self.flat.reshape(call.name, from_op, shape)

    # ---- operands --------------------------------------------------------------------------------
    def value(self, x: Argument) -> Known:
        """What an argument stands for; numbers are arrays without axes."""
        if isinstance(x, Name):
            if x.name in self.program.parameters or x.name in self.program.buffers:
                return self.weight(x.name)
            if x.name not in self.env:
                raise WorkloadError(f"{self.flat.name}: {x.name} is not a tensor that this importer has seen")
            return self.env[x.name]
        return np.asarray(x)

    def ref(self, x: Argument, dtype: str = "") -> Ref:
        """An argument as a value of the graph."""
        known = self.value(x)
        return self.flat.ref(known, dtype or "fp32")

    def weight(self, name: str, form: str = "plain") -> Ref:
        """A parameter as a weight of the graph; in form "T" a matrix is stored the other way round."""
        key = (name, form)
        if key in self._weights:
            return self._weights[key]
        dotted = self.program.parameters.get(name) or self.program.buffers[name]
        shape, dtype = self.program.shapes[name], self.program.dtypes[name]
        kind = "weight" if name in self.program.parameters else "table"
        array = self.arrays.get(dotted)
        if form == "T":
            shape = shape[::-1]
            array = None if array is None else array.T
        label = dotted if dotted not in self.flat.values else f"{dotted}.{form}"
        self._weights[key] = self.flat.add(label, kind, shape or (1,), FLOATS.get(dtype, "int32"))
        if array is not None:
            self.flat.weights[label] = array
        return self._weights[key]

    def shape(self, call: Call, output: int = 0) -> tuple[int, ...]:
        """Shape of a result, as exported."""
        return self.program.shapes[call.outputs[output]]

    def dtype(self, call: Call) -> str:
        """Type of the first result."""
        return FLOATS.get(self.program.dtypes[call.outputs[0]], "int32")


def _names(args: object) -> list[str]:
    found: list[str] = []
    for arg in args if isinstance(args, list) else list(cast("Sequence[object]", args)):
        if isinstance(arg, Name):
            found.append(arg.name)
        elif isinstance(arg, list):
            found += _names(arg)
    return found
