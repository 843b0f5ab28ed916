"""T5: encoder and decoder with biases by distance in place of positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Graph
from compiler.ops import (
    Attention,
    Binary,
    DecodeAttention,
    Embedding,
    RelativeBias,
    Scalar,
    TakeRows,
    Unary,
)
from workloads.blocks import GraphBuilder, caches, gated_mlp, grown_caches, linear, rms_norm
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class T5Model:
    """Hyper-parameters."""

    hidden: int
    intermediate: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    head_dim: int
    vocab: int
    buckets: int
    far: int
    activation: str
    gated: bool
    tied: bool
    eps: float


@dataclass(frozen=True, slots=True)
class _Phase(Request):
    model: T5Model
    layers: int = key(1, "layers of the decoder to run (encode: of the encoder)")
    batch: int = key(1, "sequences")

    def sizes(self) -> tuple[int, int, int, str]:
        """New tokens, all tokens if there is a cache or 0, tokens of the source, and the type."""
        raise NotImplementedError

    @override
    def problems(self) -> list[str]:
        tokens, context, source, _ = self.sizes()
        most = self.model.decoder_layers if source else self.model.encoder_layers
        found = [f"layers: got {self.layers}, want 1 to {most}"] if self.layers > most else []
        if context and tokens > context:
            found.append(f"tokens: got {tokens}, want at most the context of {context}")
        return found

    @override
    def graph(self, name: str) -> Graph:
        return _Stack(self, name).build()


@dataclass(frozen=True, slots=True)
class Encode(_Phase):
    """Source tokens to the encoder's hidden states."""

    phase: ClassVar[str] = "encode"
    seq: int = key(512, "tokens of each source")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, int, str]:
        return self.seq, 0, 0, self.dtype


@dataclass(frozen=True, slots=True)
class Prefill(_Phase):
    """First target tokens and the encoder's hidden states to the logits of the last token."""

    phase: ClassVar[str] = "prefill"
    seq: int = key(32, "target tokens of each sequence")
    source: int = key(512, "tokens of each source")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, int, str]:
        return self.seq, 0, self.source, self.dtype


@dataclass(frozen=True, slots=True)
class Decode(_Phase):
    """One new token over the caches of target and source."""

    phase: ClassVar[str] = "decode"
    context: int = key(128, "tokens in the cache, the new one included")
    source: int = key(512, "tokens of each source")
    dtype: str = key("bf16", "type of weights, activations and caches", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, int, str]:
        return 1, self.context, self.source, self.dtype


@dataclass(frozen=True, slots=True)
class Verify(_Phase):
    """Several proposed tokens over the caches."""

    phase: ClassVar[str] = "verify"
    tokens: int = key(4, "proposed tokens of each sequence")
    context: int = key(128, "tokens in the cache, the proposed ones included")
    source: int = key(512, "tokens of each source")
    dtype: str = key("bf16", "type of weights, activations and caches", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, int, str]:
        return self.tokens, self.context, self.source, self.dtype


class _Stack:
    """The encoder, or the decoder in any phase."""

    def __init__(self, request: _Phase, name: str) -> None:
        self.request, self.model, self.batch = request, request.model, request.batch
        self.tokens, self.context, self.source, dtype = request.sizes()
        self.b = GraphBuilder(name, dtype)
        self.width = self.model.heads * self.model.head_dim
        self.hidden = ""  # of the encoder

    def build(self) -> Graph:
        b, model = self.b, self.model
        ids = b.input("ids", self.batch * self.tokens, dtype="int32")
        x = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        if self.source and not self.context:
            self.hidden = b.input("source", self.batch * self.source, model.hidden)
        self.bias = self._bias()
        x = b.repeat("layer", self.request.layers, x, self._layer)
        if not self.source:
            return b.build((rms_norm(b, "norm", x, model.eps),), self._meta())
        if self.tokens > 1 and self.request.phase != "verify":
            x = b.op("last", TakeRows(self.tokens, -1), x)
        x = rms_norm(b, "norm", x, model.eps)
        if model.tied:
            x = b.op("norm.scaled", Scalar("mul", model.hidden**-0.5), x)
        return b.build((linear(b, "head", x, model.vocab),), self._meta())

    def _bias(self) -> str:
        """The bias of self-attention, the same in all layers."""
        b, model, keys = self.b, self.model, self.context or self.tokens
        op = RelativeBias(self.tokens, keys, not self.source, model.buckets, model.far, keys - self.tokens)
        index = b.table("relative.index", self.tokens + keys - 1, dtype="int32")
        return b.op("relative", op, index, b.weight("relative.weight", model.buckets, model.heads))

    def _meta(self) -> dict[str, int | float | str]:
        model = self.model
        meta: dict[str, int | float | str] = {
            "unit": "tokens", "work": self.batch * self.tokens, "phase": self.request.phase,
            "batch": self.batch,
        }  # fmt: skip
        if self.source:
            size = 2 * self.request.layers * self.width * dtype_bytes(self.b.dtype)
            meta["kv_bytes"] = size * self.batch * ((self.context or self.tokens) + self.source)
            meta["tied_parameters"] = model.vocab * model.hidden if model.tied else 0
        return meta

    def _layer(self, x: str) -> str:
        b, model = self.b, self.model
        looks = {"": self._self, "cross_": self._cross} if self.source else {"": self._self}
        for prefix, look in looks.items():
            normed = rms_norm(b, f"{prefix}attn_norm", x, model.eps)
            mixed = linear(b, f"{prefix}o", look(normed), model.hidden)
            x = b.op(f"{prefix}attn_add", Binary("add"), mixed, x)
        return b.op("mlp_add", Binary("add"), self._mlp(rms_norm(b, "mlp_norm", x, model.eps)), x)

    def _mlp(self, x: str) -> str:
        b, model = self.b, self.model
        if model.gated:
            return gated_mlp(b, x, model.intermediate, model.activation)
        inner = b.op("act", Unary(model.activation), linear(b, "up", x, model.intermediate))
        return linear(b, "down", inner, model.hidden)

    def _heads(self) -> tuple[int, int, int, int]:
        heads = self.model.heads
        return self.batch, heads, heads, self.model.head_dim

    def _self(self, x: str) -> str:
        b = self.b
        q, k, v = (linear(b, name, x, self.width) for name in "qkv")
        if not self.context:
            op = Attention(*self._heads(), causal=bool(self.source), scale=1.0, bias=True)
            return b.op("attention", op, q, k, v, self.bias)
        held = grown_caches(b, self._heads(), self.context, self.tokens, k, v)
        cached = DecodeAttention(*self._heads(), 1.0, self.context, queries=self.tokens, bias=True)
        return b.op("attention", cached, q, *held, self.bias)

    def _cross(self, x: str) -> str:
        b = self.b
        q = linear(b, "cross_q", x, self.width)
        if self.hidden:
            k, v = (linear(b, f"cross_{n}", self.hidden, self.width) for n in "kv")
            return b.op("cross_attention", Attention(*self._heads(), causal=False, scale=1.0), q, k, v)
        cached = DecodeAttention(*self._heads(), 1.0, self.source, queries=self.tokens, causal=False)
        return b.op("cross_attention", cached, q, *caches(b, self._heads(), self.source, "cross_"))
