"""Counting mistakes that simulators in the field make: MACs, FLOPs, parameters, KV bytes."""

import pytest

from compiler.ir.graph import TensorType
from compiler.ops import OPS, Attention, DecodeAttention, KvWrite, LayerNorm, Linear, RmsNorm
from workloads import WorkloadError, build


def conv_macs(**keys):
    return build("conv:" + ",".join(f"{k}={v}" for k, v in keys.items())).macs


def test_U019_depthwise_and_grouped_convolutions_are_not_dense():
    layer = {"c": 32, "k": 32, "h": 112, "w": 112}
    dense = 32 * 32 * 9 * 112 * 112
    assert conv_macs(**layer, groups=32) == 3_612_672 == dense // 32
    assert conv_macs(**layer, groups=4) == dense // 4
    assert conv_macs(**layer) == dense


def test_U019_mobilenet_v1_total():
    """569 million mult-adds (Howard et al. 2017, table 4: 1.0 MobileNet-224)."""
    blocks = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    size, total = 112, conv_macs(c=3, k=32, h=224, w=224, stride=2)
    for c, k, stride in blocks:
        total += conv_macs(c=c, k=c, h=size, w=size, stride=stride, groups=c)
        size //= stride
        total += conv_macs(c=c, k=k, h=size, w=size, r=1, s=1, padding=0)
    total += build("gemm:m=1,k=1024,n=1000").macs
    assert total == 568_740_352


@pytest.mark.parametrize(("model", "per_token"), [("llama3-8b", 131_072), ("llama3-70b", 327_680)])
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (8, 2048), (16, 4096)])
def test_U020_cache_holds_kv_heads_not_query_heads(model, per_token, batch, context):
    graph = build(f"{model}:decode,batch={batch},context={context}")
    assert graph.kind_bytes("state") == per_token * context * batch
    values = graph.value_map()
    read = sum(
        times * values[name].type.nbytes
        for node, times in graph.walk() if isinstance(node.op, DecodeAttention) for name in node.inputs[1:]
    )  # fmt: skip
    assert read == per_token * context * batch


def test_U026_prefill_work_grows_with_the_tokens():
    lengths = (1, 128, 512, 2048, 8192)
    macs = [build(f"llama3-8b:prefill,seq={s}").macs for s in lengths]
    assert macs == sorted(set(macs))
    head = 4096 * 128_256
    linear = 8_030_261_248 - 2 * head - (2 * 32 + 1) * 4096  # parameters of the layers' matrices
    for seq, got in zip(lengths, macs, strict=True):
        assert got == seq * linear + 32 * 4096 * seq * (seq + 1) + head


def test_U026_one_prompt_token_is_one_decode_step():
    prefill, decode = build("llama3-8b:prefill,seq=1"), build("llama3-8b:decode,context=1")
    assert prefill.macs == decode.macs
    assert prefill.parameters == decode.parameters
    work = [
        [n.op.kind for n, _ in g.walk() if not isinstance(n.op, (Attention, DecodeAttention, KvWrite))]
        for g in (prefill, decode)
    ]
    assert work[0] == work[1]


@pytest.mark.parametrize("n", range(1, 10))
def test_U059_a_dense_layer_counts_its_flops_for_any_batch(n):
    ins = (TensorType((n, 73), "fp32"), TensorType((73, 256), "fp32"))
    assert Linear().flops(ins) == 37_376 * n
    assert Linear(bias=True).flops((*ins, TensorType((256,), "fp32"))) == 37_376 * n + 256 * n
    assert build(f"gemm:m={n},k=73,n=256").flops == 37_376 * n


def test_U059_no_op_is_opaque():
    """Each op that contracts says its MACs; there is no call whose inside is not counted."""
    contracting = {kind for kind, op in OPS.items() if "macs" in vars(op)}
    assert contracting >= {"linear", "attention", "decode-attention", "conv2d"}


@pytest.mark.parametrize(("image", "tokens"), [(224, 197), (384, 577)])
def test_U061_vit_counts_its_real_tokens(image, tokens):
    graph = build(f"vit-b16:batch=2,image={image}")
    assert dict(graph.meta)["tokens_per_image"] == tokens
    assert graph.value_map()["layer.in"].type.shape == (2 * tokens, 768)
    layer = tokens * (4 * 768 * 768 + 2 * 768 * 3072) + 2 * tokens * tokens * 768
    assert graph.macs == 2 * (768 * 768 * (tokens - 1) + 12 * layer + 768 * 1000)
    assert graph.parameters == 86_567_656 + (tokens - 197) * 768


KV_BYTES = {
    "llama2-7b": 2 * 2 * 32 * 32 * 128,
    "llama3-8b": 131_072,
    "llama3-70b": 327_680,
    "llama3-405b": 2 * 2 * 126 * 8 * 128,
    "mistral-7b": 131_072,
    "qwen3-8b": 2 * 2 * 36 * 8 * 128,
}


@pytest.mark.parametrize("model", KV_BYTES)
def test_U086_kv_bytes_follow_the_model(model):
    for phase in ("prefill,seq=5", "decode,context=5"):
        meta = dict(build(f"{model}:{phase},batch=3").meta)
        assert meta["kv_bytes_per_token"] == KV_BYTES[model]
        assert meta["kv_bytes"] == KV_BYTES[model] * 15
    fp32 = build(f"{model}:decode,context=5,dtype=fp32")
    assert fp32.kind_bytes("state") == 2 * 5 * KV_BYTES[model]


def test_U086_a_split_that_is_not_available_is_refused_not_ignored():
    with pytest.raises(WorkloadError, match="tp: got 8, want 1"):
        build("llama3-70b:decode,tp=8")


@pytest.mark.parametrize(
    ("model", "parameters", "layers", "norm", "per_norm"),
    [("llama3-8b", 8_030_261_248, 32, RmsNorm, 4096), ("vit-b16", 86_567_656, 12, LayerNorm, 2 * 768)],
)
def test_U097_every_layer_has_both_norms(model, parameters, layers, norm, per_norm):
    graph = build(model)
    assert graph.parameters == parameters
    assert sum(times for node, times in graph.walk() if isinstance(node.op, norm)) == 2 * layers + 1
    held = sum(
        v.type.elements * max(1, v.stacked) for v in graph.values if "norm" in v.name and v.kind == "weight"
    )
    assert held == (2 * layers + 1) * per_norm


@pytest.mark.parametrize(
    "text", ["gemm:m=3,n=5,k=7", "conv:c=4,k=6,groups=2", "attention:seq=9", "attention:decode,context=9"]
)
def test_U112_one_mac_is_two_flops(text):
    graph = build(text)
    assert graph.flops == 2 * graph.macs > 0
