"""Every op's reference and MAC count against loops written from its definition."""

import math

import numpy as np
import pytest

from compiler.ir.graph import TensorType
from compiler.ops import (
    OPS,
    AssembleTokens,
    Attention,
    Binary,
    Combine,
    Conv2d,
    DecodeAttention,
    Dispatch,
    Embedding,
    GlobalAvgPool,
    GroupedLinear,
    KvWrite,
    LayerNorm,
    Linear,
    Pool2d,
    Reduce,
    RmsNorm,
    Rope,
    Route,
    Softmax,
    TakeRows,
    Transpose2d,
    Unary,
)
from compiler.ops.elementwise import FUNCTIONS


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run(op, *ins):
    """The reference result, whose shape and type must be the inferred ones."""
    types = tuple(TensorType(a.shape, "int32" if a.dtype.kind == "i" else "bf16") for a in ins)
    (out,), (want,) = op.reference(*ins), op.infer(types)
    assert out.shape == want.shape
    assert out.dtype == np.float32
    return out


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_registry_knows_ops_by_kind():
    assert all(op.kind == kind for kind, op in OPS.items())
    assert OPS["linear"] is Linear


SCALAR_FUNCTIONS = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "exp": math.exp,
    "square": lambda x: x * x,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "abs": abs,
    "negate": lambda x: -x,
    "cos": math.cos,
    "sin": math.sin,
    "log": math.log,
    "erf": math.erf,
    "sign": lambda x: math.copysign(1, x),
    "softplus": lambda x: math.log1p(math.exp(x)),
}


@pytest.mark.parametrize("func", FUNCTIONS)
def test_unary_functions(func):
    x = draw(3, 7)
    if func in ("sqrt", "rsqrt", "reciprocal", "log"):
        x = np.abs(x) + 0.1
    close(run(Unary(func), x), np.vectorize(SCALAR_FUNCTIONS[func])(x.astype(np.float64)))


def test_unary_functions_stay_finite_far_out():
    x = np.array([[-200.0, 200.0]], dtype=np.float32)
    with np.errstate(all="raise"):
        for func in ("sigmoid", "silu", "gelu", "gelu_erf", "tanh", "relu"):
            assert np.isfinite(run(Unary(func), x)).all(), func
    close(run(Unary("silu"), x), [[0.0, 200.0]])


@pytest.mark.parametrize("func", ["add", "sub", "mul", "max", "div"])
@pytest.mark.parametrize("rhs_shape", [(6, 5), (5,), (1, 5), (2, 5), (3, 5)])
def test_binary_repeats_rows(func, rhs_shape):
    lhs, rhs = draw(6, 5), draw(*rhs_shape, seed=1)
    scalar = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "max": max, "div": lambda a, b: a / b,
    }[func]  # fmt: skip
    rows = rhs.reshape(-1, 5)
    want = [[scalar(lhs[t, f], rows[t % len(rows), f]) for f in range(5)] for t in range(6)]
    close(run(Binary(func), lhs, rhs), want)


def test_binary_on_images():
    x, y = draw(2, 3, 4, 5), draw(2, 3, 4, 5, seed=1)
    close(run(Binary("add"), x, y), x + y)


def norm_rows(x, kind, eps):
    out = np.empty_like(x)
    for t, row in enumerate(x):
        mean = sum(row) / len(row) if kind == "layer" else 0.0
        variance = sum((v - mean) ** 2 for v in row) / len(row)
        out[t] = [(v - mean) / math.sqrt(variance + eps) for v in row]
    return out


@pytest.mark.parametrize("width", [1, 7, 64])
def test_norms(width):
    x, gain, beta = draw(3, width), draw(width, seed=1), draw(width, seed=2)
    close(run(RmsNorm(1e-3), x, gain), norm_rows(x, "rms", 1e-3) * gain)
    close(run(LayerNorm(1e-3), x, gain, beta), norm_rows(x, "layer", 1e-3) * gain + beta)


def test_rms_norm_of_each_head():
    x, gain = draw(4, 6), draw(3, seed=1)
    want = np.concatenate(
        [norm_rows(x[:, :3], "rms", 1e-5) * gain, norm_rows(x[:, 3:], "rms", 1e-5) * gain], 1
    )
    close(run(RmsNorm(1e-5, heads=2), x, gain), want)


def test_softmax_and_reductions():
    x = draw(5, 11)
    e = np.exp(x.astype(np.float64))
    close(run(Softmax(), x), e / e.sum(axis=1)[:, None])
    close(run(Softmax(), x + 1000.0), e / e.sum(axis=1)[:, None] * np.ones_like(x))
    close(run(Reduce("add"), x), [[sum(row)] for row in x])
    close(run(Reduce("max"), x), [[max(row)] for row in x])
    close(run(Reduce("mean"), x), [[sum(row) / 11] for row in x])


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 13, 1)])
def test_plain_linear(shape):
    t, k, n = shape
    x, w = draw(t, k), draw(k, n, seed=1)
    want = [[sum(float(x[i, p]) * float(w[p, j]) for p in range(k)) for j in range(n)] for i in range(t)]
    close(run(Linear(), x, w), want)
    types = (TensorType((t, k), "bf16"), TensorType((k, n), "bf16"))
    assert Linear().macs(types) == sum(1 for _ in np.ndindex(t, k, n))


def test_fused_linear_is_the_chain_of_its_parts():
    x, w, up = draw(4, 6), draw(6, 5, seed=1), draw(6, 5, seed=2)
    gain, beta, b, r = draw(6, seed=3), draw(6, seed=4), draw(5, seed=5), draw(4, 5, seed=6)
    normed = norm_rows(x, "layer", 1e-3) * gain + beta
    silu = np.vectorize(SCALAR_FUNCTIONS["silu"])
    op = Linear(norm="layer", eps=1e-3, activation="silu", bias=True, residual=True, scale=0.5)
    assert op.roles == ("x", "w", "gain", "beta", "b", "r")
    close(run(op, x, w, gain, beta, b, r), silu(0.5 * (normed @ w) + b) + r)
    gated = Linear(norm="rms", eps=1e-3, activation="silu", gated=True, bias=True, residual=True)
    assert gated.roles == ("x", "w", "w_up", "gain", "b", "r")
    normed = norm_rows(x, "rms", 1e-3) * gain
    close(run(gated, x, w, up, gain, b, r), silu(normed @ w) * (normed @ up) + b + r)


def attend(q, keys, values, scale):
    """One query over lists of keys and values."""
    scores = [math.exp(scale * float(q @ k)) for k in keys]
    return sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "head_dim", "seq"), [(2, 4, 2, 6, 5), (1, 3, 1, 2, 1)]
)
def test_attention(causal, batch, heads, kv_heads, head_dim, seq):
    t = batch * seq
    q, k, v = (
        draw(t, heads * head_dim),
        draw(t, kv_heads * head_dim, seed=1),
        draw(t, kv_heads * head_dim, seed=2),
    )
    op = Attention(batch, heads, kv_heads, head_dim, causal=causal, scale=0.3)
    want, pairs = np.empty_like(q), 0
    for b, h, i in np.ndindex(batch, heads, seq):
        g = h // (heads // kv_heads)
        cols, mine = slice(g * head_dim, (g + 1) * head_dim), slice(h * head_dim, (h + 1) * head_dim)
        seen = range(i + 1 if causal else seq)
        pairs += len(seen)
        rows = [b * seq + j for j in seen]
        want[b * seq + i, mine] = attend(q[b * seq + i, mine], k[rows, cols], v[rows, cols], 0.3)
    close(run(op, q, k, v), want)
    types = tuple(TensorType(a.shape, "bf16") for a in (q, k, v))
    assert op.macs(types) == 2 * head_dim * pairs  # q.k and p.v for each admitted pair


@pytest.mark.parametrize("length", [1, 4, 7])
def test_decode_attention_sees_only_its_length(length):
    batch, heads, kv_heads, head_dim, context = 2, 4, 2, 3, 7
    q = draw(batch, heads * head_dim)
    k = draw(batch, kv_heads, head_dim, context, seed=1)
    v = draw(batch, kv_heads, context, head_dim, seed=2)
    op = DecodeAttention(batch, heads, kv_heads, head_dim, 0.3, length)
    want = np.empty_like(q)
    for b, h in np.ndindex(batch, heads):
        mine = slice(h * head_dim, (h + 1) * head_dim)
        keys = [k[b, h // 2, :, j] for j in range(length)]
        want[b, mine] = attend(q[b, mine], keys, [v[b, h // 2, j] for j in range(length)], 0.3)
    close(run(op, q, k, v), want)
    assert (
        op.macs(tuple(TensorType(a.shape, "bf16") for a in (q, k, v)))
        == 2 * batch * heads * head_dim * length
    )


def test_kv_write_touches_one_position():
    new = draw(2, 6)
    k, v = draw(2, 3, 2, 5), draw(2, 3, 5, 2)
    k_after, v_after = run(KvWrite(3, axis_k=True), k, new), run(KvWrite(3, axis_k=False), v, new)
    for b, h, d, j in np.ndindex(2, 3, 2, 5):
        want = new[b, h * 2 + d]
        assert k_after[b, h, d, j] == (want if j == 3 else k[b, h, d, j])
        assert v_after[b, h, j, d] == (want if j == 3 else v[b, h, j, d])


STYLES = [(2, 4, "half"), (0, 6, "interleaved"), (4, 0, "interleaved")]


@pytest.mark.parametrize(("first", "rotary", "style"), STYLES)
def test_rope_of_a_part_of_each_head(first, rotary, style):
    op = Rope(heads=2, head_dim=8, seq=3, base=100.0, offset=2, style=style, first=first, rotary=rotary)
    count = rotary or 8 - first
    x, want = draw(6, 16), draw(6, 16)
    for t in range(6):
        for head in range(2):
            for i in range(count // 2):
                a, b = (i, i + count // 2) if style == "half" else (2 * i, 2 * i + 1)
                a, b = head * 8 + first + a, head * 8 + first + b
                angle = (2 + t % 3) * 100.0 ** (-2 * i / count)
                want[t, a] = x[t, a] * math.cos(angle) - x[t, b] * math.sin(angle)
                want[t, b] = x[t, b] * math.cos(angle) + x[t, a] * math.sin(angle)
    tables = op.constants()
    close(run(op, x, tables["cos"], tables["sin"]), want)


def test_rope_turns_pairs_by_position():
    op = Rope(heads=2, head_dim=6, seq=4, base=100.0, offset=3)
    cos, sin = op.constants().values()
    x = draw(8, 12)
    want = np.empty_like(x)
    for t, h, i in np.ndindex(8, 2, 3):
        angle = (3 + t % 4) * 100.0 ** (-2 * i / 6)
        low, high = h * 6 + i, h * 6 + i + 3
        turned = complex(x[t, low], x[t, high]) * complex(math.cos(angle), math.sin(angle))
        want[t, low], want[t, high] = turned.real, turned.imag
    close(run(op, x, cos, sin), want)


CONVS = [
    # n, c, h, w, k, r, s, stride, padding, groups
    (1, 1, 1, 1, 1, 1, 1, 1, 0, 1),
    (2, 3, 7, 5, 4, 3, 3, 1, 1, 1),
    (1, 4, 8, 8, 6, 3, 2, 2, 0, 2),
    (2, 6, 5, 5, 6, 3, 3, 2, 1, 6),
    (1, 3, 8, 8, 5, 4, 4, 4, 0, 1),
    (1, 2, 2, 2, 3, 5, 5, 1, 2, 1),
]


@pytest.mark.parametrize(("n", "c", "h", "w", "k", "r", "s", "stride", "padding", "groups"), CONVS)
def test_conv2d(n, c, h, w, k, r, s, stride, padding, groups):
    x, filters = draw(n, c, h, w), draw(k, c // groups, r, s, seed=1)
    rows, cols = (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1
    want, taps = np.zeros((n, k, rows, cols)), 0
    for i, f, y, z in np.ndindex(n, k, rows, cols):
        for ch, dy, dz in np.ndindex(c // groups, r, s):
            taps += 1
            py, pz = y * stride + dy - padding, z * stride + dz - padding
            if 0 <= py < h and 0 <= pz < w:
                channel = f // (k // groups) * (c // groups) + ch
                want[i, f, y, z] += float(x[i, channel, py, pz]) * float(filters[f, ch, dy, dz])
    op = Conv2d(stride, padding, groups)
    close(run(op, x, filters), want)
    assert op.macs((TensorType(x.shape, "bf16"), TensorType(filters.shape, "bf16"))) == taps
    b, res = draw(k, seed=2), draw(n, k, rows, cols, seed=3)
    fused = Conv2d(stride, padding, groups, activation="relu", bias=True, residual=True)
    close(run(fused, x, filters, b, res), np.maximum(want + b[:, None, None] + res, 0))


def test_pooling():
    x = draw(2, 3, 7, 5)
    want_max, want_mean = np.full((2, 3, 4, 3), -np.inf), np.zeros((2, 3, 4, 3))
    for n, c, y, z, dy, dz in np.ndindex(2, 3, 4, 3, 3, 3):
        py, pz = 2 * y + dy - 1, 2 * z + dz - 1
        if 0 <= py < 7 and 0 <= pz < 5:
            want_max[n, c, y, z] = max(want_max[n, c, y, z], x[n, c, py, pz])
            want_mean[n, c, y, z] += x[n, c, py, pz] / 9
    close(run(Pool2d("max", 3, 2, 1), x), want_max)
    close(run(Pool2d("mean", 3, 2, 1), x), want_mean)
    close(run(GlobalAvgPool(), x), [[x[n, c].sum() / 35 for c in range(3)] for n in range(2)])


def test_data_movement():
    ids, table = np.array([2, 0, 2], dtype=np.int32), draw(3, 4)
    close(run(Embedding(), ids, table), [table[2], table[0], table[2]])
    x = draw(6, 4)
    close(run(TakeRows(3, -1), x), x[[2, 5]])
    close(run(TakeRows(3, 0), x), x[[0, 3]])
    close(run(TakeRows(2, 1), x), x[[1, 3, 5]])
    close(run(Transpose2d(), x), x.T)
    images, cls, pos = draw(2, 4, 2, 3), draw(4, seed=1), draw(7, 4, seed=2)
    want = [
        (cls if t == 0 else images[n, :, (t - 1) // 3, (t - 1) % 3]) + pos[t]
        for n in range(2)
        for t in range(7)
    ]
    close(run(AssembleTokens(), images, cls, pos), want)


def test_movement_counts_no_flops():
    bf16 = TensorType((4, 6), "bf16")
    assert Transpose2d().flops((bf16,)) == TakeRows(2, 0).flops((bf16,)) == 0
    assert Embedding().flops((TensorType((4,), "int32"), bf16)) == 0
    cache = TensorType((4, 3, 2, 9), "bf16")
    assert KvWrite(0, axis_k=True).flops((cache, bf16)) == 0


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalise", [False, True])
def test_route(score, normalise):
    op = Route((2, 1, 0, 3), 2, score, normalise, scale=2.5)
    logits, tables = draw(3, 4), op.constants()
    (got,) = op.reference(logits, tables["chosen"], tables["index"])
    for t in range(3):
        if score == "softmax":
            total = sum(math.exp(v) for v in logits[t])
            scores = [math.exp(v) / total for v in logits[t]]
        else:
            scores = [1 / (1 + math.exp(-v)) for v in logits[t]]
        mine = [scores[e] for e in tables["chosen"][t]]
        whole = sum(mine) if normalise else 1.0
        close(got[t], [2.5 * v / whole for v in mine])
    assert op.flops((TensorType((3, 4), "bf16"),) * 3) == 12 + 18


def test_experts_are_the_weighted_sum_of_what_each_makes_of_its_tokens():
    counts, top = (2, 1, 0, 3), 2
    rows = (2, 1, 0, 3)
    dispatch, combine = Dispatch(counts, top), Combine(counts, top)
    x, w, w_up, b = draw(3, 5), draw(4, 5, 6), draw(4, 5, 6, seed=1), draw(4, 6)
    gates, (source,), (slot,) = draw(3, 2), dispatch.constants().values(), combine.constants().values()
    chosen = Route(counts, top).constants()["chosen"]
    layer = GroupedLinear(rows, activation="relu", gated=True, bias=True)
    sorted_rows = run(dispatch, x, source)
    got = run(combine, run(layer, sorted_rows, w, w_up, b), gates, slot)
    for t in range(3):
        want = sum(
            gates[t, j] * (np.maximum(x[t] @ w[e], 0) * (x[t] @ w_up[e]) + b[e])
            for j, e in enumerate(chosen[t])
        )
        close(got[t], want)
    types = (TensorType((6, 5), "bf16"), TensorType((4, 5, 6), "bf16"))
    assert layer.macs(types) == 2 * 6 * 5 * 6
    assert GroupedLinear(rows, padding=1).macs(types) == 5 * 5 * 6  # rows of no token count for nothing
    plain = run(GroupedLinear(rows, activation="relu", bias=True), sorted_rows, w, b)
    close(plain[2], np.maximum(sorted_rows[2] @ w[1] + b[1], 0))
