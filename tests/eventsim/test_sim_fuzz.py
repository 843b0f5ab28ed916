"""Folded == unfolded == independent plain-SimPy oracle on random programs and machines."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from eventsim import bind, simulate_bound
from eventsim.path import critical_path
from eventsim.stats import audit, bounds
from eventsim.trace import records
from tests.eventsim.fuzz import check_seed, summary
from tests.eventsim.oracle import Oracle
from tests.eventsim.sim_programs import dynamic_instructions, random_arch, random_program


def test_folded_unfolded_and_oracle_agree(request: pytest.FixtureRequest) -> None:
    try:
        count = int(request.config.getoption("--fuzz"))
    except ValueError:  # the option exists only when this directory is named on the command line
        count = 300
    jumped = compared = 0
    for seed in range(count):
        _, jumps, oracle = check_seed(seed, most_oracle=1500)
        jumped += jumps > 0
        compared += oracle
    # The test means something only if folding happened and the oracle ran.
    assert jumped > 0.6 * count
    assert compared > 0.3 * count


@pytest.mark.parametrize("seed", range(20_000, 20_025))
def test_records_expand_to_the_unfolded_records(seed: int) -> None:
    r = random.Random(seed)
    arch = random_arch(r)
    program = random_program(r, arch)
    bound = bind(program, arch)
    if dynamic_instructions(program) > 8000:
        pytest.skip("long")
    plain = simulate_bound(bound, fold=False, record=True)
    folded = simulate_bound(bound, fold=True, record=True)
    assert plain.figures() == folded.figures() == simulate_bound(bound, fold=False).figures()
    for i, stream in enumerate(plain.streams):
        everything = list(records(plain, i))
        assert everything == list(records(folded, i))
        if not bound.streams[i].is_queue:
            ramp = stream.wait_ps.get("ramp", 0)
            assert sum(d for _, _, d in everything) == stream.busy_ps + ramp
        else:
            assert sum(d for _, _, d in everything) == stream.busy_ps
    rows = critical_path(plain, bound)
    assert sum(row.ps for row in rows) == plain.time_ps
    assert rows == critical_path(folded, bound)


@pytest.mark.parametrize("seed", range(30_000, 30_060))
def test_audit_every_stream_adds_up_and_bounds_hold(seed: int) -> None:
    r = random.Random(seed)
    arch = random_arch(r)
    bound = bind(random_program(r, arch), arch)
    trace = simulate_bound(bound)
    for s in trace.streams:
        assert s.busy_ps + sum(s.wait_ps.values()) + s.idle_ps == trace.time_ps
        assert min(s.busy_ps, s.idle_ps, *s.wait_ps.values(), 0) == 0
    limits = bounds(bound)
    assert limits.lower_ps <= trace.time_ps <= limits.serial_ps
    assert all(audit(trace, bound).values())
    cooked = replace(trace, time_ps=limits.lower_ps - 1)
    assert not all(audit(cooked, bound).values())


def test_the_oracle_can_disagree() -> None:
    """A machine that differs by one picosecond a transfer must not pass for the same."""
    r = random.Random(5)
    arch = random_arch(r)
    program = random_program(r, arch)
    other = arch.model_copy(update={"dma": arch.dma.model_copy(update={"issue": arch.dma.issue + 1})})
    assert summary(simulate_bound(bind(program, arch))) != Oracle(bind(program, other)).summary()
