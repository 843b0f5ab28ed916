"""The instructions of an `ElementwiseGroup`: scalars folded into what reads them, tiles reused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import TensorType
from compiler.ops.base import Op
from compiler.ops.elementwise import Binary, Scalar, Select, Unary
from compiler.ops.group import ElementwiseGroup

COMMUTES = ("add", "mul", "max", "min", "equal", "not_equal")
SWAPPED = {  # `value func x` as `x func' value`
    "sub": "rsub",
    "div": "rdiv",
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}
Chain = tuple[tuple[str, float], ...]  # up to two operations with a number


@dataclass(frozen=True, slots=True)
class Action:
    """`out = op(args)`; `chain` comes before it, on the first operand. Without an op it is all there is."""

    out: int
    op: Op | None
    args: tuple[int, ...]
    chain: Chain = ()


def scalar_function(op: Scalar) -> str | None:
    """The function with its operand on the left, or None where there is no such."""
    if not op.swapped or op.func in COMMUTES:
        return op.func
    return SWAPPED.get(op.func)


@dataclass(slots=True)
class _Folding:
    """Chains of scalars wait until it is known who reads them."""

    waiting: dict[int, tuple[int, Chain]] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def made(self, number: int) -> int:
        """The value `number`, by an action of its own if it waited."""
        if number in self.waiting:
            source, chain = self.waiting.pop(number)
            self.actions.append(Action(number, None, (source,), chain))
        return number

    def chain(self, number: int, forms: tuple[tuple[str, ...], ...]) -> tuple[int, Chain]:
        """What waits as `number`, if its operations have one of these forms; else the value itself."""
        source, chain = self.waiting.get(number, (number, ()))
        if chain and tuple(func for func, _ in chain) in forms:
            del self.waiting[number]
            return source, chain
        return self.made(number), ()

    def scalar(self, op: Scalar, func: str, out: int, number: int, alone: bool) -> None:
        source, chain = self.waiting.get(number, (number, ()))
        if len(chain) < 2:
            self.waiting.pop(number, None)
        else:
            source, chain = self.made(number), ()
        self.waiting[out] = source, (*chain, (func, op.value))
        if not alone:
            self.made(out)

    def binary(self, op: Binary, out: int, args: tuple[int, ...]) -> None:
        lhs, rhs = args
        if op.func in COMMUTES and lhs not in self.waiting:
            lhs, rhs = rhs, lhs
        source, chain = self.chain(lhs, (("mul",),))
        if not chain:
            source, rhs = args[0], args[1]
            self.made(source)
        self.actions.append(Action(out, op, (source, self.made(rhs)), chain))


def actions(op: ElementwiseGroup) -> list[Action]:
    """`op` as instructions, in order."""
    reads = Counter(at for _, args, _ in op.body for at in args)
    folding = _Folding()
    for i, (part, (_, args, _)) in enumerate(zip(op.ops(), op.body, strict=True)):
        out = op.operands + i
        alone = reads[out] == 1 and out not in op.results
        func = scalar_function(part) if isinstance(part, Scalar) else None
        if isinstance(part, Scalar) and func:
            folding.scalar(part, func, out, args[0], alone)
        elif isinstance(part, Binary):
            folding.binary(part, out, args)
        elif isinstance(part, Unary):
            source, chain = folding.chain(args[0], (("mul",), ("add",), ("mul", "add")))
            folding.actions.append(Action(out, part, (source,), chain))
        else:
            folding.actions.append(Action(out, part, tuple(folding.made(at) for at in args)))
    return folding.actions


@dataclass(frozen=True, slots=True)
class Places:
    """Where each value lies: in the tile of the operand or result of that number, or in a spare tile."""

    of: dict[int, tuple[str, int]]  # x: operand, y: result, t: spare
    spare: tuple[str, ...]  # their dtypes
    extra: int  # bytes an element of tiles inside actions

    @property
    def bytes(self) -> int:
        """Bytes an element of all spare tiles."""
        return self.extra + sum(dtype_bytes(dtype) for dtype in self.spare)


def places(
    op: ElementwiseGroup, plan: list[Action], types: tuple[TensorType, ...], wide: list[bool]
) -> Places:
    """Reuse tiles once nothing reads them any more; `wide` says which operands fill theirs.

    Beside fp32, what is not stored is held in fp32, so that it loses nothing on its way to such results.
    """
    dtypes = [kind.dtype for kind in types]
    if "fp32" in dtypes:
        own = range(op.operands, len(types))
        dtypes = ["fp32" if i in own and i not in op.results else d for i, d in enumerate(dtypes)]
    of = {i: ("x", i) for i in range(op.operands)} | {at: ("y", i) for i, at in enumerate(op.results)}
    last = {at: i for i, action in enumerate(plan) for at in action.args}
    spare: list[str] = []
    free: list[tuple[tuple[str, int], str]] = []
    for i, action in enumerate(plan):
        dying = [
            (of[at], dtypes[at])
            for at in dict.fromkeys(action.args)
            if last[at] == i and at not in op.results and (at >= op.operands or wide[at])
        ]
        if not is_several(action):
            free, dying = [*free, *dying], []  # in place
        if action.out not in of:
            dtype = dtypes[action.out]
            found = next((at for at in reversed(free) if at[1] == dtype), None)
            if found is None:
                found = ("t", len(spare)), dtype
                spare.append(dtype)
            else:
                free.remove(found)
            of[action.out] = found[0]
        free += dying
    extra = sum(8 for action in plan if is_several(action))
    return Places(of, tuple(spare), extra)


def is_several(action: Action) -> bool:
    """Whether it takes several instructions, with tiles of their own."""
    return isinstance(action.op, (Select, Scalar))
