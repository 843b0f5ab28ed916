"""Whisper: audio frames through an encoder, text from a decoder that looks at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Graph
from compiler.ops import (
    Attention,
    Binary,
    Concat,
    DecodeAttention,
    Embedding,
    Pad,
    Reshape,
    Slice,
    TakeRows,
    Unary,
)
from workloads.blocks import Encoder, GraphBuilder, caches, grown_caches, layer_norm, linear
from workloads.request import FLOATS, Request, key

TAPS = 3  # of both convolutions in front; the second has stride 2


@dataclass(frozen=True, slots=True)
class WhisperModel:
    """Hyper-parameters; `audio` is the number of encoder positions, half the frames."""

    hidden: int
    mels: int
    encoder_layers: int
    decoder_layers: int
    vocab: int
    audio: int
    positions: int
    encoder: Encoder
    decoder: Encoder


@dataclass(frozen=True, slots=True)
class _Phase(Request):
    model: WhisperModel
    layers: int = key(1, "layers of the decoder to run (encode: of the encoder)")
    batch: int = key(1, "sequences")

    def meta(self, tokens: int, unit: str) -> dict[str, int | float | str]:
        """What the record shows."""
        return {
            "unit": unit, "work": self.batch * tokens, "phase": self.phase, "batch": self.batch,
            "audio_positions": self.model.audio,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Encode(_Phase):
    """Mel frames, time by channel, to the encoder's hidden states."""

    phase: ClassVar[str] = "encode"
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        most = self.model.encoder_layers
        return [f"layers: got {self.layers}, want 1 to {most}"] if self.layers > most else []

    @override
    def graph(self, name: str) -> Graph:
        model, b = self.model, GraphBuilder(name, self.dtype)
        frames = b.input("mels", self.batch, 2 * model.audio, model.mels)
        x = _conv(b, "conv1", frames, model.hidden, 1)
        shape = (self.batch, 2 * model.audio, model.hidden)
        x = _conv(b, "conv2", b.op("conv1.out", Reshape(shape), x), model.hidden, 2)
        x = b.op("embed", Binary("add"), x, b.weight("positions", model.audio, model.hidden))
        x = b.repeat("layer", self.layers, x, lambda inner: model.encoder.layer(b, inner, self.batch))
        out = layer_norm(b, "norm", x, model.encoder.eps)
        return b.build((out,), self.meta(model.audio, "frames"))


def _conv(b: GraphBuilder, name: str, x: str, features: int, stride: int) -> str:
    """A convolution over time, [batch, time, c] -> [batch * out, features]: taps side by side."""
    batch, time, channels = b.type(x).shape
    padded = b.op(f"{name}.pad", Pad((0, 1, 0), (0, 1, 0)), x)
    out = (time + 2 - TAPS) // stride + 1
    taps = [
        b.op(f"{name}.tap{i}",
             Slice((0, i, 0), (batch, i + (out - 1) * stride + 1, channels), (1, stride, 1)), padded)
        for i in range(TAPS)
    ]  # fmt: skip
    joined = b.op(f"{name}.taps", Concat(2, TAPS), *taps)
    flat = b.op(f"{name}.flat", Reshape((batch * out, TAPS * channels)), joined)
    return b.op(f"{name}.act", Unary("gelu_erf"), linear(b, name, flat, features, bias=True))


@dataclass(frozen=True, slots=True)
class _Text(_Phase):
    """A phase of the decoder."""

    def sizes(self) -> tuple[int, int, str]:
        """New tokens, all tokens if there is a cache or 0, and the type."""
        raise NotImplementedError

    @override
    def problems(self) -> list[str]:
        tokens, context, _ = self.sizes()
        most, found = self.model.decoder_layers, []
        if self.layers > most:
            found.append(f"layers: got {self.layers}, want 1 to {most}")
        if max(tokens, context) > self.model.positions:
            found.append(f"tokens: got {max(tokens, context)}, want at most {self.model.positions} positions")
        if context and tokens > context:
            found.append(f"tokens: got {tokens}, want at most the context of {context}")
        return found

    @override
    def graph(self, name: str) -> Graph:
        return _Decoder(self, name).build()


@dataclass(frozen=True, slots=True)
class Prefill(_Text):
    """Prompt tokens and the encoder's hidden states to the logits of the last token."""

    phase: ClassVar[str] = "prefill"
    seq: int = key(4, "prompt tokens of each sequence")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return self.seq, 0, self.dtype


@dataclass(frozen=True, slots=True)
class Decode(_Text):
    """One new token over the caches of text and audio."""

    phase: ClassVar[str] = "decode"
    context: int = key(224, "tokens in the cache, the new one included")
    dtype: str = key("bf16", "type of weights, activations and caches", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return 1, self.context, self.dtype


@dataclass(frozen=True, slots=True)
class Verify(_Text):
    """Several proposed tokens over the caches."""

    phase: ClassVar[str] = "verify"
    tokens: int = key(4, "proposed tokens of each sequence")
    context: int = key(224, "tokens in the cache, the proposed ones included")
    dtype: str = key("bf16", "type of weights, activations and caches", choices=FLOATS)

    @override
    def sizes(self) -> tuple[int, int, str]:
        return self.tokens, self.context, self.dtype


class _Decoder:
    """The text decoder in any phase."""

    def __init__(self, request: _Text, name: str) -> None:
        self.request, self.model, self.batch = request, request.model, request.batch
        self.tokens, self.context, dtype = request.sizes()
        self.b = GraphBuilder(name, dtype)

    def build(self) -> Graph:
        b, model, rows = self.b, self.model, self.batch * self.tokens
        ids, where = (b.input(n, rows, dtype="int32") for n in ("ids", "position_ids"))
        words = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        table = b.weight("positions", model.positions, model.hidden)
        x = b.op("embed.sum", Binary("add"), words, b.op("position", Embedding(), where, table))
        self.audio = "" if self.context else b.input("audio", self.batch * model.audio, model.hidden)
        x = b.repeat("layer", self.request.layers, x, self._layer)
        if self.tokens > 1 and self.request.phase != "verify":
            x = b.op("last", TakeRows(self.tokens, -1), x)
        logits = linear(b, "head", layer_norm(b, "norm", x, model.decoder.eps), model.vocab)
        positions = (self.context or self.tokens) + model.audio
        size = 2 * self.request.layers * model.hidden * dtype_bytes(b.dtype)
        meta = self.request.meta(self.tokens, "tokens") | {
            "kv_bytes": size * self.batch * positions,
            "tied_parameters": model.vocab * model.hidden,
        }
        return b.build((logits,), meta)

    def _layer(self, x: str) -> str:
        b, eps = self.b, self.model.decoder.eps
        for prefix, look in (("", self._self), ("cross_", self._cross)):
            normed = layer_norm(b, f"{prefix}attn_norm", x, eps)
            mixed = linear(b, f"{prefix}o", look(normed), self.model.hidden, bias=True)
            x = b.op(f"{prefix}attn_add", Binary("add"), mixed, x)
        return self.model.decoder.wide(b, x)

    def _heads(self) -> tuple[int, int, int, int]:
        heads = self.model.decoder.heads
        return self.batch, heads, heads, self.model.hidden // heads

    def _self(self, x: str) -> str:
        b, width = self.b, self.model.hidden
        q, k, v = (linear(b, name, x, width, bias=name != "k") for name in "qkv")
        scale = self._heads()[3] ** -0.5
        if not self.context:
            return b.op("attention", Attention(*self._heads(), True, scale), q, k, v)
        held = grown_caches(b, self._heads(), self.context, self.tokens, k, v)
        cached = DecodeAttention(*self._heads(), scale, self.context, queries=self.tokens)
        return b.op("attention", cached, q, *held)

    def _cross(self, x: str) -> str:
        b, width, audio = self.b, self.model.hidden, self.model.audio
        q, scale = linear(b, "cross_q", x, width, bias=True), self._heads()[3] ** -0.5
        if self.audio:
            k, v = (linear(b, f"cross_{n}", self.audio, width, bias=n == "v") for n in "kv")
            return b.op("cross_attention", Attention(*self._heads(), False, scale), q, k, v)
        cached = DecodeAttention(*self._heads(), scale, audio, queries=self.tokens, causal=False)
        return b.op("cross_attention", cached, q, *caches(b, self._heads(), audio, "cross_"))
