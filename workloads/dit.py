"""Diffusion transformers: one denoising step of DiT, of Stable Diffusion 3 and of Flux.

Layers as in the papers and in the diffusers library, whose configs are read. Modulation (shift, scale, gate)
is one product a part, with the weights that the library keeps in one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import (
    AdaptiveNorm,
    Attention,
    Binary,
    Conv2d,
    Embedding,
    GatedAdd,
    JoinRows,
    PartRows,
    Permute,
    Reshape,
    Rope,
    Tokens,
    Unary,
)
from workloads.blocks import GraphBuilder, embedded, encoder_attention, linear, mlp, rms_norm, step_meta
from workloads.request import FLOATS, Request, key

EPS = 1e-6  # of all norms, in the three models
TIME = 256  # sines and cosines of the step, in the three models
WIDER = 4  # hidden features of an MLP by features of a token, in the three models
ACTIVATION = "gelu"  # tanh approximation, in the three models


@dataclass(frozen=True, slots=True)
class DitModel:
    """Hyper-parameters of a DiT that is told a class."""

    hidden: int
    heads: int
    layers: int
    patch: int
    channels: int
    out_channels: int
    classes: int  # and one more, for no class


@dataclass(frozen=True, slots=True)
class DitStep(Request):
    """One denoising step: latents, time and class to the noise in them and its variance."""

    model: DitModel
    layers: int = key(1, "transformer layers")
    batch: int = key(1, "images")
    guidance: bool = key(True, "each image twice, with and without its class (classifier-free guidance)")
    latent: int = key(32, "height and width of the latents: an eighth of the image")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _patch_problems(self.latent, self.model.patch)

    @override
    def graph(self, name: str) -> Graph:
        b, model = GraphBuilder(name, self.dtype), self.model
        rows, side = self.batch * (2 if self.guidance else 1), self.latent // model.patch
        x = patches(b, rows, model.channels, self.latent, model.patch, model.hidden)
        time = embedded(b, "time", b.input("time", rows, TIME), model.hidden)
        table = b.weight("classes.weight", model.classes + 1, model.hidden)
        label = b.op("class", Embedding(), b.input("label", rows, dtype="int32"), table)
        told = b.op("told.act", Unary("silu"), b.op("told", Binary("add"), time, label))

        def layer(x: str) -> str:
            shift, scale, gate, shift2, scale2, gate2 = modulation(b, "mod", told, 6)
            y = encoder_attention(b, modulated(b, "norm1", x, shift, scale), rows, model.heads)
            x = b.op("attn_add", GatedAdd(), y, x, gate)
            y = mlp(b, modulated(b, "norm2", x, shift2, scale2), WIDER * model.hidden, ACTIVATION)
            return b.op("mlp_add", GatedAdd(), y, x, gate2)

        x = b.repeat("layers", self.layers, x, layer)
        x = final(b, x, told, model.patch**2 * model.out_channels)
        noise = image_of(b, x, rows, model.out_channels, side, model.patch)
        return b.build((noise,), step_meta(self.batch, rows, self.latent))


@dataclass(frozen=True, slots=True)
class MmditModel:
    """Hyper-parameters of a transformer whose text and image have weights of their own (MM-DiT).

    `layers` of two streams, `singles` of one. Without `axes` of rotary positions, positions are added.
    """

    hidden: int
    heads: int
    layers: int
    text: int  # features of a text token
    pooled: int  # features of the text as a whole
    channels: int
    patch: int
    singles: int = 0
    axes: tuple[int, int, int] | None = None
    qk_norm: bool = False
    told_guidance: bool = False  # the strength of guidance is an input, like time


@dataclass(frozen=True, slots=True)
class Sd3Step(Request):
    """One denoising step of Stable Diffusion 3: latents, time and text to the velocity."""

    model: MmditModel
    layers: int = key(1, "transformer layers; the last one leaves the text as it is")
    batch: int = key(1, "images")
    guidance: bool = key(True, "each image twice, with and without its text (classifier-free guidance)")
    latent: int = key(128, "height and width of the latents: an eighth of the image")
    text: int = key(333, "text tokens: 77 of CLIP and 256 of T5")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _patch_problems(self.latent, self.model.patch)

    @override
    def graph(self, name: str) -> Graph:
        b, model = GraphBuilder(name, self.dtype), self.model
        rows, side = self.batch * (2 if self.guidance else 1), self.latent // model.patch
        x = patches(b, rows, model.channels, self.latent, model.patch, model.hidden)
        net = _Streams(b, model, rows, self.text, (side, side))
        c = linear(b, "text_in", net.text_input(), model.hidden, bias=True)
        if self.layers > 1:
            c, x = b.repeat_all("layers", self.layers - 1, (c, x), lambda both: net.double(*both))
        with b.scope("last"):
            _, x = net.double(c, x, last=True)
        x = final(b, x, net.told, model.patch**2 * model.channels)
        velocity = image_of(b, x, rows, model.channels, side, model.patch)
        return b.build((velocity,), step_meta(self.batch, rows, self.latent))


@dataclass(frozen=True, slots=True)
class FluxStep(Request):
    """One denoising step of Flux: latents as rows of 2 x 2 pixels, time and text to the velocity."""

    model: MmditModel
    layers: int = key(1, "layers of two streams")
    singles: int = key(1, "layers of one stream")
    batch: int = key(1, "images; guidance is an input of the model and costs no second pass")
    latent: int = key(128, "height and width of the latents: an eighth of the image")
    text: int = key(512, "text tokens")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _patch_problems(self.latent, self.model.patch)

    @override
    def graph(self, name: str) -> Graph:
        b, model, rows = GraphBuilder(name, self.dtype), self.model, self.batch
        side = self.latent // model.patch
        pixels = b.input("latents", rows * side * side, model.channels)
        x = linear(b, "image_in", pixels, model.hidden, bias=True)
        net = _Streams(b, model, rows, self.text, (side, side))
        c = linear(b, "text_in", net.text_input(), model.hidden, bias=True)
        c, x = b.repeat_all("layers", self.layers, (c, x), lambda both: net.double(*both))
        x = b.repeat("singles", self.singles, b.op("joined", JoinRows(rows), c, x), net.single)
        x = b.op("image", PartRows(rows, self.text, net.seq), x)
        velocity = final(b, x, net.told, model.channels)
        return b.build((velocity,), step_meta(self.batch, rows, self.latent))


def _patch_problems(latent: int, patch: int) -> list[str]:
    return [f"latent: got {latent}, want a multiple of the patch size {patch}"] if latent % patch else []


def patches(b: GraphBuilder, rows: int, channels: int, latent: int, patch: int, hidden: int) -> str:
    """Latents as tokens [rows * patches, hidden], with positions added."""
    image = b.input("latents", rows, channels, latent, latent)
    weight = b.weight("patch.weight", hidden, channels, patch, patch)
    x = b.op("patch", Conv2d(stride=patch, bias=True), image, weight, b.weight("patch.bias", hidden))
    tokens = b.op("tokens", Tokens(), x)
    return b.op("placed", Binary("add"), tokens, b.table("positions", (latent // patch) ** 2, hidden))


def image_of(b: GraphBuilder, x: str, rows: int, channels: int, side: int, patch: int) -> str:
    """Rows of patches as an image [rows, channels, side * patch, side * patch]."""
    x = b.op("out.patches", Reshape((rows, side, side, patch, patch, channels)), x)
    x = b.op("out.turned", Permute((0, 5, 1, 3, 2, 4)), x)
    return b.op("out.image", Reshape((rows, channels, side * patch, side * patch)), x)


def modulation(b: GraphBuilder, name: str, told: str, parts: int) -> list[str]:
    """`parts` vectors a sample: shift, scale, gate and so on."""
    width = b.type(told).shape[1]
    return [linear(b, f"{name}{i}", told, width, bias=True) for i in range(parts)]


def modulated(b: GraphBuilder, name: str, x: str, shift: str, scale: str) -> str:
    """The norm without weights, shifted and scaled."""
    return b.op(name, AdaptiveNorm(EPS), x, scale, shift)


def final(b: GraphBuilder, x: str, told: str, features: int) -> str:
    """The last norm and the product to the features of a patch."""
    scale, shift = modulation(b, "out.mod", told, 2)
    return linear(b, "out", modulated(b, "out.norm", x, shift, scale), features, bias=True)


class _Streams:
    """Text and image, which attend to each other together."""

    def __init__(
        self, b: GraphBuilder, model: MmditModel, rows: int, text: int, size: tuple[int, int]
    ) -> None:
        self.b, self.model, self.rows, self.text = b, model, rows, text
        self.seq, self.size = text + size[0] * size[1], size
        told = embedded(b, "time", b.input("time", rows, TIME), model.hidden)
        pooled = embedded(b, "pooled", b.input("pooled", rows, model.pooled), model.hidden)
        if model.told_guidance:
            strength = embedded(b, "guidance", b.input("guidance", rows, TIME), model.hidden)
            told = b.op("told.guided", Binary("add"), told, strength)
        self.told = b.op("told.act", Unary("silu"), b.op("told", Binary("add"), told, pooled))
        if model.axes is not None:
            half = model.hidden // model.heads // 2
            self.tables = b.table("cos", self.seq, half), b.table("sin", self.seq, half)

    def text_input(self) -> str:
        """The tokens of the text as they come."""
        return self.b.input("text", self.rows * self.text, self.model.text)

    def double(self, c: str, x: str, *, last: bool = False) -> tuple[str, str]:
        """One layer of two streams; the last one of SD3 does not make a text."""
        b = self.b
        shift, scale, gate, *rest = modulation(b, "x.mod", self.told, 6)
        c_mod = modulation(b, "c.mod", self.told, 2 if last else 6)
        normed = modulated(b, "c.norm1", c, c_mod[0], c_mod[1])
        own = self._qkv("c.", normed), self._qkv("x.", modulated(b, "x.norm1", x, shift, scale))
        joined = [
            b.op(f"{part}.joined", JoinRows(self.rows), *pair)
            for part, pair in zip("qkv", zip(*own, strict=True), strict=True)
        ]
        mixed = self._attend(*joined)
        seen = b.op("x.part", PartRows(self.rows, self.text, self.seq), mixed)
        x = self._finish("x.", x, seen, gate, rest)
        if last:
            return c, x
        seen = b.op("c.part", PartRows(self.rows, 0, self.text), mixed)
        return self._finish("c.", c, seen, c_mod[2], c_mod[3:]), x

    def single(self, x: str) -> str:
        """One layer of one stream: attention and MLP beside each other, one product behind both."""
        b, width = self.b, self.model.hidden
        shift, scale, gate = modulation(b, "mod", self.told, 3)
        y = modulated(b, "norm", x, shift, scale)
        inner = b.op("act", Unary(ACTIVATION), linear(b, "fc1", y, WIDER * width, bias=True))
        seen = linear(b, "o", self._attend(*self._qkv("", y)), width)
        both = b.op("both", Binary("add"), linear(b, "fc2", inner, width, bias=True), seen)
        return b.op("add", GatedAdd(), both, x, gate)

    def _qkv(self, prefix: str, x: str) -> tuple[str, str, str]:
        b, model = self.b, self.model
        q, k, v = (linear(b, prefix + part, x, model.hidden, bias=True) for part in "qkv")
        if model.qk_norm:
            q, k = (
                rms_norm(b, f"{prefix}{part}_norm", y, EPS, heads=model.heads)
                for part, y in (("q", q), ("k", k))
            )
        return q, k, v

    def _attend(self, q: str, k: str, v: str) -> str:
        b, model = self.b, self.model
        dim = model.hidden // model.heads
        if model.axes is not None:
            rope = Rope(
                model.heads, dim, self.seq, style="interleaved", grid=(self.text, *self.size), axes=model.axes
            )
            q, k = (b.op(f"{part}.turned", rope, y, *self.tables) for part, y in (("q", q), ("k", k)))
        op = Attention(self.rows, model.heads, model.heads, dim, causal=False, scale=dim**-0.5)
        return b.op("attention", op, q, k, v)

    def _finish(self, prefix: str, x: str, seen: str, gate: str, rest: list[str]) -> str:
        """Projection and MLP of one stream."""
        b, width = self.b, self.model.hidden
        shift, scale, gate2 = rest
        x = b.op(f"{prefix}attn_add", GatedAdd(), linear(b, f"{prefix}o", seen, width, bias=True), x, gate)
        with b.scope(prefix[:-1]):
            y = mlp(b, modulated(b, "norm2", x, shift, scale), WIDER * width, ACTIVATION)
            return b.op("mlp_add", GatedAdd(), y, x, gate2)
