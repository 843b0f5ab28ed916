"""What a kernel may ask of the DRAM layout of an operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout
from compiler.kernels.site import Site


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly this layout."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Features:
    """Features (or channels) on partitions, in blocks of any size."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Features or rows on partitions."""


@dataclass(frozen=True, slots=True)
class Same:
    """The layout of operand number `other` (inputs, then outputs)."""

    other: int


@dataclass(frozen=True, slots=True)
class Follows:
    """Worked out once the layouts of the node's other operands are known."""

    rule: Callable[[Mapping[str, Layout], Node], Layout]


Want = Fixed | Features | Anything | Same | Follows
Wants = Callable[[Node, Mapping[str, TensorType], ArchSpec], tuple[Want, ...]]
PLAIN = Fixed(ROW_MAJOR)


def always(*wants: Want) -> Wants:
    """These for every node of the kind."""
    return lambda node, types, arch: wants


def plain_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Everything row-major."""
    return (PLAIN,) * (len(node.inputs) + len(node.outputs))


def features_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """Channels or features on partitions, in blocks of any size."""
    return (Features(),) * (len(node.inputs) + len(node.outputs))


@dataclass(frozen=True, slots=True)
class Kernel:
    """How an op is lowered: its layout wishes (inputs, then outputs) and its tile program."""

    wants: Wants
    build: Callable[[Builder, Site], None]
