"""Mixture of experts: gates, rows sorted by expert, one linear layer an expert, and the weighted sum.

Which expert gets which token is part of the op, not of the run: `counts[e]` rows for expert e, given to
tokens by `compiler.routing`. Shapes and code are then static, and every number is still computed. The indices
an op needs are operands; `constants` tells what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Move, Op, f32
from compiler.ops.elementwise import FUNCTIONS, check_activation
from compiler.ops.norm import softmax
from compiler.routing import assign, padded

SCORES = ("softmax", "sigmoid")


@dataclass(frozen=True, slots=True)
class _Routed(Op):
    """What the ops around the experts share: how many tokens each expert gets, and experts a token."""

    counts: tuple[int, ...]
    top: int

    @property
    def tokens(self) -> int:
        """Tokens routed."""
        return sum(self.counts) // self.top

    def check(self) -> None:
        """Raise CompileError if the counts cannot be."""
        rows, most = sum(self.counts), max(self.counts, default=0)
        if self.top < 1 or min(self.counts, default=0) < 0:
            raise self.reject(f"top: got {self.top}, want 1 or more, and counts of 0 or more")
        if not rows or rows % self.top:
            raise self.reject(f"counts: got {rows} rows in all, want a positive multiple of top {self.top}")
        if most > self.tokens:
            raise self.reject(f"counts: got {most} rows for one expert, want at most {self.tokens} tokens")


@dataclass(frozen=True, slots=True)
class Route(_Routed):
    """Gate of each chosen expert: its score, over the sum of the chosen ones if `normalise`, times `scale`.

    logits [t, experts], chosen [t, top] int32, index [experts] fp32 (0, 1, ...) -> [t, top]. `score` is
    "softmax" over all experts or "sigmoid" of each. Which experts are chosen is fixed (see the module), so a
    bias or a limit on groups that only steers the choice is left out; choosing costs what picking does, `top`
    passes over the scores.
    """

    kind: ClassVar[str] = "route"
    score: str = "softmax"
    normalise: bool = True
    scale: float = 1.0

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("logits", "chosen", "index")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        logits, chosen, index = ins
        if self.score not in SCORES:
            raise self.reject(f"score: got {self.score!r}, want one of: {', '.join(SCORES)}")
        self.check()
        self.expect("logits", logits, (self.tokens, len(self.counts)), logits.dtype)
        self.expect("chosen", chosen, (self.tokens, self.top), "int32")
        self.expect("index", index, (len(self.counts),), "fp32")
        return (TensorType((self.tokens, self.top), logits.dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """One per score, and three per chosen expert: sum, quotient, scale."""
        return ins[0].elements + 3 * self.tokens * self.top

    @override
    def constants(self) -> dict[str, Array]:
        chosen = assign(self.counts, self.top).chosen
        return {"chosen": chosen, "index": f32(np.arange(len(self.counts)))}

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        logits = f32(ins[0])
        scores = softmax(logits) if self.score == "softmax" else f32(FUNCTIONS["sigmoid"](logits))
        gates = np.take_along_axis(scores, ins[1].astype(np.int64), axis=1)
        if self.normalise:
            gates = gates / gates.sum(axis=1, keepdims=True, dtype=np.float32)
        return (f32(gates * np.float32(self.scale)),)


@dataclass(frozen=True, slots=True)
class Dispatch(_Routed, Move):
    """Rows of tokens in the order of their experts: `y[r] = x[source[r]]`.

    x [t, f], source [rows] int32 -> [rows, f]. Padding rows (`routing.padded`) repeat token 0; none reads
    them.
    """

    kind: ClassVar[str] = "dispatch"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "source")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, source = ins
        self.check()
        self.expect_rank("x", x, "t f")
        self.expect("x", x, (self.tokens, x.shape[1]), x.dtype)
        rows = sum(padded(self.counts))
        self.expect("source", source, (rows,), "int32")
        return (TensorType((rows, x.shape[1]), x.dtype),)

    @override
    def constants(self) -> dict[str, Array]:
        return {"source": assign(self.counts, self.top).source}

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        return (f32(ins[0])[ins[1].astype(np.int64)],)


@dataclass(frozen=True, slots=True)
class GroupedLinear(Op):
    """A linear layer an expert: rows of x are sorted by expert, `rows[e]` of them for expert e.

    `y = activation(x @ w[e] + b[e])`; gated: `activation(x @ w[e]) * (x @ w_up[e]) + b[e]`.
    x [r, k], w and w_up [experts, k, n], b [experts, n] -> [r, n]. Of the rows `padding` belong to no token
    and count for nothing. Only weights of experts with rows are read.
    """

    kind: ClassVar[str] = "grouped-linear"
    rows: tuple[int, ...]
    padding: int = 0
    activation: str | None = None
    gated: bool = False
    bias: bool = False

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        parts = (("x", True), ("w", True), ("w_up", self.gated), ("b", self.bias))
        return tuple(role for role, is_there in parts if is_there)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self._check_fields()
        self.expect_operands(ins)
        by_role = dict(zip(self.roles, ins, strict=True))
        x, w = by_role["x"], by_role["w"]
        self.expect_rank("x", x, "r k")
        self.expect_rank("w", w, "experts k n")
        experts, (total, k), n = len(self.rows), x.shape, w.shape[2]
        wants = {"x": (sum(self.rows), k), "w": (experts, k, n), "w_up": (experts, k, n), "b": (experts, n)}
        for role, operand in by_role.items():
            self.expect(role, operand, wants[role], x.dtype)
        return (TensorType((total, n), x.dtype),)

    def _check_fields(self) -> None:
        if not self.rows or min(self.rows) < 0 or not 0 <= self.padding < max(1, sum(self.rows)):
            got = f"{sum(self.rows)} in all, {self.padding} of them padding"
            raise self.reject(f"rows: got {got}, want 0 or more for each expert, and some of a token")
        check_activation(self, self.activation)
        if self.gated and self.activation is None:
            raise self.reject("gated: want an activation")

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        _, k, n = ins[1].shape
        return (sum(self.rows) - self.padding) * k * n * (2 if self.gated else 1)

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """Rows of padding are multiplied as well."""
        return replace(self, padding=0).macs(ins)

    @override
    def read_bytes(self, ins: tuple[TensorType, ...]) -> tuple[int, ...]:
        """Weights of experts with rows."""
        touched = sum(1 for size in self.rows if size)
        return (ins[0].nbytes, *(part.nbytes * touched // len(self.rows) for part in ins[1:]))

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """2 per MAC plus one per element of each fused part."""
        fused = self.gated + self.bias + (self.activation is not None)
        return 2 * self.macs(ins) + (sum(self.rows) - self.padding) * ins[1].shape[2] * fused

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        given = {role: f32(array) for role, array in zip(self.roles, ins, strict=True)}
        act = FUNCTIONS[self.activation or "identity"]
        parts, start = [], 0
        for expert, size in enumerate(self.rows):
            x = given["x"][start : start + size]
            start += size
            y = x @ given["w"][expert]
            if self.gated:
                y = act(y) * (x @ given["w_up"][expert])
            if self.bias:
                y = y + given["b"][expert]
            parts.append(y if self.gated else act(y))
        return (f32(np.concatenate(parts)),)


@dataclass(frozen=True, slots=True)
class Combine(_Routed):
    """`y[t] = sum over j of gates[t, j] * x[slot[t, j]]`: the experts' rows back to their tokens.

    x [rows, f], gates [t, top], slot [t, top] int32 -> [t, f].
    """

    kind: ClassVar[str] = "combine"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "gates", "slot")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x, gates, slot = ins
        self.check()
        self.expect_rank("x", x, "r f")
        self.expect("x", x, (sum(padded(self.counts)), x.shape[1]), x.dtype)
        self.expect("gates", gates, (self.tokens, self.top), x.dtype)
        self.expect("slot", slot, (self.tokens, self.top), "int32")
        return (TensorType((self.tokens, x.shape[1]), x.dtype),)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """A product and a sum for each row of a token."""
        return 2 * self.tokens * self.top * ins[0].shape[1]

    @override
    def constants(self) -> dict[str, Array]:
        return {"slot": assign(self.counts, self.top).slot}

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        rows = f32(ins[0])[ins[2].astype(np.int64)]
        return (f32(np.einsum("tjf,tj->tf", rows, f32(ins[1]))),)


@dataclass(frozen=True, slots=True)
class ClampedGlu(Op):
    """`(up + 1) * gate * sigmoid(alpha * gate)`, gate at most `limit`, up within +- `limit`; any shape.

    The gate of gpt-oss. Source: openai/gpt-oss, gpt_oss/torch/model.py, swiglu.
    """

    kind: ClassVar[str] = "clamped-glu"
    limit: float = 7.0
    alpha: float = 1.702

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("gate", "up")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        gate, up = ins
        if self.limit <= 0:
            raise self.reject(f"limit: got {self.limit}, want a number above 0")
        self.expect("up", up, gate.shape, gate.dtype)
        return (gate,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """Three bounds, scale, sigmoid, sum and two products an element."""
        return 8 * ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        gate = np.minimum(f32(ins[0]), np.float32(self.limit))
        up = np.clip(f32(ins[1]), -self.limit, self.limit)
        sigmoid = FUNCTIONS["sigmoid"](gate * np.float32(self.alpha))
        return (f32((up + 1) * gate * sigmoid),)
