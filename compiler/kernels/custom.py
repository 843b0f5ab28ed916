"""Kernels of users in place of ours: operands in rows, axes and parameters bound from the op."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.builder import Builder
from compiler.errors import CompileError
from compiler.ir.graph import TensorType
from compiler.kernels.site import Site
from compiler.kernels.wants import Kernel, plain_wants
from compiler.ops.base import Op
from compiler.ops.custom import Custom
from compiler.user_kernel import UserKernel, call


def custom(b: Builder, site: Site) -> None:
    """Lower `Custom`: call the user's function on the op's tensors."""
    assert isinstance(site.op, Custom)
    kernel, ports = site.op.kernel, (*site.inputs, *site.outputs)
    types = [[port.type for port in side] for side in (site.inputs, site.outputs)]
    values = bound_sizes(kernel, site.op.op, *types)
    outputs = [port.tensor.name for port in site.outputs]
    call(kernel, b, [port.tensor for port in ports], values, outputs)


def bound_sizes(
    kernel: UserKernel, op: Op, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> dict[str, int]:
    """Sizes of axes from the shapes; of parameters from the op's attributes of that name, if there are.

    Raises CompileError where the operands do not fit the kernel.
    """
    operands = (*kernel.inputs, *kernel.outputs)
    if (len(kernel.inputs), len(kernel.outputs)) != (len(ins), len(outs)):
        takes = ", ".join(operand.name for operand in kernel.inputs)
        raise CompileError(
            f"got operands {', '.join(op.roles)} and {len(outs)} results of {op.kind}, "
            f"want {takes} and {len(kernel.outputs)} of the kernel"
        )
    values: dict[str, int] = {}
    for operand, kind in zip(operands, (*ins, *outs), strict=True):
        if len(operand.axes) != len(kind.shape):
            axes = " ".join(operand.axes)
            raise CompileError(f"{operand.name}: got shape {list(kind.shape)}, want axes [{axes}]")
        for axis, size in zip(operand.axes, kind.shape, strict=True):
            if values.setdefault(axis, size) != size:
                raise CompileError(f"{operand.name}: axis {axis}: got {size}, want {values[axis]} as before")
    defaults = dict(kernel.sizes)
    for name in kernel.parameters:
        values[name] = int(getattr(op, name, defaults[name]))
    return values


KERNEL = Kernel(plain_wants, custom)
