"""Write the StableHLO files that the tests read: run `python tests/workloads/make_stablehlo_fixtures.py`.

It needs jax, which also computes what the outputs should be, on a CPU in float32. Arguments are seeded.
"""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).parent / "exported"
RNG = np.random.default_rng(0)
HEADS, KV, DIM, WIDTH, HIDDEN, VOCAB = 4, 2, 8, 32, 48, 50


def weight(*shape, scale=0.3):
    return np.asarray(scale * RNG.standard_normal(shape), np.float32)


def layer():
    return {
        "q": weight(WIDTH, HEADS * DIM), "k": weight(WIDTH, KV * DIM), "v": weight(WIDTH, KV * DIM),
        "o": weight(HEADS * DIM, WIDTH), "gate": weight(WIDTH, HIDDEN), "up": weight(WIDTH, HIDDEN),
        "down": weight(HIDDEN, WIDTH), "n1": 1 + weight(WIDTH), "n2": 1 + weight(WIDTH),
    }  # fmt: skip


def rms(x, gain):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * gain


def rotate(x, at):
    """Rotary positions of [batch, seq, heads, features]."""
    turn = at[:, None] / 10000.0 ** (jnp.arange(0, DIM, 2) / DIM)
    cos, sin = jnp.cos(turn)[None, :, None], jnp.sin(turn)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def block(x, p, at, cache=None, position=None):
    """A decoder layer with grouped heads; over a cache of keys and values if there is one."""
    y = rms(x, p["n1"])
    batch, seq, _ = x.shape
    q = rotate((y @ p["q"]).reshape(batch, seq, HEADS, DIM), at)
    k = rotate((y @ p["k"]).reshape(batch, seq, KV, DIM), at)
    v = (y @ p["v"]).reshape(batch, seq, KV, DIM)
    if cache is None:
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    else:
        k = jax.lax.dynamic_update_slice(cache[0], k, (0, position, 0, 0))
        v = jax.lax.dynamic_update_slice(cache[1], v, (0, position, 0, 0))
        counts = (jnp.arange(k.shape[1]) <= position)[None, None, None]
        a = jax.nn.dot_product_attention(q, k, v, mask=counts)
    x = x + a.reshape(batch, seq, -1) @ p["o"]
    y = rms(x, p["n2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], (k, v)


def prefill(params, ids):
    x = params["embed"][ids]
    for i, p in enumerate(params["layers"]):
        with jax.named_scope(f"layers.{i}"):
            x, _ = block(x, p, jnp.arange(ids.shape[1]))
    return rms(x, params["norm"]) @ params["head"]


def scan(params, ids):
    x = params["embed"][ids]
    at = jnp.arange(ids.shape[1])
    x, _ = jax.lax.scan(lambda x, p: (block(x, p, at)[0], None), x, params["stack"])
    return rms(x, params["norm"]) @ params["head"]


def decode(params, ids, position, caches):
    x = params["embed"][ids]
    new = []
    for p, cache in zip(params["layers"], caches, strict=True):
        x, cache = block(x, p, position, cache, position[0])
        new.append(cache)
    return rms(x, params["norm"]) @ params["head"], new


def image_net(params, pixels):
    """Patches, layer norms, fused projections, exact gelu, a softmax, a pool."""
    x = jax.lax.conv_general_dilated(
        pixels, params["patch"], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + params["bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "VALID")
    x = x.reshape(x.shape[0], -1, WIDTH)
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
    y = (y * params["gain"] + params["beta"]) @ params["qkv"]
    q, k, v = jnp.split(y.reshape(*y.shape[:2], 3 * HEADS, DIM), 3, 2)
    x = x + jax.nn.dot_product_attention(q, k, v).reshape(*x.shape[:2], -1)
    x = jax.nn.gelu(x @ params["up"], approximate=False) @ params["down"]
    return jax.nn.softmax(x.mean(1) @ params["head"], -1)


def flattened(tree, name):
    """Arrays by the names that the importer gives them: keys and indices joined by dots."""
    return {
        ".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path) or name: np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def save(name, function, *arguments, names):
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    text = lowered.as_text(debug_info=True)
    (HERE / f"{name}.mlir").write_text(re.sub(r'loc\("/[^"]*/([^"/]+)"', r'loc("\1"', text))
    want = jax.tree_util.tree_leaves(jax.jit(function)(*arguments))[0]
    given = {}
    for label, argument in zip(names, arguments, strict=True):
        given |= flattened(argument, label)
    given = {n: a.astype(np.float32) if a.dtype == jnp.bfloat16 else a for n, a in given.items()}
    np.savez_compressed(HERE / f"{name}.mlir.npz", out=np.asarray(want, np.float32), **given)


def main():
    layers = [layer(), layer(), layer()]
    ends = {"embed": weight(VOCAB, WIDTH), "head": weight(WIDTH, VOCAB), "norm": 1 + weight(WIDTH)}
    ids = RNG.integers(0, VOCAB, (2, 9)).astype(np.int32)
    save("prefill", prefill, {**ends, "layers": layers}, ids, names=("params", "ids"))
    rounded = jax.tree_util.tree_map(lambda a: a.astype(jnp.bfloat16), {**ends, "layers": layers[:1]})
    save("prefill_bf16", prefill, rounded, ids, names=("params", "ids"))
    stack = {key: np.stack([one[key] for one in layers]) for key in layers[0]}
    save("scan", scan, {**ends, "stack": stack}, ids, names=("params", "ids"))
    caches = [(weight(2, 12, KV, DIM), weight(2, 12, KV, DIM)) for _ in layers[:2]]
    save(
        "decode", decode, {**ends, "layers": layers[:2]}, ids[:, :1], np.asarray([7], np.int32), caches,
        names=("params", "ids", "position", "caches"),
    )  # fmt: skip
    params = {
        "patch": weight(3, 3, 3, WIDTH), "bias": weight(WIDTH), "gain": 1 + weight(WIDTH),
        "beta": weight(WIDTH),
        "qkv": weight(WIDTH, 3 * WIDTH), "up": weight(WIDTH, HIDDEN), "down": weight(HIDDEN, WIDTH),
        "head": weight(WIDTH, 5),
    }  # fmt: skip
    save("image_net", image_net, params, weight(2, 11, 9, 3, scale=1.0), names=("params", "pixels"))


if __name__ == "__main__":
    main()
