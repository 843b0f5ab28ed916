"""Fuse a norm into the linear layers that read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node
from compiler.ops import LayerNorm, Linear, RmsNorm
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks


@dataclass(frozen=True, slots=True)
class FuseNorm(Pass):
    """Where only linear layers of the block read a norm, at most `max_readers`, each norms its own input."""

    name: ClassVar[str] = "fuse-norm"
    max_readers: int = 8

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        if arch.grid is not None:  # every piece of the layer would normalise its rows again
            return graph
        return rewrite_blocks(graph, self._fuse_one)

    @classmethod
    @override
    def space(cls, arch: ArchSpec) -> Iterator[FuseNorm]:
        yield from (cls(max_readers=n) for n in (8, 2, 1, 0))

    def _fuse_one(self, block: Block) -> bool:
        for node in block.ops():
            kind = _norm_kind(node)
            if kind is None or block.escapes(node.outputs[0]) or block.reads_state(node):
                continue
            readers = block.readers(node.outputs[0])
            if not 0 < len(readers) <= self.max_readers:
                continue
            if all(_can_norm(reader, node.outputs[0]) for reader in readers):
                for reader in readers:
                    block.replace(reader, _normed(reader, node, kind))
                block.remove(node)
                return True
        return False


def _norm_kind(node: Node) -> str | None:
    """What Linear calls the norm that `node` computes over whole rows."""
    if isinstance(node.op, RmsNorm) and node.op.heads == 1:
        return "rms"
    return "layer" if isinstance(node.op, LayerNorm) else None


def _can_norm(reader: Node, x: str) -> bool:
    op = reader.op
    return (
        isinstance(op, Linear) and op.norm is None and reader.inputs[0] == x and reader.inputs.count(x) == 1
    )


def _normed(linear: Node, norm: Node, kind: str) -> Node:
    """`linear` with `norm` inside: the norm's vectors stand behind the weights."""
    assert isinstance(linear.op, Linear), linear
    assert isinstance(norm.op, (RmsNorm, LayerNorm)), norm
    weights = 2 if linear.op.gated else 1
    x, *vectors = norm.inputs
    inputs = (x, *linear.inputs[1 : 1 + weights], *vectors, *linear.inputs[1 + weights :])
    return replace(linear, op=replace(linear.op, norm=kind, eps=norm.op.eps), inputs=inputs)
