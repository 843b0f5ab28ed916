"""Residual convolutional networks (v1.5: the stride is in the 3x3), batch norm folded into the filters."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import Binary, Conv2d, GlobalAvgPool, Pool2d, Unary
from workloads.blocks import GraphBuilder, linear
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class ResnetModel:
    """Hyper-parameters; `reduction` is the narrowing inside a bottleneck, 0 for basic blocks."""

    stem: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    channels: int
    labels: int
    reduction: int = 4
    downsample_first: bool = False
    activation: str = "relu"


@dataclass(frozen=True, slots=True)
class Forward(Request):
    """Images to class scores."""

    model: ResnetModel
    batch: int = key(1, "images")
    image: int = key(224, "height and width of an image")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        return _Network(self.model, name, self.dtype).build(self.batch, self.image)


class _Network:
    """Builds the graph. Inference folds each batch norm into the filters before it: scale into the
    weights, shift into a bias. `folded` counts the scales, which the published total still holds."""

    def __init__(self, model: ResnetModel, name: str, dtype: str) -> None:
        self.model = model
        self.b = GraphBuilder(name, dtype)
        self.folded = 0

    def build(self, batch: int, image: int) -> Graph:
        """The graph for `batch` square images."""
        b, model = self.b, self.model
        x = b.input("pixels", batch, model.channels, image, image)
        x = self._activated("stem.act", self._conv("stem", x, model.stem, 7, 2))
        x = b.op("stem.pool", Pool2d("max", kernel=3, stride=2, padding=1), x)
        for i, (width, depth) in enumerate(zip(model.widths, model.depths, strict=True)):
            stride = 2 if i or model.downsample_first else 1
            x = self._stage(f"stage{i}", x, width, depth, stride)
        scores = linear(b, "head", b.op("pool", GlobalAvgPool(), x), model.labels, bias=True)
        graph = b.build((scores,), {})
        meta: dict[str, int | float | str] = {
            "unit": "images", "work": batch, "batch": batch,
            "parameters_published": graph.parameters + self.folded,
        }  # fmt: skip
        return b.build((scores,), meta)

    def _stage(self, name: str, x: str, width: int, depth: int, stride: int) -> str:
        """A first block that may change size, then `depth - 1` equal ones as one region."""
        x = self._block(f"{name}.first.", x, width, stride)
        if depth == 1:
            return x
        before = self.folded
        x = self.b.repeat(f"{name}.block", depth - 1, x, lambda inner: self._block("", inner, width, 1))
        self.folded += (depth - 2) * (self.folded - before)
        return x

    def _block(self, prefix: str, x: str, width: int, stride: int) -> str:
        b, model = self.b, self.model
        shortcut = x
        if stride > 1 or b.type(x).shape[1] != width:
            shortcut = self._conv(f"{prefix}shortcut", x, width, 1, stride)
        layers: tuple[tuple[int, int, int], ...] = ((width, 3, stride), (width, 3, 1))
        if model.reduction:
            inner = width // model.reduction
            layers = ((inner, 1, 1), (inner, 3, stride), (width, 1, 1))
        y = x
        for i, (channels, kernel, step) in enumerate(layers):
            y = self._conv(f"{prefix}conv{i}", y, channels, kernel, step)
            if i < len(layers) - 1:
                y = self._activated(f"{prefix}act{i}", y)
        return self._activated(f"{prefix}act", b.op(f"{prefix}add", Binary("add"), y, shortcut))

    def _conv(self, name: str, x: str, channels: int, kernel: int, stride: int) -> str:
        b = self.b
        filters = b.weight(f"{name}.weight", channels, b.type(x).shape[1], kernel, kernel)
        self.folded += channels
        conv = Conv2d(stride=stride, padding=kernel // 2, bias=True)
        return b.op(name, conv, x, filters, b.weight(f"{name}.bias", channels))

    def _activated(self, name: str, x: str) -> str:
        return self.b.op(name, Unary(self.model.activation), x)
