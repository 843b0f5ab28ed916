"""State-space ops: programs agree with the reference, and that with a plain recurrence."""

import numpy as np
import pytest

from arch_configs import load_arch
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ops import CausalConv1d, ConvStep, SsdScan, SsdStep
from tests.kernels.conftest import agrees, one_op

ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu")


def scan_graph(op, tokens, dtype="bf16"):
    h, f, n = op.heads, op.heads * op.head_dim, 2 * op.groups * op.state
    vectors = [((h,), "weight")] * 3
    operands = [((tokens, f), "input"), ((tokens, h), "input"), ((tokens, n), "input"), *vectors]
    return one_op(op, *operands, dtype=dtype)


def step_graph(op, batch, *shapes, state, dtype="bf16"):
    """A graph of one op that makes y and updates its first operand."""
    values = [Value("s", TensorType(state, dtype), "state")]
    values += [Value(f"v{i}", TensorType(s, dtype), kind) for i, (s, kind) in enumerate(shapes)]
    names = tuple(v.name for v in values)
    y, kept = op.infer(tuple(v.type for v in values))
    assert kept == values[0].type
    return Graph("step", (*values, Value("y", y)), (Node("y", op, names, ("y", "s")),), ("y",))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("shape", [(2, 33, 70, 4, "silu"), (1, 5, 130, 3, None), (3, 1, 32, 4, "silu")])
def test_causal_convolution(shape, arch):
    batch, seq, c, taps, func = shape
    graph = one_op(
        CausalConv1d(seq, func), ((batch * seq, c), "input"), ((c, taps), "weight"), ((c,), "weight")
    )
    assert agrees(graph, load_arch(arch))


def test_causal_convolution_of_long_sequences_goes_piece_by_piece():
    graph = one_op(CausalConv1d(2500), ((2500, 9), "input"), ((9, 4), "weight"), ((9,), "weight"))
    assert agrees(graph, load_arch("trn2"))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("batch", "c", "taps"), [(1, 70, 4), (5, 300, 3), (3, 128, 2)])
def test_convolution_step(batch, c, taps, arch):
    shapes = [((batch, c), "input"), ((c, taps), "weight"), ((c,), "weight")]
    graph = step_graph(ConvStep("silu"), batch, *shapes, state=((taps - 1) * batch, c))
    assert agrees(graph, load_arch(arch))


SCANS = {
    "one chunk": (SsdScan(4, 16, 1, 16, seq=9), 9),
    "chunks and a rest": (SsdScan(6, 64, 1, 128, seq=150), 150),
    "groups, sequences": (SsdScan(4, 32, 2, 64, seq=40), 80),
    "odd": (SsdScan(3, 24, 1, 40, seq=33, chunk=16), 33),
    "wide heads": (SsdScan(2, 160, 1, 32, seq=70), 70),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", SCANS)
def test_scan(case, arch):
    op, tokens = SCANS[case]
    assert agrees(scan_graph(op, tokens), load_arch(arch))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("op", "batch"), [(SsdStep(4, 64, 1, 128), 3), (SsdStep(6, 16, 2, 16), 2), (SsdStep(3, 80, 1, 40), 1)]
)
def test_scan_step(op, batch, arch):
    h, f, n = op.heads, op.heads * op.head_dim, 2 * op.groups * op.state
    shapes = [((batch, f), "input"), ((batch, h), "input"), ((batch, n), "input")]
    shapes += [((h,), "weight")] * 3
    graph = step_graph(op, batch, *shapes, state=(batch, f, op.state))
    assert agrees(graph, load_arch(arch))


def test_scan_is_the_recurrence_and_its_steps():
    """Against loops over heads, features, states and positions, in float64."""
    op, rng = SsdScan(4, 3, 2, 5, seq=6), np.random.default_rng(0)
    x, dt, bc = (rng.standard_normal((12, n)).astype(np.float32) for n in (12, 4, 20))
    a_log, bias, d = (rng.standard_normal(4).astype(np.float32) for _ in range(3))
    (got,) = op.reference(x, dt, bc, a_log, bias, d)
    want, state = np.zeros((12, 12)), {}
    for t in range(12):
        if t % 6 == 0:
            state = {}
        for h in range(4):
            delta = np.log1p(np.exp(float(dt[t, h]) + bias[h]))
            for p in range(3):
                f, g = h * 3 + p, h // 2
                for n in range(5):
                    kept = state.get((f, n), 0.0) * np.exp(-np.exp(a_log[h]) * delta)
                    state[f, n] = kept + delta * x[t, f] * bc[t, g * 5 + n]
                    want[t, f] += bc[t, 10 + g * 5 + n] * state[f, n]
                want[t, f] += d[h] * x[t, f]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    step, held = SsdStep(4, 3, 2, 5), np.zeros((1, 12, 5), np.float32)
    for t in range(6):
        y, held = step.reference(held, x[t : t + 1], dt[t : t + 1], bc[t : t + 1], a_log, bias, d)
        np.testing.assert_allclose(y[0], want[t], rtol=1e-4, atol=1e-4)


def test_convolution_is_its_steps():
    op, step, rng = CausalConv1d(7, "silu"), ConvStep("silu"), np.random.default_rng(1)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((7, 3), (3, 4), (3,)))
    (whole,) = op.reference(x, w, b)
    state = np.zeros((3, 3), np.float32)
    for t in range(7):
        y, state = step.reference(state, x[t : t + 1], w, b)
        np.testing.assert_allclose(y[0], whole[t], rtol=1e-5, atol=1e-5)
    total = sum(w[:, j] * x[3 + j] for j in range(4)) + b
    np.testing.assert_allclose(whole[6], total / (1 + np.exp(-total)), rtol=1e-4)
