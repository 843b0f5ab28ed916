"""Gates on counts that do not depend on the load of the machine: a hand-built Llama-3-8B-like prefill."""

from __future__ import annotations

from benchmarks.bench_eventsim import bench_arch, prefill
from eventsim import bind, simulate_bound


def test_a_whole_prefill_folds_exactly_to_few_events() -> None:
    arch = bench_arch()
    two = bind(prefill(2), arch)
    plain, folded = simulate_bound(two, fold=False), simulate_bound(two)
    assert folded.figures() == plain.figures()
    assert plain.kernel_events < 0.4 * two.instructions
    assert folded.kernel_events < 0.4 * plain.kernel_events
    whole = bind(prefill(32), arch)
    trace = simulate_bound(whole)
    assert whole.instructions > 2_800_000
    assert trace.kernel_events < 40_000
    # Cost does not grow with the number of identical layers.
    more = simulate_bound(bind(prefill(126), arch))
    assert more.kernel_events < 1.1 * trace.kernel_events
    per_layer = (more.time_ps - trace.time_ps) / 94
    assert abs(per_layer / (trace.time_ps / 32) - 1) < 0.01
