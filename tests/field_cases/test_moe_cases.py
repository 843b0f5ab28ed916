"""Mistakes with mixtures of experts: all charged, or a balance that is none."""

import json

import pytest

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ops import Combine, DecodeAttention, Dispatch, GroupedLinear, LatentDecode
from compiler.routing import assign
from dse.evaluation import evaluate
from dse.point import Point
from dse.roofline import graph_bounds
from tests.kernels.conftest import one_op
from tests.kernels.test_moe import bytes_read
from workloads import WorkloadError, build

TINY = {
    "model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 64, "num_experts": 256, "num_experts_per_tok": 8, "norm_topk_prob": True,
}  # fmt: skip


@pytest.fixture
def many(tmp_path):
    """256 experts, top-8."""
    path = tmp_path / "many.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def expert_macs(graph):
    types = {value.name: value.type for value in graph.values}
    return sum(
        times * node.op.macs(tuple(types[name] for name in node.inputs))
        for node, times in graph.walk()
        if isinstance(node.op, GroupedLinear)
    )


def test_U023_flops_are_of_chosen_experts_capacity_of_all():
    """Mixtral: 2 of 8 experts for one token."""
    graph = build("mixtral-8x7b:decode,layers=1,batch=1")
    assert expert_macs(graph) == 2 * 3 * 4096 * 14336
    kept = sum(v.nbytes for v in graph.values if ".experts." in v.name and v.kind == "weight")
    assert kept == 8 * 3 * 4096 * 14336 * 2
    touched = graph_bounds(graph, load_arch("trn2"))
    read = sum(op.nbytes for op in touched.ops if op.kind == "grouped-linear")
    assert read == kept * 2 // 8
    kinds = [node.op for node, _ in graph.walk()]
    assert sum(isinstance(op, (Dispatch, Combine)) for op in kinds) == 2  # which cost time and bytes
    assert dict(graph.meta)["experts_touched"] == 2


@pytest.mark.parametrize("batch", [1, 3])
def test_U023_the_program_reads_touched_experts_once_and_keeps_all(batch):
    graph = build(f"moe-tiny:decode,layers=1,batch={batch},context=20")
    program = compile_graph(graph, load_arch("trn2"))
    held = {b.tensor: b.nbytes for b in program.buffers if b.kind == "weight"}
    one = 64 * 48 * 2
    for name in ("gate", "up", "down"):
        assert held[f"layer.experts.{name}.weight"] >= 8 * one
        assert bytes_read(program, f"layer.experts.{name}.weight") == 2 * batch * one


def test_U025_balanced_is_balanced_and_told(many):
    """8 tokens, top-8: 64 different experts, four in each sixteenth of the 256."""
    graph = build(f"{many}:decode,batch=8,context=4")
    (dispatch,) = (node.op for node, _ in graph.walk() if isinstance(node.op, Dispatch))
    assert sorted(dispatch.counts) == [0] * 192 + [1] * 64
    assert [sum(dispatch.counts[i : i + 16]) for i in range(0, 256, 16)] == [4] * 16
    assert len(set(assign(dispatch.counts, 8).chosen.ravel().tolist())) == 64
    meta = dict(graph.meta)
    assert (meta["experts_touched"], meta["busiest_expert_tokens"]) == (64, 1)
    assert meta["expert_load_max_over_mean"] == 1.0


def test_U025_half_the_experts_with_twice_the_tokens_are_seen(many, tmp_path):
    """A histogram of [8, 0, 8, 0, ...] against an even one, 512 tokens: load and touched experts tell."""
    loads = tmp_path / "loads.txt"
    loads.write_text("8\n0\n" * 128)
    even = dict(build(f"{many}:prefill,seq=512").meta)
    half = dict(build(f"{many}:prefill,seq=512,routing={loads}").meta)
    assert even["busiest_expert_tokens"] == 16
    assert half["busiest_expert_tokens"] == 32
    assert (even["experts_touched"], half["experts_touched"]) == (256, 128)


def test_U025_skewed_routing_takes_its_time(many):
    """More rows for few experts, fewer experts read: the record shows the busiest."""
    graph = build(f"{many}:decode,batch=32,context=4,routing=skewed")
    meta = dict(graph.meta)
    assert meta["busiest_expert_tokens"] > 4
    assert meta["expert_load_max_over_mean"] > 2
    record = evaluate(Point("trn2", f"{many}:decode,batch=32,context=4,routing=skewed"))
    assert record["status"] == "ok"
    assert record["workload"] == meta
    assert all(record["audit"].values())


def test_U023_deepseek_charges_eight_experts_and_the_shared_one():
    graph = build("deepseek-v3:decode,layers=1,batch=1")
    one = 3 * 7168 * 2048
    assert expert_macs(graph) == 8 * one
    shared = [node for node, _ in graph.walk() if ".shared." in node.name and node.op.kind == "linear"]
    types = {value.name: value.type for value in graph.values}
    assert sum(n.op.macs(tuple(types[i] for i in n.inputs)) for n in shared) == one


def test_U082_the_latent_is_keys_and_values_and_is_read_once():
    """DeepSeek-V3 decode: 576 elements a position (18 tiles of 32), not 576 and 512 again (34 tiles)."""
    graph = build("deepseek-v3:decode,layers=1,batch=2,context=1024")
    program = compile_graph(graph, load_arch("trn2"))
    read = sum(bytes_read(program, f"layer.{state}") for state in ("latents", "keys"))
    assert read == 2 * 1024 * 576 * 2
    assert dict(graph.meta)["kv_bytes_per_token"] == 576 * 2


@pytest.mark.parametrize("length", [1024, 1000])
def test_U082_values_of_their_own_are_bytes_of_their_own(length):
    """The same attention with the latent as keys, and once more as values: 1.89 times the bytes."""
    arch, heads = load_arch("trn2"), 128
    view = one_op(
        LatentDecode(1, heads, 64, length, 192**-0.5),
        ((1, heads * 512), "input"), ((1, heads * 64), "input"),
        ((1, 1, 512, 1024), "state"), ((1, 1, 64, 1024), "state"),
    )  # fmt: skip
    own = one_op(
        DecodeAttention(1, heads, 1, 576, 192**-0.5, length, value_dim=512),
        ((1, heads * 576), "input"), ((1, 1, 576, 1024), "state"), ((1, 1, 1024, 512), "state"),
    )  # fmt: skip
    programs = [compile_graph(graph, arch) for graph in (view, own)]
    once, twice = (
        sum(bytes_read(program, name) for name in names)
        for program, names in zip(programs, (("v2", "v3"), ("v1", "v2")), strict=True)
    )
    assert once == length * 576 * 2
    assert round(twice / once, 2) == 1.89


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1 2 x", "want a list of numbers"), ("1 2", "got 2 numbers, want one for each of 8"),
     ("[1, 1, 1, 1, 1, 1, 1, -1]", "below 0"), ("0 " * 8, "none at all"), ("[" * 5000, "want a list")],
)  # fmt: skip
def test_a_file_of_loads_that_is_none_is_told(text, problem, tmp_path):
    path = tmp_path / "loads"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=problem):
        build(f"moe-tiny:decode,routing={path}")


def test_routing_takes_a_profile_or_a_file():
    with pytest.raises(WorkloadError, match="want uniform, skewed, or a file"):
        build("moe-tiny:decode,routing=unifrom")
