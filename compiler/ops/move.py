"""Ops that only move data: gathers, token assembly, row selection, transposition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Move, Op, f32, rows_cut


@dataclass(frozen=True, slots=True)
class Embedding(Move):
    """`y[t] = table[ids[t]]`: ids [t] int32, table [v, f] -> [t, f]."""

    kind: ClassVar[str] = "embedding"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("ids", "table")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        ids, table = ins
        self.expect_rank("ids", ids, "t")
        self.expect("ids", ids, ids.shape, "int32")
        self.expect_rank("table", table, "v f")
        return (TensorType((ids.shape[0], table.shape[1]), table.dtype),)

    @override
    def index_bounds(self, ins: tuple[TensorType, ...]) -> dict[str, int]:
        return {"ids": ins[1].shape[0]}

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        return rows_cut(ins, 1)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[1][ins[0].astype(np.int64)]),)


@dataclass(frozen=True, slots=True)
class AssembleTokens(Op):
    """Patches to tokens: the class token, then the patches row by row, plus positions, for each image.

    x [n, f, gh, gw], cls [f], pos [gh * gw + 1, f] -> [n * (gh * gw + 1), f].
    """

    kind: ClassVar[str] = "assemble-tokens"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "cls", "pos")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, cls, pos = ins
        self.expect_rank("x", x, "n f gh gw")
        n, f, height, width = x.shape
        tokens = height * width + 1
        self.expect("cls", cls, (f,), x.dtype)
        self.expect("pos", pos, (tokens, f), x.dtype)
        return (TensorType((n * tokens, f), x.dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, cls, pos = (f32(a) for a in ins)
        n, f = x.shape[:2]
        patches = x.reshape(n, f, -1).transpose(0, 2, 1)
        first = np.broadcast_to(cls, (n, 1, f))
        return ((np.concatenate([first, patches], axis=1) + pos).reshape(-1, f),)


@dataclass(frozen=True, slots=True)
class TakeRows(Move):
    """Row `index` (-1: the last) of each sequence of `seq` rows: [t, f] -> [t / seq, f]."""

    kind: ClassVar[str] = "take-rows"
    seq: int
    index: int

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "t f")
        rows, features = ins[0].shape
        if self.seq < 1 or rows % self.seq:
            raise self.reject(f"x: got {rows} rows, want a multiple of seq {self.seq}")
        if not -self.seq <= self.index < self.seq:
            raise self.reject(f"index: got {self.index}, want -{self.seq} to {self.seq - 1}")
        return (TensorType((rows // self.seq, features), ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0])[self.index % self.seq :: self.seq],)


@dataclass(frozen=True, slots=True)
class Transpose2d(Move):
    """[a, b] -> [b, a]."""

    kind: ClassVar[str] = "transpose2d"

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.expect_rank("x", ins[0], "a b")
        return (TensorType(ins[0].shape[::-1], ins[0].dtype),)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (np.ascontiguousarray(f32(ins[0]).T),)
