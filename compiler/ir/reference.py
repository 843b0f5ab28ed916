"""The oracle: run a Graph in numpy, op by op, as its ops' references say."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import CompileError
from compiler.ir.dtype import numpy_dtype
from compiler.ir.graph import Graph, Node, Repeat, Value

Array = npt.NDArray[Any]
FED_KINDS = ("input", "weight", "table", "state")


def run_graph(
    graph: Graph, feeds: Mapping[str, Array], *, round_storage: bool = True, inner: bool = False
) -> dict[str, Array]:
    """Outputs and final states of `graph`, each in the numpy type of its dtype.

    `feeds` holds every input, weight, table and state (stacked values with a leading copies axis) and
    is left as it is. With `round_storage` each op's result is rounded to its dtype, as storing it
    does; without, everything is float32 from feeds to results. With `inner`, also every activation; in a
    region, that of its last iteration.
    """
    run = _Run(graph, feeds, round_storage)
    for node in graph.nodes:
        if isinstance(node, Repeat):
            run.repeat(node)
        else:
            run.node(node)
    states = [value.name for value in graph.values if value.kind == "state"]
    made = [name for name in run.env if run.values[name].kind == "activation"] if inner else []
    return {name: run.result(name) for name in dict.fromkeys((*made, *graph.outputs, *states))}


class _Run:
    """The arrays of one execution, by value name; float32, or int32 for indices."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Array], round_storage: bool) -> None:
        self.values = graph.value_map()
        self.round_storage = round_storage
        self.env: dict[str, Array] = {}
        for value in graph.values:
            if value.kind in FED_KINDS:
                self.env[value.name] = self._stored(value, _fed(value, feeds)).copy()

    def _stored(self, value: Value, array: Array) -> Array:
        """`array` after it was stored in the value's dtype."""
        if value.type.dtype == "int32":
            return np.asarray(array, dtype=np.int32)
        array = np.asarray(array, dtype=np.float32)
        if not self.round_storage:
            return array
        return array.astype(numpy_dtype(value.type.dtype)).astype(np.float32)

    def node(self, node: Node, copy: int = 0) -> None:
        """Run one node; stacked operands are those of iteration `copy`."""
        ins = [self.env[n][copy] if self.values[n].stacked else self.env[n] for n in node.inputs]
        for name, array in zip(node.outputs, node.op.reference(*ins), strict=True):
            value = self.values[name]
            if value.stacked:
                self.env[name][copy] = self._stored(value, array)
            else:
                self.env[name] = self._stored(value, array)

    def repeat(self, region: Repeat) -> None:
        """Run a region, handing the carried values on."""
        carried = {carry.inner: self.env[carry.init] for carry in region.carries}
        for copy in range(region.count):
            self.env.update(carried)
            for node in region.nodes:
                self.node(node, copy)
            carried = {carry.inner: self.env[carry.final] for carry in region.carries}
        self.env.update({carry.result: carried[carry.inner] for carry in region.carries})

    def result(self, name: str) -> Array:
        """The array of a value, in its numpy type if stored so."""
        dtype = numpy_dtype(self.values[name].type.dtype) if self.round_storage else np.float32
        return self.env[name].astype(dtype)


def _fed(value: Value, feeds: Mapping[str, Array]) -> Array:
    """The array fed for `value`, checked."""
    if value.name not in feeds:
        raise CompileError(f"feeds: no array for the {value.kind} {value.name!r}")
    array = feeds[value.name]
    want = full_shape(value)
    if array.shape != want:
        raise CompileError(f"feeds: {value.name}: got shape {list(array.shape)}, want {list(want)}")
    return array


def full_shape(value: Value) -> tuple[int, ...]:
    """Shape of a value with all its copies."""
    return (value.stacked, *value.type.shape) if value.stacked else value.type.shape


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """An array in the numpy type of each input, weight, table and state, the same for the same seed.

    Magnitudes keep activations near 1: matrices are divided by the root of their fan-in, gains lie
    around 1, other vectors are small, indices lie in the table they index, what ops fix is exact.
    States are random too, so that what a phase must not touch can be seen untouched.
    """
    fixed = _constants(graph)
    rows, roles = _index_bounds(graph), _roles(graph)
    feeds: dict[str, Array] = {}
    for value in graph.values:
        if value.kind not in FED_KINDS:
            continue
        # One stream a name: adding a value to a graph leaves the others' numbers alone.
        rng = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
        shape = full_shape(value)
        if value.name in fixed:
            array = fixed[value.name]
        elif value.type.dtype == "int32":
            array = rng.integers(0, rows.get(value.name, 2), size=shape)
        else:
            mean, deviation = _distribution(value, roles.get(value.name, ""))
            array = mean + deviation * rng.standard_normal(shape)
        feeds[value.name] = array.astype(numpy_dtype(value.type.dtype))
    return feeds


def uneven_feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """As `random_feeds`, but rows of inputs and states have means, and are 64 to 1/256 times as large.

    Shows what even numbers hide: a softmax that shifts by less than the row's maximum, a statistic of
    another row, a mean that was not taken off, a lost epsilon.
    """
    feeds = random_feeds(graph, seed)
    for value in graph.values:
        if value.kind in ("input", "state") and value.type.dtype != "int32" and value.type.shape:
            array = feeds[value.name]
            rows = array.reshape(-1, array.shape[-1]).astype(np.float32)
            place = np.arange(len(rows), dtype=np.float32)[:, None]
            most = 64 if array.dtype.itemsize > 1 else 4  # the largest number of 8-bit floats is small
            feeds[value.name] = (
                ((rows + (place + 1) % 3) * most / 4 ** (place % 8)).reshape(array.shape).astype(array.dtype)
            )
    return feeds


def _constants(graph: Graph) -> dict[str, Array]:
    """What the ops fix of their operands."""
    found: dict[str, Array] = {}
    for node, _ in graph.walk():
        named = dict(zip(node.op.roles, node.inputs, strict=True))
        found.update((named[role], array) for role, array in node.op.constants().items())
    return found


def _index_bounds(graph: Graph) -> dict[str, int]:
    """Rows of the smallest table that each index input selects from."""
    values = graph.value_map()
    bounds: dict[str, int] = {}
    for node, _ in graph.walk():
        named = dict(zip(node.op.roles, node.inputs, strict=True))
        ins = tuple(values[name].type for name in node.inputs)
        for role, count in node.op.index_bounds(ins).items():
            bounds[named[role]] = min(count, bounds.get(named[role], count))
    return bounds


def _roles(graph: Graph) -> dict[str, str]:
    """The operand role in which each value is first read."""
    roles: dict[str, str] = {}
    for node, _ in graph.walk():
        for name, role in zip(node.inputs, node.op.roles, strict=True):
            roles.setdefault(name, role)
    return roles


def _distribution(value: Value, role: str) -> tuple[float, float]:
    """Mean and standard deviation of a random array in this role."""
    if role == "gain":
        return 1.0, 0.1
    if value.kind != "weight" or role in ("table", "pos", "cls"):
        return 0.0, 1.0
    shape = value.type.shape
    if len(shape) == 1:
        return 0.0, 0.1
    fan_in = {2: shape[0], 3: shape[-2]}.get(len(shape), math.prod(shape[1:]))  # [k, n], [experts, k, n]
    return 0.0, 1.0 / math.sqrt(fan_in)
