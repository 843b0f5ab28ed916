"""Vision transformers: patches, encoder layers, class token, classifier."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import AssembleTokens, Binary, Conv2d, TakeRows
from workloads.blocks import GraphBuilder, encoder_attention, layer_norm, linear, mlp
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class VitModel:
    """Hyper-parameters."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    patch: int
    channels: int
    labels: int
    activation: str = "gelu_erf"
    eps: float = 1e-12
    qkv_bias: bool = True


@dataclass(frozen=True, slots=True)
class Forward(Request):
    """Images to class scores."""

    model: VitModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "images")
    image: int = key(224, "height and width of an image; positions are as many as its patches need")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        found = []
        if self.layers > self.model.layers:
            found.append(f"layers: got {self.layers}, want 1 to {self.model.layers}")
        if self.image % self.model.patch:
            found.append(f"image: got {self.image}, want a multiple of the patch size {self.model.patch}")
        return found

    @override
    def graph(self, name: str) -> Graph:
        model = self.model
        b = GraphBuilder(name, self.dtype)
        grid = self.image // model.patch
        tokens = grid * grid + 1
        pixels = b.input("pixels", self.batch, model.channels, self.image, self.image)
        filters = b.weight("patch.weight", model.hidden, model.channels, model.patch, model.patch)
        conv = Conv2d(stride=model.patch, bias=True)
        patches = b.op("patch", conv, pixels, filters, b.weight("patch.bias", model.hidden))
        cls, positions = b.weight("cls", model.hidden), b.weight("positions", tokens, model.hidden)
        x = b.op("tokens", AssembleTokens(), patches, cls, positions)
        x = b.repeat("layer", self.layers, x, lambda inner: self._layer(b, inner))
        # The norm works row by row, so only the class token's row needs it.
        x = layer_norm(b, "norm", b.op("first", TakeRows(tokens, 0), x), model.eps)
        scores = linear(b, "head", x, model.labels, bias=True)
        meta: dict[str, int | float | str] = {
            "unit": "images", "work": self.batch, "batch": self.batch, "tokens_per_image": tokens,
        }  # fmt: skip
        return b.build((scores,), meta)

    def _layer(self, b: GraphBuilder, x: str) -> str:
        model = self.model
        normed = layer_norm(b, "attn_norm", x, model.eps)
        mixed = encoder_attention(b, normed, self.batch, model.heads, qkv_bias=model.qkv_bias)
        x = b.op("attn_add", Binary("add"), mixed, x)
        wide = mlp(b, layer_norm(b, "mlp_norm", x, model.eps), model.intermediate, model.activation)
        return b.op("mlp_add", Binary("add"), wide, x)
