"""Stable Diffusion: the U-Net of one denoising step, and the decoder from latents to pixels.

Layers as in the diffusers library (UNet2DConditionModel, AutoencoderKL); configs are its files.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import (
    Binary,
    ChannelAdd,
    Concat,
    Conv2d,
    GroupNorm,
    Pixels,
    Tokens,
    Unary,
    Upsample,
)
from workloads.blocks import GraphBuilder, attended, embedded, layer_norm, linear, step_meta
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class UnetModel:
    """Hyper-parameters; `depths[i]` transformer layers in each attention of stage i, 0 for none."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    resnets: int  # of each stage on the way down; one more on the way up
    context: int  # features of a text token
    channels: int = 4
    groups: int = 32
    added: int = 0  # features of the embedding that is added to that of time (SDXL)


@dataclass(frozen=True, slots=True)
class Denoise(Request):
    """One denoising step: latents, time and text to the noise in them."""

    model: UnetModel
    batch: int = key(1, "images")
    guidance: bool = key(True, "each image twice, with and without its text (classifier-free guidance)")
    latent: int = key(64, "height and width of the latents: an eighth of the image")
    text: int = key(77, "text tokens")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        step = 2 ** (len(self.model.widths) - 1)
        want = f"a multiple of {step}: the U-Net halves them {len(self.model.widths) - 1} times"
        return [f"latent: got {self.latent}, want {want}"] if self.latent % step else []

    @override
    def graph(self, name: str) -> Graph:
        rows = self.batch * (2 if self.guidance else 1)
        b = GraphBuilder(name, self.dtype)
        noise = _Unet(b, self.model, rows, self.text).build(self.latent)
        return b.build((noise,), step_meta(self.batch, rows, self.latent))


@dataclass(frozen=True, slots=True)
class VaeModel:
    """Hyper-parameters of the decoder."""

    widths: tuple[int, ...]
    resnets: int
    latent_channels: int = 4
    channels: int = 3
    groups: int = 32


@dataclass(frozen=True, slots=True)
class DecodeImage(Request):
    """Latents to pixels."""

    model: VaeModel
    batch: int = key(1, "images")
    latent: int = key(64, "height and width of the latents: an eighth of the image")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        pixels = _Decoder(b, self.model).build(self.batch, self.latent)
        return b.build((pixels,), {"unit": "images", "work": self.batch, "batch": self.batch})


def conv(b: GraphBuilder, name: str, x: str, channels: int, size: int = 3, stride: int = 1) -> str:
    """A convolution with bias that keeps the size of the image but for its stride."""
    weight = b.weight(f"{name}.weight", channels, b.type(x).shape[1], size, size)
    op = Conv2d(stride=stride, padding=size // 2, bias=True)
    return b.op(name, op, x, weight, b.weight(f"{name}.bias", channels))


def group_norm(b: GraphBuilder, name: str, x: str, groups: int, eps: float) -> str:
    """GroupNorm with its gain and shift."""
    size = b.type(x).shape[1]
    gain, shift = b.weight(f"{name}.gain", size), b.weight(f"{name}.beta", size)
    return b.op(name, GroupNorm(groups, eps), x, gain, shift)


def resnet(
    b: GraphBuilder, name: str, x: str, channels: int, groups: int, eps: float, time: str | None = None
) -> str:
    """Two convolutions behind norms, with the time added between, beside a shortcut."""
    y = b.op(f"{name}.act1", Unary("silu"), group_norm(b, f"{name}.norm1", x, groups, eps))
    y = conv(b, f"{name}.conv1", y, channels)
    if time is not None:
        y = b.op(f"{name}.timed", ChannelAdd(), y, linear(b, f"{name}.time", time, channels, bias=True))
    y = b.op(f"{name}.act2", Unary("silu"), group_norm(b, f"{name}.norm2", y, groups, eps))
    y = conv(b, f"{name}.conv2", y, channels)
    if b.type(x).shape[1] != channels:
        x = conv(b, f"{name}.shortcut", x, channels, 1)
    return b.op(f"{name}.add", Binary("add"), y, x)


def attend(b: GraphBuilder, name: str, x: str, source: str, batch: int, heads: int, *, bias: bool) -> str:
    """Attention of the rows of `x` over those of `source`, with projections."""
    width = b.type(x).shape[1]
    q = linear(b, f"{name}.q", x, width, bias=bias)
    k, v = (linear(b, f"{name}.{part}", source, width, bias=bias) for part in ("k", "v"))
    return attended(b, q, k, v, batch, heads, prefix=f"{name}.")


class _Unet:
    def __init__(self, b: GraphBuilder, model: UnetModel, rows: int, text: int) -> None:
        self.b, self.model, self.rows = b, model, rows
        self.text = b.input("text", rows * text, model.context)

    def build(self, latent: int) -> str:
        """The noise in latents [rows, channels, latent, latent]."""
        b, model = self.b, self.model
        self.time = self._time()
        x = conv(b, "conv_in", b.input("latents", self.rows, model.channels, latent, latent), model.widths[0])
        skips = [x]
        stages = list(zip(model.widths, model.depths, model.heads, strict=True))
        for i, stage in enumerate(stages):
            for j in range(model.resnets):
                x = self._block(f"down{i}.{j}", x, *stage)
                skips.append(x)
            if i < len(stages) - 1:
                x = conv(b, f"down{i}.half", x, stage[0], stride=2)
                skips.append(x)
        x = resnet(b, "mid.first", x, model.widths[-1], model.groups, 1e-5, self.time)
        x = self._transformer("mid.attn", x, next(d for d in model.depths[::-1] if d), model.heads[-1])
        x = resnet(b, "mid.last", x, model.widths[-1], model.groups, 1e-5, self.time)
        for i, stage in reversed(list(enumerate(stages))):
            for j in range(model.resnets + 1):
                x = self._block(f"up{i}.{j}", b.op(f"up{i}.{j}.join", Concat(1), x, skips.pop()), *stage)
            if i:
                x = conv(b, f"up{i}.twice", b.op(f"up{i}.pixels", Upsample(2), x), stage[0])
        x = b.op("act_out", Unary("silu"), group_norm(b, "norm_out", x, model.groups, 1e-5))
        return conv(b, "conv_out", x, model.channels)

    def _time(self) -> str:
        """The embedding of the step, from its sines and cosines, after the activation all blocks apply."""
        b, width = self.b, self.model.widths[0]
        found = embedded(b, "time", b.input("time", self.rows, width), 4 * width)
        if self.model.added:
            added = embedded(b, "add", b.input("add", self.rows, self.model.added), 4 * width)
            found = b.op("embed", Binary("add"), found, added)
        return b.op("embed.act", Unary("silu"), found)

    def _block(self, name: str, x: str, width: int, depth: int, heads: int) -> str:
        x = resnet(self.b, name, x, width, self.model.groups, 1e-5, self.time)
        return self._transformer(f"{name}.attn", x, depth, heads) if depth else x

    def _transformer(self, name: str, x: str, depth: int, heads: int) -> str:
        """`depth` layers over the pixels as tokens, each looking at all pixels, then at the text."""
        b = self.b
        _, width, height, columns = b.type(x).shape
        rows = b.op(f"{name}.rows", Tokens(), group_norm(b, f"{name}.norm", x, self.model.groups, 1e-6))
        rows = linear(b, f"{name}.in", rows, width, bias=True)
        rows = b.repeat(f"{name}.layers", depth, rows, lambda inner: self._layer(inner, heads))
        rows = linear(b, f"{name}.out", rows, width, bias=True)
        return b.op(f"{name}.add", Binary("add"), b.op(f"{name}.pixels", Pixels(height, columns), rows), x)

    def _layer(self, x: str, heads: int) -> str:
        b, width = self.b, self.b.type(x).shape[1]
        y = layer_norm(b, "norm1", x, 1e-5)
        x = b.op("self.add", Binary("add"), attend(b, "self", y, y, self.rows, heads, bias=False), x)
        y = layer_norm(b, "norm2", x, 1e-5)
        x = b.op(
            "cross.add", Binary("add"), attend(b, "cross", y, self.text, self.rows, heads, bias=False), x
        )
        y = layer_norm(b, "norm3", x, 1e-5)
        value = linear(b, "ff.value", y, 4 * width, bias=True)
        gate = b.op("ff.act", Unary("gelu_erf"), linear(b, "ff.gate", y, 4 * width, bias=True))
        mixed = linear(b, "ff.out", b.op("ff.gated", Binary("mul"), gate, value), width, bias=True)
        return b.op("ff.add", Binary("add"), mixed, x)


class _Decoder:
    def __init__(self, b: GraphBuilder, model: VaeModel) -> None:
        self.b, self.model = b, model

    def build(self, batch: int, latent: int) -> str:
        """Pixels of latents [batch, latent channels, latent, latent]."""
        b, model = self.b, self.model
        groups, widths = model.groups, model.widths[::-1]
        x = b.input("latents", batch, model.latent_channels, latent, latent)
        x = conv(b, "conv_in", conv(b, "post_quant", x, model.latent_channels, 1), widths[0])
        x = resnet(b, "mid.first", x, widths[0], groups, 1e-6)
        rows = b.op("mid.rows", Tokens(), group_norm(b, "mid.norm", x, groups, 1e-6))
        mixed = b.op("mid.pixels", Pixels(latent, latent), attend(b, "mid", rows, rows, batch, 1, bias=True))
        x = resnet(b, "mid.last", b.op("mid.add", Binary("add"), mixed, x), widths[0], groups, 1e-6)
        for i, width in enumerate(widths):
            for j in range(model.resnets + 1):
                x = resnet(b, f"up{i}.{j}", x, width, groups, 1e-6)
            if i < len(widths) - 1:
                x = conv(b, f"up{i}.twice", b.op(f"up{i}.pixels", Upsample(2), x), width)
        x = b.op("act_out", Unary("silu"), group_norm(b, "norm_out", x, groups, 1e-6))
        return conv(b, "conv_out", x, model.channels)
