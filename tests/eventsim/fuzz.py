"""Differential fuzz: folded == unfolded == plain-SimPy oracle, to the picosecond, in every figure."""

from __future__ import annotations

import argparse
import random
import time

from eventsim import Trace, bind, fold, simulate_bound
from tests.eventsim.oracle import Oracle
from tests.eventsim.sim_programs import dynamic_instructions, random_arch, random_program


def summary(trace: Trace) -> tuple[object, ...]:
    """The trace in the oracle's form."""
    streams = tuple(
        (
            s.name,
            tuple(sorted((k, v) for k, v in s.busy_by_op.items() if v)),
            tuple(sorted(s.wait_ps.items())),
            s.end_ps,
        )
        for s in trace.streams
    )
    return trace.time_ps, streams, trace.dma_active_ps


def check_seed(seed: int, *, most_oracle: int = 4000) -> tuple[int, int, int]:
    """Check one random program; return (instructions, jumps, 1 if the oracle ran)."""
    r = random.Random(seed)
    arch = random_arch(r)
    program = random_program(r, arch)
    bound = bind(program, arch)
    plain = simulate_bound(bound, fold=False)
    folded = simulate_bound(bound, fold=True)
    assert folded.figures() == plain.figures(), f"seed {seed}: folded differs"
    eager, fold.HEAVY = fold.HEAVY, 0  # compare in full from the first iteration on
    try:
        assert simulate_bound(bound).figures() == plain.figures(), f"seed {seed}: eagerly folded differs"
    finally:
        fold.HEAVY = eager
    size = dynamic_instructions(program)
    if size <= most_oracle:
        assert summary(plain) == Oracle(bound).summary(), f"seed {seed}: oracle differs"
    return size, folded.jumps, int(size <= most_oracle)


def main() -> None:
    """Run from the command line: `python -m tests.eventsim.fuzz FIRST COUNT`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    args = parser.parse_args()
    began, sizes, jumped, checked = time.process_time(), 0, 0, 0
    for seed in range(args.first, args.first + args.count):
        size, jumps, oracle = check_seed(seed)
        sizes, jumped, checked = sizes + size, jumped + (jumps > 0), checked + oracle
    print(
        f"{args.count} programs, {sizes} instructions, folded in {jumped}, oracle in {checked}, "
        f"0 mismatches, {time.process_time() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
