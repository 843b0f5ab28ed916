"""Families of two parts: CLIP, LLaVA, Whisper and T5."""

from __future__ import annotations

from workloads import clip, llava, t5, whisper
from workloads.blocks import Encoder
from workloads.importers.hf_fields import Config, rope_base
from workloads.request import Request


def _encoder(config: Config, prefix: str = "") -> Encoder:
    """The layers of a tower. transformers' defaults are those of CLIP base."""
    act = str(config.fields.get("hidden_act", "quick_gelu"))
    heads = config.integer("num_attention_heads")
    config.divides("num_attention_heads", heads, "hidden_size", config.integer("hidden_size"))
    return Encoder(
        heads=heads,
        intermediate=config.integer("intermediate_size"),
        activation=act if act == "quick_gelu" else config.activation("hidden_act", "gelu"),
        eps=config.number("layer_norm_eps", 1e-5),
    )


def _vision(config: Config) -> clip.Vision:
    image, patch = config.integer("image_size", 224), config.integer("patch_size")
    config.divides("patch_size", patch, "image_size", image)
    return clip.Vision(
        hidden=config.integer("hidden_size"),
        layers=config.integer("num_hidden_layers"),
        patch=patch,
        channels=config.integer("num_channels", 3),
        image=image,
        encoder=_encoder(config),
    )


def read_clip(config: Config) -> tuple[Request, ...]:
    """Both towers. The scale of the logits, one number, is left out."""
    vision, words = _vision(config.part("vision_config")), config.part("text_config")
    text = clip.Text(
        hidden=words.integer("hidden_size"),
        layers=words.integer("num_hidden_layers"),
        vocab=words.integer("vocab_size", 49408),
        positions=words.integer("max_position_embeddings", 77),
        encoder=_encoder(words),
    )
    model = clip.ClipModel(vision, text, config.integer("projection_dim", 512))
    layers, seq = max(vision.layers, text.layers), text.positions
    return clip.Pairs(model, layers, seq=seq), clip.Images(model, layers), clip.Texts(model, layers, seq=seq)


def read_llava(config: Config) -> tuple[Request, ...]:
    """LLaVA 1.5: features of a late layer of CLIP, two linear layers, a Llama."""
    vision, text = _vision(config.part("vision_config")), config.part("text_config")
    chosen = config.fields.get("vision_feature_layer", -2)
    if not isinstance(chosen, int) or isinstance(chosen, bool) or not -vision.layers <= chosen < 0:
        config.problems.append(f"vision_feature_layer: got {chosen!r}, want -{vision.layers} to -1")
        chosen = -1
    heads, hidden = text.integer("num_attention_heads"), text.integer("hidden_size")
    layers = text.integer("num_hidden_layers")
    kv_heads = text.integer("num_key_value_heads", heads)
    text.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    text.divides("num_attention_heads", heads, "hidden_size", hidden)
    model = llava.LlavaModel(
        hidden=hidden,
        intermediate=text.integer("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=max(1, hidden // heads),
        vocab=text.integer("vocab_size"),
        activation=text.activation("hidden_act", "silu"),
        eps=text.number("rms_norm_eps", 1e-5),
        rope_base=rope_base(text),
        vision=vision,
        vision_layers=vision.layers + chosen + 1,
        projector=config.activation("projector_hidden_act", "gelu"),
    )
    return llava.phases(model, layers)


def read_whisper(config: Config) -> tuple[Request, ...]:
    """Encoder and decoder."""
    hidden = config.integer("d_model")

    def layers(side: str) -> Encoder:
        heads = config.integer(f"{side}_attention_heads")
        config.divides(f"{side}_attention_heads", heads, "d_model", hidden)
        return Encoder(
            heads=heads,
            intermediate=config.integer(f"{side}_ffn_dim"),
            activation=config.activation("activation_function", "gelu"),
            eps=1e-5,
            key_bias=False,
        )

    model = whisper.WhisperModel(
        hidden=hidden,
        mels=config.integer("num_mel_bins", 80),
        encoder_layers=config.integer("encoder_layers"),
        decoder_layers=config.integer("decoder_layers"),
        vocab=config.integer("vocab_size"),
        audio=config.integer("max_source_positions", 1500),
        positions=config.integer("max_target_positions", 448),
        encoder=layers("encoder"),
        decoder=layers("decoder"),
    )
    most, context = model.decoder_layers, min(224, model.positions)
    return (
        whisper.Encode(model, model.encoder_layers),
        whisper.Prefill(model, most),
        whisper.Decode(model, most, context=context),
        whisper.Verify(model, most, context=context),
    )


def read_t5(config: Config) -> tuple[Request, ...]:
    """T5 and its later versions with a gated MLP."""
    act = str(config.fields.get("feed_forward_proj", "relu"))
    gated, name = act.startswith("gated-"), act.removeprefix("gated-")
    kinds = {"relu": "relu", "gelu": "gelu", "silu": "silu"}  # gated-gelu is the tanh form in transformers
    if name not in kinds:
        config.problems.append(f"feed_forward_proj: got {act!r}, want relu, gated-gelu or gated-silu")
    layers = config.integer("num_layers")
    model = t5.T5Model(
        hidden=config.integer("d_model"),
        intermediate=config.integer("d_ff"),
        encoder_layers=layers,
        decoder_layers=config.integer("num_decoder_layers", layers),
        heads=config.integer("num_heads"),
        head_dim=config.integer("d_kv", 64),
        vocab=config.integer("vocab_size"),
        buckets=config.integer("relative_attention_num_buckets", 32),
        far=config.integer("relative_attention_max_distance", 128),
        activation=kinds.get(name, "relu"),
        gated=gated,
        tied=config.flag("tie_word_embeddings", default=True),
        eps=config.number("layer_norm_epsilon", 1e-6),
    )
    most = model.decoder_layers
    return t5.Encode(model, layers), t5.Prefill(model, most), t5.Decode(model, most), t5.Verify(model, most)
