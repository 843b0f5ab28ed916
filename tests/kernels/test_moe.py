"""Experts: the program computes what the graph says, for even, uneven and empty loads."""

from dataclasses import replace

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import CompileOptions, compile_graph
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ir.reference import random_feeds
from compiler.isa import Dma, walk
from compiler.ops import Binary, ClampedGlu, Combine, Dispatch, GroupedLinear, Linear, Route, Unary
from compiler.routing import assign, padded, runs
from tests.kernels.conftest import agrees, one_op


class Build:
    """A graph, value by value."""

    def __init__(self, dtype="bf16"):
        self.values, self.nodes, self.dtype = {}, [], dtype

    def value(self, name, kind, *shape, dtype=""):
        self.values[name] = Value(name, TensorType(shape, dtype or self.dtype), kind)
        return name

    def op(self, name, op, *ins):
        (out,) = op.infer(tuple(self.values[i].type for i in ins))
        self.values[name] = Value(name, out)
        self.nodes.append(Node(name, op, ins, (name,)))
        return name

    def graph(self, *outputs):
        return Graph("g", tuple(self.values.values()), tuple(self.nodes), outputs)


def experts(counts, top, hidden, inner, *, bias=False, dtype="bf16", **route):
    """Router, dispatch, experts (gated, or plain with biases) and combine."""
    b, rows, tokens, e = Build(dtype), padded(counts), sum(counts) // top, len(counts)
    x = b.value("x", "input", tokens, hidden)
    logits = b.op("logits", Linear(), x, b.value("router", "weight", hidden, e))
    chosen = b.value("chosen", "table", tokens, top, dtype="int32")
    index = b.value("index", "table", e, dtype="fp32")
    gates = b.op("gates", Route(counts, top, **route), logits, chosen, index)
    source = b.value("source", "table", sum(rows), dtype="int32")
    mine = b.op("mine", Dispatch(counts, top), x, source)
    layer = GroupedLinear(rows, sum(rows) - sum(counts))
    wide, back = (e, hidden, inner), (e, inner, hidden)
    if bias:
        layer = replace(layer, bias=True)
        b1, b2 = b.value("b1", "weight", e, inner), b.value("b2", "weight", e, hidden)
        first = replace(layer, activation="silu")
        y = b.op("act", first, mine, b.value("w1", "weight", *wide), b1)
        y = b.op("down", layer, y, b.value("w2", "weight", *back), b2)
    else:
        gate = b.op("act", Unary("silu"), b.op("gate", layer, mine, b.value("w1", "weight", *wide)))
        up = b.op("up", layer, mine, b.value("w3", "weight", *wide))
        y = b.op("down", layer, b.op("gated", Binary("mul"), gate, up), b.value("w2", "weight", *back))
    slot = b.value("slot", "table", tokens, top, dtype="int32")
    return b.graph(b.op("y", Combine(counts, top), y, gates, slot))


CASES = {
    "even": ((2,) * 8, 2, 70, 40),
    "strided": ((1, 0, 0) * 4, 2, 33, 130),
    "uneven": ((40, 20, 10, 7, 3, 0), 2, 64, 96),
    "one": ((0, 3, 0), 1, 129, 17),
    "padded": ((30, 29, 27, 24, 20, 19, 17, 16, 13, 11, 8, 2), 6, 32, 32),
}


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_experts_agree(case, bias, arch):
    assert agrees(experts(*CASES[case], bias=bias), load_arch(arch))


@pytest.mark.parametrize(
    "route",
    [{"score": "sigmoid", "scale": 2.5}, {"normalise": False}, {"score": "sigmoid", "normalise": False}],
)
def test_gates_agree(route):
    assert agrees(experts((2, 2, 2, 1, 1), 2, 40, 24, **route), load_arch("trn2"))


def test_where_memory_is_small_each_expert_is_a_layer_of_its_own_or_sums_are_kept(archs):
    for arch in archs[3:]:  # random ones, some of them tiny
        agrees(experts((5, 5, 3, 1), 2, 200, 150), arch)
    small = load_arch("edge-npu", {"memories.sram.capacity": "128 KiB"})
    assert agrees(experts((5, 5, 3, 1), 2, 600, 500), small)
    assert agrees(experts((70, 70, 60), 2, 300, 260), small)


@pytest.mark.parametrize("options", [CompileOptions(double_buffer=False), CompileOptions(passes=())])
def test_options_keep_the_meaning(options):
    graph = experts((3, 3, 2), 2, 48, 40)
    assert agrees(graph, load_arch("trn1"), options)


def bytes_read(program, value):
    mine = {b.name for b in program.buffers if b.tensor == value}
    return sum(
        times * instr.src.nbytes
        for _, nodes in program.streams
        for instr, times in walk(nodes)
        if isinstance(instr, Dma) and instr.src.buffer in mine
    )


def test_only_experts_with_rows_are_read_and_each_once():
    program = compile_graph(experts((2, 0, 2, 0, 2, 0, 2, 0), 2, 256, 128), load_arch("trn2"))
    assert bytes_read(program, "w1") == 4 * 256 * 128 * 2
    assert bytes_read(program, "w2") == 4 * 256 * 128 * 2


def test_a_loop_of_experts_is_as_much_code_for_many_as_for_few():
    sizes = [
        sum(1 for _, nodes in compile_graph(experts((1,) * n, 8, 64, 64), load_arch("trn2")).streams
            for _ in walk(nodes))
        for n in (64, 256)
    ]  # fmt: skip
    assert sizes[1] < 1.3 * sizes[0]


# ---- assignment ----------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_every_token_gets_different_experts_and_every_expert_its_count(case):
    counts, top, *_ = CASES[case]
    made = assign(counts, top)
    assert all(len(set(row)) == top for row in made.chosen.tolist())
    assert np.bincount(made.chosen.ravel(), minlength=len(counts)).tolist() == list(counts)
    starts = np.cumsum((0, *padded(counts)))
    for token, (who, where) in enumerate(zip(made.chosen, made.slot, strict=True)):
        assert (made.source[where] == token).all()
        assert ((starts[who] <= where) & (where < starts[who] + np.array(counts)[who])).all()
    assert len(set(made.slot.ravel().tolist())) == made.slot.size


def test_runs_and_padding():
    assert [(r.first, r.stride, r.count, r.rows, r.start) for r in runs((2, 0, 2, 0, 2, 1, 1))] == [
        (0, 2, 3, 2, 0),
        (5, 1, 2, 1, 6),
    ]
    counts = tuple(range(100, 0, -1))
    rows = padded(counts)
    assert len(runs(rows)) <= 8
    assert all(r >= c for r, c in zip(rows, counts, strict=True))
    assert sum(rows) <= 1.13 * sum(counts)  # eight equal steps: 12.5 / 2 rows of 50 on average
    assert padded((4,) * 256) == (4,) * 256


@pytest.mark.parametrize("arch", ["trn1", "edge-npu"])
def test_clamped_gates_agree(arch):
    graph = one_op(ClampedGlu(0.7), ((33, 70), "input"), ((33, 70), "input"))
    assert agrees(graph, load_arch(arch))
    feeds = random_feeds(graph)
    gate, up = (feeds[name].astype(np.float64) for name in ("v0", "v1"))
    want = (np.clip(up, -0.7, 0.7) + 1) * (m := np.minimum(gate, 0.7)) / (1 + np.exp(-1.702 * m))
    np.testing.assert_allclose(graph.nodes[0].op.reference(gate, up)[0], want, rtol=1e-3, atol=1e-5)
