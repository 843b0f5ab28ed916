"""Mamba-2: layers of a causal convolution, a selective scan and a gated norm, without attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Graph
from compiler.ops import Binary, CausalConv1d, ConvStep, Embedding, SsdScan, SsdStep, TakeRows, Unary
from workloads.blocks import GraphBuilder, linear, rms_norm
from workloads.request import FLOATS, Request, key


@dataclass(frozen=True, slots=True)
class MambaModel:
    """Hyper-parameters; `heads * head_dim` is the inner width."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    vocab: int
    chunk: int = 256
    activation: str = "silu"
    eps: float = 1e-5
    proj_bias: bool = False
    tied: bool = True

    @property
    def inner(self) -> int:
        """Features of x, z and y."""
        return self.heads * self.head_dim

    def state_bytes(self, layers: int, dtype: str) -> int:
        """What one sequence keeps: the state, and the last inputs of the convolutions."""
        window = (self.kernel - 1) * (self.inner + 2 * self.groups * self.state)
        return layers * (self.inner * self.state + window) * dtype_bytes(dtype)


@dataclass(frozen=True, slots=True)
class Prefill(Request):
    """All prompt tokens at once, from ids to the logits of each sequence's last token."""

    phase: ClassVar[str] = "prefill"
    model: MambaModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")
    seq: int = key(2048, "prompt tokens of each sequence")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _layers_problem(self.model, self.layers)

    @override
    def graph(self, name: str) -> Graph:
        return _Mamba(self.model, name, self.dtype, self.batch, self.seq).build(self.layers)


@dataclass(frozen=True, slots=True)
class Decode(Request):
    """One new token for each sequence; the state is as large after many tokens as after few."""

    phase: ClassVar[str] = "decode"
    model: MambaModel
    layers: int = key(1, "layers to run; fewer cut the model for study")
    batch: int = key(1, "sequences")
    dtype: str = key("bf16", "type of weights, activations and states", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _layers_problem(self.model, self.layers)

    @override
    def graph(self, name: str) -> Graph:
        return _Mamba(self.model, name, self.dtype, self.batch, 0).build(self.layers)


def _layers_problem(model: MambaModel, layers: int) -> list[str]:
    return [] if layers <= model.layers else [f"layers: got {layers}, want 1 to {model.layers}"]


class _Mamba:
    """Builds either phase: `seq` 0 is one token on kept states.

    The input projection is one a part (gate, x, B with C, dt), which lie and go different ways.
    """

    def __init__(self, model: MambaModel, name: str, dtype: str, batch: int, seq: int) -> None:
        self.model, self.batch, self.seq = model, batch, seq
        self.b = GraphBuilder(name, dtype)

    def build(self, layers: int) -> Graph:
        """The graph of `layers` layers with embedding and head."""
        b, model = self.b, self.model
        ids = b.input("ids", self.batch * max(1, self.seq), dtype="int32")
        x = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        x = b.repeat("layer", layers, x, self._layer)
        if self.seq > 1:
            x = b.op("last", TakeRows(self.seq, -1), x)
        logits = linear(b, "head", rms_norm(b, "norm", x, model.eps), model.vocab)
        meta: dict[str, int | float | str] = {
            "unit": "tokens",
            "work": self.batch * max(1, self.seq),
            "phase": "prefill" if self.seq else "decode",
            "batch": self.batch,
            **({"seq": self.seq} if self.seq else {}),
            "state_bytes_per_sequence": model.state_bytes(layers, b.dtype),
            # The head of a tied model is the embedding, kept a second time in the order matmul wants.
            "tied_parameters": model.vocab * model.hidden if model.tied else 0,
        }
        return b.build((logits,), meta)

    def _layer(self, inner: str) -> str:
        b, model = self.b, self.model
        normed = rms_norm(b, "mixer_norm", inner, model.eps)
        gate, x, mixed, dt = (
            linear(b, name, normed, width, bias=model.proj_bias)
            for name, width in (
                ("z", model.inner), ("x", model.inner), ("bc", 2 * model.groups * model.state),
                ("dt", model.heads),
            )
        )  # fmt: skip
        y = self._scan(self._convolved("x_conv", x), dt, self._convolved("bc_conv", mixed))
        gated = b.op("gated", Binary("mul"), b.op("act", Unary(model.activation), gate), y)
        normed = rms_norm(b, "gate_norm", gated, model.eps)
        out = linear(b, "out_proj", normed, model.hidden, bias=model.proj_bias)
        return b.op("mixer_add", Binary("add"), out, inner)

    def _convolved(self, name: str, x: str) -> str:
        b, model = self.b, self.model
        channels = b.type(x).shape[1]
        operands = b.weight(f"{name}.weight", channels, model.kernel), b.weight(f"{name}.bias", channels)
        if self.seq:
            return b.op(name, CausalConv1d(self.seq, model.activation), x, *operands)
        window = b.state(f"{name}.window", (model.kernel - 1) * self.batch, channels)
        return b.advance(name, ConvStep(model.activation), window, x, *operands)

    def _scan(self, x: str, dt: str, mixed: str) -> str:
        b, model = self.b, self.model
        sizes = (model.heads, model.head_dim, model.groups, model.state)
        vectors = [b.weight(f"scan.{name}", model.heads) for name in ("a_log", "dt_bias", "d")]
        if self.seq:
            return b.op("scan", SsdScan(*sizes, self.seq, model.chunk), x, dt, mixed, *vectors)
        state = b.state("scan.state", self.batch, model.inner, model.state)
        return b.advance("scan", SsdStep(*sizes), state, x, dt, mixed, *vectors)
