"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks


@dataclass(frozen=True, slots=True)
class Dce(Pass):
    """Remove nodes whose results nobody reads and that update no state; what they read goes with them."""

    name: ClassVar[str] = "dce"

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        return rewrite_blocks(graph, _remove_one)


def _remove_one(block: Block) -> bool:
    for node in reversed(block.ops()):
        if all(_is_dead(block, name) for name in node.outputs):
            block.remove(node)
            return True
    return False


def _is_dead(block: Block, name: str) -> bool:
    return block.values[name].kind != "state" and not block.readers(name) and not block.escapes(name)
