"""Decoder-only language models: Llama, Mistral, Qwen, Gemma, GPT-2, Mixtral, gpt-oss."""

from __future__ import annotations

import math
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
    Rope,
    Scalar,
    TakeRows,
    Unary,
)
from workloads.blocks import GraphBuilder, gated_mlp, grown_caches, layer_norm, linear, mlp, rms_norm
from workloads.moe import ROUTING_KEY, Experts, MoeBlock, routing_problems
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """Hyper-parameters.

    With a `window`, layer i looks at the last `window` tokens only, unless `full_every` divides i + 1.
    """

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
    full_every: int = 0  # 0: all layers have the window
    local_base: float = 0.0  # rotary base of layers with a window, 0: `rope_base`
    norm: str = "rms"  # or layer
    gated: bool = True
    positions: int = 0  # learned positions in place of rotary ones
    scale: float = 0.0  # of scores, 0: head_dim ** -0.5
    softcap: float = 0.0  # of scores
    final_softcap: float = 0.0  # of logits
    embed_scale: bool = False  # embeddings times the root of `hidden`
    post_norms: bool = False  # norms behind attention and MLP too
    sinks: bool = False  # a learned logit a head that takes part of the weight

    def kv_bytes_per_token(self, layers: int, dtype: str) -> int:
        """Keys and values that one token leaves in the caches of `layers` layers."""
        return 2 * layers * self.kv_heads * self.head_dim * dtype_bytes(dtype)

    def decoder(self) -> type[Decoder]:
        """What builds its graphs."""
        return Decoder

    def problems(self, layers: int, length: int) -> list[str]:
        """What is wrong with running so many layers on sequences of so many tokens."""
        found = [] if layers <= self.layers else [f"layers: got {layers}, want 1 to {self.layers}"]
        if self.positions and length > self.positions:
            found.append(f"tokens: got {length} in a sequence, want at most {self.positions} positions")
        return found


@dataclass(frozen=True, slots=True)
class _Phase(Request):
    """What the phases have in common."""

    model: LlamaModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")

    def sizes(self) -> tuple[int, int, str]:
        """New tokens of each sequence, all tokens if there is a cache or 0, and the type."""
        raise NotImplementedError

    def loads(self) -> str:
        """How experts are chosen."""
        return str(getattr(self, "routing", "uniform"))

    @override
    def problems(self) -> list[str]:
        tokens, context, _ = self.sizes()
        found = self.model.problems(self.layers, max(tokens, context))
        if self.model.experts:
            found += routing_problems(self.loads(), self.model.experts, self.batch * tokens)
        return found

    @override
    def graph(self, name: str) -> Graph:
        tokens, context, dtype = self.sizes()
        decoder = self.model.decoder()(
            self.model, name, dtype, self.batch, tokens, context=context, routing=self.loads()
        )
        return decoder.build(self.layers, self.phase)


@dataclass(frozen=True, slots=True)
class Prefill(_Phase):
    """All prompt tokens at once, from ids to the logits of each sequence's last token."""

    phase: ClassVar[str] = "prefill"
    seq: int = key(2048, "prompt tokens of each sequence")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return self.seq, 0, self.dtype


@dataclass(frozen=True, slots=True)
class MoePrefill(Prefill):
    """Prefill of a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)


@dataclass(frozen=True, slots=True)
class Chunk(_Phase):
    """Some more prompt tokens behind those that are in the cache."""

    phase: ClassVar[str] = "chunk"
    chunk: int = key(512, "prompt tokens of each sequence in this step")
    context: int = key(2048, "tokens that are in the cache already", minimum=0)
    dtype: str = key("bf16", "type of weights, activations and cache", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return self.chunk, self.context + self.chunk, self.dtype


@dataclass(frozen=True, slots=True)
class MoeChunk(Chunk):
    """The same for a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)


@dataclass(frozen=True, slots=True)
class Decode(_Phase):
    """One new token for each sequence, over a KV cache."""

    phase: ClassVar[str] = "decode"
    context: int = key(2048, "tokens in the cache, the new one included")
    dtype: str = key("bf16", "type of weights, activations and cache", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return 1, self.context, self.dtype


@dataclass(frozen=True, slots=True)
class MoeDecode(Decode):
    """Decode of a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)


@dataclass(frozen=True, slots=True)
class Verify(_Phase):
    """Speculative decoding: logits of several proposed tokens of each sequence, over a KV cache."""

    phase: ClassVar[str] = "verify"
    tokens: int = key(4, "proposed tokens of each sequence")
    context: int = key(2048, "tokens in the cache, the proposed ones included")
    dtype: str = key("bf16", "type of weights, activations and cache", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return self.tokens, self.context, self.dtype

    @override
    def problems(self) -> list[str]:
        found = _Phase.problems(self)
        if self.tokens > self.context:
            found.append(f"tokens: got {self.tokens}, want at most the context of {self.context}")
        return found


@dataclass(frozen=True, slots=True)
class MoeVerify(Verify):
    """The same for a model with experts."""

    routing: str = key("uniform", ROUTING_KEY)


def phases(model: LlamaModel, layers: int) -> tuple[Request, ...]:
    """All phases of a model, with `layers` as the default."""
    most = min(2048, model.positions or 2048)
    if model.experts:
        return (
            MoePrefill(model, layers, seq=most), MoeDecode(model, layers, context=most),
            MoeChunk(model, layers), MoeVerify(model, layers, context=most),
        )  # fmt: skip
    return (
        Prefill(model, layers, seq=most),
        Decode(model, layers, context=most),
        Chunk(model, layers, chunk=min(512, most), context=max(0, most - 512)) if most < 2048
        else Chunk(model, layers),
        Verify(model, layers, context=most),
    )  # fmt: skip


class Decoder:
    """Builds any phase: `context` 0 is prefill of `seq` tokens, else `seq` tokens at the end of a cache.

    New keys and values are written at positions `context - seq` and on, then attention covers all `context`
    positions, or the window. In prefill, final norm and head run on the last token of each sequence only, as
    inference engines do; keys and values are activations, and their bytes are in the meta. Caches of layers
    with a window hold all positions; only the window is read.
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
        self.first = context - seq if context else 0  # position of the first new token
        self.b = GraphBuilder(name, dtype)
        self.moe = MoeBlock(self.b, model.experts, batch * seq, routing) if model.experts else None
        self.window = 0  # of the layer that is built
        self._tables: dict[float, tuple[str, str]] = {}

    def build(self, layers: int, phase: str) -> Graph:
        """The graph of `layers` layers with embedding and head."""
        b = self.b
        x = self.embedded()
        self._make_tables()
        x = self.stack(x, layers)
        if self.seq > 1 and phase != "verify":
            x = b.op("last", TakeRows(self.seq, -1), x)
        return b.build((self._logits(x),), self._meta(layers, phase))

    def embedded(self) -> str:
        """Embeddings of the new tokens, with positions where they are learned."""
        b, model = self.b, self.model
        ids = b.input("ids", self.batch * self.seq, dtype="int32")
        x = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        if model.embed_scale:
            x = b.op("embed.scaled", Scalar("mul", math.sqrt(model.hidden)), x)
        if not model.positions:
            return x
        where = b.input("position_ids", self.batch * self.seq, dtype="int32")
        table = b.weight("positions.weight", model.positions, model.hidden)
        return b.op("embed.sum", Binary("add"), b.op("positions", Embedding(), where, table), x)

    def _logits(self, x: str) -> str:
        b, model = self.b, self.model
        logits = linear(b, "head", self.normed("norm", x), model.vocab)
        if not model.final_softcap:
            return logits
        small = b.op("head.scaled", Scalar("div", model.final_softcap), logits)
        bounded = b.op("head.tanh", Unary("tanh"), small)
        return b.op("head.capped", Scalar("mul", model.final_softcap), bounded)

    def _make_tables(self) -> None:
        """Rotary tables, one pair a base."""
        model = self.model
        bases = () if model.positions else (model.rope_base, model.local_base or model.rope_base)
        for i, base in enumerate(dict.fromkeys(bases)):
            names = ("cos", "sin") if not i else ("local_cos", "local_sin")
            cos, sin = (self.b.table(f"rope.{f}", self.seq, self.rope_dim() // 2) for f in names)
            self._tables[base] = (cos, sin)

    @property
    def tables(self) -> tuple[str, str]:
        """Rotary tables of the layer that is built."""
        return self._tables[self.base]

    @property
    def base(self) -> float:
        """Rotary base of the layer that is built."""
        return (self.window and self.model.local_base) or self.model.rope_base

    def rope_dim(self) -> int:
        """Features of a head with rotary positions."""
        return self.model.head_dim

    def stack(self, x: str, layers: int) -> str:
        """All layers: groups that end with a full one, then those left over."""
        model = self.model
        self.window = model.window
        if not (model.window and model.full_every):
            return self.b.repeat("layer", layers, x, self.layer)
        groups, rest = divmod(layers, model.full_every)
        if groups:
            x = self.b.repeat("group", groups, x, self._group)
        return self.b.repeat("layer", rest, x, self.layer) if rest else x

    def _group(self, x: str) -> str:
        for i in range(self.model.full_every):
            last = i == self.model.full_every - 1
            self.window = 0 if last else self.model.window
            with self.b.scope("full" if last else f"local{i}"):
                x = self.layer(x)
        self.window = self.model.window
        return x

    def _meta(self, layers: int, phase: str) -> dict[str, int | float | str]:
        model = self.model
        per_token = model.kv_bytes_per_token(layers, self.b.dtype)
        length = self.context or self.seq
        return {
            "unit": "tokens",
            "work": self.batch * self.seq,
            "phase": phase,
            "batch": self.batch,
            "context" if self.context else "seq": length,
            "kv_bytes_per_token": per_token,
            "kv_bytes": per_token * self.batch * length,
            # The head of a tied model is the embedding, kept a second time in the order matmul wants.
            "tied_parameters": model.vocab * model.hidden if model.tied else 0,
            **(self.moe.meta() if self.moe else {}),
        }

    def normed(self, name: str, x: str) -> str:
        """The model's kind of norm."""
        if self.model.norm == "layer":
            return layer_norm(self.b, name, x, self.model.eps)
        return rms_norm(self.b, name, x, self.model.eps)

    def layer(self, x: str) -> str:
        """One layer."""
        x = self.mixed(x)
        y = self._mlp(self.normed("mlp_norm", x))
        if self.model.post_norms:
            y = self.normed("mlp_post_norm", y)
        return self.b.op("mlp_add", Binary("add"), y, x)

    def mixed(self, x: str) -> str:
        """Attention, and the residual around it."""
        b, model = self.b, self.model
        mixed = linear(b, "o", self.attention(self.normed("attn_norm", x)), model.hidden, bias=model.out_bias)
        if model.post_norms:
            mixed = self.normed("attn_post_norm", mixed)
        return b.op("attn_add", Binary("add"), mixed, x)

    def _mlp(self, x: str) -> str:
        model = self.model
        if self.moe:
            return self.moe(x, model.activation)
        if not model.gated:
            return mlp(self.b, x, model.intermediate, model.activation)
        return gated_mlp(self.b, x, model.intermediate, model.activation, bias=model.mlp_bias)

    def attention(self, x: str) -> str:
        """Queries, keys and values of `x`, and attention."""
        b, model, batch = self.b, self.model, self.batch
        q = self._turned("q", x, model.heads)
        k = self._turned("k", x, model.kv_heads)
        v = linear(b, "v", x, model.kv_heads * model.head_dim, bias=model.qkv_bias)
        heads = (batch, model.heads, model.kv_heads, model.head_dim)
        scale, cap = model.scale or model.head_dim**-0.5, model.softcap
        sinks = (b.weight("sinks", model.heads),) if model.sinks else ()
        window = self.window if self.window < (self.context or self.seq) else 0
        if not self.context:
            prompt = Attention(*heads, True, scale, window=window, softcap=cap, sinks=model.sinks)
            return b.op("attention", prompt, q, k, v, *sinks)
        held = grown_caches(b, heads, self.context, self.seq, k, v)
        cached = DecodeAttention(
            *heads, scale, self.context, queries=self.seq, window=window, softcap=cap, sinks=model.sinks
        )
        return b.op("attention", cached, q, *held, *sinks)

    def _turned(self, name: str, x: str, heads: int) -> str:
        """Queries or keys, normed where the model does, with rotary positions unless they are learned."""
        b, model = self.b, self.model
        y = linear(b, name, x, heads * model.head_dim, bias=model.qkv_bias)
        if model.qk_norm:
            y = rms_norm(b, f"{name}_norm", y, model.eps, heads=heads)
        if model.positions:
            return y
        rope = Rope(heads, model.head_dim, self.seq, self.base, self.first)
        return b.op(f"{name}_rope", rope, y, *self.tables)
