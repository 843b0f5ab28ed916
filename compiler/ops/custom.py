"""An op whose lowering the user has written: the same meaning, another program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Op

if TYPE_CHECKING:
    from compiler.user_kernel import UserKernel

ANY_MACS = 1 << 62  # a user may compute products and throw them away


@dataclass(frozen=True, slots=True)
class Custom(Op):
    """`op`, lowered by the kernel `name`; `digest` of its file stands for its text, so that ids tell."""

    kind: ClassVar[str] = "custom"
    op: Op
    name: str
    digest: str
    kernel: UserKernel = field(repr=False, compare=False)

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return self.op.roles

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return self.op.infer(ins)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return self.op.reference(*ins)

    @override
    def constants(self) -> dict[str, Array]:
        return self.op.constants()

    @override
    def index_bounds(self, ins: tuple[TensorType, ...]) -> dict[str, int]:
        return self.op.index_bounds(ins)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        return self.op.macs(ins)

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        return ANY_MACS

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        return self.op.read_bytes(ins)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        return self.op.flops(ins)
