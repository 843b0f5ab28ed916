"""Decoder-only language models of the Llama shape: Llama, Mistral, Qwen 2 and 3, Mixtral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Graph
from compiler.ops import Attention, Binary, DecodeAttention, Embedding, KvWrite, Rope, TakeRows
from workloads.blocks import GraphBuilder, gated_mlp, linear, rms_norm
from workloads.moe import ROUTING_KEY, Experts, MoeBlock, routing_problems
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Hyper-parameters; `window` 0 means full attention."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    activation: str = "silu"
    eps: float = 1e-5
    rope_base: float = 10000.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    window: int = 0
    experts: Experts | None = None  # in place of the MLP of `intermediate`

    def kv_bytes_per_token(self, layers: int, dtype: str) -> int:
        """Keys and values that one token leaves in the caches of `layers` layers."""
        return 2 * layers * self.kv_heads * self.head_dim * dtype_bytes(dtype)


def _window_problem(model: LlamaModel, name: str, length: int) -> list[str]:
    if model.window and length > model.window:
        return [f"{name}: got {length}, want {model.window} or less: sliding windows are not modelled"]
    return []


def _layers_problem(model: LlamaModel, layers: int) -> list[str]:
    return [] if layers <= model.layers else [f"layers: got {layers}, want 1 to {model.layers}"]


@dataclass(frozen=True, slots=True)
class Prefill(Request):
    """All prompt tokens at once, from ids to the logits of each sequence's last token."""

    phase: ClassVar[str] = "prefill"
    model: LlamaModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")
    seq: int = key(2048, "prompt tokens of each sequence")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _layers_problem(self.model, self.layers) + _window_problem(self.model, "seq", self.seq)

    @override
    def graph(self, name: str) -> Graph:
        return Decoder(self.model, name, self.dtype, self.batch, self.seq).build(self.layers)


@dataclass(frozen=True, slots=True)
class MoePrefill(Prefill):
    """Prefill of a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)

    @override
    def problems(self) -> list[str]:
        assert self.model.experts
        found = routing_problems(self.routing, self.model.experts, self.batch * self.seq)
        return Prefill.problems(self) + found

    @override
    def graph(self, name: str) -> Graph:
        decoder = Decoder(self.model, name, self.dtype, self.batch, self.seq, routing=self.routing)
        return decoder.build(self.layers)


@dataclass(frozen=True, slots=True)
class Decode(Request):
    """One new token for each sequence, over a KV cache."""

    phase: ClassVar[str] = "decode"
    model: LlamaModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")
    context: int = key(2048, "tokens in the cache, the new one included")
    dtype: str = key("bf16", "type of weights, activations and cache", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _layers_problem(self.model, self.layers) + _window_problem(self.model, "context", self.context)

    @override
    def graph(self, name: str) -> Graph:
        return Decoder(self.model, name, self.dtype, self.batch, 1, context=self.context).build(self.layers)


@dataclass(frozen=True, slots=True)
class MoeDecode(Decode):
    """Decode of a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)

    @override
    def problems(self) -> list[str]:
        assert self.model.experts
        return Decode.problems(self) + routing_problems(self.routing, self.model.experts, self.batch)

    @override
    def graph(self, name: str) -> Graph:
        decoder = Decoder(
            self.model, name, self.dtype, self.batch, 1, context=self.context, routing=self.routing
        )
        return decoder.build(self.layers)


class Decoder:
    """Builds either phase: `context` 0 is prefill of `seq` tokens, else one token over a cache.

    The new token's keys and values are written at position `context - 1`, then attention covers all
    `context` positions. In prefill, final norm and head run on the last token of each sequence only,
    as inference engines do; keys and values are activations, and their bytes are in the meta.
    """

    def __init__(
        self,
        model: LlamaModel,
        name: str,
        dtype: str,
        batch: int,
        seq: int,
        *,
        context: int = 0,
        routing: str = "uniform",
    ) -> None:
        self.model, self.batch, self.seq, self.context = model, batch, seq, context
        self.b = GraphBuilder(name, dtype)
        self.moe = MoeBlock(self.b, model.experts, batch * seq, routing) if model.experts else None

    def build(self, layers: int) -> Graph:
        """The graph of `layers` layers with embedding and head."""
        b, model = self.b, self.model
        ids = b.input("ids", self.batch * self.seq, dtype="int32")
        x = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        self.tables = [b.table(f"rope.{f}", self.seq, self.rope_dim() // 2) for f in ("cos", "sin")]
        x = self.stack(x, layers)
        if self.seq > 1:
            x = b.op("last", TakeRows(self.seq, -1), x)
        logits = linear(b, "head", rms_norm(b, "norm", x, model.eps), model.vocab)
        return b.build((logits,), self._meta(layers))

    def rope_dim(self) -> int:
        """Features of a head with rotary positions."""
        return self.model.head_dim

    def stack(self, x: str, layers: int) -> str:
        """All layers."""
        return self.b.repeat("layer", layers, x, self.layer)

    def _meta(self, layers: int) -> dict[str, int | float | str]:
        model = self.model
        per_token = model.kv_bytes_per_token(layers, self.b.dtype)
        length = self.context or self.seq
        return {
            "unit": "tokens",
            "work": self.batch * self.seq,
            "phase": "decode" if self.context else "prefill",
            "batch": self.batch,
            "context" if self.context else "seq": length,
            "kv_bytes_per_token": per_token,
            "kv_bytes": per_token * self.batch * length,
            # The head of a tied model is the embedding, kept a second time in the order matmul wants.
            "tied_parameters": model.vocab * model.hidden if model.tied else 0,
            **(self.moe.meta() if self.moe else {}),
        }

    def layer(self, x: str) -> str:
        """One layer."""
        b, model = self.b, self.model
        x = self.mixed(x)
        normed = rms_norm(b, "mlp_norm", x, model.eps)
        return b.op("mlp_add", Binary("add"), self._mlp(normed), x)

    def mixed(self, x: str) -> str:
        """Attention, and the residual around it."""
        b, model = self.b, self.model
        normed = rms_norm(b, "attn_norm", x, model.eps)
        mixed = linear(b, "o", self.attention(normed), model.hidden, bias=model.out_bias)
        return b.op("attn_add", Binary("add"), mixed, x)

    def _mlp(self, x: str) -> str:
        model = self.model
        if self.moe:
            return self.moe(x, model.activation)
        return gated_mlp(self.b, x, model.intermediate, model.activation, bias=model.mlp_bias)

    def attention(self, x: str) -> str:
        """Queries, keys and values of `x`, and attention."""
        b, model, batch = self.b, self.model, self.batch
        q = self._turned("q", x, model.heads)
        k = self._turned("k", x, model.kv_heads)
        v = linear(b, "v", x, model.kv_heads * model.head_dim, bias=model.qkv_bias)
        heads = (batch, model.heads, model.kv_heads, model.head_dim)
        scale = model.head_dim**-0.5
        if not self.context:
            return b.op("attention", Attention(*heads, causal=True, scale=scale), q, k, v)
        k_cache = b.state("k_cache", batch, model.kv_heads, model.head_dim, self.context)
        v_cache = b.state("v_cache", batch, model.kv_heads, self.context, model.head_dim)
        b.update("k_write", KvWrite(self.context - 1, axis_k=True), k_cache, k)
        b.update("v_write", KvWrite(self.context - 1, axis_k=False), v_cache, v)
        decode = DecodeAttention(*heads, scale=scale, length=self.context)
        return b.op("attention", decode, q, k_cache, v_cache)

    def _turned(self, name: str, x: str, heads: int) -> str:
        """Queries or keys, normed where the model does, with rotary positions."""
        b, model = self.b, self.model
        y = linear(b, name, x, heads * model.head_dim, bias=model.qkv_bias)
        if model.qk_norm:
            y = rms_norm(b, f"{name}_norm", y, model.eps, heads=heads)
        offset = self.context - 1 if self.context else 0
        rope = Rope(heads, model.head_dim, self.seq, model.rope_base, offset)
        return b.op(f"{name}_rope", rope, y, *self.tables)
