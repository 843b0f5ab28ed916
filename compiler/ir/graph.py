"""Graph: single-assignment ops on typed tensors; repeated layers are one region with a count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from compiler.ir.dtype import dtype_bytes

if TYPE_CHECKING:
    from compiler.ops.base import Op


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor.

    `kind`: input (given each run), weight (parameter), state (kept between runs: the KV cache,
    updated in place), activation (made by a node). A weight or state with `stacked` has one copy
    per iteration of the region it is used in; its `type` is that of one copy.
    """

    name: str
    type: TensorType
    kind: str = "activation"
    stacked: int = 0  # copies; 0: not stacked

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return self.type.nbytes * max(1, self.stacked)


@dataclass(frozen=True, slots=True)
class Node:
    """One op applied to values. `outputs` are new values, or states that it updates in place."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A region that runs `count` times; stacked values advance by one copy each time.

    `carries`: (inner input, inner output, result). The inner input is the outer value on the first
    iteration and the inner output of the iteration before on the others; the result is its last.
    """

    name: str
    count: int
    nodes: tuple[Node, ...]
    carries: tuple[Carry, ...]


@dataclass(frozen=True, slots=True)
class Carry:
    """A value handed from iteration to iteration."""

    init: str  # outer value
    inner: str  # its name inside the region
    final: str  # inner value handed on
    result: str  # outer name of the last one


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole model in one phase."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node | Repeat, ...]
    outputs: tuple[str, ...]
    meta: tuple[tuple[str, int | float | str], ...] = ()  # e.g. ("tokens", 8): what throughput counts

    def value_map(self) -> dict[str, Value]:
        """Values by name."""
        return {value.name: value for value in self.values}

    def walk(self) -> Iterator[tuple[Node, int]]:
        """Every node with how often it runs."""
        for node in self.nodes:
            if isinstance(node, Repeat):
                for inner in node.nodes:
                    yield inner, node.count
            else:
                yield node, 1

    def _sum(self, what: str) -> int:
        types = {value.name: value.type for value in self.values}
        total = 0
        for node, times in self.walk():
            ins = tuple(types[name] for name in node.inputs)
            total += times * int(getattr(node.op, what)(ins))
        return total

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the matrix ops (1 MAC = 2 FLOPs)."""
        return self._sum("macs")

    @property
    def flops(self) -> int:
        """FLOPs of all ops."""
        return self._sum("flops")

    @property
    def parameters(self) -> int:
        """Number of weight elements."""
        return sum(v.type.elements * max(1, v.stacked) for v in self.values if v.kind == "weight")

    def kind_bytes(self, kind: str) -> int:
        """Bytes of all values of a kind."""
        return sum(v.nbytes for v in self.values if v.kind == kind)

    def with_nodes(self, nodes: tuple[Node | Repeat, ...]) -> Graph:
        """The same graph with other nodes; values no longer used are dropped."""
        used = set(self.outputs)
        for node in nodes:
            if isinstance(node, Repeat):
                used.update(n for c in node.carries for n in (c.init, c.inner, c.final, c.result))
            for inner in node.nodes if isinstance(node, Repeat) else (node,):
                used.update(inner.inputs + inner.outputs)
        return replace(self, nodes=nodes, values=tuple(v for v in self.values if v.name in used))
