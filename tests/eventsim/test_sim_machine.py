"""Whole simulations of a few instructions, against times worked out by hand."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.isa import Activate, Loop, Program, Sync, TensorTensor
from eventsim import SimError, bind, instances, simulate, simulate_bound
from eventsim.path import critical_path
from eventsim.perfetto import write_perfetto
from eventsim.stats import utilization
from tests.eventsim.sim_programs import Builder, copy, load, make_arch, matmul, store, tile

NS = 1000


def _exec(stream: str, *funcs: str) -> Program:
    b = Builder()
    for f in funcs:
        b.add(stream, Activate(dst=tile("sbuf", 100), src=tile("sbuf", 100), func=f))
    return b.program()


def test_a_chain_load_compute_store() -> None:
    """Fixed costs and latencies in a row, each exactly once."""
    arch = make_arch(
        dma__issue="50 ns", dma__latency="1000 ns", dma__completion="300 ns", engines__vector__latency=7
    )
    b = Builder()
    there, back = b.chan("dma0", "vector"), b.chan("vector", "dma1")
    b.add("dma0", load(1000, signals=((there, 1),)))
    b.add("vector", copy(500, waits=((there, 1),), signals=((back, 1),)))
    b.add("dma1", store(1000, waits=((back, 1),)))
    flow = 256_000 * 1000 // 320  # 256 kB at 320 GB/s, in ps: the pool is the limit
    trace = simulate(b.program(), arch)
    assert trace.time_ps == 2 * (1050 * NS + flow) + 300 * NS + 501 * NS + 7 * NS
    assert trace.stream("vector").wait_ps == {"dma0": 1350 * NS + flow}
    assert trace.stream("dma1").wait_ps == {"vector": 1350 * NS + flow + 508 * NS, "issue": 1050 * NS}
    assert (trace.dram_read_bytes, trace.dram_write_bytes) == (256_000, 256_000)
    assert trace.dma_active_ps == 2 * flow


def test_issue_and_latency_pipeline_behind_the_transfers() -> None:
    """n transfers of one queue: the fixed cost once, then back to back, if a transfer outlasts its issue."""
    arch = make_arch(dma__issue="50 ns", dma__latency="1000 ns")
    b = Builder()
    b.add("dma0", Loop("i", 10, (load(1000),), 1))
    flow = 256_000 * 1000 // 320
    assert simulate(b.program(), arch).time_ps == 1050 * NS + 10 * flow
    slow = make_arch(dma__issue="2 us", dma__latency="1000 ns")
    assert simulate(b.program(), slow).time_ps == 10 * 2000 * NS + 1000 * NS + flow


def test_a_sync_in_a_queue_signals_after_all_earlier_transfers() -> None:
    b = Builder()
    done = b.chan("dma0", "vector")
    b.add("dma0", load(1000), load(1000), Sync(signals=((done, 1),)))
    b.add("vector", copy(10, waits=((done, 1),)))
    trace = simulate(b.program(), make_arch())
    assert trace.stream("vector").wait_ps == {"dma0": 2 * 256_000 * 1000 // 320}


def test_changing_the_activation_table_costs_only_when_it_changes() -> None:
    arch = make_arch(engines__scalar__table_load="1283 ns")
    one = 101 * NS
    assert simulate(_exec("scalar", "exp"), arch).time_ps == one + 1283 * NS
    trace = simulate(_exec("scalar", "exp", "relu", "exp", "gelu", "exp"), arch)
    assert trace.time_ps == 5 * one + 3 * 1283 * NS
    assert trace.stream("scalar").wait_ps == {"table": 3 * 1283 * NS}
    assert trace.stream("scalar").busy_ps == 5 * one


def test_ramp_only_while_cold() -> None:
    """Half rate rising to full in 3 us: 0.75 us lost after each idle gap that long."""
    arch = make_arch(engines__tensor__ramp={"start": 0.5, "time": "3 us"})
    b = Builder()
    b.add("tensor", Loop("i", 100, (matmul(500),), 1))
    trace = simulate(b.program(), arch)
    assert trace.time_ps == 100 * 500 * NS + 750 * NS
    assert trace.stream("tensor").wait_ps == {"ramp": 750 * NS}
    for gap, losses in ((2999, 1), (3000, 2)):
        b = Builder()
        go = b.chan("vector", "tensor")
        b.add(
            "tensor",
            Loop("i", 10, (matmul(500),), 1),
            Sync(waits=((go, 1),)),
            Loop("j", 10, (matmul(500),), 2),
        )
        first_end = 5000 * NS + 750 * NS
        idle = copy(first_end // NS + gap - 2, signals=((go, 1),))  # overhead and latency: one cycle each
        b.add("vector", idle)
        assert (
            simulate(b.program(), arch).time_ps == first_end + gap * NS + 5000 * NS + (losses - 1) * 750 * NS
        )


def test_exclusion_serialises_and_the_lower_engine_goes_first() -> None:
    rule = ({"engines": ("vector", "gpsimd"), "memory": "sbuf"},)
    b = Builder()
    b.add("gpsimd", copy(300))
    b.add("vector", copy(100))
    assert simulate(b.program(), make_arch()).time_ps == 301 * NS
    trace = simulate(b.program(), make_arch(exclusions=rule))
    assert trace.time_ps == 402 * NS
    assert trace.stream("gpsimd").wait_ps == {"port:sbuf": 101 * NS}
    assert trace.stream("vector").wait_ps == {}


def test_a_port_that_only_one_engine_uses_costs_no_event() -> None:
    rule = ({"engines": ("vector", "gpsimd"), "memory": "psum"},)
    b = Builder()
    b.add("gpsimd", copy(300))
    b.add("vector", Loop("i", 50, (copy(100, "psum"),), 1))
    assert simulate(b.program(), make_arch(exclusions=rule), fold=False).kernel_events <= 1


def test_engines_cost_no_kernel_event() -> None:
    b = Builder()
    forth, back = b.chan("tensor", "vector"), b.chan("vector", "tensor", 2)
    b.add("tensor", Loop("i", 3000, (matmul(100, waits=((back, 1),), signals=((forth, 1),)),), 1))
    b.add("vector", Loop("i", 3000, (copy(90, waits=((forth, 1),), signals=((back, 1),)),), 1))
    assert simulate(b.program(), make_arch(), fold=False).kernel_events <= 1


def test_event_counts_of_a_pipeline() -> None:
    """At most 2 kernel events a transfer unfolded; folded, few in all whatever the trip count."""

    def pipeline(n: int) -> Program:
        b = Builder()
        data, free = b.chan("dma0", "tensor"), b.chan("tensor", "dma0", 3)
        b.add("dma0", Loop("i", n, (load(512, waits=((free, 1),), signals=((data, 1),)),), 1))
        body = matmul(512, waits=((data, 1),), signals=((free, 1),))
        b.add("tensor", Loop("i", n, (body,), 1))
        return b.program()

    plain = simulate(pipeline(2000), make_arch(), fold=False)
    assert plain.kernel_events <= 2 * 2000 + 10
    folded = simulate(pipeline(2000), make_arch())
    assert folded.figures() == plain.figures()
    assert folded.kernel_events < 60
    assert simulate(pipeline(10**6), make_arch()).kernel_events < 60


def test_loops_of_no_and_one_iteration() -> None:
    b = Builder()
    b.add("vector", Loop("i", 0, (copy(100),), 1), Loop("j", 1, (copy(100), Loop("k", 0, (), 2)), 3))
    trace = simulate(b.program(), make_arch())
    assert trace.time_ps == 101 * NS
    assert trace.stream("vector").instructions == 1


def test_an_empty_program_takes_no_time() -> None:
    assert simulate(Builder().program(), make_arch()).time_ps == 0


def test_what_cannot_be_bound_says_so() -> None:
    b = Builder()
    b.add("vector", matmul(1))
    with pytest.raises(SimError, match="stream vector: got a Matmul, which a vector engine cannot run"):
        bind(b.program(), make_arch())
    b = Builder()
    b.add("dma99", load(1))
    with pytest.raises(SimError, match="stream 'dma99': got no such engine or queue, want one of tensor"):
        bind(b.program(), make_arch())
    b = Builder()
    channel = b.chan("tensor", "vector")
    b.add("scalar", copy(1, waits=((channel, 1),)))
    with pytest.raises(SimError, match="channel 'c0': got scalar as consumer, want vector"):
        bind(b.program(), make_arch())


def test_instances_come_in_time_order_with_their_counters() -> None:
    b = Builder()
    go = b.chan("vector", "scalar")
    b.add("vector", Loop("i", 3, (copy(100, signals=((go, 1),)),), 1))
    b.add("scalar", Loop("i", 3, (Sync(waits=((go, 1),)), copy(5)), 1))
    program = b.program()
    trace = simulate(program, make_arch(), fold=False, record=True)
    found = [(start, end, stream, env["i"]) for start, end, stream, _, env in instances(trace, program)]
    vector = [(i * 101 * NS, (i + 1) * 101 * NS, "vector", i) for i in range(3)]
    scalar = [((i + 1) * 101 * NS + NS, (i + 1) * 101 * NS + 7 * NS, "scalar", i) for i in range(3)]
    assert found == sorted(vector + scalar)


def test_critical_path_of_a_chain() -> None:
    b = Builder()
    data, done = b.chan("dma0", "vector"), b.chan("vector", "scalar")
    b.add("dma0", replace(load(1000), signals=((data, 1),), op="in"))
    b.add("vector", replace(copy(500), waits=((data, 1),), signals=((done, 1),), op="mid"))
    b.add("scalar", replace(copy(50), op="other"), replace(copy(50), waits=((done, 1),), op="out"))
    arch = make_arch(dma__latency="1 us", dma__completion="300 ns")
    bound = bind(b.program(), arch)
    trace = simulate_bound(bound, record=True)
    rows = {(row.stream, row.op, row.cause): row.ps for row in critical_path(trace, bound)}
    assert rows == {
        ("dma0", "in", "issue"): 1000 * NS,
        ("dma0", "in", "transfer"): 800 * NS,
        ("dma0", "in", "signal"): 300 * NS,
        ("vector", "mid", "busy"): 501 * NS,
        ("vector", "mid", "signal"): 1 * NS,
        ("scalar", "out", "busy"): 51 * NS,
    }
    top = critical_path(trace, bound, 2)
    assert len(top) == 3
    assert sum(row.ps for row in top) == trace.time_ps
    assert utilization(trace)["vector"] == pytest.approx(501 / 2653)


def test_perfetto_file(tmp_path: Path) -> None:
    """Opens as JSON, slices of a track do not overlap, durations add up, equal runs give equal files."""
    b = Builder()
    data, free = b.chan("dma0", "vector"), b.chan("vector", "dma0", 2)
    b.add("dma0", Loop("i", 40, (load(512, waits=((free, 1),), signals=((data, 1),)),), 1))
    add = TensorTensor(dst=tile("sbuf", 333), lhs=tile("sbuf", 333), rhs=tile("sbuf", 333), operation="add")
    b.add("vector", Loop("i", 40, (replace(add, waits=((data, 1),), signals=((free, 1),)),), 1))
    bound = bind(b.program(), make_arch(engines__vector__clock="960000000 Hz"))
    trace = simulate_bound(bound, record=True)
    assert trace.jumps
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    assert write_perfetto(trace, bound, plain) == 80
    write_perfetto(trace, bound, packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    events = json.loads(plain.read_text())["traceEvents"]
    for tid, stream in enumerate(trace.streams, start=1):
        slices = [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        assert sum(e["args"]["ps"] for e in slices) == stream.busy_ps
        ends = [round((e["ts"] + e["dur"]) * 1000) for e in slices]
        starts = [round(e["ts"] * 1000) for e in slices]
        assert all(a <= b for a, b in zip(ends, starts[1:], strict=False))
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert counters == {"DRAM GB/s", "sbuf bytes"}
    assert write_perfetto(trace, bound, plain, max_slices=10) == 10
    assert json.loads(plain.read_text())["otherData"]["truncated_at_ps"] > 0


def test_a_queue_that_waits_for_nothing_holds_a_limited_number_of_transfers() -> None:
    """A million copies that nobody waits for: neither a million pending transfers nor a million events."""
    b = Builder()
    b.add("dma0", Loop("i", 10**6, (load(512),), 1))
    arch = make_arch(dma__issue="1 ns", dma__latency="1 us")
    trace = simulate(b.program(), arch)
    flow = 131_072 * 1000 // 320
    assert trace.time_ps == 1001 * NS + 10**6 * flow
    assert trace.kernel_events < 500
    # Tiny transfers: at most 64 in one latency.
    b = Builder()
    b.add("dma0", Loop("i", 6400, (load(1, signals=()),), 1))
    tiny = simulate(b.program(), make_arch(dma__latency="100 us"), fold=False)
    assert tiny.time_ps >= 100 * 100_000 * NS
    assert tiny.figures() == simulate(b.program(), make_arch(dma__latency="100 us")).figures()
