"""Fuse connected elementwise ops of one shape, so that values between them stay on chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, Repeat
from compiler.ops.base import Op
from compiler.ops.elementwise import Binary, Scalar, Unary, repeats_rows
from compiler.ops.group import PARTS, ElementwiseGroup, Step, step
from compiler.passes.base import Pass
from compiler.passes.block import Block, rewrite_blocks

FLOATS = ("fp32", "bf16", "fp16")
JUMPS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "mod", "sign")


@dataclass(frozen=True, slots=True)
class FuseElementwise(Pass):
    """An elementwise op joins the one that makes its operand: that operand is no longer loaded.

    It is stored only if others read it. Results have one shape and operands broadcast to it; groups
    have up to `max_ops` ops. What jumps (comparisons) joins in fp32 only: operands that were not
    rounded between ops might fall on the other side.
    """

    name: ClassVar[str] = "fuse-elementwise"
    max_ops: int = 16

    @override
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        return rewrite_blocks(graph, self._fuse_one)

    @classmethod
    @override
    def space(cls, arch: ArchSpec) -> Iterator[FuseElementwise]:
        yield from (cls(max_ops) for max_ops in (16, 0, 2, 4, 8))

    def _fuse_one(self, block: Block) -> bool:
        for last in block.ops():
            if not _is_part(block, last):
                continue
            for name in dict.fromkeys(last.inputs):
                first = block.maker(name)
                if first is not None and self._fits(block, first, last) and _merge(block, first, last):
                    return True
        return False

    def _fits(self, block: Block, first: Node, last: Node) -> bool:
        if not _is_part(block, first) or len(_steps(first.op)) + len(_steps(last.op)) > self.max_ops:
            return False
        shape = block.values[last.outputs[0]].type.shape
        shapes = [block.values[name].type.shape for name in (*first.inputs, *last.inputs)]
        return block.values[first.outputs[0]].type.shape == shape and shape in shapes


def _steps(op: Op) -> tuple[object, ...]:
    return op.body if isinstance(op, ElementwiseGroup) else (op,)


def _is_part(block: Block, node: Node) -> bool:
    """Whether `node` may be part of a group."""
    values = [block.values[name] for name in (*node.inputs, *node.outputs)]
    if node.op.kind not in PARTS and not isinstance(node.op, ElementwiseGroup):
        return False
    if any(value.type.dtype not in FLOATS or value.kind == "state" for value in values):
        return False
    shape, shapes = values[-1].type.shape, [value.type.shape for value in values]
    if any(own != shape for own in shapes) and (len(shape) == 4 or shape not in shapes[:-1]):
        return False
    if isinstance(node.op, Binary) and repeats_rows(*shapes[:2]) and shapes[1][0] != 1:
        return False
    jumps = isinstance(node.op, (Unary, Scalar, Binary)) and node.op.func in JUMPS
    return not jumps or all(value.type.dtype == "fp32" for value in values)


def _merge(block: Block, first: Node, last: Node) -> bool:
    """Replace both nodes by one, unless something between them needs `first` and is needed by `last`."""
    start, end = block.nodes.index(first), block.nodes.index(last)
    between = block.nodes[start + 1 : end]
    behind: list[Node | Repeat] = []
    made = set(first.outputs)
    for node in between:
        if made.intersection(_reads(node)):
            behind.append(node)
            made.update(_makes(node))
    if any(name in made and name not in first.outputs for name in last.inputs):
        return False
    if any(block.values[name].kind == "state" for node in behind for name in _reads(node)):
        return False
    ahead = [node for node in between if node not in behind]
    both = _joined(block, first, last)
    if _rounds_between(block, both):
        return False
    block.put((*block.nodes[:start], *ahead, both, *behind, *block.nodes[end + 1 :]))
    return True


def _rounds_between(block: Block, node: Node) -> bool:
    """Whether an fp32 result may come from one that is narrower: that rounding is not in the reference."""
    op = node.op
    assert isinstance(op, ElementwiseGroup)
    dtypes = [block.values[name].type.dtype for name in node.outputs]
    read = {at for _, reads, _ in op.body for at in reads}
    narrow = any(d != "fp32" and at in read for d, at in zip(dtypes, op.results, strict=True))
    return narrow and "fp32" in dtypes


def _reads(node: Node | Repeat) -> tuple[str, ...]:
    if isinstance(node, Node):
        return node.inputs
    return (*(n for inner in node.nodes for n in inner.inputs), *(c.init for c in node.carries))


def _makes(node: Node | Repeat) -> tuple[str, ...]:
    return node.outputs if isinstance(node, Node) else tuple(carry.result for carry in node.carries)


def _joined(block: Block, first: Node, last: Node) -> Node:
    """One node that does what both did."""
    inputs = dict.fromkeys((*first.inputs, *(n for n in last.inputs if n not in first.outputs)))
    numbers = {name: i for i, name in enumerate(inputs)}
    body: list[Step] = []
    for node in (first, last):
        at = [numbers[name] for name in node.inputs]
        op = node.op
        if isinstance(op, ElementwiseGroup):
            for kind, reads, params in op.body:
                body.append((kind, tuple(at[i] for i in reads), params))
                at.append(len(inputs) + len(body) - 1)
            numbers.update((name, at[i]) for name, i in zip(node.outputs, op.results, strict=True))
        else:
            body.append(step(op, tuple(at)))
            numbers[node.outputs[0]] = len(inputs) + len(body) - 1
    kept = [n for n in first.outputs if block.escapes(n) or any(r is not last for r in block.readers(n))]
    outputs = (*kept, *last.outputs)
    group = ElementwiseGroup(len(inputs), tuple(body), tuple(numbers[name] for name in outputs))
    return Node(last.name, group, tuple(inputs), outputs)
