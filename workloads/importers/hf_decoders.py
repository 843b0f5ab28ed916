"""Decoder families that differ from Llama: Gemma, GPT-2 and gpt-oss."""

from __future__ import annotations

from workloads import llama
from workloads.importers.hf_fields import Config, rope_base
from workloads.moe import Experts
from workloads.request import Request

GEMMA3_PATTERN = 6  # every sixth layer sees everything; transformers: Gemma3TextConfig.sliding_window_pattern


def full_every(config: Config, default: int) -> int:
    """The n of which every n-th layer has no window, from `layer_types` or `sliding_window_pattern`."""
    kinds = config.fields.get("layer_types")
    if kinds is None:
        return config.integer("sliding_window_pattern", default)
    names = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or not kinds or any(kind not in names for kind in kinds):
        config.problems.append(f"layer_types: got {kinds!r}, want a list of {' and '.join(names)}")
        return default
    if names[1] not in kinds:
        return 0
    every = kinds.index(names[1]) + 1
    if any((kind == names[1]) != ((i + 1) % every == 0) for i, kind in enumerate(kinds)):
        config.problems.append(f"layer_types: want every {every}th layer, and no other, as {names[1]}")
    return every


def gemma(config: Config) -> tuple[Request, ...]:
    """Gemma 1, 2, and the text model of 3. Their norms multiply by 1 + gain; here the gain holds the 1."""
    version = {"gemma": 1, "gemma2": 2}.get(str(config.fields["model_type"]), 3)
    heads, layers = config.integer("num_attention_heads"), config.integer("num_hidden_layers")
    kv_heads, head_dim = config.integer("num_key_value_heads", heads), config.integer("head_dim", 256)
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    act = "hidden_activation" if config.fields.get("hidden_activation") else "hidden_act"
    pattern = 2 if version == 2 else GEMMA3_PATTERN
    base = rope_base(config) if version < 3 or "rope_theta" in config.fields else 1e6
    model = llama.LlamaModel(
        hidden=config.integer("hidden_size"),
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config.integer("vocab_size"),
        activation=config.activation(act, "gelu_pytorch_tanh"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope_base=base,
        qk_norm=version == 3,
        tied=config.flag("tie_word_embeddings", default=True),
        window=config.integer("sliding_window", 4096) if version > 1 else 0,
        full_every=full_every(config, pattern) if version > 1 else 0,
        local_base=config.number("rope_local_base_freq", 1e4) if version == 3 else 0.0,
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5 if version > 1 else 0.0,
        softcap=_cap(config, "attn_logit_softcapping", 50.0 if version == 2 else 0.0),
        final_softcap=_cap(config, "final_logit_softcapping", 30.0 if version == 2 else 0.0),
        embed_scale=True,
        post_norms=version > 1,
    )
    if head_dim % 2:
        config.problems.append(f"head_dim: got {head_dim}, want an even number")
    return llama.phases(model, layers)


def _cap(config: Config, name: str, default: float) -> float:
    """A soft cap; null is none."""
    if name in config.fields and config.fields[name] is None:
        return 0.0
    return config.number(name, default) if default or name in config.fields else 0.0


def gpt2(config: Config) -> tuple[Request, ...]:
    """GPT-2: learned positions, layer norms, biases, head tied to the embedding."""
    hidden, heads, layers = config.integer("n_embd"), config.integer("n_head"), config.integer("n_layer")
    config.divides("n_head", heads, "n_embd", hidden)
    model = llama.LlamaModel(
        hidden=hidden,
        intermediate=config.integer("n_inner", 4 * hidden),
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=max(1, hidden // heads),
        vocab=config.integer("vocab_size"),
        activation=config.activation("activation_function", "gelu_new"),
        eps=config.number("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        out_bias=True,
        tied=config.flag("tie_word_embeddings", default=True),
        norm="layer",
        gated=False,
        positions=config.integer("n_positions", 1024),
    )
    return llama.phases(model, layers)


def gpt_oss(config: Config) -> tuple[Request, ...]:
    """gpt-oss: sinks, every second layer with a window, biases, experts with a clamped gate."""
    heads, layers = config.integer("num_attention_heads"), config.integer("num_hidden_layers")
    kv_heads, head_dim = config.integer("num_key_value_heads", heads), config.integer("head_dim", 64)
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    count = config.integer("num_local_experts")
    top = config.chosen_experts(count)
    if head_dim % 2:
        config.problems.append(f"head_dim: got {head_dim}, want an even number")
    width, bias = config.integer("intermediate_size"), config.flag("attention_bias", default=True)
    limit = config.number("swiglu_limit", 7.0)
    model = llama.LlamaModel(
        hidden=config.integer("hidden_size"),
        intermediate=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config.integer("vocab_size"),
        activation=config.activation("hidden_act", "silu"),
        eps=config.number("rms_norm_eps", 1e-5),
        rope_base=rope_base(config),
        qkv_bias=bias,
        out_bias=bias,
        tied=config.flag("tie_word_embeddings"),
        window=config.integer("sliding_window", 128),
        full_every=full_every(config, 2),
        experts=Experts(count, top, width, bias=True, limit=limit),
        sinks=True,
    )
    return llama.phases(model, layers)
