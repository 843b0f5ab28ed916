"""Groups of elementwise ops against the reference: random bodies, several results, broadcast operands."""

from __future__ import annotations

import random

import numpy as np
import pytest

from arch_configs import load_arch
from compiler import CompileOptions, compile_graph
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ops import Binary, Cast, ElementwiseGroup, Scalar, Select, Unary
from compiler.ops.base import Op
from compiler.passes import parse_pass, run_pipeline
from tests.kernels.conftest import agrees

ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu", "a100-sxm4-80gb")
SHAPES = ((130, 257), (3, 17), (2, 67, 5, 7), (1000,), (2, 9, 33))


def random_graph(seed: int) -> Graph:
    """A DAG of elementwise ops on one shape, some operands broadcast, some casts, several outputs."""
    rng = random.Random(seed)
    shape, dtype = SHAPES[seed % len(SHAPES)], ("fp32", "bf16")[seed // len(SHAPES) % 2]
    values = {f"x{i}": Value(f"x{i}", TensorType(shape, dtype), "input") for i in range(3)}
    if len(shape) == 2:
        for name, own in (
            ("row", shape[1:]),
            ("column", (shape[0], 1)),
            ("one", (1,)),
            ("line", (1, shape[1])),
        ):
            values[name] = Value(name, TensorType(own, dtype), "input")
    nodes: list[Node] = []
    for i in range(rng.randint(3, 14)):
        full = [n for n, v in values.items() if v.type.shape == shape]
        x = rng.choice(full[-4:])
        own = values[x].type.dtype
        mates = [n for n, v in values.items() if v.type.dtype == own]
        op: Op
        kind = rng.randrange(7)
        names: tuple[str, ...] = (x,)
        if kind == 0:
            op = Unary(rng.choice(("tanh", "sigmoid", "relu", "abs", "identity")))
        elif kind in (1, 2, 3):
            func = rng.choice(("mul", "add", "sub", "max", "min"))
            op = Scalar(func, rng.choice((0.5, -0.25, 0.75)), rng.random() < 0.3)
        elif kind == 4 and rng.random() < 0.5:
            op = Cast("bf16" if own == "fp32" else "fp32")
        elif kind == 5 and rng.random() < 0.5:
            op, names = Select(), (rng.choice(list(values)), x, rng.choice(mates))
        else:
            op, names = Binary(rng.choice(("add", "sub", "max"))), (x, rng.choice(mates))
        (kind_out,) = op.infer(tuple(values[n].type for n in names))
        values[f"y{i}"] = Value(f"y{i}", kind_out)
        nodes.append(Node(f"y{i}", op, names, (f"y{i}",)))
    outputs = tuple(dict.fromkeys((nodes[-1].outputs[0], rng.choice(nodes).outputs[0])))
    return Graph("g", tuple(values.values()), tuple(nodes), outputs)


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("seed", range(20))
def test_random_bodies(seed: int, name: str) -> None:
    arch = load_arch(name)
    graph = random_graph(seed)
    fused = run_pipeline(graph, [parse_pass("dce"), parse_pass("fuse-elementwise")], arch)
    if seed == 0:
        assert any(isinstance(node.op, ElementwiseGroup) for node, _ in fused.walk())
    assert agrees(fused, arch, CompileOptions(passes=())) is not None


@pytest.mark.parametrize("name", ARCHS)
def test_each_operand_moves_once(name: str) -> None:
    """Three operands in and two results out, whatever lies between."""
    shape = (256, 512)
    values = [Value(n, TensorType(shape, "fp32"), "input") for n in "abc"]
    steps = (
        ("t0", Scalar("mul", 0.5), ("a",)),
        ("t1", Binary("add"), ("t0", "b")),
        ("t2", Unary("tanh"), ("t1",)),
        ("t3", Binary("sub"), ("t2", "c")),
    )
    nodes = tuple(Node(n, op, ins, (n,)) for n, op, ins in steps)
    made = [Value(n.name, TensorType(shape, "fp32")) for n in nodes]
    graph, arch = Graph("g", (*values, *made), nodes, ("t1", "t3")), load_arch(name)
    program = agrees(graph, arch)
    assert program is not None
    names = {buffer.tensor for buffer in program.buffers if buffer.memory == arch.dram}
    assert not {"t0", "t2"} & names


def test_strips_reuse_tiles() -> None:
    """A long chain takes no more tiles than its operand, its result and one for what is between."""
    shape = TensorType((512, 2048), "fp32")
    body = tuple(("unary", (i,), ("tanh",)) for i in range(12))
    op = ElementwiseGroup(1, body, (12,))
    graph = Graph(
        "g", (Value("x", shape, "input"), Value("y", shape)), (Node("y", op, ("x",), ("y",)),), ("y",)
    )
    arch = load_arch("trn1")
    program = compile_graph(graph, arch)
    tiles = {b.tensor for b in program.buffers if b.memory == arch.scratchpad}
    assert tiles == {"y:x", "y:y"}
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    want = x
    for _ in range(12):
        want = np.tanh(want)
    np.testing.assert_allclose(op.reference(x)[0], want, rtol=1e-6)
