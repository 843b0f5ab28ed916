"""The pieces models are made of, and the builder that writes them down as a Graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compiler.ir.graph import Carry, Graph, Node, Repeat, TensorType, Value
from compiler.ops import Attention, Binary, KvWrite, LayerNorm, Linear, Op, RmsNorm, Scalar, Unary


class GraphBuilder:
    """Collects values and nodes; every method that makes a value returns its name.

    Inside `repeat`, names get the region's name as prefix and weights and states one copy a layer.
    """

    def __init__(self, name: str, dtype: str) -> None:
        """Start an empty graph whose tensors are of `dtype` unless said otherwise."""
        self.name = name
        self.dtype = dtype
        self._values: dict[str, Value] = {}
        self._nodes: list[Node | Repeat] = []
        self._region: list[Node] | None = None
        self._prefix = ""
        self._copies = 0

    def _add(self, name: str, kind: str, shape: tuple[int, ...], dtype: str | None, stacked: int) -> str:
        full = self._prefix + name
        assert full not in self._values, f"{self.name}: value {full!r} made twice"
        self._values[full] = Value(full, TensorType(shape, dtype or self.dtype), kind, stacked)
        return full

    def input(self, name: str, *shape: int, dtype: str | None = None) -> str:
        """A value given in each run."""
        return self._add(name, "input", shape, dtype, 0)

    def weight(self, name: str, *shape: int) -> str:
        """A parameter; one copy a layer inside a region."""
        return self._add(name, "weight", shape, None, self._copies)

    def table(self, name: str, *shape: int, dtype: str | None = None) -> str:
        """A constant that is not a parameter, such as rotary tables."""
        return self._add(name, "table", shape, dtype, 0)

    def state(self, name: str, *shape: int) -> str:
        """A value kept between runs; one copy a layer inside a region."""
        return self._add(name, "state", shape, None, self._copies)

    def type(self, name: str) -> TensorType:
        """The type of a value."""
        return self._values[name].type

    def op(self, name: str, op: Op, *inputs: str) -> str:
        """Apply `op`; the result is called like the node."""
        (out,) = op.infer(tuple(self._values[i].type for i in inputs))
        result = self._add(name, "activation", out.shape, out.dtype, 0)
        self._append(Node(result, op, inputs, (result,)))
        return result

    def update(self, name: str, op: Op, state: str, *inputs: str) -> None:
        """Apply `op`, which rewrites its first operand `state` in place."""
        op.infer(tuple(self._values[i].type for i in (state, *inputs)))
        self._append(Node(self._prefix + name, op, (state, *inputs), (state,)))

    def advance(self, name: str, op: Op, state: str, *inputs: str) -> str:
        """Apply `op`, which makes a value and rewrites its first operand `state` in place."""
        out, _ = op.infer(tuple(self._values[i].type for i in (state, *inputs)))
        result = self._add(name, "activation", out.shape, out.dtype, 0)
        self._append(Node(result, op, (state, *inputs), (result, state)))
        return result

    def _append(self, node: Node) -> None:
        (self._nodes if self._region is None else self._region).append(node)

    def repeat(self, name: str, count: int, x: str, body: Callable[[str], str]) -> str:
        """`count` applications of `body`, each with its own weights, as one region."""
        (result,) = self.repeat_all(name, count, (x,), lambda inner: (body(*inner),))
        return result

    def repeat_all(
        self, name: str, count: int, xs: tuple[str, ...], body: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> tuple[str, ...]:
        """The same for several values that are handed from layer to layer."""
        assert self._region is None, f"{self.name}: regions do not nest"
        kinds = [self.type(x) for x in xs]
        ends = [""] if len(xs) == 1 else [str(i) for i in range(len(xs))]

        def each(part: str) -> tuple[str, ...]:
            pairs = zip(ends, kinds, strict=True)
            return tuple(self._add(part + i, "activation", k.shape, k.dtype, 0) for i, k in pairs)

        results = each(f"{name}.out")
        self._region, self._prefix, self._copies = [], f"{name}.", count
        inner = each("in")
        carries = tuple(map(Carry, xs, inner, body(inner), results))
        region = Repeat(name, count, tuple(self._region), carries)
        self._region, self._prefix, self._copies = None, "", 0
        self._nodes.append(region)
        return results

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names inside get `name` as a further prefix: several layers in one region."""
        outer, self._prefix = self._prefix, f"{self._prefix}{name}."
        try:
            yield
        finally:
            self._prefix = outer

    def build(self, outputs: tuple[str, ...], meta: dict[str, int | float | str]) -> Graph:
        """The finished graph."""
        return Graph(
            self.name, tuple(self._values.values()), tuple(self._nodes), outputs, tuple(meta.items())
        )


def linear(b: GraphBuilder, name: str, x: str, features: int, *, bias: bool = False) -> str:
    """`x @ w`, plus a bias if asked."""
    weight = b.weight(f"{name}.weight", b.type(x).shape[1], features)
    if not bias:
        return b.op(name, Linear(), x, weight)
    product = b.op(f"{name}.matmul", Linear(), x, weight)
    return b.op(name, Binary("add"), product, b.weight(f"{name}.bias", features))


def rms_norm(b: GraphBuilder, name: str, x: str, eps: float, *, heads: int = 1) -> str:
    """RmsNorm with its gain; over each of `heads` parts of a row."""
    gain = b.weight(f"{name}.gain", b.type(x).shape[1] // heads)
    return b.op(name, RmsNorm(eps, heads), x, gain)


def layer_norm(b: GraphBuilder, name: str, x: str, eps: float) -> str:
    """LayerNorm with its gain and shift."""
    features = b.type(x).shape[1]
    return b.op(
        name, LayerNorm(eps), x, b.weight(f"{name}.gain", features), b.weight(f"{name}.beta", features)
    )


def gated_mlp(
    b: GraphBuilder, x: str, hidden: int, activation: str, *, bias: bool = False, prefix: str = ""
) -> str:
    """`(act(x @ gate) * (x @ up)) @ down`."""
    gate = b.op(f"{prefix}act", Unary(activation), linear(b, f"{prefix}gate", x, hidden, bias=bias))
    product = b.op(f"{prefix}gated", Binary("mul"), gate, linear(b, f"{prefix}up", x, hidden, bias=bias))
    return linear(b, f"{prefix}down", product, b.type(x).shape[1], bias=bias)


QUICK_GELU = 1.702  # x * sigmoid(1.702 x), as CLIP has it; Hendrycks and Gimpel 2016, section 2


def activated(b: GraphBuilder, name: str, x: str, activation: str) -> str:
    """An activation; `quick_gelu` is made of others."""
    if activation != "quick_gelu":
        return b.op(name, Unary(activation), x)
    gate = b.op(f"{name}.sigmoid", Unary("sigmoid"), b.op(f"{name}.scaled", Scalar("mul", QUICK_GELU), x))
    return b.op(name, Binary("mul"), x, gate)


def mlp(b: GraphBuilder, x: str, hidden: int, activation: str) -> str:
    """`act(x @ fc1 + b1) @ fc2 + b2`."""
    inner = activated(b, "act", linear(b, "fc1", x, hidden, bias=True), activation)
    return linear(b, "fc2", inner, b.type(x).shape[1], bias=True)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Layers with norms in front, as CLIP and Whisper have them."""

    heads: int
    intermediate: int
    activation: str
    eps: float
    key_bias: bool = True

    def layer(self, b: GraphBuilder, x: str, batch: int, *, causal: bool = False) -> str:
        """One layer on `batch` sequences."""
        normed = layer_norm(b, "attn_norm", x, self.eps)
        q, k, v = (
            linear(b, name, normed, b.type(x).shape[1], bias=name != "k" or self.key_bias) for name in "qkv"
        )
        x = b.op("attn_add", Binary("add"), attended(b, q, k, v, batch, self.heads, causal=causal), x)
        return self.wide(b, x)

    def wide(self, b: GraphBuilder, x: str) -> str:
        """The MLP of a layer, with its residual."""
        normed = layer_norm(b, "mlp_norm", x, self.eps)
        return b.op("mlp_add", Binary("add"), mlp(b, normed, self.intermediate, self.activation), x)


def attended(
    b: GraphBuilder, q: str, k: str, v: str, batch: int, heads: int, *, causal: bool = False, prefix: str = ""
) -> str:
    """Attention of as many kv heads as query heads, with output projection."""
    width = b.type(q).shape[1]
    head_dim = width // heads
    attention = Attention(batch, heads, heads, head_dim, causal=causal, scale=head_dim**-0.5)
    return linear(b, f"{prefix}o", b.op(f"{prefix}attention", attention, q, k, v), width, bias=True)


def encoder_attention(b: GraphBuilder, x: str, batch: int, heads: int, *, qkv_bias: bool = True) -> str:
    """Bidirectional self-attention with output projection."""
    q, k, v = (linear(b, name, x, b.type(x).shape[1], bias=qkv_bias) for name in "qkv")
    return attended(b, q, k, v, batch, heads)


def caches(
    b: GraphBuilder, heads: tuple[int, int, int, int], length: int, prefix: str = ""
) -> tuple[str, str]:
    """States for keys and values of `length` positions; `heads` as attention has them, batch first."""
    batch, _, kv_heads, head_dim = heads
    k = b.state(f"{prefix}k_cache", batch, kv_heads, head_dim, length)
    return k, b.state(f"{prefix}v_cache", batch, kv_heads, length, head_dim)


def grown_caches(
    b: GraphBuilder, heads: tuple[int, int, int, int], length: int, tokens: int, k: str, v: str
) -> tuple[str, str]:
    """The same with keys and values of the last `tokens` positions written to them."""
    k_cache, v_cache = caches(b, heads, length)
    b.update("k_write", KvWrite(length - tokens, axis_k=True, tokens=tokens), k_cache, k)
    b.update("v_write", KvWrite(length - tokens, axis_k=False, tokens=tokens), v_cache, v)
    return k_cache, v_cache


def embedded(b: GraphBuilder, name: str, x: str, hidden: int) -> str:
    """What diffusion models are told of time, text as a whole, or guidance: an MLP of two products."""
    inner = b.op(f"{name}.act", Unary("silu"), linear(b, f"{name}.fc1", x, hidden, bias=True))
    return linear(b, f"{name}.fc2", inner, hidden, bias=True)


def step_meta(batch: int, rows: int, latent: int) -> dict[str, int | float | str]:
    """Of one denoising step of `batch` images, each once or twice in `rows`."""
    return {"unit": "steps", "work": batch, "batch": batch, "rows": rows, "latent": latent}
