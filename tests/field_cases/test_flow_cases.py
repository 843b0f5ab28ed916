"""What users of such tools ran into, restated for the whole flow and the command line: ids in the names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arch_configs import load_arch
from compiler import compile_graph
from dse import Point, Record, evaluate
from dse.cli import app
from dse.evaluation import evaluate_traced
from dse.result import validate_record
from eventsim import bind, simulate, simulate_bound
from eventsim.perfetto import MAX_SLICES, write_perfetto
from workloads import build

ROOT = Path(__file__).parents[2]
MS = 10**9  # picoseconds


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def point(arch: str, workload: str, **overrides: str) -> Point:
    return Point(arch, workload, tuple((name.replace("__", "."), text) for name, text in overrides.items()))


def run(arch: str, workload: str, **overrides: str) -> Record:
    record = evaluate(point(arch, workload, **overrides))
    assert record["status"] == "ok", record["reason"]
    assert all(record["audit"].values()), record["audit"]
    return record


def time_of(record: Record) -> int:
    assert record["time_ps"] is not None
    return record["time_ps"]


def cli(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# ---- utilization -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
def test_U001_a_gemv_is_cheaper_than_the_gemm_and_is_never_called_busy(arch: str) -> None:
    gemm, gemv = (run(arch, f"gemm:m={m},k=768,n=256", launch_overhead="0 ps") for m in (256, 1))
    assert time_of(gemv) < time_of(gemm)
    assert gemm["macs"] == 256 * 768 * 256 == 256 * (gemv["macs"] or 0)
    assert (gemv["mfu"] or 0) < (gemm["mfu"] or 0) / 50
    assert (gemv["mfu"] or 0) < 0.05


def test_U013_a_design_that_idles_is_warned_about_with_what_it_waits_for() -> None:
    """200 x 200 cells for one image of a first layer; the record and the text repeat the array."""
    overrides = {
        "engines__tensor__rows": "200", "engines__tensor__cols": "200", "memories__sbuf__capacity": "25 MiB",
        "memories__sbuf__partitions": "200", "memories__psum__partitions": "200",
    }  # fmt: skip
    vgg = "conv:n=1,c=3,k=64,h=224,w=224"
    record = run("trn2", vgg, **overrides)
    assert record["array"] is not None
    assert (record["array"]["rows"], record["array"]["cols"]) == (200, 200)
    assert (record["mfu"] or 0) < 0.02
    (text,) = record["warnings"]
    waits = record["engines"]["tensor"]["wait_ps"]
    assert text.startswith("utilization is low: mfu 0.")
    assert f"the array mostly waits for {max(waits, key=lambda cause: waits[cause])}" in text


def test_U013_the_warning_names_what_binds() -> None:
    record = run("trn2", "gemv:k=768,n=256")
    assert record["warnings"] == [
        f"utilization is low: mfu {record['mfu']:.2%}, mbu {record['mbu']:.2%}; "
        "the array mostly waits for launch; see dse explain"
    ]
    for good in ("gemm:m=2048,k=2048,n=2048", "gemv:k=4096,n=4096", "llama3-8b:decode,layers=1"):
        assert run("trn2", good)["warnings"] == []  # near a bound: of the array, or of DRAM


def test_U013_an_array_without_work_is_said_to_have_none() -> None:
    record = run("tpu-v5e", "conv:c=131,k=131,h=13,w=17,groups=131,stride=2")
    assert (record["mfu"] or 0) < 0.05
    assert "the array has no work" in record["warnings"][0]


# ---- determinism -----------------------------------------------------------------------------------------
def test_U014_U016_equal_seeds_give_equal_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    files = []
    for hash_seed, seed in (("0", "1"), ("7", "1"), ("0", "2")):
        folder = tmp_path / f"{hash_seed}-{seed}"
        folder.mkdir()
        command = [sys.executable, "-m", "dse.cli", "run", "trn2", "attention:seq=200,heads=4,kv_heads=2"]
        command += ["--seed", seed, "--json", str(folder / "r.json"), "--trace", str(folder / "t.json.gz")]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        record = json.loads((folder / "r.json").read_text())
        record.pop("provenance")
        files.append((record, (folder / "t.json.gz").read_bytes()))
    assert files[0] == files[1]
    assert [record["point"]["seed"] for record, _ in files] == [1, 1, 2]
    assert files[0][0]["time_ps"] == files[2][0]["time_ps"]  # nothing on this path draws a random number


# ---- models ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "layers", "per_token"), [("llama3-8b", 32, 131_072), ("llama3-70b", 80, 327_680)]
)
def test_U020_a_decode_step_reads_the_cache_of_its_kv_heads(model: str, layers: int, per_token: int) -> None:
    """Two layers of it, the whole context, once: the error of query heads would be 4 and 8 times as much."""
    batch, context = 2, 512
    record = run("trn2", f"{model}:decode,batch={batch},context={context},layers=2")
    attention = next(op for op in record["ops"] if op["kind"] == "decode-attention")
    width = 2 * {"llama3-8b": 4096, "llama3-70b": 8192}[model]
    queries_and_results = 2 * 2 * batch * width
    assert attention["count"] == 2
    assert attention["bytes"] - queries_and_results == per_token * context * batch * 2 // layers


@pytest.mark.parametrize("arch", ["trn2", "tpu-v5e"])
def test_U026_prefill_takes_longer_with_every_token(arch: str) -> None:
    lengths = (1, 2, 127, 128, 129, 512, 2048, 8192)
    times = {s: time_of(run(arch, f"llama3-8b:prefill,seq={s},layers=1")) for s in lengths}
    assert list(times.values()) == sorted(set(times.values()))
    # Linear in the tokens but for the attention, which is quadratic: four times the tokens take more than
    # four times as long, and less than sixteen.
    long, short = times[8192] - times[1], times[2048] - times[1]
    assert 4 * short < long < 16 * short


@pytest.mark.parametrize("arch", ["trn2", "tpu-v5e"])
def test_U026_one_prompt_token_costs_a_decode_step(arch: str) -> None:
    """The same matrices and one token; only attention and the cache go different ways."""
    prefill, decode = (
        run(arch, f"llama3-8b:{phase},layers=4") for phase in ("prefill,seq=1", "decode,context=1")
    )
    assert prefill["macs"] == decode["macs"]
    assert time_of(prefill) == pytest.approx(time_of(decode), rel=0.05)


@pytest.mark.parametrize("workload", ["llama-tiny:prefill,seq=40", "vit-tiny", "resnet-tiny", "gemm:m=300"])
@pytest.mark.parametrize("arch", ["trn2", "tpu-v5e", "edge-npu"])
def test_U022_U109_the_roofline_is_below_the_simulation(workload: str, arch: str) -> None:
    bound = evaluate(Point(arch, workload, fidelity="roofline"))
    simulated = run(arch, workload)
    assert 0 < time_of(bound) <= time_of(simulated)
    assert simulated["bounds"] is not None
    assert time_of(simulated) <= (simulated["bounds"]["serial_ps"] or 0)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_U059_a_dense_layer_of_any_batch_is_counted_and_done(n: int) -> None:
    record = run("trn2", f"gemm:m={n},k=73,n=256")
    assert record["flops_model"] == 37_376 * n
    assert record["array"] is not None
    assert 2 * (record["array"]["model_macs"] or 0) == 37_376 * n
    assert [op["flops"] for op in record["ops"]] == [37_376 * n]


@pytest.mark.parametrize(
    "model", ["llama-tiny", "llama3-8b", "mistral-7b", "qwen3-8b", "vit-b16", "bert-base"]
)
def test_U113_a_model_comes_from_its_published_configuration(model: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "workloads" / "configs" / f"{model}.json", tmp_path / "config.json")
    code, out, _ = cli(
        "run", "trn2", str(tmp_path / "config.json"), "--fidelity", "roofline", "--json", "-", "--no-cache"
    )
    assert code == 0
    record, named = json.loads(out), evaluate(Point("trn2", model, fidelity="roofline"))
    assert record["macs"] == named["macs"]
    assert record["time_ps"] == named["time_ps"]


# ---- capacity --------------------------------------------------------------------------------------------
def test_U028_a_cache_larger_than_the_memory_is_an_answer_not_a_loop() -> None:
    code, out, _ = cli("run", "trn2", "llama3-8b:decode,batch=512,context=8192", "--json", "-")
    record = json.loads(out)
    assert code == 3
    assert record["reason"]["code"] == "dram-capacity"
    assert dict(record["reason"]["terms"])["kv cache and states"] == 131_072 * 512 * 8192
    assert record["reason"]["needed"] > record["reason"]["available"] == 96 << 30
    assert record["provenance"]["wall_s"] < 1  # told before anything is compiled


@pytest.mark.parametrize("workload", ["llama3-8b:decode,context=64,layers=1", "attention:seq=64", "conv"])
def test_U028_a_scratchpad_smaller_than_a_tile_is_an_answer_not_a_loop(workload: str) -> None:
    record = evaluate(
        point("trn2", workload, memories__sbuf__capacity="16 KiB", memories__sbuf__reserved="0 B")
    )
    assert record["status"] == "infeasible"
    assert record["reason"] is not None
    assert record["reason"]["needed"] > record["reason"]["available"] == 128  # type: ignore[operator]


def test_U029_what_does_not_fit_has_the_schema_of_what_does() -> None:
    good = run("trn2", "gemm:m=64")
    bad = evaluate(Point("trn2", "llama3-70b:decode"))
    validate_record(good)
    validate_record(bad)
    assert list(good) == list(bad)
    assert bad["status"] == "infeasible"
    assert bad["time_ps"] is bad["mfu"] is None
    assert bad["engines"] == {}
    assert list(good["memory"]) == list(bad["memory"])


def test_U032_the_reserve_and_the_activations_count_to_the_byte() -> None:
    """A device as large as the peak works, one byte less does not, and the reserve moves the line."""
    workload = "llama-tiny:prefill,batch=2,seq=64"
    peak = run("trn2", workload)["memory"]["hbm"]["peak_bytes"]
    lines = dict(run("trn2", workload)["memory"]["hbm"]["by_tensor"])
    assert lines["weights"] >= build(workload).kind_bytes("weight")  # stored in whole blocks
    assert lines["activations"] > 0
    assert lines["runtime reserve"] == load_arch("trn2").memories["hbm"].reserved
    reserve = lines["runtime reserve"]
    assert sum(lines.values()) <= peak <= sum(lines.values()) + 64 * 200  # 64: alignment of each buffer
    for capacity, held, status in (
        (peak, reserve, "ok"),
        (peak - 64, reserve, "infeasible"),
        (peak, reserve + 64, "infeasible"),
        (peak + 64, reserve + 64, "ok"),
    ):
        record = evaluate(
            point(
                "trn2", workload, memories__hbm__capacity=f"{capacity} B", memories__hbm__reserved=f"{held} B"
            )
        )
        assert record["status"] == status, (capacity, held)


def test_U056_an_8b_model_barely_fits_16_gib_and_a_cache_does_not() -> None:
    tight = run("trn2", "llama3-8b:decode,batch=1,context=512", memories__hbm__capacity="16 GiB")
    assert dict(tight["memory"]["hbm"]["by_tensor"])["weights"] == 16_060_522_496
    record = evaluate(
        point("trn2", "llama3-8b:decode,batch=4,context=8192", memories__hbm__capacity="16 GiB")
    )
    assert record["reason"] is not None
    terms = dict(record["reason"]["terms"])
    assert record["reason"]["available"] == 17_179_869_184
    assert (terms["weights"], terms["kv cache and states"]) == (16_060_522_496, 131_072 * 4 * 8192)


# ---- time ------------------------------------------------------------------------------------------------
def test_U049_twice_the_clock_of_the_array_halves_its_time_and_keeps_its_cycles() -> None:
    archs = [load_arch("trn2", {"engines.tensor.clock": clock}) for clock in ("1.4 GHz", "2.8 GHz")]
    program = compile_graph(build("gemm:m=1024,n=1024,k=1024"), archs[0])
    slow, fast = (simulate(program, arch).stream("tensor") for arch in archs)
    assert slow.instructions == fast.instructions
    assert 0 <= 2 * fast.busy_ps - slow.busy_ps <= 2 * fast.instructions  # each rounded up to a picosecond


def test_U049_every_column_of_a_table_names_its_unit() -> None:
    record = run("trn2", "gemm:m=64")
    timed = [name for name in record if name.startswith(("time", "latency"))]
    assert timed == ["time_ps", "latency_s"]
    for engine in record["engines"].values():
        assert {"busy_ps", "wait_ps", "idle_ps"} <= set(engine)


@pytest.mark.parametrize("gap_ms", [0, 1, 5])
def test_U083_the_gap_of_the_host_is_a_line_of_its_own(gap_ms: int) -> None:
    """A parameter of the architecture: device time stays, the gap is added and shown."""
    workload = "llama3-8b:decode,layers=1,context=128"
    device = time_of(run("trn2", workload, launch_overhead="0 ps"))
    record = run("trn2", workload, launch_overhead=f"{gap_ms} ms")
    assert time_of(record) == device + gap_ms * MS
    assert sum(row["time_ps"] for row in record["critical_path"] if row["what"] == "launch") == gap_ms * MS
    assert sum(row["time_ps"] for row in record["critical_path"]) == time_of(record)


def test_U095_a_run_of_seconds_is_exact() -> None:
    """Seconds in picoseconds pass 2^31 and 2^41; the time stays an integer and adds up."""
    record = run("edge-npu", "gemm:m=16384,n=16384,k=8192")
    assert time_of(record) > 2 * 10**12
    for engine in record["engines"].values():
        total = engine["busy_ps"] + sum(engine["wait_ps"].values()) + engine["idle_ps"]
        assert total == time_of(record)


# ---- reasons ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("workload", "bound", "binding"),
    [
        ("llama3-8b:decode,batch=1,context=256,layers=1", "memory", ("hbm", "dma", "hbm + dma")),
        ("gemm:m=4096,n=4096,k=4096", "compute", ("tensor",)),
    ],
)
def test_U050_one_command_says_what_binds(workload: str, bound: str, binding: tuple[str, ...]) -> None:
    code, out, _ = cli("explain", "trn2", workload, "-j", "1")
    assert code == 0
    for word in ("busy", "waits for", "own bound", "critical path", "capacity", bound):
        assert word in out
    code, out, _ = cli("explain", "trn2", workload, "-j", "1", "--json", "-")
    found = json.loads(out)
    assert found["binding"] in binding
    best = found["what_if"][0]
    assert best["gain"] > 0.2
    gains = [item["gain"] for item in found["what_if"] if item["gain"] is not None]
    assert gains == sorted(gains, reverse=True)
    dearest = max(found["record"]["ops"], key=lambda op: max(op["compute_ps"], op["memory_ps"]))
    assert (dearest["memory_ps"] > dearest["compute_ps"]) == (bound == "memory")


def test_U052_what_does_not_fit_is_a_table_with_needed_available_and_fix() -> None:
    code, out, _ = cli(
        "run", "trn2", "attention:seq=512", "--no-cache",
        "--set", "memories.sbuf.capacity=256 KiB", "--set", "memories.sbuf.reserved=0 B",
    )  # fmt: skip
    assert code == 3
    for word in ("does not fit: scratchpad-capacity", "in sbuf", "needed", "available", "2,048", "fix: "):
        assert word in " ".join(out.split())


def test_U077_energy_that_nobody_gave_is_unknown_not_zero() -> None:
    energy = run("trn2", "gemm:m=64")["energy_j"]
    assert energy is None or energy["total"] is None or energy["total"] > 0


def test_U110_all_that_a_point_gets_wrong_is_told_at_once() -> None:
    code, out, err = cli("run", "trn22", "gemmm:m=3", "--option", "passes2=1")
    assert code == 2
    assert out == ""
    assert "did you mean 'trn2'" in err
    assert "did you mean 'gemm'" in err
    assert "options.passes2" in err


def test_U107_operands_the_array_cannot_take_are_a_line_not_a_traceback() -> None:
    code, out, err = cli("run", "tpu-v5e", "gemm:dtype=fp16", "--no-cache")
    assert (code, out) == (2, "")
    assert "y: got operands of fp16, want one of bf16" in err


# ---- traces ----------------------------------------------------------------------------------------------
def test_U118_a_trace_file_is_bounded_and_says_where_it_ends(tmp_path: Path) -> None:
    _, bound, trace = evaluate_traced(Point("trn2", "gemm:m=2048,n=2048,k=2048"))
    assert bound is not None
    assert trace is not None
    written = write_perfetto(trace, bound, tmp_path / "t.json", max_slices=1000)
    assert written == 1000
    data = json.loads((tmp_path / "t.json").read_text())
    assert 0 < data["otherData"]["truncated_at_ps"] < trace.time_ps
    assert sum(event["ph"] == "X" for event in data["traceEvents"]) == 1000
    assert (tmp_path / "t.json").stat().st_size / 1000 * MAX_SLICES < 100e6


def test_U118_folding_keeps_long_runs_cheap_to_record() -> None:
    """8192 cubed: a hundred thousand instructions are timed, a small part of them one by one."""
    arch = load_arch("trn2")
    bound = bind(compile_graph(build("gemm:m=8192,n=8192,k=8192"), arch), arch)
    trace = simulate_bound(bound, record=True)
    assert sum(stream.instructions for stream in trace.streams) > 50_000
    assert sum(len(column.start) for column in trace.columns) < 20_000
