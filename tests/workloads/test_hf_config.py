"""Reading Hugging Face configurations as users have them."""

import json

import pytest

from compiler.ir.verify_graph import verify_graph
from compiler.ops import Attention, Binary, Rope, Unary
from workloads import WorkloadError, build

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 80,
    "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    def write(**fields):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields))
        return str(path)

    return write


def problem(text):
    with pytest.raises(WorkloadError) as error:
        build(text)
    return str(error.value)


def llama_total(layers, h, i, v, q, kv, extra=0):
    return 2 * v * h + h + layers * (h * (2 * q + 2 * kv) + 3 * h * i + 2 * h + extra)


def test_a_path_builds_like_a_name(config):
    path = config(**LLAMA)
    graph = build(f"{path}:decode,batch=2,context=5,layers=2")
    verify_graph(graph)
    assert graph.name == f"{path}:decode,layers=2,batch=2,context=5,dtype=bf16"
    assert build(path).parameters == llama_total(3, 48, 80, 100, 48, 48)  # kv heads default to heads


def test_qwen2_has_biases_on_q_k_v_only(config):
    path = config(**LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2})
    graph = build(path)
    verify_graph(graph)
    assert graph.parameters == llama_total(3, 48, 80, 100, 48, 24, extra=48 + 24 + 24)


def test_qwen3_norms_queries_and_keys_of_its_own_head_size(config):
    path = config(**LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 32})
    graph = build(path + ":decode,context=3")
    verify_graph(graph)
    assert graph.parameters == llama_total(3, 48, 80, 100, 128, 64, extra=2 * 32)


def test_llama_with_all_biases(config):
    path = config(**LLAMA | {"attention_bias": True, "mlp_bias": True})
    assert build(path).parameters == llama_total(3, 48, 80, 100, 48, 48, extra=4 * 48 + 2 * 80 + 48)


def test_tied_embeddings_are_told(config):
    graph = build(config(**LLAMA | {"tie_word_embeddings": True}))
    assert dict(graph.meta)["tied_parameters"] == 100 * 48
    assert graph.parameters - 100 * 48 == llama_total(3, 48, 80, 100, 48, 48) - 100 * 48


@pytest.mark.parametrize("fields", [{"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0}}])
def test_rotary_base(config, fields):
    ropes = [node.op for node, _ in build(config(**LLAMA, **fields)).walk() if isinstance(node.op, Rope)]
    assert {rope.base for rope in ropes} == {500.0}


def test_a_sliding_window_is_that_of_every_layer(config):
    path = config(**LLAMA | {"model_type": "mistral", "sliding_window": 64})
    short, long = (build(f"{path}:seq={seq}") for seq in (64, 100))
    windows = {node.op.window for node, _ in long.walk() if isinstance(node.op, Attention)}
    assert windows == {64}
    pairs = {seq: sum(min(64, i + 1) for i in range(seq)) for seq in (64, 100)}
    rows = 3 * (48 * 4 * 48 + 3 * 48 * 80)
    for graph, seq in ((short, 64), (long, 100)):
        assert graph.macs == seq * rows + 3 * 2 * 48 * pairs[seq] + 48 * 100
    decode = build(f"{path}:decode,context=100")
    assert decode.macs == rows + 3 * 2 * 48 * 64 + 48 * 100


def test_vit_labels_and_activation(config):
    fields = {
        "model_type": "vit", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8, "qkv_bias": False,
        "id2label": {str(i): "x" for i in range(7)}, "hidden_act": "gelu_new",
    }  # fmt: skip
    graph = build(config(**fields))
    verify_graph(graph)
    assert graph.value_map()["head"].type.shape == (1, 7)
    assert Unary("gelu") in [node.op for node, _ in graph.walk()]
    linear = 4 * 32 * 32 + 32 + 2 * 32 * 64 + 96
    assert graph.parameters == 3 * 64 * 32 + 32 + 32 + 17 * 32 + linear + 4 * 32 + 64 + 32 * 7 + 7


def test_resnet_with_basic_blocks(config):
    """ResNet-18: 11,689,512 parameters with batch norm (torchvision)."""
    path = config(
        model_type="resnet", embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic", num_labels=1000,
    )  # fmt: skip
    graph = build(path)
    verify_graph(graph)
    assert dict(graph.meta)["parameters_published"] == 11_689_512
    assert graph.macs == 1_814_073_344  # torchvision resnet18 at 224: 1.814 GMAC
    assert sum(node.op == Binary("add") for node, times in graph.walk() for _ in range(times)) == 8 + 1


def test_unsupported_families_list_the_supported(config):
    message = problem(config(**LLAMA | {"model_type": "rwkv"}))
    assert "model_type: got 'rwkv', want one of: llama, mistral, qwen2, qwen3, " in message
    assert "did you mean 'llama'?" in problem(config(**LLAMA | {"model_type": "lama"}))
    assert "model_type: got None" in problem(config(hidden_size=4))


def test_all_problems_of_a_config_are_told_at_once(config):
    path = config(
        model_type="llama", hidden_size=0, num_hidden_layers="3", num_attention_heads=4,
        num_key_value_heads=3,
        intermediate_size=True, hidden_act="relu6", tie_word_embeddings="no",
        quantization_config={"quant_method": "fp8"},
    )  # fmt: skip
    lines = problem(path).splitlines()
    for start in (
        "hidden_size: got 0, want a whole number, 1 or more",
        "num_hidden_layers: got '3', want",
        "num_key_value_heads: got 3, want a divisor of num_attention_heads=4",
        "intermediate_size: got True, want",
        "vocab_size: got nothing, want",
        "hidden_act: got 'relu6', want one of: silu",
        "tie_word_embeddings: got 'no', want true or false",
        "quantization_config: not modelled",
    ):
        assert any(line.startswith(f"{path}: {start}") for line in lines), (start, lines)


def test_not_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n oops}')
    assert f"{path}:2: not JSON" in problem(str(path))
    path.write_text("[1]")
    assert "got a list, want an object" in problem(str(path))


def test_what_python_reads_of_json_but_nobody_means_is_refused(tmp_path):
    path = tmp_path / "config.json"
    for text, message in (
        ("[" * 100_000, "nested too deep"),
        ('{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}', "hidden_size: got the key twice"),
        ('{"model_type": "llama", "x": {"y": 1, "y": 1}}', "y: got the key twice"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not JSON"),
    ):
        path.write_text(text)
        assert message in problem(str(path))
        assert str(path) in problem(str(path))


EXPERTS = LLAMA | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: got 9, want at most 8 experts"),
        ({"mlp_only_layers": [0]}, "want experts in every layer"),
        ({"model_type": "mixtral"}, "num_local_experts: got nothing"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank: got nothing"),
        (
            {"model_type": "deepseek_v3", "first_k_dense_replace": 99},
            "first_k_dense_replace: got 99, want 0 to",
        ),
        (
            {"model_type": "deepseek_v3", "scoring_func": "relu"},
            "scoring_func: got 'relu', want one of: softmax",
        ),
        ({"model_type": "mamba2", "num_heads": 3}, "num_heads: got 3 of 64, want heads that make expand"),
    ],
)
def test_configs_of_experts_and_states_tell_what_is_wrong(config, fields, want):
    assert want in problem(config(**EXPERTS | fields))


def test_a_cut_deepseek_keeps_a_layer_with_experts():
    kinds = [
        [
            (node.name, node.count)
            for node in build(f"deepseek-tiny:decode,layers={n}").nodes
            if hasattr(node, "count")
        ]
        for n in (1, 2, 3)
    ]
    assert kinds == [[("layer", 1)], [("dense", 1), ("layer", 1)], [("dense", 1), ("layer", 2)]]
