"""Each audit can fail: records of simulations that were tampered with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.evaluation import evaluate, evaluate_traced
from dse.point import Point
from dse.summary import instructions_conserved
from eventsim import BoundProgram, Trace
from eventsim.stats import times_add_up

POINT = Point("trn1", "gemm:m=1024,n=1024,k=1024,dtype=bf16")


def traced() -> tuple[BoundProgram, Trace]:
    _, bound, trace = evaluate_traced(POINT)
    assert bound is not None
    assert trace is not None
    return bound, trace


def failed() -> set[str]:
    return {name for name, passed in evaluate(POINT)["audit"].items() if not passed}


def test_transfers_that_carry_a_tenth_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed() == set()
    monkeypatch.setattr("eventsim.stream.PS_PER_S", 10**11)
    assert {"bytes_conserved", "dram_below_peak"} <= failed()


def test_a_picosecond_more_or_less_is_noticed() -> None:
    bound, trace = traced()
    assert times_add_up(trace, bound)
    for i, stream in enumerate(bound.streams):
        for field in ("busy_ps", "idle_ps", "end_ps"):
            for by in (-1, 1):
                old = trace.streams[i]
                cooked = replace(old, **{field: getattr(old, field) + by})
                if stream.is_queue and field == "end_ps" and by > 0:
                    continue  # the issuing side of a queue may end behind its last transfer
                streams = (*trace.streams[:i], cooked, *trace.streams[i + 1 :])
                assert not times_add_up(replace(trace, streams=streams), bound), (stream.name, field, by)


def test_a_missing_instruction_and_a_missing_repeat_are_noticed() -> None:
    bound, trace = traced()
    assert trace.jump_list
    assert instructions_conserved(bound, trace)
    first = trace.jump_list[0]
    jumps = (replace(first, times=first.times + 1), *trace.jump_list[1:])
    assert not instructions_conserved(bound, replace(trace, jump_list=jumps))
    trace.columns[0].start.pop()
    assert not instructions_conserved(bound, trace)
