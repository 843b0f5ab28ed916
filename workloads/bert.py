"""BERT encoders: embeddings, post-norm layers, pooler."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import Binary, Embedding, TakeRows, Unary
from workloads.blocks import GraphBuilder, encoder_attention, layer_norm, linear, mlp
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class BertModel:
    """Hyper-parameters."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    positions: int
    types: int
    activation: str = "gelu_erf"
    eps: float = 1e-12


@dataclass(frozen=True, slots=True)
class Forward(Request):
    """Token, position and segment ids to hidden states and the pooled first token."""

    model: BertModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")
    seq: int = key(384, "tokens of each sequence")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        wants = (("layers", self.layers, self.model.layers), ("seq", self.seq, self.model.positions))
        return [f"{name}: got {got}, want 1 to {most}" for name, got, most in wants if got > most]

    @override
    def graph(self, name: str) -> Graph:
        model = self.model
        b = GraphBuilder(name, self.dtype)
        x = layer_norm(b, "embed.norm", self._embed(b), model.eps)
        x = b.repeat("layer", self.layers, x, lambda inner: self._layer(b, inner))
        first = b.op("first", TakeRows(self.seq, 0), x)
        pooled = b.op("pooled", Unary("tanh"), linear(b, "pooler", first, model.hidden, bias=True))
        meta: dict[str, int | float | str] = {
            "unit": "tokens", "work": self.batch * self.seq, "batch": self.batch, "seq": self.seq,
        }  # fmt: skip
        return b.build((x, pooled), meta)

    def _embed(self, b: GraphBuilder) -> str:
        """Sum of the three embeddings, each a gather as in the published model."""
        model = self.model
        rows = {"word": model.vocab, "position": model.positions, "type": model.types}
        parts = []
        for name, count in rows.items():
            ids = b.input(f"{name}_ids", self.batch * self.seq, dtype="int32")
            table = b.weight(f"embed.{name}.weight", count, model.hidden)
            parts.append(b.op(f"embed.{name}", Embedding(), ids, table))
        return b.op("embed", Binary("add"), b.op("embed.sum", Binary("add"), *parts[:2]), parts[2])

    def _layer(self, b: GraphBuilder, x: str) -> str:
        model = self.model
        mixed = encoder_attention(b, x, self.batch, model.heads)
        x = layer_norm(b, "attn_norm", b.op("attn_add", Binary("add"), mixed, x), model.eps)
        wide = mlp(b, x, model.intermediate, model.activation)
        return layer_norm(b, "mlp_norm", b.op("mlp_add", Binary("add"), wide, x), model.eps)
