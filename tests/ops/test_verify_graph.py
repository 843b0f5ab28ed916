"""Each rule of the graph verifier, broken once; the message names the node."""

from dataclasses import replace

import pytest

import workloads
from compiler.errors import VerifyError
from compiler.ir.graph import Carry, Graph, Node, Repeat, TensorType, Value
from compiler.ir.verify_graph import verify_graph
from compiler.ops import KvWrite, Linear, Unary

X = TensorType((2, 4), "bf16")


def act(name):
    return Value(name, X)


def relu(name, source, result):
    return Node(name, Unary("relu"), (source,), (result,))


VALUES = (Value("x", X, "input"), act("a"), act("b"), act("in"), act("f"), act("out"))
REGION = Repeat("layers", 3, (relu("inner", "in", "f"),), (Carry("a", "in", "f", "out"),))
LEGAL = Graph("g", VALUES, (relu("first", "x", "a"), REGION, relu("last", "out", "b")), ("b",))


def test_legal_graphs_pass():
    verify_graph(LEGAL)
    for name in workloads.list_workloads():
        verify_graph(workloads.build(name))
    verify_graph(workloads.build("llama-tiny:decode,context=1"))


def with_node(node, at=0):
    nodes = list(LEGAL.nodes)
    nodes[at] = node
    return replace(LEGAL, nodes=tuple(nodes))


def with_region(**changes):
    return with_node(replace(REGION, **changes), at=1)


def with_value(value):
    return replace(LEGAL, values=tuple(value if v.name == value.name else v for v in VALUES))


BROKEN = {
    "unknown value": (with_node(relu("first", "nothing", "a")), "g: first (unary): no value 'nothing'"),
    "used before made": (with_node(relu("first", "b", "a")), "g: first (unary): reads 'b' before it is made"),
    "made twice": (with_node(relu("last", "out", "a"), at=2), "g: last (unary): makes 'a' a second time"),
    "makes an input": (with_node(relu("first", "x", "x")), "makes 'x', which is of kind input"),
    "wrong type": (
        with_value(Value("a", TensorType((2, 5), "bf16"))),
        "g: first (unary): a: got type bf16[2, 5], want bf16[2, 4]",
    ),
    "op does not fit": (
        with_node(Node("first", Linear(), ("x", "x"), ("a",))),
        "g: first (linear): linear: w: got shape [2, 4], want [4, 4]",
    ),
    "two values of one name": (replace(LEGAL, values=(*VALUES, act("a"))), "two values are named 'a'"),
    "two nodes of one name": (with_node(relu("last", "x", "a")), "g: last: a second node"),
    "unknown kind": (with_value(Value("x", X, "constant")), "value x: got kind 'constant'"),
    "empty shape": (with_value(Value("x", TensorType((0, 4), "bf16"), "input")), "want sizes of 1 or more"),
    "stacked input": (with_value(Value("x", X, "input", stacked=3)), "a stacked input"),
    "output count": (with_node(Node("first", Unary("relu"), ("x",), ("a", "b"))), "makes 1 values, names 2"),
    "output not made": (replace(LEGAL, outputs=("f",)), "g: output: reads 'f' before it is made, or outside"),
    "inner value leaves": (with_node(relu("last", "f", "b"), at=2), "last (unary): reads 'f' before it"),
    "region count": (with_region(count=0), "g: layers: got count 0"),
    "carry of an outer value": (
        with_region(carries=(Carry("a", "in", "a", "out"),)),
        "g: layers: carries 'a', which is not made in the region",
    ),
    "carry without start": (with_region(carries=(Carry("b", "in", "f", "out"),)), "g: layers: reads 'b'"),
    "carry of another type": (
        with_value(Value("out", TensorType((2, 4), "fp32"))),
        "g: layers: out: got type fp32[2, 4], want bf16[2, 4]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_each_broken_rule_is_named(rule):
    graph, message = BROKEN[rule]
    with pytest.raises(VerifyError) as error:
        verify_graph(graph)
    assert message in str(error.value)


def linear_graph(stacked):
    weight = Value("w", TensorType((4, 4), "bf16"), "weight", stacked)
    nodes = (Node("inner", Linear(), ("in", "w"), ("f",)),)
    return replace(with_region(nodes=nodes), values=(*VALUES, weight))


def test_stacked_weights_have_one_copy_an_iteration():
    verify_graph(linear_graph(3))
    verify_graph(linear_graph(0))  # the same weight in each iteration
    with pytest.raises(VerifyError, match=r"layers.inner \(linear\): reads 'w' with 2 copies a region of 3"):
        verify_graph(linear_graph(2))


def test_states_are_updated_by_nodes_that_read_them():
    cache = Value("cache", TensorType((2, 1, 4, 3), "bf16"), "state")
    node = Node("write", KvWrite(0, axis_k=True), ("cache", "x"), ("cache",))
    graph = Graph("g", (Value("x", X, "input"), cache), (node,), ())
    verify_graph(graph)
    blind = replace(
        graph,
        values=(*graph.values, replace(cache, name="other")),
        nodes=(replace(node, outputs=("other",)),),
    )
    with pytest.raises(VerifyError, match="updates state 'other' without reading it"):
        verify_graph(blind)
