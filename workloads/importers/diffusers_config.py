"""`config.json` of diffusers models: U-Nets, diffusion transformers, and decoders of latents."""

from __future__ import annotations

from workloads import dit, unet
from workloads.importers.hf_fields import Config
from workloads.request import Request

DOWN = ("CrossAttnDownBlock2D", "DownBlock2D")
EXTRA = {None: 0, "text_time": 1}


def read_unet(config: Config) -> tuple[Request, ...]:
    """`UNet2DConditionModel` of Stable Diffusion 1, 2 and XL."""
    widths = config.integers("block_out_channels")
    kinds = config.fields.get("down_block_types", [])
    if not isinstance(kinds, list) or any(kind not in DOWN for kind in kinds) or len(kinds) != len(widths):
        config.problems.append(f"down_block_types: got {kinds!r}, want {len(widths)} of: {', '.join(DOWN)}")
        kinds = [DOWN[0]] * len(widths)
    depths = _each(config, "transformer_layers_per_block", len(widths), 1)
    added = config.fields.get("addition_embed_type")
    if added not in EXTRA:
        config.problems.append(f"addition_embed_type: got {added!r}, want null or 'text_time'")
    model = unet.UnetModel(
        widths=widths,
        depths=tuple(d if kind == DOWN[0] else 0 for d, kind in zip(depths, kinds, strict=True)),
        # diffusers calls the number of heads their dimension: huggingface/diffusers issue 2011
        heads=_each(config, "attention_head_dim", len(widths), 8),
        resnets=config.integer("layers_per_block", 2),
        context=config.integer("cross_attention_dim"),
        channels=config.integer("in_channels", 4),
        groups=config.integer("norm_num_groups", 32),
        added=config.integer("projection_class_embeddings_input_dim") if added else 0,
    )
    for width, heads in zip(model.widths, model.heads, strict=True):
        config.divides("attention_head_dim", heads, "block_out_channels", width)
        config.divides("norm_num_groups", model.groups, "block_out_channels", width)
    return (unet.Denoise(model, latent=config.integer("sample_size", 64)),)


def read_vae(config: Config) -> tuple[Request, ...]:
    """The decoder of an `AutoencoderKL`."""
    model = unet.VaeModel(
        widths=config.integers("block_out_channels"),
        resnets=config.integer("layers_per_block", 2),
        latent_channels=config.integer("latent_channels", 4),
        channels=config.integer("out_channels", 3),
        groups=config.integer("norm_num_groups", 32),
    )
    for width in model.widths:
        config.divides("norm_num_groups", model.groups, "block_out_channels", width)
    return (unet.DecodeImage(model),)


def _each(config: Config, name: str, count: int, default: int) -> tuple[int, ...]:
    """A number for each stage, or one for all."""
    if isinstance(config.fields.get(name), list):
        found = config.integers(name)
        if len(found) != count:
            config.problems.append(f"{name}: got {len(found)} numbers, want {count}, one a stage")
            return (default,) * count
        return found
    return (config.integer(name, default),) * count


def read_dit(config: Config) -> tuple[Request, ...]:
    """`Transformer2DModel` with `ada_norm_zero`, or `DiTTransformer2DModel`: DiT told a class."""
    _only(config, "norm_type", "ada_norm_zero")
    _only(config, "activation_fn", "gelu-approximate")
    heads = config.integer("num_attention_heads")
    channels = config.integer("in_channels", 4)
    model = dit.DitModel(
        hidden=heads * config.integer("attention_head_dim"),
        heads=heads,
        layers=config.integer("num_layers"),
        patch=config.integer("patch_size", 2),
        channels=channels,
        out_channels=config.integer("out_channels", channels),
        classes=config.integer("num_embeds_ada_norm", 1000),
    )
    return (dit.DitStep(model, model.layers, latent=config.integer("sample_size", 32)),)


def read_sd3(config: Config) -> tuple[Request, ...]:
    """`SD3Transformer2DModel` without layers of twofold attention (those are in SD3.5 medium)."""
    if config.fields.get("dual_attention_layers"):
        config.problems.append("dual_attention_layers: not modelled; want none")
    qk_norm = config.fields.get("qk_norm")
    if qk_norm not in (None, "rms_norm"):
        config.problems.append(f"qk_norm: got {qk_norm!r}, want null or 'rms_norm'")
    channels = config.integer("in_channels", 16)
    _only(config, "out_channels", channels)
    heads = config.integer("num_attention_heads")
    model = dit.MmditModel(
        hidden=heads * config.integer("attention_head_dim", 64),
        heads=heads,
        layers=config.integer("num_layers"),
        text=config.integer("joint_attention_dim", 4096),
        pooled=config.integer("pooled_projection_dim", 2048),
        channels=channels,
        patch=config.integer("patch_size", 2),
        qk_norm=qk_norm is not None,
    )
    _only(config, "caption_projection_dim", model.hidden)
    return (dit.Sd3Step(model, model.layers, latent=config.integer("sample_size", 128)),)


def read_flux(config: Config) -> tuple[Request, ...]:
    """`FluxTransformer2DModel`; its rows are 2 x 2 pixels of the latents."""
    _only(config, "patch_size", 1)
    channels = config.integer("in_channels", 64)
    if config.fields.get("out_channels") is not None:
        _only(config, "out_channels", channels)
    dim = config.integer("attention_head_dim", 128)
    axes = config.integers("axes_dims_rope") if "axes_dims_rope" in config.fields else (16, 56, 56)
    if len(axes) != 3 or sum(axes) != dim or any(axis % 2 for axis in axes):
        config.problems.append(f"axes_dims_rope: got {list(axes)}, want 3 even numbers with the sum {dim}")
        axes = (0, 0, 0)
    heads = config.integer("num_attention_heads", 24)
    model = dit.MmditModel(
        hidden=heads * dim,
        heads=heads,
        layers=config.integer("num_layers", 19),
        text=config.integer("joint_attention_dim", 4096),
        pooled=config.integer("pooled_projection_dim", 768),
        channels=channels,
        patch=2,
        singles=config.integer("num_single_layers", 38),
        axes=(axes[0], axes[1], axes[2]),
        qk_norm=True,
        told_guidance=config.flag("guidance_embeds"),
    )
    return (dit.FluxStep(model, model.layers, model.singles),)


def _only(config: Config, name: str, want: int | str) -> None:
    """The field, if there, has the one value that is modelled."""
    got = config.fields.get(name, want)
    if got != want:
        config.problems.append(f"{name}: got {got!r}, want {want!r}")
