"""Bias of attention scores that depends on the distance between query and key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Move, f32


@dataclass(frozen=True, slots=True)
class RelativeBias(Move):
    """`y[0, h, i, j] = table[bucket(j - i - offset), h]`: table [buckets, heads].

    index is [queries + keys - 1], int32. The result is the `bias` of an attention, [1, heads, queries, keys];
    query i is at position `offset + i`. Near distances have a bucket each, those up to `far` share the others
    by their logarithm, and `both` sides have half of the buckets each; else keys later than the query are all
    in bucket 0. The index holds the bucket of each distance, from the last query and first key on.
    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1;
    transformers, T5Attention._relative_position_bucket.
    """

    kind: ClassVar[str] = "relative-bias"
    queries: int
    keys: int
    both: bool
    buckets: int = 32
    far: int = 128
    offset: int = 0

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("index", "table")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        index, table = ins
        if self.queries < 1 or self.keys < 1:
            raise self.reject(f"queries, keys: got {self.queries}, {self.keys}, want 1 or more")
        self.expect("index", index, (self.queries + self.keys - 1,), "int32")
        least = 4 if self.both else 2
        if self.buckets < least or self.buckets % 2 or self.far <= self.buckets // 2:
            want = f"want an even number, {least} or more, and a distance above half of it"
            raise self.reject(f"buckets, far: got {self.buckets}, {self.far}, {want}")
        self.expect_rank("table", table, "buckets heads")
        self.expect("table", table, (self.buckets, table.shape[1]), table.dtype)
        return (TensorType((1, table.shape[1], self.queries, self.keys), table.dtype),)

    @override
    def constants(self) -> dict[str, Array]:
        count = self.buckets
        distance = np.arange(self.queries + self.keys - 1) - (self.queries - 1) - self.offset
        first = np.zeros_like(distance)
        if self.both:
            count //= 2
            first = np.where(distance > 0, count, 0)
            distance = np.abs(distance)
        else:
            distance = np.maximum(-distance, 0)
        near = count // 2
        # NOTE: float32 in the order of the published code, or distances at a border get another bucket.
        ratio = np.log(f32(np.maximum(distance, near)) / near) / np.float32(math.log(self.far / near))
        wide = near + (f32(ratio) * (count - near)).astype(np.int64)
        found = first + np.where(distance < near, distance, np.minimum(wide, count - 1))
        return {"index": found.astype(np.int32)}

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        index, table = ins[0].astype(np.int64), f32(ins[1])
        where = np.arange(self.keys)[None, :] - np.arange(self.queries)[:, None] + self.queries - 1
        return (np.ascontiguousarray(table[index[where]].transpose(2, 0, 1))[None],)
