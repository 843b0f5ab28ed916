"""Folding on programs made so that one part of the state, or one rule of the comparison, decides."""

from __future__ import annotations

import pytest

from compiler.isa import Activate, Loop, Program, Sync
from eventsim import simulate
from tests.eventsim.sim_programs import Builder, copy, load, make_arch, matmul, store, tile


def _same(program: Program, **arch: object) -> None:
    plain, folded = simulate(program, make_arch(**arch), fold=False), simulate(program, make_arch(**arch))
    assert folded.jumps > 0
    assert folded.figures() == plain.figures()


@pytest.mark.parametrize("inner", [2, 3, 4, 7])
@pytest.mark.parametrize("slow", [10, 3000])
def test_flat_in_one_stream_and_nested_in_another(inner: int, slow: int) -> None:
    b = Builder()
    data, free = b.chan("dma0", "tensor"), b.chan("tensor", "dma0", 3)
    body = load(512, waits=((free, 1),), signals=((data, 1),))
    b.add("dma0", Loop("i", 60, (Loop("j", inner, (body,), -1),), -1))
    take = matmul(slow, waits=((data, 1),), signals=((free, 1),))
    b.add("tensor", Loop("i", 60 * inner, (take,), -1))
    _same(b.program(), dma__issue="50 ns", dma__latency="1 us")


@pytest.mark.parametrize("credit", [1, 5, 40])
def test_a_producer_far_ahead_with_an_uneven_start(credit: int) -> None:
    """Tokens wait in the channel with times of their own: some uneven, from before the steady state."""
    b = Builder()
    forth, back = b.chan("scalar", "vector"), b.chan("vector", "scalar", credit)
    go = b.chan("gpsimd", "vector")
    one = (copy(100, waits=((back, 1),), signals=((forth, 1),)),)
    b.add("scalar", Loop("i", 3, (*one, copy(170)), -1), Loop("i", 197, one, 1))
    b.add("gpsimd", copy(900, signals=((go, 1),)))
    two = (copy(60, waits=((forth, 1),), signals=((back, 1),)),)
    b.add("vector", Sync(waits=((go, 1),)), Loop("i", 200, two, 1))
    _same(b.program())


def test_an_engine_that_waits_outside_the_loop_keeps_its_clock() -> None:
    """The gpsimd engine waits through all the repeats; its wait must be the true one."""
    b = Builder()
    forth, back = b.chan("scalar", "vector"), b.chan("vector", "scalar", 2)
    end = b.chan("vector", "gpsimd")
    b.add("scalar", Loop("i", 500, (copy(100, waits=((back, 1),), signals=((forth, 1),)),), 1))
    last = copy(9, signals=((end, 1),))
    b.add("vector", Loop("i", 500, (copy(70, waits=((forth, 1),), signals=((back, 1),)),), 1), last)
    b.add("gpsimd", copy(33), copy(5, waits=((end, 1),)), copy(5))
    _same(b.program())
    trace = simulate(b.program(), make_arch())
    gpsimd = trace.stream("gpsimd")
    assert gpsimd.wait_ps["vector"] + gpsimd.busy_ps == trace.time_ps


@pytest.mark.parametrize("funcs", [("exp", "gelu"), ("exp", "exp"), ("gelu", "exp", "silu")])
def test_tables_that_change_in_every_iteration(funcs: tuple[str, ...]) -> None:
    b = Builder()
    forth, back = b.chan("scalar", "vector"), b.chan("vector", "scalar", 2)
    acts = [Activate(dst=tile("sbuf", 50), src=tile("sbuf", 50), func=f) for f in funcs]
    b.add("scalar", Loop("i", 100, (copy(1, waits=((back, 1),), signals=((forth, 1),)), *acts), 1))
    b.add("vector", Loop("i", 100, (copy(7000, waits=((forth, 1),), signals=((back, 1),)),), 1))
    _same(b.program(), engines__scalar__table_load="1283 ns")


@pytest.mark.parametrize("gap", [100, 1000, 2999, 3001, 8000])
def test_a_ramp_that_never_gets_warm(gap: int) -> None:
    b = Builder()
    forth, back = b.chan("vector", "tensor"), b.chan("tensor", "vector", 1)
    b.add("vector", Loop("i", 100, (copy(gap, waits=((back, 1),), signals=((forth, 1),)),), 1))
    b.add("tensor", Loop("i", 100, (matmul(300, waits=((forth, 1),), signals=((back, 1),)),), 1))
    _same(b.program(), engines__tensor__ramp={"start": 0.5, "time": "3 us"})


@pytest.mark.parametrize(("a", "b_", "c"), [(100, 100, 100), (90, 41, 300), (7, 500, 13)])
def test_ports_between_three_engines(a: int, b_: int, c: int) -> None:
    rule = ({"engines": ("vector", "scalar", "gpsimd"), "memory": "sbuf"},)
    b = Builder()
    for name, n, trips in (("vector", a, 300), ("scalar", b_, 400), ("gpsimd", c, 350)):
        b.add(name, Loop("i", trips, (copy(n), copy(n // 2)), 1))
    _same(b.program(), exclusions=rule)


def test_queues_of_different_periods_share_the_memory() -> None:
    b = Builder()
    for q, (n, k) in enumerate(((512, 1), (512, 2), (1024, 1), (256, 3))):
        data, free = b.chan(f"dma{q}", "vector"), b.chan("vector", f"dma{q}", 2 * k)
        body = tuple(load(n, waits=((free, 1),), signals=((data, 1),)) for _ in range(k))
        b.add(f"dma{q}", Loop("i", 200, body, 1))
        b.add("vector", Sync()) if q == 0 else None
        b.streams.setdefault("chans", []).extend((data, free, k))  # type: ignore[arg-type]
    chans = b.streams.pop("chans")
    takes = tuple((chans[i], chans[i + 2]) for i in range(0, len(chans), 3))
    frees = tuple((chans[i + 1], chans[i + 2]) for i in range(0, len(chans), 3))
    b.add("vector", Loop("i", 200, (copy(100, waits=takes, signals=frees),), 1))  # type: ignore[arg-type]
    _same(b.program(), memories__hbm__bandwidth="97 GB/s", dma__latency="2 us", dma__completion="1 us")


def test_a_store_queue_behind_a_slow_start() -> None:
    b = Builder()
    done, credit = b.chan("vector", "dma1"), b.chan("dma1", "vector", 9)
    b.add("dma1", load(4000), Loop("i", 300, (store(64, waits=((done, 1),), signals=((credit, 1),)),), 1))
    b.add("vector", Loop("i", 300, (copy(200, waits=((credit, 1),), signals=((done, 1),)),), 1))
    _same(b.program(), dma__issue="90 ns", dma__latency="1500 ns")


def test_tokens_of_an_uneven_producer_that_never_waits() -> None:
    """All tokens are in the channel at once; the pace changes in the middle of them."""
    b = Builder()
    go = b.chan("scalar", "vector")
    for trips, n in ((50, 500), (17, 300), (100, 500)):
        b.add("scalar", Loop("i", trips, (copy(n, signals=((go, 1),)),), -1))
    b.add("vector", Loop("i", 167, (copy(10, waits=((go, 1),)),), -1))
    plain = simulate(b.program(), make_arch(), fold=False)
    assert simulate(b.program(), make_arch()).figures() == plain.figures()
    assert plain.time_ps == (150 * 501 + 17 * 301 + 1 + 11) * 1000


@pytest.mark.parametrize("late", [1, 3000, 6000])
def test_what_only_the_first_iteration_sees_is_not_repeated(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first table load, and a first wait that is shorter, both hidden behind a slow engine."""
    monkeypatch.setattr("eventsim.fold.HEAVY", 0)  # compare from the first iteration on
    b = Builder()
    gelu = Activate(dst=tile("sbuf", 5), src=tile("sbuf", 5), func="gelu")
    exp = Activate(dst=tile("sbuf", 5), src=tile("sbuf", 5), func="exp")
    to_scalar, to_pool = b.chan("vector", "scalar"), b.chan("vector", "gpsimd")
    slow = copy(7000, signals=((to_scalar, 1), (to_pool, 1)))
    b.add("vector", Loop("i", 100, (slow, copy(4000)), 1))
    # One token behind: after the first iteration it stands where it will, but with another table.
    wait = Sync(waits=((to_scalar, 1),))
    b.add("scalar", gelu, wait, Loop("i", 99, (wait, exp), 1))
    b.add("gpsimd", copy(late), Loop("i", 100, (copy(10, waits=((to_pool, 1),)),), 1))
    _same(b.program(), engines__scalar__table_load="1283 ns")
    trace = simulate(b.program(), make_arch(engines__scalar__table_load="1283 ns"))
    assert trace.stream("scalar").wait_ps["table"] == 2 * 1_283_000


def test_a_loop_without_events_while_another_engine_waits_for_a_port() -> None:
    """The ping-pong runs ahead of the kernel, in which the request for the port is still to come."""
    rule = ({"engines": ("gpsimd", "vector"), "memory": "psum"},)
    for delay in (5, 700, 5000):
        b = Builder()
        forth, back = b.chan("tensor", "scalar"), b.chan("scalar", "tensor", 2)
        b.add("tensor", Loop("i", 1000, (matmul(100, waits=((back, 1),), signals=((forth, 1),)),), 1))
        b.add("scalar", Loop("i", 1000, (copy(90, waits=((forth, 1),), signals=((back, 1),)),), 1))
        b.add("gpsimd", copy(delay), copy(3000, "psum"), copy(50))
        b.add("vector", copy(delay + 7), copy(1000, "psum"))
        _same(b.program(), exclusions=rule)


@pytest.mark.parametrize("size", [64, 4000])
def test_a_loop_without_events_while_a_transfer_is_on_its_way(size: int) -> None:
    b = Builder()
    forth, back = b.chan("tensor", "scalar"), b.chan("scalar", "tensor", 2)
    there = b.chan("dma0", "vector")
    b.add("tensor", Loop("i", 1000, (matmul(100, waits=((back, 1),), signals=((forth, 1),)),), 1))
    b.add("scalar", Loop("i", 1000, (copy(90, waits=((forth, 1),), signals=((back, 1),)),), 1))
    b.add("dma0", load(size), load(size, signals=((there, 1),)))
    b.add("vector", copy(60, waits=((there, 1),)))
    _same(b.program(), dma__latency="3 us")
