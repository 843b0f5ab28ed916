"""What every importer writes: a flat graph of general ops, with constants folded on the way.

A value is a `Ref` to something the program computes or is given, or a numpy array that is known while
importing. Ops of known arrays are computed at once; one becomes a table of the graph where a program
needs it. Simplifications that all formats profit from (views of views, elementwise work on 3-D tensors)
are made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.errors import CompileError
from compiler.ir.graph import Graph, Node, Value
from compiler.ops import (
    BatchMatmul,
    Binary,
    Cast,
    ChannelAdd,
    Concat,
    Conv2d,
    Expand,
    GroupNorm,
    Op,
    Permute,
    Pixels,
    Pool2d,
    Reshape,
    Scalar,
    Select,
    TakeRows,
    Tokens,
    Unary,
    Upsample,
)
from compiler.ops.base import Array
from workloads.errors import WorkloadError
from workloads.importers.unsupported import Unsupported
from workloads.importers.values import Known, Ref, Values

__all__ = ["Cache", "FlatGraph", "ImportedModel", "Known", "Ref"]

LARGEST = 1 << 28  # elements of an array that is computed while importing; assumed: 1 GiB of float32


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A graph, and the arrays of weights and tables that the file holds."""

    graph: Graph
    weights: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Cache:
    """A KV cache of `shape` [batch, kv_heads, context, head_dim], and new rows of heads at `position`."""

    name: str
    rows: Ref
    position: int
    shape: tuple[int, ...]


class FlatGraph(Values):
    """Collects values and nodes. `path` names the module that the next nodes come from."""

    def __init__(self, name: str) -> None:
        """An empty graph."""
        super().__init__(name)
        self.path = ""
        self.nodes: list[Node] = []
        self.paths: dict[str, str] = {}  # of each node
        self.makers: dict[str, Node] = {}
        self.caches: dict[str, Cache] = {}  # by the value that stands for the cache after its update
        self.unsupported = Unsupported()
        self._known: dict[tuple[str, str], Ref] = {}

    # ---- values ----------------------------------------------------------------------------------
    def numbers(self, x: Known) -> Known:
        """Indices as floats of their shape, for arithmetic; exact up to 2^24."""
        if isinstance(x, Ref) and x.name in self.logical:
            return self.reshape(x.name, self.cast(f"{x.name}.float", x, "fp32"), self.logical[x.name])
        return x

    def with_logical(self, indices: Ref, shape: tuple[int, ...]) -> Ref:
        """Indices under another shape: they are kept flat, and only their shape is noted."""
        if self.logical[indices.name] == shape:
            return indices
        renamed = self.op(f"{indices.name}.view", Reshape(self.type(indices).shape), indices)
        self.logical[renamed.name] = shape
        return renamed

    def maker(self, x: Known) -> Node | None:
        """The node that makes a value."""
        return self.makers.get(x.name) if isinstance(x, Ref) else None

    def found(self, key: tuple[str, str]) -> Ref | None:
        """What was remembered under `key`."""
        return self._known.get(key)

    def remember(self, key: tuple[str, str], ref: Ref) -> Ref:
        """Keep `ref` for others that want the same."""
        self._known[key] = ref
        return ref

    # ---- nodes -----------------------------------------------------------------------------------
    def op(self, name: str, op: Op, *inputs: Ref) -> Ref:
        """Apply `op`; the result is called `name`, or like it."""
        types = tuple(self.type(x) for x in inputs)
        try:
            (out,) = op.infer(types)
        except CompileError as error:
            raise WorkloadError(f"{self.name}: {name}: {error}") from error
        full, count = name, 1
        while full in self.values:
            count += 1
            full = f"{name}.{count}"
        self.values[full] = Value(full, out)
        node = Node(full, op, tuple(x.name for x in inputs), (full,))
        self.nodes.append(node)
        self.makers[full] = node
        self.paths[full] = self.path
        return Ref(full)

    def update(self, name: str, op: Op, state: Ref, *inputs: Ref) -> None:
        """Apply `op`, which rewrites its first operand in place."""
        op.infer(tuple(self.type(x) for x in (state, *inputs)))
        node = Node(name, op, (state.name, *(x.name for x in inputs)), (state.name,))
        self.nodes.append(node)
        self.paths[name] = self.path

    def opaque(self, kind: str, name: str, shape: Sequence[int], dtype: str) -> Ref:
        """Stand in for an operation that is not understood, so that all of them are found at once."""
        self.unsupported.add(kind, name, prod(shape))
        return self.stand_in(name, shape, dtype)

    def check(self, where: str) -> None:
        """Raise WorkloadError if an operation was not understood."""
        results = [value for value in self.values.values() if value.kind == "activation"]
        self.unsupported.check(where, sum(value.type.elements for value in results))

    def stand_in(self, name: str, shape: Sequence[int] = (), dtype: str = "fp32") -> Ref:
        """A value for what was not translated; the graph will be refused."""
        return self.add(f"{name}.unsupported", "input", tuple(shape) or (1,), dtype)

    def is_stand_in(self, x: Known) -> bool:
        """Whether `x` stands for something that was not translated."""
        return isinstance(x, Ref) and x.name.endswith(".unsupported")

    def reshape(self, name: str, x: Known, shape: Sequence[int]) -> Known:
        """Another shape; of a reshaped value, the reshape of what it was."""
        shape = tuple(shape)
        if not isinstance(x, Ref):
            return x.reshape(shape)
        while (made := self.maker(x)) is not None and isinstance(made.op, Reshape):
            x = Ref(made.inputs[0])
        stack = self._turned_stack(x, shape)
        if stack is not None:
            return self.permute(name, stack, (0, 1, 3, 2))
        return x if self.shape(x) == shape else self.op(name, Reshape(shape), x)

    def rows(self, x: Known, dtype: str = "fp32") -> Ref:
        """All axes but the last as one; an array becomes a table of `dtype`."""
        shape = self.shape(x)
        return self.ref(self.reshape("rows", x, (prod(shape[:-1]), shape[-1])), dtype)

    def token(self, name: str, x: Ref, index: int) -> Ref:
        """Row `index` of each sequence of [sequences, tokens, features]."""
        return self.op(name, TakeRows(self.shape(x)[1], index), self.rows(x))

    def _turned_stack(self, x: Ref, shape: tuple[int, ...]) -> Ref | None:
        """[a, b, c, d] if `x` is it as [a * b, d, c], and wanted as [a, b, d, c]."""
        turned = self.maker(x)
        flattened = self.makers.get(turned.inputs[0]) if turned and turned.op == Permute((0, 2, 1)) else None
        if flattened is None or not isinstance(flattened.op, Reshape):
            return None
        source = self.values[flattened.inputs[0]].type.shape
        is_stack = len(source) == 4 and flattened.op.shape == (source[0] * source[1], *source[2:])
        return Ref(flattened.inputs[0]) if is_stack and shape == (*source[:2], source[3], source[2]) else None

    def is_image(self, x: Known) -> bool:
        """Whether [n, c, h, w] comes from ops that work on images."""
        made = self.maker(x)
        if made is None or not isinstance(x, Ref) or len(self.shape(x)) != 4:
            return False
        if isinstance(made.op, (Conv2d, GroupNorm, Upsample, ChannelAdd, Pixels, Pool2d)):
            return True
        inner = isinstance(made.op, (Unary, Binary, Scalar, Cast, Concat))
        return inner and self.is_image(Ref(made.inputs[0]))

    def _rows_under(self, x: Ref) -> Ref | None:
        """Rows [n * h * w, c] that [n, h, w, c] is a reshape of."""
        made = self.maker(x)
        shape = self.shape(x)
        if made is None or not isinstance(made.op, Reshape) or len(shape) != 4:
            return None
        under = self.values[made.inputs[0]].type.shape
        return Ref(made.inputs[0]) if under == (prod(shape[:3]), shape[3]) else None

    def _image_under(self, x: Ref) -> Ref | None:
        """The image [n, c, h, w] that [n, c, h * w] is a reshape of."""
        made = self.maker(x)
        if made is None or not isinstance(made.op, Reshape) or not self.is_image(Ref(made.inputs[0])):
            return None
        under = self.values[made.inputs[0]].type.shape
        return Ref(made.inputs[0]) if (*under[:2], under[2] * under[3]) == self.shape(x) else None

    def before_reshape(self, x: Ref) -> Ref:
        """The value that `x` is a reshape of: an output is as good in its shape."""
        made = self.maker(x)
        return Ref(made.inputs[0]) if made is not None and isinstance(made.op, Reshape) else x

    def permute(self, name: str, x: Known, order: Sequence[int]) -> Known:
        """Another order of axes; only sizes of 1 that move make it a reshape."""
        order = tuple(order)
        if not isinstance(x, Ref):
            return np.ascontiguousarray(x.transpose(order))
        shape = self.shape(x)
        if order == (0, 2, 3, 1) and self.is_image(x):
            n, c, h, w = shape
            return self.reshape(name, self.op(name, Tokens(), x), (n, h, w, c))
        if order == (0, 3, 1, 2) and (rows := self._rows_under(x)) is not None:
            return self.op(name, Pixels(shape[1], shape[2]), rows)
        if order == (0, 2, 1) and (image := self._image_under(x)) is not None:
            return self.reshape(name, self.op(name, Tokens(), image), (shape[0], shape[2], shape[1]))
        long = [axis for axis in order if shape[axis] > 1]
        if long == sorted(long):
            return self.reshape(name, x, [shape[axis] for axis in order])
        made = self.maker(x)
        if made is not None and isinstance(made.op, Permute):
            inner = made.op.order
            return self.permute(name, Ref(made.inputs[0]), [inner[axis] for axis in order])
        return self.op(name, Permute(order), x)

    def upsample(self, name: str, x: Ref, rows: int, columns: int) -> Known:
        """Each pixel of [n, c, h, w] repeated `rows` times down and `columns` times across."""
        if rows == columns:
            return self.op(name, Upsample(rows), x)
        n, c, h, w = self.shape(x)
        spread = self.reshape(name, x, (n, c, h, 1, w, 1))
        assert isinstance(spread, Ref)
        wide = self.op(name, Expand((n, c, h, rows, w, columns)), spread)
        return self.reshape(name, wide, (n, c, h * rows, w * columns))

    def cast(self, name: str, x: Known, dtype: str) -> Known:
        """Another type; arrays are kept as they are, for they get a type when they are used."""
        if not isinstance(x, Ref) or self.type(x).dtype == dtype:
            return x
        return self.op(name, Cast(dtype), x)

    # ---- elementwise -----------------------------------------------------------------------------
    def matmul(self, name: str, lhs: Ref, rhs: Ref) -> Ref:
        """A stack of products [..., m, k] x [..., k, n]; leading axes are broadcast, factors come last."""
        factor = 1.0
        plain = []
        for x in (lhs, rhs):
            made = self.maker(x)
            if made is not None and isinstance(made.op, Scalar) and made.op.func == "mul":
                factor, x = factor * made.op.value, Ref(made.inputs[0])
            plain.append(x)
        product = self._matmul(name, *plain)
        return product if factor == 1.0 else self.op(f"{name}.scaled", Scalar("mul", factor), product)

    def _matmul(self, name: str, lhs: Ref, rhs: Ref) -> Ref:
        lead = np.broadcast_shapes(self.shape(lhs)[:-2], self.shape(rhs)[:-2])
        sides = []
        for x in (lhs, rhs):
            shape = (*lead, *self.shape(x)[-2:])
            wide = x if prod(shape) != prod(self.shape(x)) else self.reshape(name, x, shape)
            assert isinstance(wide, Ref)
            sides.append(wide if self.shape(wide) == shape else self.op(f"{name}.wide", Expand(shape), wide))
        made = self.maker(sides[1])
        rank = len(lead) + 2
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        if made is not None and made.op == Permute(swapped):
            return self.op(name, BatchMatmul(transpose_rhs=True), sides[0], Ref(made.inputs[0]))
        if made is not None and isinstance(made.op, Permute) and made.op.order[-1] != rank - 1:
            turned = self.permute(f"{name}.t", sides[1], swapped)  # undoes most of the one before
            assert isinstance(turned, Ref)
            return self.op(name, BatchMatmul(transpose_rhs=True), sides[0], turned)
        return self.op(name, BatchMatmul(), *sides)

    def unary(self, name: str, func: str, x: Known) -> Known:
        """A function of each element."""
        made = self.maker(x)
        if func == "reciprocal" and made is not None and made.op == Unary("sqrt"):
            return self.elementwise(name, Unary("rsqrt"), Ref(made.inputs[0]))
        return self.elementwise(name, Unary(func), x)

    def elementwise(self, name: str, op: Op, *xs: Known) -> Known:
        """`op` of operands that broadcast; on rows [tokens, features] where they are such underneath."""
        if all(not isinstance(x, Ref) for x in xs):
            return self.fold(name, op, *xs)
        xs = tuple(self.numbers(x) for x in xs)
        try:
            shape = np.broadcast_shapes(*(self.shape(x) for x in xs))
        except ValueError as error:
            raise WorkloadError(f"{self.name}: {name}: {error}") from error
        xs = tuple(self._promoted(name, xs))
        channels = self._channels(name, op, xs, shape)
        if channels is not None:
            return channels
        dtype = next(self.type(x).dtype for x in xs if isinstance(x, Ref))
        rows = self._rows(xs, shape)
        refs = [self.ref(x, dtype) for x in (rows or xs)]
        return self.reshape(name, self.op(name, op, *refs), shape)

    def _channels(self, name: str, op: Op, xs: Sequence[Known], shape: tuple[int, ...]) -> Known | None:
        """A sum of an image and one value a channel."""
        if op != Binary("add") or len(shape) != 4:
            return None
        for x, v in (xs, xs[::-1]):
            if isinstance(x, Ref) and self.shape(x) == shape and self.shape(v) == (*shape[:2], 1, 1):
                vector = self.ref(self.reshape(name, v, shape[:2]), self.type(x).dtype)
                return self.op(name, ChannelAdd(), x, vector)
        return None

    def _promoted(self, name: str, xs: Sequence[Known]) -> Sequence[Known]:
        """Operands of one type: fp32 where they differ, as torch, jax and numpy do with floats."""
        types = {self.type(x).dtype for x in xs if isinstance(x, Ref)}
        return xs if len(types) < 2 else [self.cast(f"{name}.cast", x, "fp32") for x in xs]

    def _rows(self, xs: Sequence[Known], shape: tuple[int, ...]) -> list[Known] | None:
        """The operands as [tokens, features] or [features], if one is a reshape of such rows."""
        whole = (prod(shape[:-1]), shape[-1]) if shape else (1, 1)
        under = [made for x in xs if (made := self.maker(x)) is not None and isinstance(made.op, Reshape)]
        if not any(self.values[made.inputs[0]].type.shape == whole for made in under):
            return None
        found: list[Known] = []
        for x in xs:
            own = self.shape(x)
            if own == shape:
                found.append(self.reshape("rows", x, whole))
            elif prod(own) == own[-1:][0] == whole[1]:
                found.append(self.reshape("row", x, whole[1:]))
            elif x is xs[-1] and prod(own[: -len(shape) + 1]) == 1 and own[-len(shape) + 1 :] == shape[1:]:
                found.append(
                    self.reshape("block", x, (prod(shape[1:-1]), whole[1]))
                )  # repeated down the rows
            else:
                return None
        return found

    def fold(self, name: str, op: Op, *xs: Known) -> Array:
        """The result of known arrays, in their own precision."""
        arrays = [np.asarray(x) for x in xs if not isinstance(x, Ref)]
        if prod(np.broadcast_shapes(*(a.shape for a in arrays))) > LARGEST:
            raise WorkloadError(f"{self.name}: {name}: a constant of more than {LARGEST} elements")
        (result,) = op.reference(*arrays)
        return result

    def binary(self, name: str, func: str, lhs: Known, rhs: Known | float) -> Known:
        """`lhs func rhs`; a single known number is part of the instruction."""
        if not isinstance(rhs, (Ref, np.ndarray)):
            rhs = np.asarray(rhs, np.float32)
        root = self.maker(rhs)
        if func == "div" and root is not None and root.op == Unary("sqrt"):
            inverse = self.elementwise(f"{name}.rsqrt", Unary("rsqrt"), Ref(root.inputs[0]))
            return self.binary(name, "mul", lhs, inverse)
        for x, number, swapped in ((lhs, rhs, False), (rhs, lhs, True)):
            if not isinstance(x, Ref) or not isinstance(number, np.ndarray):
                continue
            if number.size == 1 and len(number.shape) <= len(self.shape(x)):
                return self.elementwise(name, Scalar(func, float(number.reshape(())), swapped), x)
        return self.elementwise(name, Binary(func), lhs, rhs)

    def select(self, name: str, cond: Known, lhs: Known, rhs: Known) -> Known:
        """`lhs where cond else rhs`."""
        if all(not isinstance(x, Ref) for x in (cond, lhs, rhs)):
            return np.where(np.asarray(cond) != 0, lhs, rhs)  # type: ignore[arg-type]
        dtype = next(self.type(x).dtype for x in (lhs, rhs, cond) if isinstance(x, Ref))
        return self.op(name, Select(), *(self.ref(x, dtype) for x in (cond, lhs, rhs)))

    # ---- the result ------------------------------------------------------------------------------
    def graph(self, outputs: Sequence[Ref], meta: Mapping[str, int | float | str]) -> Graph:
        """The graph of what the outputs and states need."""
        wanted = {x.name for x in outputs}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            is_update = self.values[node.outputs[0]].kind == "state"
            if is_update or wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                kept.append(node)
        used = wanted | {name for node in kept for name in node.outputs}
        values = tuple(value for value in self.values.values() if value.name in used)
        return Graph(
            self.name, values, tuple(kept[::-1]), tuple(x.name for x in outputs), tuple(meta.items())
        )
