"""Fuse the two products of a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node
from compiler.ops import Binary, GroupedLinear, Linear, Unary
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks


@dataclass(frozen=True, slots=True)
class FuseGate(Pass):
    """`act(x @ w) * (x @ w_up)` becomes one gated Linear, or GroupedLinear.

    Both products read the same, equally normed x.
    """

    name: ClassVar[str] = "fuse-gate"

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        return rewrite_blocks(graph, _fuse_one)


def _fuse_one(block: Block) -> bool:
    for product in block.ops():
        if product.op != Binary("mul"):
            continue
        for act, up in (product.inputs, product.inputs[::-1]):
            if _fuse(block, product, act, up):
                return True
    return False


def _fuse(block: Block, product: Node, act: str, up: str) -> bool:
    """Fuse if `act` is the activated gate and `up` the other factor, and tell whether so."""
    unary, right = block.maker(act), block.maker(up)
    if unary is None or right is None or not isinstance(unary.op, Unary):
        return False
    left = block.maker(unary.inputs[0])
    if left is None or not _matches(left, right):
        return False
    if not all(block.is_read_once(name) for name in (act, up, unary.inputs[0])):
        return False
    assert isinstance(left.op, (Linear, GroupedLinear)), left
    x, w, *vectors = left.inputs
    op = replace(left.op, gated=True, activation=unary.op.func)
    block.replace(product, Node(product.name, op, (x, w, right.inputs[1], *vectors), product.outputs))
    block.remove(left, right, unary)
    return True


def _matches(left: Node, right: Node) -> bool:
    """Whether two linear layers differ in their weights only, and have nothing behind the product."""
    op = left.op
    if not isinstance(op, (Linear, GroupedLinear)) or op != right.op or left is right:
        return False
    is_plain = not (op.gated or op.activation or op.bias)
    if isinstance(op, Linear):
        is_plain = is_plain and not op.residual and op.scale == 1.0
    return is_plain and left.inputs[0] == right.inputs[0] and left.inputs[2:] == right.inputs[2:]
