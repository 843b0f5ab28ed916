"""`config.json` of diffusers models: U-Nets with cross-attention, and decoders of latents."""

from __future__ import annotations

from workloads import unet
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
