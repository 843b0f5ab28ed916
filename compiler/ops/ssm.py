"""State-space models (Mamba-2): causal convolution over time and the selective scan, whole and one step.

The scan of head h, feature p and state n, over positions t: `delta = softplus(dt[t, h] + dt_bias[h])`,
`S = exp(-exp(a_log[h]) * delta) * S + delta * x[t, h, p] * B[t, n]`,
`y[t, h, p] = sum_n C[t, n] * S + d[h] * x[t, h, p]`.
Source: Dao and Gu, arXiv:2405.21060, section 2 and 6. Head h uses B and C of group `h // (heads // groups)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Op, f32
from compiler.ops.elementwise import FUNCTIONS, check_activation


@dataclass(frozen=True, slots=True)
class CausalConv1d(Op):
    """`y[t, c] = activation(sum over j of w[c, j] * x[t - kernel + 1 + j, c] + b[c])` in each sequence.

    x [batch * seq, c], w [c, kernel], b [c] -> like x; positions before the first are zero.
    """

    kind: ClassVar[str] = "causal-conv1d"
    seq: int
    activation: str | None = None

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "w", "b")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        x = ins[0]
        self.expect_rank("x", x, "t c")
        if self.seq < 1 or x.shape[0] % self.seq:
            raise self.reject(f"x: got {x.shape[0]} rows, want a multiple of seq {self.seq}")
        _check_taps(self, x, ins[1], ins[2], self.activation)
        return (x,)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """2 per tap, and the activation; taps are no contraction over features."""
        return ins[0].elements * (2 * ins[1].shape[1] + (self.activation is not None))

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        x, w, b = (f32(a) for a in ins)
        taps = w.shape[1]
        parts = x.reshape(-1, self.seq, x.shape[1])
        padded = np.pad(parts, ((0, 0), (taps - 1, 0), (0, 0)))
        y = sum(padded[:, j : j + self.seq] * w[:, j] for j in range(taps)) + b
        return (f32(FUNCTIONS[self.activation or "identity"](f32(y))).reshape(x.shape),)


@dataclass(frozen=True, slots=True)
class ConvStep(Op):
    """One position of `CausalConv1d` for each sequence; the last `kernel - 1` inputs are kept as a state.

    state [(kernel - 1) * batch, c], oldest first, x [batch, c], w [c, kernel], b [c] -> y [batch, c], state.
    """

    kind: ClassVar[str] = "conv-step"
    activation: str | None = None

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("state", "x", "w", "b")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        state, x, w, b = ins
        self.expect_rank("x", x, "batch c")
        _check_taps(self, x, w, b, self.activation)
        self.expect("state", state, ((w.shape[1] - 1) * x.shape[0], x.shape[1]), x.dtype)
        return (x, state)

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        return ins[1].elements * (2 * ins[2].shape[1] + (self.activation is not None))

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        state, x, w, b = (f32(a) for a in ins)
        batch, taps = x.shape[0], w.shape[1]
        window = np.concatenate([state, x]).reshape(taps, batch, -1)
        y = np.einsum("jbc,cj->bc", window, w) + b
        return (f32(FUNCTIONS[self.activation or "identity"](f32(y))), window[1:].reshape(state.shape))


def _check_taps(op: Op, x: TensorType, w: TensorType, b: TensorType, activation: str | None) -> None:
    op.expect_rank("w", w, "c kernel")
    op.expect("w", w, (x.shape[1], w.shape[1]), x.dtype)
    op.expect("b", b, (x.shape[1],), x.dtype)
    if w.shape[1] < 2:
        raise op.reject(f"w: got a kernel of {w.shape[1]}, want 2 or more")
    check_activation(op, activation)


@dataclass(frozen=True, slots=True)
class _Scan(Op):
    """What both forms of the scan share; see the module for what they compute."""

    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def features(self) -> int:
        """Of x and y."""
        return self.heads * self.head_dim

    def check(self, ins: dict[str, TensorType]) -> None:
        """Raise CompileError unless the operands fit.

        x [t, heads * head_dim], dt [t, heads], a_log, dt_bias and d [heads]; bc [t, 2 * groups * state] holds
        B of all groups, then C.
        """
        x = ins["x"]
        if min(self.heads, self.head_dim, self.groups, self.state) < 1 or self.heads % self.groups:
            raise self.reject(f"heads: got {self.heads}, want a multiple of {self.groups} groups, all from 1")
        self.expect_rank("x", x, "t f")
        tokens = x.shape[0]
        self.expect("x", x, (tokens, self.features), x.dtype)
        self.expect("dt", ins["dt"], (tokens, self.heads), x.dtype)
        self.expect("bc", ins["bc"], (tokens, 2 * self.groups * self.state), x.dtype)
        for role in ("a_log", "dt_bias", "d"):
            self.expect(role, ins[role], (self.heads,), x.dtype)

    def advance(self, state: Array, at: dict[str, Array]) -> tuple[Array, Array]:
        """One position: state [batch, heads, head_dim, state], operands [batch, ...] -> y and state."""
        batch, each = state.shape[0], self.heads // self.groups
        x = at["x"].reshape(batch, self.heads, self.head_dim)
        mixed = at["bc"].reshape(batch, 2, self.groups, self.state).repeat(each, axis=2)
        delta = f32(np.logaddexp(np.float32(0), at["dt"] + at["dt_bias"]))
        decay = np.exp(-np.exp(at["a_log"]) * delta)
        state = state * decay[..., None, None]
        state = state + (delta[..., None] * x)[..., None] * mixed[:, 0, :, None, :]
        y = np.einsum("bhpn,bhn->bhp", state, mixed[:, 1]) + at["d"][:, None] * x
        return f32(y).reshape(batch, -1), f32(state)


@dataclass(frozen=True, slots=True)
class SsdScan(_Scan):
    """The scan over each sequence of `seq` positions, from an empty state.

    x [batch * seq, heads * head_dim], dt, bc, a_log, dt_bias, d (see the module) -> y like x. A lowering may
    work on chunks of up to `chunk` positions, as products with the masked matrix of decays.
    """

    kind: ClassVar[str] = "ssd-scan"
    seq: int
    chunk: int = 256

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("x", "dt", "bc", "a_log", "dt_bias", "d")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        self.check(dict(zip(self.roles, ins, strict=True)))
        if self.seq < 1 or self.chunk < 1 or ins[0].shape[0] % self.seq:
            raise self.reject(f"x: got {ins[0].shape[0]} rows, want a multiple of seq {self.seq}")
        return (ins[0],)

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Of the recurrence: into the state and out of it."""
        return 2 * ins[0].shape[0] * self.features * self.state

    @override
    def most_macs(self, ins: tuple[TensorType, ...]) -> int:
        """Chunks add products within each of them: C B^T, and that with x."""
        chunk = min(self.chunk, self.seq)
        return self.macs(ins) + ins[0].shape[0] * self.heads * chunk * (self.state + self.head_dim)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        given = {role: f32(a) for role, a in zip(self.roles, ins, strict=True)}
        rows = {r: given[r].reshape(-1, self.seq, given[r].shape[1]) for r in ("x", "dt", "bc")}
        batch = rows["x"].shape[0]
        state = np.zeros((batch, self.heads, self.head_dim, self.state), np.float32)
        y = np.empty_like(rows["x"])
        for t in range(self.seq):
            y[:, t], state = self.advance(state, {**given, **{r: a[:, t] for r, a in rows.items()}})
        return (y.reshape(given["x"].shape),)


@dataclass(frozen=True, slots=True)
class SsdStep(_Scan):
    """One position of the scan for each sequence, on a kept state.

    state [batch, heads * head_dim, state], x [batch, heads * head_dim], the rest as in the scan -> y, state.
    """

    kind: ClassVar[str] = "ssd-step"

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        return ("state", "x", "dt", "bc", "a_log", "dt_bias", "d")

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self.expect_operands(ins)
        named = dict(zip(self.roles, ins, strict=True))
        self.check(named)
        x = named["x"]
        self.expect("state", named["state"], (x.shape[0], self.features, self.state), x.dtype)
        return (x, named["state"])

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        """Of the state with C; what comes into the state contracts nothing."""
        return ins[0].elements

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """Five for each element of the state: decay, product with B, sum, product with C, sum."""
        return 5 * ins[0].elements

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        given = {role: f32(a) for role, a in zip(self.roles, ins, strict=True)}
        held = given["state"].reshape(-1, self.heads, self.head_dim, self.state)
        y, state = self.advance(held, given)
        return y, state.reshape(given["state"].shape)
