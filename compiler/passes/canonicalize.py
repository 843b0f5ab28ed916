"""Remove ops that change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node
from compiler.ops import TakeRows, Transpose2d, Unary
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks


@dataclass(frozen=True, slots=True)
class Canonicalize(Pass):
    """Read through identities: `identity(x)`, one row of one, a transposition of a transposition.

    A value that leaves its block (an output or carried) keeps its op.
    """

    name: ClassVar[str] = "canonicalize"

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        return rewrite_blocks(graph, _remove_one)


def _remove_one(block: Block) -> bool:
    for node in block.ops():
        same = _same_as(block, node)
        if same is not None and not block.escapes(node.outputs[0]):
            block.rename_reads(node.outputs[0], same)
            block.remove(node)
            return True
    return False


def _same_as(block: Block, node: Node) -> str | None:
    """The value that the result of `node` always equals."""
    op, x = node.op, node.inputs[0]
    if block.reads_state(node):
        return None
    if op == Unary("identity") or (isinstance(op, TakeRows) and op.seq == 1):
        return x
    maker = block.maker(x)
    if isinstance(op, Transpose2d) and maker is not None and isinstance(maker.op, Transpose2d):
        return maker.inputs[0]
    return None
