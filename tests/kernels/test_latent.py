"""Attention over latents: absorbed it computes the same, the program agrees, and each latent is read once."""

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import CompileOptions, compile_graph, optimise
from compiler.ir.interpret import run_graph
from compiler.ir.reference import random_feeds
from compiler.ops import HeadLinear, LatentAttention, LatentDecode, SharedKeyAttention
from tests.kernels.conftest import agrees, one_op
from tests.kernels.test_moe import bytes_read

ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu")


def attention(batch, heads, nope, rope, latent, value, length, context, queries=1, dtype="bf16"):
    op = LatentAttention(batch, heads, rope, length, (nope + rope) ** -0.5, queries)
    t = batch * queries
    return one_op(
        op, ((t, heads * nope), "input"), ((t, heads * rope), "input"),
        ((batch, 1, latent, context), "state"), ((batch, 1, rope, context), "state"),
        ((latent, heads * nope), "weight"), ((latent, heads * value), "weight"), dtype=dtype,
    )  # fmt: skip


CASES = {
    "one": (1, 4, 32, 16, 64, 32, 50, 50),
    "some": (3, 6, 16, 8, 48, 24, 130, 150),
    "long": (2, 4, 32, 16, 128, 32, 700, 700),
    "many heads": (1, 130, 16, 16, 64, 16, 40, 40),
    "verify": (2, 4, 32, 16, 64, 32, 50, 64, 3),
    "verify across tiles": (1, 4, 32, 16, 64, 32, 129, 140, 4),
    "verify of all": (1, 3, 16, 8, 32, 24, 3, 8, 3),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", CASES)
def test_attention_over_latents(case, arch):
    assert agrees(attention(*CASES[case]), load_arch(arch))


@pytest.mark.parametrize("case", CASES)
def test_absorbed_is_the_same(case):
    graph = attention(*CASES[case], dtype="fp32")
    absorbed = optimise(graph, load_arch("trn2"), CompileOptions())
    assert [node.op.kind for node, _ in absorbed.walk()] == ["head-linear", "latent-decode", "head-linear"]
    feeds = random_feeds(graph)
    want, got = (run_graph(g, feeds, round_storage=False)["y"] for g in (graph, absorbed))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("t", "heads", "k", "n"), [(3, 5, 24, 40), (600, 2, 130, 16), (7, 3, 128, 256)])
def test_a_linear_layer_a_head(t, heads, k, n, turned):
    weight = (n, heads * k) if turned else (k, heads * n)
    graph = one_op(HeadLinear(heads, turned), ((t, heads * k), "input"), (weight, "weight"))
    for arch in ARCHS:
        assert agrees(graph, load_arch(arch))
    feeds = random_feeds(graph)
    x, w = (feeds[name].astype(np.float32) for name in ("v0", "v1"))
    y = run_graph(graph, feeds, round_storage=False)["y"]
    for h in range(heads):
        part = w[:, h * k : (h + 1) * k].T if turned else w[:, h * n : (h + 1) * n]
        np.testing.assert_allclose(
            y[:, h * n : (h + 1) * n], x[:, h * k : (h + 1) * k] @ part, rtol=2e-3, atol=2e-3
        )


def test_each_latent_is_read_once():
    graph = attention(2, 16, 128, 64, 512, 128, 1000, 1024)
    program = compile_graph(graph, load_arch("trn2"))
    assert bytes_read(program, "v2") == 2 * 1000 * 512 * 2
    assert bytes_read(program, "v3") == 2 * 1000 * 64 * 2


def test_products_are_those_of_the_cheaper_way():
    """DeepSeek-V3, one token after 4,096: 128 heads over 512 + 64, and values of 512."""
    graph = attention(1, 128, 128, 64, 512, 128, 4096, 4096)
    assert graph.macs == 512 * 128 * 256 + 128 * 4096 * (2 * 512 + 64)
    absorbed = optimise(graph, load_arch("trn2"), CompileOptions())
    assert absorbed.macs == graph.macs
    short = attention(1, 2, 16, 16, 64, 16, 1, 1)
    assert short.macs == 64 * 2 * 32 + 2 * (32 + 16)


def test_latent_decode_sees_what_each_query_may():
    op = LatentDecode(1, 1, 1, 3, 1.0, 2)
    q, zero = np.zeros((2, 2), np.float32), np.zeros((2, 1), np.float32)
    latents = np.array([[[[3, 6, 9], [0, 0, 6]]]], np.float32)
    (y,) = op.reference(q, zero, latents, np.zeros((1, 1, 1, 3), np.float32))
    np.testing.assert_allclose(y, [[4.5, 0], [6, 2]])


PROMPTS = {
    "short": (2, 3, 16, 8, 33),
    "wide": (1, 2, 128, 64, 140),
    "long": (1, 2, 32, 16, 700),
    "odd": (1, 5, 24, 12, 150),
}


def prompt(batch, heads, head_dim, rope, seq, causal=True):
    op = SharedKeyAttention(batch, heads, heads, head_dim, causal, (head_dim + rope) ** -0.5, rope=rope)
    t, f = batch * seq, heads * head_dim
    own = [((t, f), "input")] * 3
    return one_op(op, *own, ((t, heads * rope), "input"), ((t, rope), "input"))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", PROMPTS)
def test_attention_of_a_prompt_with_shared_rotary_keys(case, arch):
    assert agrees(prompt(*PROMPTS[case]), load_arch(arch))


def test_attention_with_shared_keys_over_many_chunks():
    assert agrees(prompt(1, 1, 32, 16, 1300), load_arch("edge-npu"))
    assert agrees(prompt(1, 1, 16, 16, 300, causal=False), load_arch("trn1"))


def test_shared_rotary_keys_are_keys_of_every_head():
    """Against plain attention on keys put together; values padded with zeros."""
    graph = prompt(2, 3, 8, 4, 5)
    feeds = {name: array.astype(np.float32) for name, array in random_feeds(graph).items()}
    q, k, v, q_rope, k_rope = (feeds[f"v{i}"].reshape(2, 5, -1) for i in range(5))
    (got,) = graph.nodes[0].op.reference(*(feeds[f"v{i}"] for i in range(5)))
    for n in range(2):
        for h in range(3):
            own, turned = slice(h * 8, h * 8 + 8), slice(h * 4, h * 4 + 4)
            scores = (q[n][:, own] @ k[n][:, own].T + q_rope[n][:, turned] @ k_rope[n].T) * 12**-0.5
            for t in range(5):
                p = np.exp(scores[t, : t + 1] - scores[t, : t + 1].max())
                want = p @ v[n][: t + 1, own] / p.sum()
                np.testing.assert_allclose(got[n * 5 + t, own], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("queries", "keys", "window"), [(7, 150, 0), (130, 300, 0), (33, 33, 9)])
def test_shared_rotary_keys_of_more_positions_than_queries(queries, keys, window, arch):
    extent = {"offset": keys - queries, "window": window}
    op = SharedKeyAttention(2, 3, 3, 32, causal=True, scale=48**-0.5, rope=16, **extent)
    q, k = (2 * queries, 96), (2 * keys, 96)
    operands = [(q, "input"), (k, "input"), (k, "input"), ((q[0], 48), "input"), ((k[0], 16), "input")]
    assert agrees(one_op(op, *operands), load_arch(arch))


@pytest.mark.parametrize("arch", ARCHS)
def test_many_queries_make_keys_and_values(arch):
    """A chunk of a prompt: cheaper than with the weights absorbed."""
    graph = attention(2, 4, 32, 16, 64, 32, 90, 100, 80)
    made = optimise(graph, load_arch(arch), CompileOptions())
    kinds = [node.op.kind for node, _ in made.walk()]
    assert kinds == ["cache-rows", "cache-rows", "linear", "linear", "shared-key-attention"]
    assert made.macs == graph.macs
    assert agrees(graph, load_arch(arch))
    feeds = random_feeds(graph)
    want, got = (run_graph(g, feeds, round_storage=False)["y"] for g in (graph, made))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2 * np.abs(want).max())
