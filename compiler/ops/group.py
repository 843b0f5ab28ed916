"""Several elementwise ops as one, so that what they hand on need not be stored."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import ClassVar

from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, pointwise_cuts
from compiler.ops.elementwise import Binary, Cast, Opaque, Scalar, Select, Unary

Param = str | int | float | bool
Step = tuple[str, tuple[int, ...], tuple[Param, ...]]  # kind of op, numbers of what it reads, its fields
PARTS: dict[str, type[Op]] = {op.kind: op for op in (Unary, Scalar, Binary, Cast, Select, Opaque)}


@dataclass(frozen=True, slots=True)
class ElementwiseGroup(Op):
    """Elementwise ops whose results all have one shape; operands broadcast to it as numpy does.

    Values are numbered: the operands first, then the result of each step of `body`. `results` are the
    numbers of those that are stored; others are not rounded in the reference.
    """

    kind: ClassVar[str] = "elementwise-group"
    operands: int
    body: tuple[Step, ...]
    results: tuple[int, ...]

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return tuple(f"x{i}" for i in range(self.operands))

    def ops(self) -> tuple[Op, ...]:
        """The op of each step."""
        unknown = [kind for kind, _, _ in self.body if kind not in PARTS]
        if unknown:
            raise self.reject(f"body: got {unknown[0]!r}, want one of: {', '.join(PARTS)}")
        return tuple(PARTS[kind](*params) for kind, _, params in self.body)

    def types(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The type of every value; raises CompileError if the body does not fit the operands."""
        self.expect_operands(ins)
        if not self.body or not self.results:
            raise self.reject("got no steps or no results, want one or more of each")
        found = list(ins)
        for op, (_, reads, _) in zip(self.ops(), self.body, strict=True):
            if any(not 0 <= at < len(found) for at in reads):
                raise self.reject(f"body: {op.kind} reads {list(reads)}, want values before it")
            found += op.infer(tuple(found[at] for at in reads))
            self.expect(op.kind, found[-1], found[len(ins)].shape, found[-1].dtype)
        if any(not len(ins) <= at < len(found) for at in self.results):
            raise self.reject(f"results: got {list(self.results)}, want numbers of steps")
        return tuple(found)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        types = self.types(ins)
        return tuple(types[at] for at in self.results)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """The sum of those of the steps."""
        types = self.types(ins)
        steps = zip(self.ops(), self.body, strict=True)
        return sum(op.flops(tuple(types[at] for at in reads)) for op, (_, reads, _) in steps)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        found = pointwise_cuts(ins, self.infer(ins)[0].shape)
        return tuple(replace(cut, outputs=cut.outputs * len(self.results)) for cut in found)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        found = list(ins)
        for op, (_, reads, _) in zip(self.ops(), self.body, strict=True):
            found += op.reference(*(found[at] for at in reads))
        return tuple(found[at] for at in self.results)


def step(op: Op, reads: tuple[int, ...]) -> Step:
    """`op` as a step that reads the values of these numbers."""
    return op.kind, reads, astuple(op)
