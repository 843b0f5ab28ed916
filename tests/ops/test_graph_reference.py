"""The graph oracle: regions, states, storage rounding, feeds."""

import numpy as np
import pytest

import workloads
from compiler.errors import CompileError
from compiler.ir.graph import Graph, Node, Repeat, TensorType, Value
from compiler.ir.reference import full_shape, random_feeds, run_graph
from compiler.ops import KvWrite, Linear, Unary


def test_decoding_token_by_token_equals_prefill():
    """The logits after n decode steps are those of a prefill of the same n tokens."""
    n, batch = 6, 2
    prefill = workloads.build(f"llama-tiny:prefill,batch={batch},seq={n},dtype=fp32")
    feeds = random_feeds(prefill, seed=3)
    want = run_graph(prefill, feeds)["head"]
    ids = feeds["ids"].reshape(batch, n)
    caches = {}
    for step in range(1, n + 1):
        graph = workloads.build(f"llama-tiny:decode,batch={batch},context={step},dtype=fp32")
        given = random_feeds(graph, seed=3) | {"ids": ids[:, step - 1]}
        for name, axis in (("layer.k_cache", -1), ("layer.v_cache", -2)):
            if name in caches:  # room for one more position, filled with what must be overwritten
                width = [(0, 0)] * 5
                width[axis] = (0, 1)
                given[name] = np.pad(caches[name], width, constant_values=99.0)
        caches = run_graph(graph, given)
    np.testing.assert_allclose(caches["head"], want, rtol=1e-4, atol=1e-4)


def test_a_region_equals_its_layers_written_out():
    graph = workloads.build("llama-tiny:prefill,batch=1,seq=5")
    feeds = random_feeds(graph)
    (region,) = (node for node in graph.nodes if isinstance(node, Repeat))
    (carry,) = region.carries
    values = {v.name: v for v in graph.values}
    flat_values, flat_nodes, flat_feeds, x = [], [], dict(feeds), carry.init
    inner = {carry.inner} | {out for node in region.nodes for out in node.outputs}
    for i in range(region.count):
        names = {n: f"{n}@{i}" for n in inner} | {carry.inner: x}
        for v in graph.values:
            if v.stacked:
                names[v.name] = f"{v.name}@{i}"
                flat_values.append(Value(f"{v.name}@{i}", v.type, v.kind))
                flat_feeds[f"{v.name}@{i}"] = feeds[v.name][i]
        flat_values += [Value(names[n], values[n].type) for n in sorted(inner - {carry.inner})]
        flat_nodes += [
            Node(
                f"{node.name}@{i}",
                node.op,
                tuple(names.get(n, n) for n in node.inputs),
                (names[node.outputs[0]],),
            )
            for node in region.nodes
        ]
        x = names[carry.final]
    before, after = graph.nodes[: graph.nodes.index(region)], graph.nodes[graph.nodes.index(region) + 1 :]
    after = tuple(
        Node(n.name, n.op, tuple(x if i == carry.result else i for i in n.inputs), n.outputs) for n in after
    )
    plain = tuple(v for v in graph.values if not v.stacked and v.name not in inner)
    flat = Graph("flat", (*plain, *flat_values), (*before, *flat_nodes, *after), graph.outputs)
    assert flat.macs == graph.macs
    assert flat.parameters == graph.parameters
    got, want = run_graph(flat, flat_feeds)["head"], run_graph(graph, feeds)["head"]
    np.testing.assert_array_equal(got, want)


def test_states_change_only_where_written_and_feeds_not_at_all():
    graph = workloads.build("llama-tiny:decode,batch=2,context=5")
    feeds = random_feeds(graph)
    before = {name: array.copy() for name, array in feeds.items()}
    results = run_graph(graph, feeds)
    assert set(results) == {"head", "layer.k_cache", "layer.v_cache"}
    k, v = results["layer.k_cache"], results["layer.v_cache"]
    np.testing.assert_array_equal(k[..., :4], before["layer.k_cache"][..., :4])
    np.testing.assert_array_equal(v[..., :4, :], before["layer.v_cache"][..., :4, :])
    assert not np.array_equal(k[..., 4], before["layer.k_cache"][..., 4])
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, before[name])


def test_storage_rounding_can_be_switched_off():
    x, w = Value("x", TensorType((1, 2), "bf16"), "input"), Value("w", TensorType((2, 1), "bf16"), "weight")
    y = Value("y", TensorType((1, 1), "bf16"))
    graph = Graph("g", (x, w, y), (Node("y", Linear(), ("x", "w"), ("y",)),), ("y",))
    feeds = {"x": np.float32([[256.0, 1.0]]), "w": np.float32([[1.0], [1.0]])}
    assert run_graph(graph, feeds)["y"].astype(np.float32) == 256.0  # bf16 has 8 bits
    exact = run_graph(graph, feeds, round_storage=False)["y"]
    assert exact == 257.0
    assert exact.dtype == np.float32


def test_wrong_feeds_are_named():
    graph = workloads.build("gemm:m=2,n=3,k=4")
    feeds = random_feeds(graph)
    with pytest.raises(CompileError, match="no array for the weight 'w'"):
        run_graph(graph, {"x": feeds["x"]})
    with pytest.raises(CompileError, match=r"feeds: w: got shape \[3, 4\], want \[4, 3\]"):
        run_graph(graph, feeds | {"w": feeds["w"].T})


def test_random_feeds_are_repeatable_and_sensible():
    graph = workloads.build("llama-tiny:prefill,batch=2,seq=9")
    feeds = random_feeds(graph, seed=1)
    for name, array in random_feeds(graph, seed=1).items():
        np.testing.assert_array_equal(array, feeds[name])
    assert not np.array_equal(feeds["ids"], random_feeds(graph, seed=2)["ids"])
    values = graph.value_map()
    assert all(array.shape == full_shape(values[name]) for name, array in feeds.items())
    assert feeds["ids"].min() >= 0
    assert feeds["ids"].max() < 256
    np.testing.assert_array_equal(feeds["rope.cos"][0].astype(np.float32), np.ones(8))
    assert np.std(feeds["layer.down.weight"].astype(np.float32)) == pytest.approx(160**-0.5, rel=0.05)
    logits = run_graph(graph, feeds)["head"].astype(np.float32)
    assert 0.5 < logits.std() < 2.0


def test_state_written_inside_a_plain_graph():
    cache = Value("cache", TensorType((1, 1, 2, 2), "fp32"), "state")
    x, y = Value("x", TensorType((1, 2), "fp32"), "input"), Value("y", TensorType((1, 1, 2, 2), "fp32"))
    nodes = (
        Node("write", KvWrite(1, axis_k=False), ("cache", "x"), ("cache",)),
        Node("y", Unary("relu"), ("cache",), ("y",)),
    )
    feeds = {"cache": np.zeros((1, 1, 2, 2)), "x": np.float32([[3.0, 4.0]])}
    result = run_graph(Graph("g", (cache, x, y), nodes, ("y",)), feeds)
    np.testing.assert_array_equal(result["y"], [[[[0, 0], [3, 4]]]])
    np.testing.assert_array_equal(result["cache"], result["y"])
