"""Parameter, MAC, FLOP and KV-byte totals of the shipped models against published and closed forms."""

import json
from importlib import resources

import pytest

import workloads
from workloads import MODELS, build

# Sum of parameters as the checkpoints on the Hugging Face hub hold them (transformers: num_parameters).
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-7b": 7_615_616_512,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "clip-vit-b32": 151_277_312,  # and the scale of the logits
    "clip-vit-l14": 427_616_512,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,  # without the 14,848 selection biases, which are no parameters there
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mamba2-2.7b": 2_702_599_680 + 50_288 * 2560,  # tied: our head is the embedding a second time
    "sd15-unet": 859_520_964,
    "sdxl-unet": 2_567_463_684,
    "sd-vae-decoder": 49_490_179 + 20,  # with the 1x1 convolution in front
    "dit-xl2": 675_129_632 - 256 * 1152,  # positions are no weights here: sines, added as a table
    "sd3-medium": 2_028_328_000,
    "flux-dev": 11_901_408_320,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
}


# Models whose head is the embedding: ours keeps it a second time.
TIED = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published(name):
    assert build(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", TIED)
def test_parameters_of_tied_models_are_the_published(name):
    graph = build(f"{name}:decode,context=9")
    assert graph.parameters - dict(graph.meta)["tied_parameters"] == TIED[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [("whisper-tiny", 37_760_640), ("whisper-base", 72_593_920), ("whisper-large-v3", 1_543_490_560)],
)
def test_whisper_is_its_encoder_and_decoder(name, published):
    encoder, decoder = build(f"{name}:encode"), build(f"{name}:prefill")
    tied = dict(decoder.meta)["tied_parameters"]
    assert encoder.parameters + decoder.parameters - tied == published


@pytest.mark.parametrize(
    ("name", "published"), [("t5-small", 60_506_624), ("t5-base", 222_903_552), ("flan-t5-xl", 2_849_757_184)]
)
def test_t5_shares_its_embedding(name, published):
    encoder, decoder = build(f"{name}:encode"), build(f"{name}:prefill")
    shared = 32_128 * config_of(name)["d_model"]
    tied = dict(decoder.meta)["tied_parameters"]
    assert encoder.parameters + decoder.parameters - shared - tied == published


def test_llava_leaves_out_what_is_behind_the_chosen_layer():
    width, wide = 1024, 4096
    layer = 4 * (width * width + width) + 2 * width * wide + wide + width + 4 * width
    assert build("llava-1.5-7b:layers=32").parameters + layer + 2 * width == 7_063_427_072


def test_odd_layers_of_a_pair_are_the_ones_with_a_window():
    layers = [build(f"gemma2-2b:layers={n},seq=16").parameters for n in (1, 2, 3)]
    assert layers[1] - layers[0] == layers[2] - layers[1]
    graph = build("gemma-tiny:layers=3,seq=40")
    windows = [(node.op.window, times) for node, times in graph.walk() if node.op.kind == "attention"]
    assert windows == [(16, 1), (0, 1), (16, 1)]


def test_resnet50_keeps_what_inference_needs_and_tells_the_published_total():
    graph = build("resnet50")
    assert dict(graph.meta)["parameters_published"] == 25_557_032  # torchvision resnet50
    # 26,560 batch-norm channels: inference folds their scales away and keeps their shifts as biases.
    assert graph.parameters == 25_557_032 - 26_560
    assert (
        sum(v.type.elements * max(1, v.stacked) for v in graph.values if v.name.endswith("bias"))
        == 26_560 + 1000
    )
    assert graph.macs == 4_089_184_256  # torchvision resnet50 at 224 (v1.5), head included


# MACs of the matrix ops: counted in programs that torch.export makes of the diffusers models, of which
# Transformer2DModel embeds time and class anew in each of 28 layers and in front of the last product.
@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("sd15-unet", 803_273_441_280),
        ("sd-vae-decoder", 1_257_259_466_752),
        ("sd3-medium:layers=2", 734_388_793_344),
        ("dit-xl2", 237_333_676_032 - 28 * 2 * (256 + 1152) * 1152),
    ],
)
def test_macs_of_diffusion_models_are_those_of_exported_ones(name, macs):
    assert build(name).macs == macs


def test_dit_has_the_published_macs():
    assert (
        round(build("dit-xl2:guidance=0").macs / 1e9, 1) == 118.6
    )  # Peebles and Xie 2023, a MAC counted once


def config_of(name):
    return json.loads((resources.files(workloads) / "configs" / f"{name}.json").read_text())


LLAMAS = [
    name for name in MODELS if config_of(name).get("model_type") in ("llama", "mistral", "qwen2", "qwen3")
]


def llama_sizes(name):
    c = config_of(name)
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    head_dim = c.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, c["num_key_value_heads"] * head_dim
    per_layer = hidden * (2 * q + 2 * kv) + 3 * hidden * c["intermediate_size"]
    return c["num_hidden_layers"], hidden, c["vocab_size"], q, kv, per_layer


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 7), (1, 2048)])
def test_prefill_macs_closed_form(name, batch, seq):
    layers, hidden, vocab, q, _, per_layer = llama_sizes(name)
    pairs = seq * (seq + 1) // 2
    want = layers * (batch * seq * per_layer + 2 * batch * q * pairs) + batch * hidden * vocab
    assert build(f"{name}:prefill,batch={batch},seq={seq}").macs == want


@pytest.mark.parametrize("name", LLAMAS)
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (3, 5), (8, 2048)])
def test_decode_macs_and_cache_closed_form(name, batch, context):
    layers, hidden, vocab, q, kv, per_layer = llama_sizes(name)
    graph = build(f"{name}:decode,batch={batch},context={context}")
    assert graph.macs == batch * (layers * (per_layer + 2 * q * context) + hidden * vocab)
    assert graph.kind_bytes("state") == dict(graph.meta)["kv_bytes"] == 2 * 2 * layers * kv * context * batch
    assert dict(graph.meta)["work"] == batch


@pytest.mark.parametrize("phase", ["prefill,seq=3", "decode,context=3"])
def test_prefill_and_decode_have_the_same_parameters(phase):
    assert build(f"qwen3-8b:{phase}").parameters == PUBLISHED["qwen3-8b"]


def test_cutting_layers_takes_whole_layers():
    graph = build("llama3-8b:prefill,layers=8,seq=16")
    layer = (PUBLISHED["llama3-8b"] - 2 * 128256 * 4096 - 4096) // 32
    assert graph.parameters == PUBLISHED["llama3-8b"] - 24 * layer
    assert len(graph.nodes) == len(build("llama3-8b:prefill,seq=16").nodes)


@pytest.mark.parametrize(
    ("name", "image"), [("vit-b16", 224), ("vit-b16", 384), ("vit-l16", 224), ("vit-tiny", 32)]
)
def test_vit_macs_closed_form(name, image):
    c = config_of(name)
    hidden, wide, patch = c["hidden_size"], c["intermediate_size"], c["patch_size"]
    patches = (image // patch) ** 2
    tokens = patches + 1
    layer = tokens * (4 * hidden * hidden + 2 * hidden * wide) + 2 * tokens * tokens * hidden
    want = patches * 3 * patch * patch * hidden + c["num_hidden_layers"] * layer + hidden * c["num_labels"]
    graph = build(f"{name}:batch=3,image={image}")
    assert graph.macs == 3 * want
    assert dict(graph.meta)["tokens_per_image"] == tokens


def test_bert_macs_closed_form():
    hidden, wide, seq = 768, 3072, 384
    layer = seq * (4 * hidden * hidden + 2 * hidden * wide) + 2 * seq * seq * hidden
    assert build("bert-base:batch=8,seq=384").macs == 8 * (12 * layer + hidden * hidden)


def test_dtype_sets_every_tensor_but_the_indices():
    graph = build("llama-tiny:decode,dtype=fp32")
    assert {v.type.dtype for v in graph.values if v.name != "ids"} == {"fp32"}
    assert dict(graph.meta)["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4


MICRO_MACS = {
    "gemm:m=7,n=1,k=13": 7 * 13,
    "gemm:m=4096,n=4096,k=4096": 4096**3,
    "gemv:n=5,k=11": 55,
    "conv:n=2,c=6,h=9,w=7,k=4,r=3,s=3,stride=2,padding=1,groups=2": 2 * 4 * 5 * 4 * 3 * 9,
    "attention:prefill,batch=2,heads=4,kv_heads=2,seq=5,head_dim=3": 2 * 2 * 4 * 3 * 15,
    "attention:prefill,batch=2,heads=4,kv_heads=2,seq=5,head_dim=3,causal=0": 2 * 2 * 4 * 3 * 25,
    "attention:decode,batch=2,heads=4,kv_heads=2,context=5,head_dim=3": 2 * 2 * 4 * 3 * 5,
    "softmax:rows=3,cols=5": 0,
    "rmsnorm": 0,
    "layernorm": 0,
    "elementwise:func=gelu": 0,
}


@pytest.mark.parametrize("text", MICRO_MACS)
def test_micro_macs(text):
    assert build(text).macs == MICRO_MACS[text]
