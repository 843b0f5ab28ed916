"""Single operations, for studying one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from compiler.ir.graph import Graph
from compiler.ops import (
    Attention,
    Binary,
    Conv2d,
    DecodeAttention,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Softmax,
    Unary,
)
from compiler.ops.elementwise import FUNCTIONS, OPERATIONS
from workloads.blocks import GraphBuilder, gated_mlp, layer_norm, linear, rms_norm
from workloads.request import FLOATS, NARROW, Request, Workload, key


def _finished(b: GraphBuilder, out: str) -> Graph:
    return b.build((out,), {"unit": "ops", "work": 1})


def _gemm(name: str, m: int, n: int, k: int, dtype: str) -> Graph:
    """x [m, k] times a weight [k, n]; 8-bit operands give a bf16 result."""
    b = GraphBuilder(name, dtype)
    op = Linear(out_dtype="bf16" if dtype in NARROW else None)
    return _finished(b, b.op("y", op, b.input("x", m, k), b.weight("w", k, n)))


@dataclass(frozen=True, slots=True)
class Gemm(Request):
    """A matrix times a weight matrix."""

    m: int = key(1024, "rows of the input and the result")
    n: int = key(1024, "columns of the weight and the result")
    k: int = key(1024, "columns of the input: the contraction")
    dtype: str = key("bf16", "type of both operands", choices=FLOATS + NARROW)

    @override
    def graph(self, name: str) -> Graph:
        return _gemm(name, self.m, self.n, self.k, self.dtype)


@dataclass(frozen=True, slots=True)
class Gemv(Request):
    """A vector times a weight matrix."""

    n: int = key(4096, "columns of the weight and the result")
    k: int = key(4096, "length of the input: the contraction")
    dtype: str = key("bf16", "type of both operands", choices=FLOATS + NARROW)

    @override
    def graph(self, name: str) -> Graph:
        return _gemm(name, 1, self.n, self.k, self.dtype)


NORMS = ("none", "rms", "layer")
ACTIVATIONS = ("none", *FUNCTIONS)


def _normed(b: GraphBuilder, x: str, norm: str) -> str:
    """`x`, normed as asked."""
    if norm == "none":
        return x
    return rms_norm(b, "norm", x, 1e-5) if norm == "rms" else layer_norm(b, "norm", x, 1e-5)


@dataclass(frozen=True, slots=True)
class LinearLayer(Request):
    """A linear layer with what often stands around it; the compiler decides what to fuse."""

    rows: int = key(2048, "rows (tokens)")
    k: int = key(4096, "features of the input: the contraction")
    n: int = key(4096, "features of the result")
    norm: str = key("none", "norm in front", choices=NORMS)
    bias: bool = key(False, "add a bias")
    activation: str = key("none", "function behind", choices=ACTIVATIONS)
    add: bool = key(False, "add another matrix to the result")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        x = _normed(b, b.input("x", self.rows, self.k), self.norm)
        y = linear(b, "y", x, self.n, bias=self.bias)
        if self.activation != "none":
            y = b.op("act", Unary(self.activation), y)
        if self.add:
            y = b.op("sum", Binary("add"), y, b.input("other", self.rows, self.n))
        return _finished(b, y)


@dataclass(frozen=True, slots=True)
class Mlp(Request):
    """The MLP block of a transformer: up (and gate), activation, down."""

    rows: int = key(2048, "rows (tokens)")
    hidden: int = key(4096, "features of input and result")
    intermediate: int = key(14336, "features in between")
    gated: bool = key(True, "a gate beside the up projection, as in Llama")
    norm: str = key("rms", "norm in front", choices=NORMS)
    activation: str = key("silu", "function in between", choices=tuple(FUNCTIONS))
    bias: bool = key(False, "biases on all projections")
    add: bool = key(True, "add the input to the result")
    dtype: str = key("bf16", "type of weights and activations", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        x = b.input("x", self.rows, self.hidden)
        normed = _normed(b, x, self.norm)
        if self.gated:
            y = gated_mlp(b, normed, self.intermediate, self.activation, bias=self.bias)
        else:
            inner = linear(b, "up", normed, self.intermediate, bias=self.bias)
            y = linear(b, "down", b.op("act", Unary(self.activation), inner), self.hidden, bias=self.bias)
        return _finished(b, b.op("sum", Binary("add"), y, x) if self.add else y)


@dataclass(frozen=True, slots=True)
class Rotary(Request):
    """Rotary position embedding of every head."""

    seq: int = key(2048, "tokens")
    heads: int = key(32, "heads")
    head_dim: int = key(128, "features of a head", minimum=2)
    dtype: str = key("bf16", "type of the activations", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return [f"head_dim: got {self.head_dim}, want an even number"] if self.head_dim % 2 else []

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        x = b.input("x", self.seq, self.heads * self.head_dim)
        tables = [b.table(f"rope.{f}", self.seq, self.head_dim // 2) for f in ("cos", "sin")]
        return _finished(b, b.op("y", Rope(self.heads, self.head_dim, self.seq), x, *tables))


@dataclass(frozen=True, slots=True)
class Conv(Request):
    """One convolution; `groups` equal to c and k is depthwise."""

    n: int = key(1, "images")
    c: int = key(64, "input channels")
    h: int = key(56, "image height")
    w: int = key(56, "image width")
    k: int = key(64, "output channels")
    r: int = key(3, "filter height")
    s: int = key(3, "filter width")
    stride: int = key(1, "step between windows")
    padding: int = key(1, "zeros around the image", minimum=0)
    groups: int = key(1, "groups of channels that do not mix")
    dtype: str = key("bf16", "type of image and filters", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        found = []
        if self.c % self.groups or self.k % self.groups:
            found.append(f"groups: got {self.groups}, want a divisor of c={self.c} and k={self.k}")
        for image, window in (("h", "r"), ("w", "s")):
            size, kernel = getattr(self, image), getattr(self, window)
            if kernel > size + 2 * self.padding:
                most = size + 2 * self.padding
                found.append(f"{window}: got {kernel}, want at most {most}: {image} with padding")
        return found

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        x = b.input("x", self.n, self.c, self.h, self.w)
        w = b.weight("w", self.k, self.c // self.groups, self.r, self.s)
        return _finished(b, b.op("y", Conv2d(self.stride, self.padding, self.groups), x, w))


def _head_problem(heads: int, kv_heads: int) -> list[str]:
    return [] if heads % kv_heads == 0 else [f"kv_heads: got {kv_heads}, want a divisor of heads={heads}"]


@dataclass(frozen=True, slots=True)
class PrefillAttention(Request):
    """Attention of whole sequences."""

    phase: ClassVar[str] = "prefill"
    batch: int = key(1, "sequences")
    heads: int = key(32, "query heads")
    kv_heads: int = key(8, "key and value heads")
    seq: int = key(2048, "tokens of each sequence")
    head_dim: int = key(128, "features of a head")
    causal: bool = key(True, "each token sees only itself and those before")
    dtype: str = key("bf16", "type of q, k and v", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _head_problem(self.heads, self.kv_heads)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        rows = self.batch * self.seq
        q = b.input("q", rows, self.heads * self.head_dim)
        k, v = (b.input(role, rows, self.kv_heads * self.head_dim) for role in ("k", "v"))
        scale = self.head_dim**-0.5
        op = Attention(self.batch, self.heads, self.kv_heads, self.head_dim, causal=self.causal, scale=scale)
        return _finished(b, b.op("y", op, q, k, v))


@dataclass(frozen=True, slots=True)
class CacheAttention(Request):
    """Attention of one token a sequence over a KV cache."""

    phase: ClassVar[str] = "decode"
    batch: int = key(1, "sequences")
    heads: int = key(32, "query heads")
    kv_heads: int = key(8, "key and value heads")
    context: int = key(2048, "tokens in the cache")
    head_dim: int = key(128, "features of a head")
    dtype: str = key("bf16", "type of q and the cache", choices=FLOATS)

    @override
    def problems(self) -> list[str]:
        return _head_problem(self.heads, self.kv_heads)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        q = b.input("q", self.batch, self.heads * self.head_dim)
        k = b.state("k_cache", self.batch, self.kv_heads, self.head_dim, self.context)
        v = b.state("v_cache", self.batch, self.kv_heads, self.context, self.head_dim)
        op = DecodeAttention(
            self.batch, self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, self.context
        )
        return _finished(b, b.op("y", op, q, k, v))


@dataclass(frozen=True, slots=True)
class Rows(Request):
    """An operation on the rows of a matrix; `form` is which."""

    form: str
    rows: int = key(2048, "rows (tokens)")
    cols: int = key(4096, "columns (features)")
    dtype: str = key("bf16", "type of the matrix", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        ops: dict[str, tuple[Op, tuple[str, ...]]] = {
            "softmax": (Softmax(), ()),
            "rmsnorm": (RmsNorm(), ("gain",)),
            "layernorm": (LayerNorm(), ("gain", "beta")),
        }
        op, vectors = ops[self.form]
        x = b.input("x", self.rows, self.cols)
        return _finished(b, b.op("y", op, x, *(b.weight(v, self.cols) for v in vectors)))


@dataclass(frozen=True, slots=True)
class Elementwise(Request):
    """A function of each element, or of each pair of elements of two matrices."""

    rows: int = key(2048, "rows")
    cols: int = key(4096, "columns")
    func: str = key("add", "what is computed", choices=(*OPERATIONS, *FUNCTIONS))
    dtype: str = key("bf16", "type of the matrices", choices=FLOATS)

    @override
    def graph(self, name: str) -> Graph:
        b = GraphBuilder(name, self.dtype)
        x = b.input("x", self.rows, self.cols)
        if self.func in FUNCTIONS:
            return _finished(b, b.op("y", Unary(self.func), x))
        return _finished(b, b.op("y", Binary(self.func), x, b.input("other", self.rows, self.cols)))


MICRO = (
    Workload("gemm", "matrix [m, k] times weight [k, n]", (Gemm(),)),
    Workload("gemv", "vector [k] times weight [k, n]", (Gemv(),)),
    Workload("linear", "linear layer with norm, bias, activation and addition as asked", (LinearLayer(),)),
    Workload("mlp", "MLP block of a transformer", (Mlp(),)),
    Workload("conv", "2-D convolution", (Conv(),)),
    Workload("attention", "multi-head or grouped-query attention", (PrefillAttention(), CacheAttention())),
    Workload("rope", "rotary position embedding", (Rotary(),)),
    Workload("softmax", "softmax of each row", (Rows("softmax"),)),
    Workload("rmsnorm", "RMS norm of each row", (Rows("rmsnorm"),)),
    Workload("layernorm", "layer norm of each row", (Rows("layernorm"),)),
    Workload("elementwise", "a function of each element", (Elementwise(),)),
)
