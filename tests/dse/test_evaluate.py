"""One point in, one record out: against closed forms, and with its audit."""

import json

import pytest

from arch_configs import load_arch
from dse import build, evaluate
from dse.errors import SpaceError
from dse.evaluation import evaluate_traced, point_id
from dse.explain import explain, reliefs
from dse.point import Point
from dse.pool import guarded
from dse.result import Record, point_of, validate_record
from dse.roles import load_with_roles
from dse.roofline import array_ps, graph_bounds, memory_rate

GEMM = "gemm:m=512,n=512,k=512,dtype=bf16"


def identity(record: Record) -> str:
    return json.dumps({**record, "provenance": None}, sort_keys=True)


@pytest.fixture(scope="module")
def gemm() -> Record:
    return evaluate(Point("trn1", GEMM))


def test_a_gemm_against_closed_forms(gemm: Record) -> None:
    validate_record(gemm)
    arch = load_arch("trn1")
    assert gemm["status"] == "ok"
    assert all(gemm["audit"].values()), gemm["audit"]
    assert gemm["macs"] == 512**3
    assert gemm["flops_model"] == 2 * 512**3
    time_ps, bounds, array = gemm["time_ps"], gemm["bounds"], gemm["array"]
    assert time_ps
    assert bounds
    assert bounds["serial_ps"]
    assert array
    assert gemm["latency_s"] == time_ps / 1e12
    assert bounds["compute_ps"] in (512**3 * 10**12 // (128 * 128 * arch.array.clock) + d for d in (-1, 0, 1))
    assert bounds["memory_ps"] == -(-3 * 512 * 512 * 2 * 10**12 // memory_rate(arch))
    assert max(bounds["compute_ps"], bounds["memory_ps"]) <= time_ps <= bounds["serial_ps"]
    assert gemm["mfu"] == pytest.approx(512**3 / (128 * 128 * arch.array.clock) / (time_ps / 1e12))
    assert gemm["mfu"] <= (gemm["hfu"] or 0)
    moved = (gemm["hbm_read_bytes"] or 0) + (gemm["hbm_write_bytes"] or 0)
    assert moved >= 3 * 512 * 512 * 2
    assert gemm["mbu"] == pytest.approx(moved / arch.dram_bandwidth / (time_ps / 1e12))
    assert array["model_macs"] == 512**3
    assert array["padded_macs"] == 0
    assert sum(op["flops"] for op in gemm["ops"]) == gemm["flops_model"]
    assert sum(op["bytes"] for op in gemm["ops"]) == moved
    assert sum(step["time_ps"] for step in gemm["critical_path"]) == time_ps


def test_every_engine_accounts_for_the_whole_time(gemm: Record) -> None:
    assert set(load_arch("trn1").engines) <= set(gemm["engines"])
    for engine in gemm["engines"].values():
        assert engine["busy_ps"] + sum(engine["wait_ps"].values()) + engine["idle_ps"] == gemm["time_ps"]


def test_padding_is_counted_apart() -> None:
    record = evaluate(Point("trn1", "gemm:m=100,n=60,k=50"))
    array = record["array"]
    assert array
    assert array["model_macs"] == 100 * 60 * 50 == record["macs"]
    assert (array["padded_macs"] or 0) > 0


def test_a_softmax_has_no_flops_of_the_model() -> None:
    softmax = evaluate(Point("trn1", "softmax"))
    assert softmax["mfu"] == 0.0
    assert softmax["flops_model"] == 0


def test_the_roofline_is_never_above_the_simulation(gemm: Record) -> None:
    low = evaluate(Point("trn1", GEMM, fidelity="roofline"))
    validate_record(low)
    assert set(low) == set(gemm)
    assert low["time_ps"]
    assert gemm["time_ps"]
    assert low["time_ps"] <= gemm["time_ps"]
    assert low["engines"] == {}


def test_exact_and_folded_agree_in_everything_but_the_fidelity(gemm: Record) -> None:
    exact = evaluate(Point("trn1", GEMM, fidelity="exact"))
    exact["point"]["fidelity"] = "event"
    path = exact["critical_path"]
    assert sum(step["time_ps"] for step in path) == exact["time_ps"]
    exact["critical_path"] = gemm["critical_path"]  # a folded path is weighed by windows
    assert identity(exact) == identity(gemm)


def test_evaluation_is_pure(gemm: Record) -> None:
    assert identity(evaluate(Point("trn1", GEMM))) == identity(gemm)
    assert identity(evaluate(point_of(gemm))) == identity(gemm)


def test_what_does_not_fit_in_dram_is_told_by_lines() -> None:
    record = evaluate(Point("trn1", "llama3-70b:decode,batch=16,context=4096"))
    validate_record(record)
    assert record["status"] == "infeasible"
    reason = record["reason"]
    assert reason
    weights = build("llama3-70b:decode,batch=16,context=4096").parameters * 2
    terms = dict(reason["terms"])
    assert (reason["code"], reason["resource"], reason["unit"]) == ("dram-capacity", "hbm", "B")
    assert terms["weights"] == weights
    assert terms["kv cache and states"] == 327_680 * 4096 * 16
    assert terms["runtime reserve"] == load_arch("trn1").memories["hbm"].reserved
    assert reason["needed"] == sum(terms.values())
    assert reason["available"] == load_arch("trn1").memories["hbm"].capacity
    assert record["time_ps"] is None


def test_the_fix_of_a_shortfall_fixes_it() -> None:
    point = Point(
        "trn1", "llama3-8b:decode,batch=1,context=512,layers=2", (("memories.hbm.capacity", "2 GiB"),)
    )
    reason = evaluate(point)["reason"]
    assert reason
    assert reason["code"] == "dram-capacity"
    size = reason["fix"].split(">= ")[1].split(",")[0]
    fixed = guarded(evaluate, point.with_overrides({"memories.hbm.capacity": size}))["reason"]
    assert fixed is None or fixed["code"] != "dram-capacity"


def test_all_mistakes_of_a_point_are_told_at_once() -> None:
    point = Point("trn1", "gem", (("engines.tensr.rows", "1"),), (("double_bufer", True),))
    with pytest.raises(SpaceError) as caught:
        evaluate(point)
    text = str(caught.value)
    assert "did you mean 'tensor'" in text
    assert "did you mean 'gemv'" in text
    assert "did you mean 'double_buffer'" in text


@pytest.mark.parametrize(
    "change",
    [
        {"overrides": (("dma.queues", "8"),)},
        {"options": (("double_buffer", False),)},
        {"fidelity": "exact"},
        {"seed": 1},
        {"workload": "gemm:m=513,n=512,k=512"},
        {"arch": "trn2"},
    ],
)
def test_whatever_can_change_the_answer_changes_the_id(change: dict[str, str]) -> None:
    base = {"arch": "trn1", "workload": GEMM}
    assert point_id(Point(**{**base, **change})) != point_id(Point(**base))  # type: ignore[arg-type]


def test_the_launch_gap_is_part_of_the_time_and_shown_as_such() -> None:
    slow = Point("trn1", GEMM, (("launch_overhead", "100 us"),))
    fast = Point("trn1", GEMM, (("launch_overhead", "0 us"),))
    a, b = evaluate(slow), evaluate(fast)
    assert a["time_ps"]
    assert b["time_ps"]
    assert a["time_ps"] - b["time_ps"] == 100 * 10**6
    assert a["engines"]["tensor"]["wait_ps"]["launch"] == 100 * 10**6
    assert "launch" not in b["engines"]["tensor"]["wait_ps"]


def test_explain_names_what_binds_and_its_gain_is_what_a_rerun_shows() -> None:
    bound_by = {}
    for name, workload in (("compute", "gemm:m=2048,n=2048,k=2048"), ("memory", "gemm:m=16,n=4096,k=4096")):
        point = Point("trn1", workload)
        found = explain(point, load_arch("trn1"), lambda points: [guarded(evaluate, p) for p in points])
        bound_by[name] = found.binding
        gains = [item.gain for item in found.what_ifs if item.gain is not None]
        assert gains == sorted(gains, reverse=True)
        best = found.what_ifs[0]
        again = evaluate(point.with_overrides(dict(best.relief.overrides)))
        assert again["time_ps"] == best.time_ps
        assert found.record["time_ps"]
        assert best.time_ps
        assert best.gain == found.record["time_ps"] / best.time_ps - 1
    assert bound_by["compute"] == "tensor"
    assert "dma" in bound_by["memory"] or "hbm" in bound_by["memory"]


@pytest.mark.parametrize("name", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
def test_every_relief_is_a_legal_architecture(name: str) -> None:
    arch = load_arch(name)
    for relief in reliefs(arch):
        changed = load_arch(name, dict(relief.overrides))
        assert changed != arch, relief


def test_bounds_count_what_decode_really_reads() -> None:
    arch, context, batch = load_arch("trn2"), 1000, 3
    graph = build(f"llama3-8b:decode,batch={batch},context={context}")
    bounds = graph_bounds(graph, arch)
    model = graph.parameters * 2 - 128_256 * 4096 * 2  # of the embedding only a row is read
    kv = 131_072 * (context - 1) * batch  # the newest position need not come from DRAM
    assert model + kv <= bounds.read_bytes <= (model + kv) * 1.001
    assert bounds.compute_ps == pytest.approx(array_ps(graph.macs, "bf16", arch), rel=1e-6)


def test_a_trace_comes_with_the_record_on_demand() -> None:
    record, bound, trace = evaluate_traced(Point("trn1", GEMM))
    assert bound is not None
    assert trace is not None
    assert trace.time_ps + bound.arch.launch_overhead == record["time_ps"]


def test_a_depthwise_convolution_does_not_bound_the_time_by_the_array() -> None:
    arch = load_arch("edge-npu")
    depthwise = graph_bounds(build("conv:c=32,k=32,groups=32"), arch)
    dense = graph_bounds(build("conv:c=32,k=32,groups=1"), arch)
    assert depthwise.compute_ps == 0 < dense.compute_ps
    assert depthwise.memory_ps > 0


def test_a_relief_replaces_what_the_point_set_by_its_role() -> None:
    by_role = Point(
        "trn1", GEMM, overrides=(("memories.dram.bandwidth", "100 GB/s"), ("engines.array.rows", "64"))
    )
    by_name = Point(
        "trn1", GEMM, overrides=(("memories.hbm.bandwidth", "100 GB/s"), ("engines.tensor.rows", "64"))
    )
    found = []
    for point in (by_role, by_name):
        arch = load_with_roles(point.arch, dict(point.overrides))
        what = explain(point, arch, lambda points: [guarded(evaluate, p) for p in points])
        assert {item.status for item in what.what_ifs} == {"ok"}
        found.append([(item.relief.resource, item.time_ps) for item in what.what_ifs])
    assert found[0] == found[1]
