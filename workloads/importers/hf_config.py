"""Hugging Face `config.json` -> Workload: the model's shape is all that timing needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from compiler.ops.moe import SCORES
from workloads import bert, deepseek, llama, mamba, resnet, vit
from workloads.errors import WorkloadError, nearest
from workloads.importers.diffusers_config import read_dit, read_flux, read_sd3, read_unet, read_vae
from workloads.importers.hf_decoders import gemma, gpt2, gpt_oss
from workloads.importers.hf_fields import Config, rope_base
from workloads.importers.hf_multimodal import read_clip, read_llava, read_t5, read_whisper
from workloads.moe import Experts
from workloads.request import Request, Workload


def _llama(config: Config) -> tuple[Request, ...]:
    family = str(config.fields["model_type"])
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers")
    kv_heads = config.integer("num_key_value_heads", heads)
    config.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    if config.fields.get("head_dim") is None:
        config.divides("num_attention_heads", heads, "hidden_size", hidden)
    qkv_bias = config.flag("attention_bias", default=family.startswith("qwen2"))
    experts = _experts(config, family)
    model = llama.LlamaModel(
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.integer("head_dim", max(1, hidden // heads)),
        vocab=config.integer("vocab_size"),
        activation=config.activation("hidden_act", "silu"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope_base=rope_base(config),
        qkv_bias=qkv_bias,
        out_bias=qkv_bias and not family.startswith("qwen2"),  # qwen2: biases on q, k and v only
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tied=config.flag("tie_word_embeddings"),
        window=_window(config, family),
        experts=experts,
    )
    if model.head_dim % 2:
        config.problems.append(f"head_dim: got {model.head_dim}, want an even number")
    return llama.phases(model, layers)


def _experts(config: Config, family: str) -> Experts | None:
    """The experts of a family that has them in every layer."""
    shared = 0
    if family == "mixtral":
        count, hidden = config.integer("num_local_experts"), config.integer("intermediate_size")
        normalise = True
    elif family in ("qwen2_moe", "qwen3_moe"):
        count, hidden = config.integer("num_experts"), config.integer("moe_intermediate_size")
        normalise = config.flag("norm_topk_prob")
        if config.integer("decoder_sparse_step", 1) != 1 or config.fields.get("mlp_only_layers"):
            config.problems.append("decoder_sparse_step, mlp_only_layers: want experts in every layer")
        if family == "qwen2_moe":
            shared = config.integer("shared_expert_intermediate_size")
    else:
        return None
    top = config.chosen_experts(count)
    gated = family == "qwen2_moe"
    return Experts(count, top, hidden, shared, normalise=normalise, shared_gate=gated)


def _window(config: Config, family: str) -> int:
    """Sliding-window length, 0 for none; qwen keeps a number there that it does not use."""
    if config.fields.get("sliding_window") is None:
        return 0
    if family.startswith("qwen") and not config.flag("use_sliding_window"):
        return 0
    return config.integer("sliding_window", 0)


def _vit(config: Config) -> tuple[Request, ...]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers, image = config.integer("num_hidden_layers"), config.integer("image_size", 224)
    patch = config.integer("patch_size", 16)
    config.divides("num_attention_heads", heads, "hidden_size", hidden)
    config.divides("patch_size", patch, "image_size", image)
    model = vit.VitModel(
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        patch=patch,
        channels=config.integer("num_channels", 3),
        labels=config.labels(),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.number("layer_norm_eps", 1e-12),
        qkv_bias=config.flag("qkv_bias", default=True),
    )
    return (vit.Forward(model, layers, image=image),)


def _bert(config: Config) -> tuple[Request, ...]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers, positions = config.integer("num_hidden_layers"), config.integer("max_position_embeddings")
    config.divides("num_attention_heads", heads, "hidden_size", hidden)
    if config.fields.get("position_embedding_type", "absolute") != "absolute":
        config.problems.append("position_embedding_type: want 'absolute'")
    model = bert.BertModel(
        hidden=hidden,
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        vocab=config.integer("vocab_size"),
        positions=positions,
        types=config.integer("type_vocab_size", 2),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.number("layer_norm_eps", 1e-12),
    )
    return (bert.Forward(model, layers, seq=min(384, positions)),)


def _resnet(config: Config) -> tuple[Request, ...]:
    widths, depths = config.integers("hidden_sizes"), config.integers("depths")
    if len(widths) != len(depths):
        config.problems.append(f"depths: got {len(depths)} stages, want {len(widths)} as in hidden_sizes")
    block = config.fields.get("layer_type", "bottleneck")
    if block not in ("bottleneck", "basic"):
        config.problems.append(f"layer_type: got {block!r}, want 'bottleneck' or 'basic'")
    if config.flag("downsample_in_bottleneck"):
        config.problems.append("downsample_in_bottleneck: got true, want false (the stride is in the 3x3)")
    image = config.integer("image_size", 224)
    model = resnet.ResnetModel(
        stem=config.integer("embedding_size", 64),
        widths=widths,
        depths=depths,
        channels=config.integer("num_channels", 3),
        labels=config.labels(),
        reduction=4 if block == "bottleneck" else 0,
        downsample_first=config.flag("downsample_in_first_stage"),
        activation=config.activation("hidden_act", "relu"),
    )
    return (resnet.Forward(model, image=image),)


def _deepseek(config: Config) -> tuple[Request, ...]:
    family = str(config.fields["model_type"])
    layers, dense = config.integer("num_hidden_layers"), config.fields.get("first_k_dense_replace", 0)
    if not isinstance(dense, int) or isinstance(dense, bool) or not 0 <= dense < layers:
        config.problems.append(f"first_k_dense_replace: got {dense!r}, want 0 to {layers - 1}")
        dense = 0
    if config.integer("moe_layer_freq", 1) != 1:
        config.problems.append("moe_layer_freq: want 1")
    width, count = config.integer("moe_intermediate_size"), config.integer("n_routed_experts")
    top = config.chosen_experts(count)
    is_v3 = family == "deepseek_v3"
    score = str(config.fields.get("scoring_func", "sigmoid" if is_v3 else "softmax"))
    if score not in SCORES:
        config.problems.append(f"scoring_func: got {score!r}, want one of: {', '.join(SCORES)}")
    shared = config.integer("n_shared_experts") if config.fields.get("n_shared_experts") else 0
    experts = Experts(
        count=count,
        top=top,
        hidden=width,
        shared=width * shared,
        score=score,
        normalise=config.flag("norm_topk_prob", default=is_v3),
        scale=config.number("routed_scaling_factor", 2.5 if is_v3 else 1.0),
    )
    heads = config.integer("num_attention_heads")
    model = deepseek.MlaModel(
        hidden=config.integer("hidden_size"),
        intermediate=config.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=config.integer("v_head_dim"),
        vocab=config.integer("vocab_size"),
        activation=config.activation("hidden_act", "silu"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope_base=rope_base(config),
        tied=config.flag("tie_word_embeddings"),
        experts=experts,
        q_latent=config.integer("q_lora_rank") if config.fields.get("q_lora_rank") else 0,
        latent=config.integer("kv_lora_rank"),
        nope=config.integer("qk_nope_head_dim"),
        rope=config.integer("qk_rope_head_dim"),
        dense=dense,
    )
    if model.rope % 2:
        config.problems.append(f"qk_rope_head_dim: got {model.rope}, want an even number")
    if model.nope != model.head_dim:
        config.problems.append(f"v_head_dim: got {model.head_dim}, want qk_nope_head_dim={model.nope}")
    return llama.phases(model, layers)


def _mamba2(config: Config) -> tuple[Request, ...]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads")
    head_dim, groups = config.integer("head_dim", 64), config.integer("n_groups", 1)
    layers, expand = config.integer("num_hidden_layers"), config.integer("expand", 2)
    if heads * head_dim != hidden * expand:
        want = f"want heads that make expand * hidden_size={hidden * expand}"
        config.problems.append(f"num_heads: got {heads} of {head_dim}, {want}")
    config.divides("n_groups", groups, "num_heads", heads)
    if not config.flag("use_conv_bias", default=True):
        config.problems.append("use_conv_bias: want true")
    model = mamba.MambaModel(
        hidden=hidden,
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=config.integer("state_size", 128),
        kernel=config.integer("conv_kernel", 4),
        vocab=config.integer("vocab_size"),
        chunk=config.integer("chunk_size", 256),
        activation=config.activation("hidden_act", "silu"),
        eps=config.number("layer_norm_epsilon", 1e-5),
        proj_bias=config.flag("use_bias"),
        tied=config.flag("tie_word_embeddings"),
    )
    return mamba.Prefill(model, layers), mamba.Decode(model, layers)


FAMILIES: dict[str, Callable[[Config], tuple[Request, ...]]] = {
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "gemma": gemma,
    "gemma2": gemma,
    "gemma3_text": gemma,
    "gpt2": gpt2,
    "gpt_oss": gpt_oss,
    "mixtral": _llama,
    "qwen2_moe": _llama,
    "qwen3_moe": _llama,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "mamba2": _mamba2,
    "clip": read_clip,
    "llava": read_llava,
    "whisper": read_whisper,
    "t5": read_t5,
    "vit": _vit,
    "bert": _bert,
    "resnet": _resnet,
    "UNet2DConditionModel": read_unet,
    "AutoencoderKL": read_vae,
    "Transformer2DModel": read_dit,
    "DiTTransformer2DModel": read_dit,
    "SD3Transformer2DModel": read_sd3,
    "FluxTransformer2DModel": read_flux,
}


def read_config(name: str, text: str) -> Workload:
    """The workload called `name` that the text of a `config.json` describes."""
    twice: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        twice.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)
        return dict(pairs)

    try:
        fields = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{name}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise WorkloadError(f"{name}: got values nested too deep to read, want a config.json") from error
    except ValueError as error:  # a number of thousands of digits
        raise WorkloadError(f"{name}: not JSON: {error}") from error
    if twice:
        raise WorkloadError("\n".join(f"{name}: {key}: got the key twice, want it once" for key in twice))
    if not isinstance(fields, dict):
        raise WorkloadError(f"{name}: got a {type(fields).__name__}, want an object")
    family = fields.get("model_type", fields.get("_class_name"))  # the second: diffusers
    if not isinstance(family, str) or family not in FAMILIES:
        hint = nearest(family, FAMILIES) if isinstance(family, str) else ""
        raise WorkloadError(f"{name}: model_type: got {family!r}, want one of: {', '.join(FAMILIES)}{hint}")
    config = Config(fields)
    requests = FAMILIES[family](config)
    if fields.get("quantization_config") is not None:
        config.problems.append("quantization_config: not modelled; remove it and choose dtype=...")
    if config.problems:
        raise WorkloadError("\n".join(f"{name}: {problem}" for problem in config.problems))
    return Workload(name, f"{family} model from {name}", requests)


def load_config(path: Path) -> Workload:
    """The workload that the `config.json` at `path` describes, called by its path."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text") from error
    return read_config(str(path), text)
