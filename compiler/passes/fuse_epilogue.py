"""Fuse what follows a product into its eviction: bias, activation, residual."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node
from compiler.ops import Binary, Conv2d, GroupNorm, Linear, Unary
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks


@dataclass(frozen=True, slots=True)
class FuseEpilogue(Pass):
    """Linear takes a bias, then an activation, then a residual; Conv2d a residual, then an activation.

    GroupNorm takes an activation. Only where nothing else reads the product. The fused op stands where
    its last part stood.
    """

    name: ClassVar[str] = "fuse-epilogue"
    bias: bool = True
    activation: bool = True
    residual: bool = True

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        return rewrite_blocks(graph, self._fuse_one)

    @classmethod
    @override
    def space(cls, arch: ArchSpec) -> Iterator[FuseEpilogue]:
        yield from (cls(*switches) for switches in itertools.product((True, False), repeat=3))

    def _fuse_one(self, block: Block) -> bool:
        return any(self._fuse_unary(block, node) or self._fuse_add(block, node) for node in block.ops())

    def _fuse_unary(self, block: Block, node: Node) -> bool:
        if not self.activation or not isinstance(node.op, Unary):
            return False
        norm = block.maker(node.inputs[0])
        if norm is not None and isinstance(norm.op, GroupNorm) and block.is_read_once(node.inputs[0]):
            if norm.op.activation is not None:
                return False
            _merge(block, norm, node, replace(norm.op, activation=node.op.func), ())
            return True
        product = _product(block, node.inputs[0])
        if product is None:
            return False
        op = product.op
        if isinstance(op, Linear) and op.activation is None and not op.residual:
            _merge(block, product, node, replace(op, activation=node.op.func), ())
            return True
        if isinstance(op, Conv2d) and op.activation is None:
            _merge(block, product, node, replace(op, activation=node.op.func), ())
            return True
        return False

    def _fuse_add(self, block: Block, node: Node) -> bool:
        if node.op != Binary("add"):
            return False
        for result, other in (node.inputs, node.inputs[::-1]):
            product = _product(block, result)
            if product is not None and self._fuse_operand(block, node, product, other):
                return True
        return False

    def _fuse_operand(self, block: Block, node: Node, product: Node, other: str) -> bool:
        """Fuse the sum `node` of `product` and `other`, if it fits, and tell whether so."""
        shape, out = block.values[other].type.shape, block.values[product.outputs[0]].type.shape
        op = product.op
        if isinstance(op, Linear) and not op.residual:
            is_open = op.activation is None or op.gated
            if self.bias and shape == out[1:] and is_open and not op.bias:
                _merge(block, product, node, replace(op, bias=True), (other,))
                return True
            if self.residual and shape == out:
                _merge(block, product, node, replace(op, residual=True), (other,))
                return True
        if isinstance(op, Conv2d) and self.residual and shape == out:
            if op.residual or op.activation is not None:
                return False
            _merge(block, product, node, replace(op, residual=True), (other,))
            return True
        return False


def _product(block: Block, name: str) -> Node | None:
    """The matrix op that makes `name` for one reader only."""
    maker = block.maker(name)
    if maker is None or not isinstance(maker.op, (Linear, Conv2d)) or not block.is_read_once(name):
        return None
    return maker


def _merge(
    block: Block, product: Node, node: Node, op: Linear | Conv2d | GroupNorm, extra: tuple[str, ...]
) -> None:
    """Replace `product` and the `node` behind it by `op`, whose new operands come last."""
    block.replace(node, Node(node.name, op, (*product.inputs, *extra), node.outputs))
    block.remove(product)
