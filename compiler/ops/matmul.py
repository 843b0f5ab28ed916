"""The linear layer, with everything a compiler likes to fuse around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.graph import TensorType
from compiler.ops.base import Array, Cut, Op, Span, f32
from compiler.ops.elementwise import FUNCTIONS, check_activation
from compiler.ops.norm import NORMS, normalize


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """`y = activation(scale * (norm(x) @ w) + b) + r`, each part optional.

    `norm` is "rms" or "layer", with operand gain (and beta). Gated: the product is
    `activation(norm(x) @ w) * (norm(x) @ w_up)`, to which b and r are added.
    x [t, k], w [k, n], w_up [k, n], gain [k], beta [k], b [n], r [t, n] -> [t, n]; `out_dtype` of the
    result is that of x unless given. Builders use the plain form; passes make the others.
    """

    kind: ClassVar[str] = "linear"
    norm: str | None = None
    eps: float = 1e-5
    activation: str | None = None
    gated: bool = False
    bias: bool = False
    residual: bool = False
    scale: float = 1.0
    out_dtype: str | None = None

    @property
    @override
    def roles(self) -> tuple[str, ...]:
        parts = (
            ("x", True), ("w", True), ("w_up", self.gated), ("gain", self.norm is not None),
            ("beta", self.norm == "layer"), ("b", self.bias), ("r", self.residual),
        )  # fmt: skip
        return tuple(role for role, is_there in parts if is_there)

    @override
    def infer(self, ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        self._check_fields()
        self.expect_operands(ins)
        by_role = dict(zip(self.roles, ins, strict=True))
        x, w = by_role["x"], by_role["w"]
        self.expect_rank("x", x, "t k")
        self.expect_rank("w", w, "k n")
        (t, k), n = x.shape, w.shape[1]
        out = TensorType((t, n), self.out_dtype or x.dtype)
        wants = {"w": (k, n), "w_up": (k, n), "gain": (k,), "beta": (k,), "b": (n,), "r": (t, n)}
        for role, shape in wants.items():
            if role in by_role:
                self.expect(role, by_role[role], shape, out.dtype if role in ("b", "r") else x.dtype)
        return (out,)

    def _check_fields(self) -> None:
        if self.norm is not None and self.norm not in NORMS:
            raise self.reject(f"norm: got {self.norm!r}, want one of: {', '.join(NORMS)}")
        check_activation(self, self.activation)
        if self.gated and self.activation is None:
            raise self.reject("gated: want an activation")
        if self.gated and self.scale != 1.0:
            raise self.reject(f"scale: got {self.scale} with gated, want 1.0")

    @override
    def macs(self, ins: tuple[TensorType, ...]) -> int:
        (t, k), (_, n) = ins[0].shape, ins[1].shape
        return t * k * n * (2 if self.gated else 1)

    @override
    def cuts(self, ins: tuple[TensorType, ...]) -> tuple[Cut, ...]:
        by_rows: dict[str, Span] = {"x": (0, 1), "r": (0, 1)}
        by_columns: dict[str, Span] = {"w": (1, 1), "w_up": (1, 1), "b": (0, 1), "r": (1, 1)}
        tokens, features = ins[0].shape[0], ins[1].shape[1]
        return (
            Cut("rows", tokens, tuple(by_rows.get(role) for role in self.roles), ((0, 1),)),
            Cut("columns", features, tuple(by_columns.get(role) for role in self.roles), ((1, 1),)),
        )

    @override
    def flops(self, ins: tuple[TensorType, ...]) -> int:
        """2 per MAC plus one per element of each fused part.

        Fusing keeps the count, except that a norm fused into several layers is computed in each.
        """
        (t, k), (_, n) = ins[0].shape, ins[1].shape
        fused = self.gated + self.bias + self.residual + (self.activation is not None)
        return 2 * self.macs(ins) + t * n * fused + (t * k if self.norm else 0)

    @override
    def reference(self, *ins: Array) -> tuple[Array, ...]:
        given = {role: f32(array) for role, array in zip(self.roles, ins, strict=True)}
        x = given["x"]
        if self.norm is not None:
            x = normalize(x, self.norm, self.eps) * given["gain"]
            if self.norm == "layer":
                x = x + given["beta"]
        y = x @ given["w"]
        if self.scale != 1.0:
            y = y * self.scale
        act = FUNCTIONS[self.activation] if self.activation else None
        if self.gated and act:
            y = act(y) * (x @ given["w_up"])
        if self.bias:
            y = y + given["b"]
        if act and not self.gated:
            y = act(y)
        if self.residual:
            y = y + given["r"]
        return (f32(y),)
