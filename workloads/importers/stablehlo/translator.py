"""The walk over a StableHLO module: what each name stands for; calls and loops are written out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from compiler.errors import CompileError
from compiler.ir.graph import Graph
from compiler.ops import Expand, Opaque
from compiler.ops.base import Array
from workloads.errors import WorkloadError
from workloads.importers.flat import FlatGraph, Known, Ref
from workloads.importers.stablehlo.reader import Block, Module, Operation, is_float
from workloads.importers.stablehlo.roles import argument_names, inputs

FLOATS = {
    "f64": "fp32", "f32": "fp32", "bf16": "bf16", "f16": "fp16",
    "f8E4M3FN": "fp8e4", "f8E4M3": "fp8e4", "f8E5M2": "fp8e5", "i8": "int8",
}  # fmt: skip
LONGEST_LOOP = 4096  # iterations that are written out; assumed: more is no stack of layers
Translation = Callable[["Translator", Operation], "Held | Sequence[Held]"]


class CannotTranslateError(Exception):
    """An operation in a form that is not understood; told with all others."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a value comes from: `base` itself, or a step of its softmax over axis `over`.

    `kind` is "same", "max", "centred", "exp" or "sum"; `axes` tells for each axis which one of the base it
    is, -1 where its size is 1.
    """

    kind: str
    base: Held
    axes: tuple[int, ...]
    over: int = -1
    source: Held | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """A product of two stacks that may become an attention; each axis comes from ("b" | "l" | "r", index)."""

    sides: tuple[Held, Held]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    contracted: tuple[int, int]
    labels: tuple[tuple[str, int] | None, ...]
    scale: float = 1.0
    masks: tuple[tuple[Known, tuple[tuple[str, int] | None, ...]], ...] = ()
    softmax: tuple[str, int] | None = None


@dataclass(eq=False, slots=True)
class Held:
    """A value or array that broadcasts to `shape`; `dtype` is the one in the text."""

    known: Known
    shape: tuple[int, ...]
    dtype: str
    trace: Trace | None = None
    scores: Scores | None = None

    @property
    def array(self) -> np.ndarray | None:
        """Its numbers, if they are known while importing."""
        return self.known if isinstance(self.known, np.ndarray) else None

    @property
    def number(self) -> float | None:
        """The one number all elements are, if they are."""
        return (
            float(self.known.reshape(-1)[0])
            if isinstance(self.known, np.ndarray) and self.known.size == 1
            else None
        )

    def free(self, *taken: Sequence[int]) -> list[int]:
        """The axes that are in none of `taken`."""
        return [i for i in range(len(self.shape)) if not any(i in part for part in taken)]


@dataclass(slots=True)
class _Scope:
    env: dict[str, Held] = field(default_factory=dict)


class Translator:
    """Walks blocks in order; `env` holds what each name of the current block stands for."""

    def __init__(
        self,
        flat: FlatGraph,
        module: Module,
        operations: Mapping[str, Translation],
        bound: Mapping[str, int],
        opaque: Sequence[str] = (),
        arrays: Mapping[str, Array] | None = None,
    ) -> None:
        """`bound` gives numbers to arguments, `arrays` data to weights; `opaque` are elementwise work."""
        self.flat, self.module, self.operations, self.opaque = flat, module, operations, opaque
        self.bound, self.arrays = bound, arrays or {}
        self.scope = _Scope()
        self.place = ""
        self.parts: dict[str, str] = {}  # parts of stacked weights, and their names without the first axis
        self.roots: dict[str, str] = {}  # weights under other shapes, and their names as they are given
        self.stands: dict[str, str] = {}  # what stands for a cache after its update: its operation
        self._count = self._calls = 0
        self._loops = 0

    # ---- the walk --------------------------------------------------------------------------------
    def run(self) -> list[Held]:
        """Translate the main function; its results."""
        return self.block(self.module.main.block, self._arguments())

    def _arguments(self) -> list[Held]:
        data = inputs(self.module)
        found = []
        names = argument_names(self.module)
        for i, (name, (_, kind)) in enumerate(zip(names, self.module.main.block.arguments, strict=True)):
            if name in self.bound:
                found.append(Held(np.full(kind.shape, self.bound[name], np.int64), kind.shape, kind.dtype))
            elif kind.dtype in FLOATS:
                role = "input" if i in data else "weight"
                ref = self.flat.add(name, role, kind.shape or (1,), FLOATS[kind.dtype])
                found.append(Held(ref, kind.shape, kind.dtype))
                if role == "weight" and name in self.arrays:
                    self.flat.weights[name] = self.arrays[name]
            elif (
                is_float(kind.dtype) or kind.dtype in ("i4", "ui4") or not kind.dtype.startswith(("i", "ui"))
            ):
                found.append(self._refused(f"argument of type {kind.dtype}", name, kind.shape, kind.dtype))
            else:
                found.append(Held(self.flat.indices(name, kind.shape), kind.shape, kind.dtype))
        return found

    def block(self, block: Block, given: Sequence[Held], inner: bool = False) -> list[Held]:
        """The results of a block; an `inner` one sees the names around it."""
        outer = self.scope
        self.scope = _Scope(dict(outer.env) if inner else {})
        names = [name for name, _ in block.arguments]
        self.scope.env.update(zip(names, given, strict=True))
        results: list[Held] = []
        for operation in block.operations:
            if operation.kind.rsplit(".", 1)[-1] == "return":
                results = [self.scope.env[name] for name in operation.operands]
                break
            self._operation(operation)
        self.scope = outer
        return results

    def _operation(self, op: Operation) -> None:
        around = self.flat.path
        if not (self._calls and around):  # a function that is called several times has the path of one call
            self.flat.path = ".".join(filter(None, (self.place, op.path))) or around
        try:
            results = self._results(op)
        finally:
            self.flat.path = around
        self.scope.env[op.name] = results[0] if results else Held(np.zeros(()), (), "none")
        self.scope.env.update({f"{op.name}#{i}": held for i, held in enumerate(results)})
        self.scope.env.update(zip(op.others, results[1:], strict=False))

    def _results(self, op: Operation) -> Sequence[Held]:
        kind = op.kind.removeprefix("stablehlo.")
        if kind == "call":
            return self._call(op)
        if kind == "while":
            return self._while(op)
        given = self.given(op)
        if kind in self.opaque:
            return self._declared(op, kind)
        translate = self.operations.get(kind)
        if translate is not None and any(self.flat.is_stand_in(held.known) for held in given):
            return [self._stand_in(self.name(op), t.shape, t.dtype) for t in op.types]
        try:
            if translate is None:
                raise CannotTranslateError
            found = translate(self, op)
        except (IndexError, ValueError, CompileError, WorkloadError) as error:
            raise WorkloadError(f"{self.flat.name}: {op.name} = {op.kind}: {error}") from error
        except CannotTranslateError as error:
            return self._failed(op, kind, str(error))
        return [found] if isinstance(found, Held) else found

    def _failed(self, op: Operation, kind: str, why: str) -> list[Held]:
        """Whole numbers that follow from inputs only are the host's work; anything else is told."""
        given = self.given(op)
        whole = all(not is_float(t.dtype) and t.dtype != "i8" for t in op.types)
        if (
            whole
            and op.types
            and given
            and all(self.is_index(held) or held.array is not None for held in given)
        ):
            return [
                Held(self.flat.indices(f"{self.name(op)}.host{i}", t.shape), t.shape, t.dtype)
                for i, t in enumerate(op.types)
            ]
        label = f"{kind} ({why})" if why else kind
        return [self._refused(label, self.name(op), t.shape, t.dtype) for t in op.types] or [
            self._refused(label, self.name(op), (), "f32")
        ]

    def _refused(self, label: str, name: str, shape: tuple[int, ...], dtype: str) -> Held:
        return Held(self.flat.opaque(label, name, shape, FLOATS.get(dtype, "fp32")), shape, dtype)

    def _stand_in(self, name: str, shape: tuple[int, ...], dtype: str) -> Held:
        return Held(self.flat.stand_in(name, shape, FLOATS.get(dtype, "fp32")), shape, dtype)

    def _declared(self, op: Operation, kind: str) -> list[Held]:
        for held in self.given(op):
            if isinstance(held.known, Ref) and not self.is_index(held) and held.shape == op.type.shape:
                ref = self.flat.op(self.name(op), Opaque(kind), self.ref(held))
                return [Held(ref, t.shape, t.dtype) for t in op.types]
        raise WorkloadError(
            f"{self.flat.name}: {op.name} = {kind}: opaque: no operand has the shape of the result"
        )

    def _call(self, op: Operation) -> list[Held]:
        target = re.search(r"@([\w$.\"]+)", op.text)
        function = self.module.functions.get(target[1].strip('"')) if target else None
        if function is None:
            raise WorkloadError(
                f"{self.flat.name}: {op.name}: a call of nothing known: {op.text.strip()[:60]}"
            )
        self._calls += 1
        results = self.block(function.block, self.given(op))
        self._calls -= 1
        return results

    def _while(self, op: Operation) -> list[Held]:
        """A loop with a known number of rounds, written out; round i is the module `while.i`."""
        state, place = self.given(op), self.place
        self._loops += 1
        for round_ in range(LONGEST_LOOP):
            (going,) = self.block(op.regions[0], state, inner=True)
            number = going.number
            if number is None:
                self.place = place
                return self._failed(op, "while", "rounds not known while importing")
            if not number:
                self.place = place
                return state
            self.place = ".".join(filter(None, (place, f"loop{self._loops}.{round_}")))
            self.flat.path = self.place
            state = self.block(op.regions[1], state, inner=True)
        raise WorkloadError(f"{self.flat.name}: {op.name} = while: more than {LONGEST_LOOP} rounds")

    def check_caches(self, graph: Graph) -> None:
        """An updated cache that no attention reads in a known way was not translated."""
        for value in graph.values:
            if value.name in self.stands:
                label = "dynamic_update_slice (of a cache that no known attention reads)"
                self.flat.unsupported.add(label, self.stands[value.name], value.type.elements)

    # ---- operands --------------------------------------------------------------------------------
    def given(self, op: Operation) -> list[Held]:
        """All operands."""
        missing = [name for name in op.operands if name not in self.scope.env]
        if missing:
            raise WorkloadError(
                f"{self.flat.name}: {op.name} = {op.kind}: operand {missing[0]} comes from nowhere"
            )
        return [self.scope.env[name] for name in op.operands]

    def name(self, op: Operation) -> str:
        """A new name for a node."""
        self._count += 1
        stem = f"{op.kind.rsplit('.', 1)[-1]}_{self._count}"
        return f"{self.flat.path}.{stem}" if self.flat.path else stem

    def is_index(self, held: Held) -> bool:
        """Whether it is whole numbers that are given when the program runs."""
        return isinstance(held.known, Ref) and held.known.name in self.flat.logical

    def is_weight(self, held: Held) -> bool:
        """Whether it is a weight, in any shape."""
        return isinstance(held.known, Ref) and self.flat.values[held.known.name].kind == "weight"

    def result(self, op: Operation, known: Known, trace: Trace | None = None) -> Held:
        """The first result of `op`."""
        return Held(known, op.type.shape, op.type.dtype, trace)

    def real(self, held: Held) -> Known:
        """What it holds, as real numbers; weights without leading axes of one."""
        known = self.flat.numbers(held.known)
        if isinstance(known, np.ndarray):
            return known.reshape(()) if known.size == 1 else known
        if self.is_weight(held):
            shape = self.flat.shape(known)
            while len(shape) > 1 and shape[0] == 1:
                shape = shape[1:]
            return self.restated(known, shape)
        return known

    def restated(self, weight: Ref, shape: tuple[int, ...]) -> Ref:
        """A weight under another shape; a part of a stack without its first axis has a name of its own."""
        part = self.parts.get(weight.name)
        if part is not None and shape == self.flat.shape(weight)[1:]:
            return self._part(weight, part, shape)
        root = Ref(self.roots.get(weight.name, weight.name))
        found = root if self.flat.shape(root) == shape else self.flat.restated(root, shape)
        self.roots[found.name] = root.name
        return found

    def _part(self, weight: Ref, name: str, shape: tuple[int, ...]) -> Ref:
        if name not in self.flat.values:
            self.flat.add(name, "weight", shape, self.flat.type(weight).dtype)
            if weight.name in self.flat.weights:
                self.flat.weights[name] = self.flat.weights[weight.name][0]
        return Ref(name)

    def permuted(self, name: str, x: Known, order: Sequence[int]) -> Known:
        """Another order of axes; without those of size 1, so that one change of order undoes another."""
        shape = self.flat.shape(x)
        long = [axis for axis in order if shape[axis] > 1]
        if isinstance(x, Ref) and len(long) < len(shape) and self.flat.maker(x) is not None:
            kept = sorted(long)
            narrow = self.flat.reshape(name, x, [shape[axis] for axis in kept] or [1])
            x = self.flat.permute(name, narrow, [kept.index(axis) for axis in long] or [0])
            return self.flat.reshape(name, x, [shape[axis] for axis in order])
        return self.flat.permute(name, x, order)

    def whole(self, held: Held) -> Known:
        """What it holds, in its whole shape."""
        known = self.flat.numbers(held.known)
        if isinstance(known, np.ndarray):
            return np.broadcast_to(known, held.shape)
        own = self.flat.shape(known)
        if own == (held.shape or (1,)):
            return known
        if prod(own) == prod(held.shape):
            return (
                self.restated(known, held.shape)
                if self.is_weight(held)
                else self.flat.reshape("whole", known, held.shape)
            )
        ranked = (*(1,) * (len(held.shape) - len(own)), *own)
        wide = (
            self.restated(known, ranked) if self.is_weight(held) else self.flat.reshape("wide", known, ranked)
        )
        assert isinstance(wide, Ref)
        return self.flat.op("expand", Expand(held.shape), wide)

    def ref(self, held: Held, dtype: str = "") -> Ref:
        """Its whole as a value of the graph."""
        return self.flat.ref(self.whole(held), dtype or FLOATS.get(held.dtype, "fp32"))


def refuse_indices(t: Translator, *xs: Held) -> None:
    """Raise CannotTranslateError if one is whole numbers that the host gives."""
    if any(t.is_index(x) for x in xs):
        raise CannotTranslateError("of whole numbers that are given")
