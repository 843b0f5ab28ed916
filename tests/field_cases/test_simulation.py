"""What users of such tools ran into, restated for the simulator: each test carries its case id."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from compiler.isa import Dma, Loop, Matmul, Program, Sync
from eventsim import Deadlock, bind, simulate, simulate_bound
from eventsim.perfetto import write_perfetto
from eventsim.stats import bounds
from tests.eventsim.sim_programs import (
    Builder,
    copy,
    load,
    make_arch,
    matmul,
    random_arch,
    random_program,
    rows,
    tile,
)

ROOT = Path(__file__).parents[2]
NS = 1000


def _folds(moving: int) -> Program:
    """K=768, N=256 on a 128x128 weight-stationary array: 12 tiles, each loaded once."""
    b = Builder()
    b.add("tensor", Loop("fold", 12, (matmul(moving),), 1))
    return b.program()


def test_U001_gemv_is_strictly_cheaper_than_the_gemm() -> None:
    arch = make_arch(engines__tensor__weight_load=128, engines__tensor__background_load=False)
    gemm, gemv = simulate(_folds(256), arch), simulate(_folds(1), arch)
    assert gemm.time_ps == 12 * (128 + 256) * NS == 4608 * NS
    assert gemv.time_ps == 12 * (128 + 1) * NS == 1548 * NS
    for trace, m, percent in ((gemm, 256, 66.67), (gemv, 1, 0.775)):
        macs = m * 768 * 256
        assert 100 * macs * NS / (trace.time_ps * 16384) == pytest.approx(percent, abs=0.01)


@pytest.mark.parametrize("side", [4, 8, 16, 32])
def test_U002_the_last_result_of_a_square_array(side: int) -> None:
    """S_R + S_C + T - 2 cycles to the last MAC: occupancy T, then `latency` = fill and skew of the array.

    The simulator's array is weight-stationary and counts occupancy; what waits for the result also
    sees `latency`. A result drain of S_R cycles more is a matter of the value given as `latency`.
    """
    arch = make_arch(
        engines__tensor__rows=side, engines__tensor__cols=side, engines__tensor__latency=2 * side - 2
    )
    b = Builder()
    done = b.chan("tensor", "vector")
    product = Matmul(
        dst=tile("psum", side, dtype="fp32", partitions=side),
        stationary=tile("sbuf", side, partitions=side),
        moving=tile("sbuf", side, partitions=side),
        load=False,
        signals=((done, 1),),
    )
    b.add("tensor", product)
    b.add("vector", Sync(waits=((done, 1),)))
    trace = simulate(b.program(), arch)
    assert trace.stream("tensor").busy_ps == side * NS
    assert trace.time_ps == (side + side + side - 2) * NS


def _pipeline(n: int, transfers: int = 1) -> Program:
    b = Builder()
    data, free = b.chan("dma0", "tensor"), b.chan("tensor", "dma0", 4 * transfers)
    body = tuple(load(512, waits=((free, 1),), signals=((data, 1),)) for _ in range(transfers))
    b.add("dma0", Loop("i", n, body, 1))
    b.add("tensor", Loop("i", n, (matmul(512, waits=((data, transfers),), signals=((free, transfers),)),), 1))
    return b.program()


def test_U004_no_memory_stall_when_memory_is_infinitely_fast() -> None:
    """A transfer takes at least the resolution, 1 ps; only the first is not hidden."""
    arch = make_arch(dma__engine_bandwidth="4000000 TB/s", memories__hbm__bandwidth="4000000 TB/s")
    program = _pipeline(1000)
    trace = simulate(program, arch)
    limits = bounds(bind(program, arch))
    assert trace.time_ps - limits.compute_ps == 1
    assert trace.stream("tensor").wait_ps == {"dma0": 1}


def test_U031_a_circular_wait_is_an_error_that_names_both_sides() -> None:
    b = Builder()
    ab, ba = b.chan("vector", "scalar"), b.chan("scalar", "vector")
    b.add("vector", copy(100), copy(10, waits=((ba, 1),), signals=((ab, 1),)))
    b.add("scalar", copy(10, waits=((ab, 1),), signals=((ba, 1),)))
    with pytest.raises(Deadlock) as caught:
        simulate(b.program(), make_arch())
    one, two = caught.value.waiting
    assert (one.stream, one.channel, one.producer) == ("vector", ba, "scalar")
    assert (two.stream, two.channel, two.producer) == ("scalar", ab, "vector")
    assert (one.needed, one.available, one.held) == (1, 0, ("sbuf_bf16",))
    assert "vector: Copy #1 waits for 1 of channel 'c1' (has 0), signalled by scalar" in str(caught.value)


def test_U031_a_semaphore_never_incremented_is_an_error() -> None:
    for fold in (True, False):
        b = Builder()
        never = b.chan("vector", "dma0", 5)
        b.add("vector", copy(100))
        b.add("dma0", Loop("i", 100, (load(64, waits=((never, 1),)),), 1))
        with pytest.raises(Deadlock, match="dma0: Dma #0 waits for 1 of channel 'c0'"):
            simulate(b.program(), make_arch(), fold=fold)


def _at(delays: list[int], free: int) -> Program:
    """One load of [128, free] in each queue, issued after `delays` ns."""
    b = Builder()
    for i, delay in enumerate(delays):
        go = b.chan("vector", f"dma{i}")
        b.add("vector", Loop("w", delay, (copy(1),), -1), Sync(signals=((go, 1),)))
        b.add(f"dma{i}", load(free, waits=((go, 1),)))
    return b.program()


def test_U046_sharing_a_link_is_work_conserving() -> None:
    """Eight transfers of 256 kB at 200 GB/s: 1280 ns each alone, 10240 ns together, however they start."""
    arch = make_arch(memories__hbm__bandwidth="200 GB/s")
    for fold in (True, False):
        together = simulate(_at([0] * 8, 1000), arch, fold=fold)
        assert together.time_ps - 1 * NS in range(8 * 1280 * NS, 8 * 1280 * NS + 9)
        # One every 600 ns (300 copies of 2 ns): back to back, the link never idle.
        staggered = simulate(_at([0] + [300] * 7, 1000), arch, fold=fold)
        assert staggered.time_ps - 1 * NS in range(8 * 1280 * NS, 8 * 1280 * NS + 9)
        assert staggered.dma_active_ps == staggered.time_ps - 1 * NS


def test_U046_two_hops() -> None:
    """Short runs load the DMA engines 4 times as much as the DRAM: each flow waits for its own bottleneck."""
    arch = make_arch(
        dma__engines=1, dma__engine_bandwidth="100 GB/s", dma__descriptor_bytes="1024 B",
        memories__hbm__bandwidth="50 GB/s",
    )  # fmt: skip
    b = Builder()
    b.add("dma0", Dma(dst=tile("sbuf", 128), src=rows(128, 4096)))  # 32 kB in 128 kB worth of descriptors
    b.add("dma1", load(512))  # 128 kB
    # Equal rates x of effective bytes: x/4 + x <= 50 and 2x <= 100, so 40 GB/s each until both have moved
    # 131072 effective bytes: both end together.
    assert simulate(b.program(), arch).time_ps == -(-131072 * 1000 // 40)


def test_U047_small_transfers_pay_the_fixed_cost() -> None:
    """1,300 ns and 23 B/ns: 64 B reaches 0.05 B/ns, 90 % of the rate needs hundreds of kilobytes."""
    arch = make_arch(
        dma__engines=1, dma__engine_bandwidth="23 GB/s", dma__latency="1300 ns",
        memories__hbm__bandwidth="1 TB/s",
    )  # fmt: skip
    rates = {}
    for nbytes in (64, 512, 2048, 4096, 1 << 20):
        b = Builder()
        b.add(
            "dma0",
            Dma(dst=tile("sbuf", nbytes // 2, partitions=1), src=tile("hbm", nbytes // 2, partitions=1)),
        )
        time_ps = simulate(b.program(), arch).time_ps
        assert time_ps == 1_300_000 + -(-nbytes * 1000 // 23)
        rates[nbytes] = nbytes * 1000 / time_ps
    assert rates[64] == pytest.approx(0.05, abs=0.002)
    assert rates[4096] < 0.5 * 23
    assert rates[1 << 20] > 0.9 * 23


def test_U047_small_descriptors_cost_and_the_trace_says_how_much() -> None:
    arch = make_arch(dma__descriptor_bytes="512 B")
    b = Builder()
    b.add("dma0", Dma(dst=tile("sbuf", 32), src=rows(32, 4096)))
    trace = simulate(b.program(), arch)
    assert trace.dram_read_bytes == 128 * 64
    assert trace.dma_effective_bytes == 128 * 512


def test_U049_twice_the_clock_is_half_the_time() -> None:
    slow, fast = (
        simulate(_folds(512), make_arch(engines__tensor__clock=f"{hertz} Hz")).time_ps
        for hertz in (1_400_000_000, 2_800_000_000)
    )
    assert fast == 12 * -(-512 * 10**12 // 2_800_000_000)
    assert abs(slow - 2 * fast) <= 12 * 2  # rounded up once an instruction
    assert slow == 12 * -(-512 * 10**12 // 1_400_000_000)


def test_U067_overlapping_queues_do_not_overlap_on_a_track(tmp_path: Path) -> None:
    b = Builder()
    for q in range(3):
        b.add(f"dma{q}", Loop("i", 30, (load(100 + 7 * q), load(33)), q))
    bound = bind(b.program(), make_arch(dma__issue="10 ns", dma__latency="1 us"))
    trace = simulate_bound(bound, record=True)
    write_perfetto(trace, bound, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert sorted(names.values()) == ["dma0", "dma1", "dma2"]
    for tid, name in names.items():
        slices = [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        assert len(slices) == 60
        assert sum(e["args"]["ps"] for e in slices) == trace.stream(name).busy_ps
        spans = sorted((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in slices)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_U095_long_times_are_exact_and_fast() -> None:
    """One instruction of 3 s, and a run of over an hour: integers do not overflow or drift."""
    arch = make_arch(engines__vector__ops__copy=3000, engines__vector__clock="1 MHz")
    b = Builder()
    b.add("vector", copy(1000))
    assert simulate(b.program(), arch).time_ps == 3 * 10**12 + 10**6  # one cycle of overhead
    n = 4_000_000_000  # matmuls of 1 us
    program = _pipeline(n)
    trace = simulate(program, make_arch(engines__tensor__clock="512000000 Hz"))
    flow = 131_072 * 1000 // 320
    assert trace.time_ps == n * 1000 * NS + flow
    assert trace.time_ps > 3600 * 10**12
    assert trace.dram_read_bytes == n * 131_072


_DIGEST = """
import hashlib, random, sys
from eventsim import bind, simulate_bound
from tests.eventsim.sim_programs import random_arch, random_program
h = hashlib.sha256()
for seed in range(40, 52):
    r = random.Random(seed)
    arch = random_arch(r)
    trace = simulate_bound(bind(random_program(r, arch), arch), record=True)
    h.update(repr((trace.figures(), trace.kernel_events, trace.jump_list)).encode())
    for c in trace.columns:
        h.update(c.index.tobytes() + c.start.tobytes() + c.duration.tobytes() + c.cause.tobytes())
print(h.hexdigest())
"""


def test_U122_traces_do_not_depend_on_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST], cwd=ROOT, check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        ).stdout
        for seed in ("0", "1234")
    }  # fmt: skip
    assert len(digests) == 1


def test_U122_many_completions_at_one_time() -> None:
    """Eight equal transfers end together; the order in which the program lists the queues does not matter."""
    b = Builder()
    for q in range(8):
        done = b.chan(f"dma{q}", "vector")
        b.add(f"dma{q}", Loop("i", 20, (load(512, signals=((done, 1),)),), 1))
        b.add("vector", Loop("i", 20, (copy(3, waits=((done, 1),)),), 2 + q))
    program = b.program()
    backwards = Program(program.name, program.streams[::-1], program.buffers, program.channels)
    one, two = simulate(program, make_arch()), simulate(backwards, make_arch())
    assert {s.name: s for s in one.streams} == {s.name: s for s in two.streams}
    assert len({s.end_ps for s in one.streams if s.name != "vector"}) == 1


@pytest.mark.parametrize("seed", range(50_000, 50_040))
def test_U022_lower_bound_simulated_serial_bound(seed: int) -> None:
    r = random.Random(seed)
    arch = random_arch(r)
    bound = bind(random_program(r, arch), arch)
    limits, trace = bounds(bound), simulate_bound(bound)
    assert max(limits.compute_ps, limits.memory_ps) <= trace.time_ps <= limits.serial_ps


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("memories__hbm__bandwidth", ["20 GB/s", "50 GB/s", "400 GB/s"]),
        ("dma__engine_bandwidth", ["1 GB/s", "3 GB/s", "20 GB/s"]),
        ("dma__engines", [1, 2, 16]),
        ("dma__latency", ["2 us", "1 us", "0 ps"]),
        ("engines__tensor__clock", ["700 MHz", "1.4 GHz", "2.8 GHz"]),
    ],
)
def test_U004_more_of_a_resource_is_never_slower_in_a_pipeline(path: str, values: list[object]) -> None:
    times = [simulate(_pipeline(300, 2), make_arch(**{path: value})).time_ps for value in values]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
