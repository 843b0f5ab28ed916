"""Experts, latents and state spaces on random machines, some of them tiny: they agree, or do not fit."""

from __future__ import annotations

import random

import pytest

from compiler.ir.graph import Graph
from compiler.ops import CacheRows, CausalConv1d, ConvStep, SsdScan, SsdStep
from tests.kernels.conftest import agrees, one_op
from tests.kernels.test_latent import attention, prompt
from tests.kernels.test_moe import experts
from tests.kernels.test_ssm import scan_graph, step_graph
from tests.strategies import random_arch


def graphs(rng: random.Random) -> list[Graph]:
    """One of each kind, of random sizes."""
    heads, width, states = rng.choice([1, 2, 4]), rng.choice([4, 16, 24, 40]), rng.choice([4, 16, 40])
    groups = rng.choice([n for n in (1, 2, 4) if heads % n == 0])
    seq, batch, taps, c = (
        rng.choice([1, 5, 17, 40]),
        rng.choice([1, 2]),
        rng.choice([2, 4]),
        rng.choice([3, 70]),
    )
    f, length, queries = heads * width, rng.choice([3, 20, 70]), rng.choice([1, 2, 3])
    step = [((batch, f), "input"), ((batch, heads), "input"), ((batch, 2 * groups * states), "input")]
    filters = [((c, taps), "weight"), ((c,), "weight")]
    latent = (batch, heads, rng.choice([8, 16]), 8, rng.choice([8, 32, 48]), 16, length, length + 2, queries)
    return [
        scan_graph(SsdScan(heads, width, groups, states, seq=seq, chunk=rng.choice([8, 64])), seq * batch),
        step_graph(
            SsdStep(heads, width, groups, states), batch, *step, *[((heads,), "weight")] * 3,
            state=(batch, f, states),
        ),
        one_op(CausalConv1d(seq, "silu"), ((seq * batch, c), "input"), *filters),
        step_graph(
            ConvStep("silu"), batch, ((batch, c), "input"), *filters, state=((taps - 1) * batch, c)
        ),
        attention(*latent),
        prompt(batch, heads, rng.choice([8, 24, 40]), rng.choice([4, 8]), seq),
        one_op(CacheRows(length), ((batch, 1, c, length + 2), "state")),
        experts((3, 3, 2, 1, 1, 0), 2, rng.choice([16, 70]), rng.choice([8, 40]), bias=rng.random() < 0.3),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_machines_agree_or_are_too_small(seed: int) -> None:
    rng = random.Random(seed)
    arch = random_arch(rng)
    assert sum(agrees(graph, arch) is not None for graph in graphs(rng)) >= 1
