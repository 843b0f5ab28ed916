"""The kernels: how each op becomes tiles. One entry a kind of op."""

from __future__ import annotations

from collections.abc import Mapping

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, weight_blocked
from compiler.kernels.elementwise import BINARY, UNARY
from compiler.kernels.matmul import linear
from compiler.kernels.matmul_plan import weight_tiles
from compiler.kernels.norm import norm_op
from compiler.kernels.wants import Anything, Features, Fixed, Follows, Kernel, Same, Want

__all__ = ["KERNELS", "Kernel"]

_PLAIN = Fixed(ROW_MAJOR)


def _linear_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """x has features on partitions; the result lies as its consumers want; weights follow from both."""
    out = len(node.inputs)

    def weight(layouts: Mapping[str, Layout], n: Node) -> Layout:
        k, cols = types[n.inputs[1]].shape
        x, y = layouts[n.inputs[0]], layouts[n.outputs[0]]
        block = y.splits[0][1] if y.splits else 0
        return weight_blocked(*weight_tiles(arch, k, cols, x.splits[0][1], block))

    by_role: dict[str, Want] = {
        "x": Features(),
        "w": Follows(weight),
        "w_up": Follows(weight),
        "r": Same(out),
    }
    return (*(by_role.get(role, _PLAIN) for role in node.op.roles), Anything())


def _norm_wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    return (Features(), *(_PLAIN for _ in node.inputs[1:]), Same(0))


KERNELS: dict[str, Kernel] = {
    "unary": UNARY,
    "binary": BINARY,
    "linear": Kernel(_linear_wants, linear),
    "rms-norm": Kernel(_norm_wants, norm_op),
    "layer-norm": Kernel(_norm_wants, norm_op),
}
