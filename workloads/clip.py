"""CLIP: an image and a text tower, each with a projection to a common space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import AssembleTokens, Binary, Conv2d, Embedding, TakeRows
from workloads.blocks import Encoder, GraphBuilder, layer_norm, linear
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class Vision:
    """Hyper-parameters of the image tower."""

    hidden: int
    layers: int
    patch: int
    channels: int
    image: int
    encoder: Encoder

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    def tokens(self, b: GraphBuilder, images: int, layers: int) -> str:
        """Hidden states behind `layers` layers, [images * (patches + 1), hidden], the class token first."""
        pixels = b.input("pixels", images, self.channels, self.image, self.image)
        filters = b.weight("patch.weight", self.hidden, self.channels, self.patch, self.patch)
        patches = b.op("patch", Conv2d(stride=self.patch), pixels, filters)
        cls, positions = b.weight("cls", self.hidden), b.weight("positions", self.patches + 1, self.hidden)
        x = b.op("tokens", AssembleTokens(), patches, cls, positions)
        x = layer_norm(b, "pre_norm", x, self.encoder.eps)
        return b.repeat("vision", layers, x, lambda inner: self.encoder.layer(b, inner, images))


@dataclass(frozen=True, slots=True)
class Text:
    """Hyper-parameters of the text tower."""

    hidden: int
    layers: int
    vocab: int
    positions: int
    encoder: Encoder


@dataclass(frozen=True, slots=True)
class ClipModel:
    """Hyper-parameters."""

    vision: Vision
    text: Text
    projection: int

    def image_features(self, b: GraphBuilder, images: int, layers: int) -> str:
        """Pixels to projected features, [images, projection]."""
        vision = self.vision
        x = vision.tokens(b, images, layers)
        first = b.op("vision.first", TakeRows(vision.patches + 1, 0), x)
        first = layer_norm(b, "vision.norm", first, vision.encoder.eps)
        return linear(b, "vision.head", first, self.projection)

    def text_features(self, b: GraphBuilder, texts: int, seq: int, layers: int) -> str:
        """Token ids to projected features of each text's last token, [texts, projection]."""
        text = self.text
        ids, where = (b.input(name, texts * seq, dtype="int32") for name in ("ids", "position_ids"))
        words = b.op("embed", Embedding(), ids, b.weight("embed.weight", text.vocab, text.hidden))
        table = b.weight("text.positions", text.positions, text.hidden)
        x = b.op("embed.sum", Binary("add"), words, b.op("text.position", Embedding(), where, table))
        x = b.repeat("text", layers, x, lambda inner: text.encoder.layer(b, inner, texts, causal=True))
        last = b.op("text.last", TakeRows(seq, -1), x)
        return linear(b, "text.head", layer_norm(b, "text.norm", last, text.encoder.eps), self.projection)


@dataclass(frozen=True, slots=True)
class _Towers(Request):
    model: ClipModel
    layers: int = key(1, "layers of each tower to run; fewer cut the model for study")
    batch: int = key(1, "images, and texts")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    def seq_length(self) -> int:
        """Tokens of a text; 0 without texts."""
        return 0

    def with_images(self) -> bool:
        """Whether the image tower runs."""
        return True

    @override
    def problems(self) -> list[str]:
        vision, text = self.model.vision, self.model.text
        most, found = max(vision.layers, text.layers), []
        if self.layers > most:
            found.append(f"layers: got {self.layers}, want 1 to {most}")
        if self.seq_length() > text.positions:
            found.append(f"seq: got {self.seq_length()}, want 1 to {text.positions}")
        return found

    @override
    def graph(self, name: str) -> Graph:
        model, b, outputs = self.model, GraphBuilder(name, self.dtype), []
        if self.with_images():
            layers = min(self.layers, model.vision.layers)
            outputs.append(model.image_features(b, self.batch, layers))
        if self.seq_length():
            layers = min(self.layers, model.text.layers)
            outputs.append(model.text_features(b, self.batch, self.seq_length(), layers))
        unit = "images" if self.with_images() else "texts"
        meta: dict[str, int | float | str] = {
            "unit": unit, "work": self.batch, "phase": self.phase, "batch": self.batch,
        }  # fmt: skip
        return b.build(tuple(outputs), meta)


@dataclass(frozen=True, slots=True)
class Pairs(_Towers):
    """Images and texts to features of both."""

    phase: ClassVar[str] = "pairs"
    seq: int = key(77, "tokens of each text")

    @override
    def seq_length(self) -> int:
        return self.seq


@dataclass(frozen=True, slots=True)
class Images(_Towers):
    """Images to features."""

    phase: ClassVar[str] = "image"


@dataclass(frozen=True, slots=True)
class Texts(_Towers):
    """Texts to features."""

    phase: ClassVar[str] = "text"
    seq: int = key(77, "tokens of each text")

    @override
    def seq_length(self) -> int:
        return self.seq

    @override
    def with_images(self) -> bool:
        return False
