"""A grid of cores: ops cut into pieces give the same numbers, and one core stands for all exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from arch_configs import ArchSpec, load_arch
from compiler import compile_graph
from compiler import grid as grid_module
from compiler.grid import pieces, undivided
from compiler.ir.graph import TensorType
from compiler.isa import Dma, Loop, Matmul, Node, Program, walk
from compiler.ops import (
    Attention,
    Binary,
    Conv2d,
    DecodeAttention,
    ElementwiseGroup,
    KvWrite,
    LayerNorm,
    Linear,
    RmsNorm,
    Rope,
    Select,
    Softmax,
    Unary,
)
from compiler.ops.base import Op
from compiler.ops.latent import HeadLinear, LatentDecode, SharedKeyAttention
from compiler.ops.tensor import BatchMatmul
from dse import Point, evaluate
from eventsim import audit, bind, simulate_bound
from eventsim.grid import nested, wave
from tests.kernels.conftest import Operand, agrees, one_op
from workloads import build

SMALL = {  # few cores with little memory, so that small ops are cut in many pieces
    "cores": "5",
    "memories.smem.capacity": "128 KiB",
    "memories.hbm.shared_by": "5",
}
GROUP = ElementwiseGroup(
    2, (("scalar", (0,), ("mul", 0.5)), ("binary", (2, 1), ("add",)), ("unary", (3,), ("tanh",))), (4,)
)
OPS: Mapping[str, tuple[Op, tuple[Operand, ...]]] = {
    "linear": (Linear(), (((300, 200), "input"), ((200, 130), "weight"))),
    "linear-all": (
        Linear(activation="silu", bias=True, residual=True, norm="rms"),
        (
            ((70, 96), "input"),
            ((96, 200), "weight"),
            ((96,), "weight"),
            ((200,), "weight"),
            ((70, 200), "input"),
        ),
    ),
    "unary": (Unary("gelu"), (((70, 200), "input"),)),
    "binary": (Binary("add"), (((70, 200), "input"), ((70, 200), "input"))),
    "binary-row": (Binary("mul"), (((70, 200), "input"), ((200,), "weight"))),
    "binary-column": (Binary("mul"), (((70, 200), "input"), ((70, 1), "input"))),
    "group": (GROUP, (((70, 200), "input"), ((70, 200), "input"))),
    "group-row": (GROUP, (((70, 200), "input"), ((200,), "weight"))),
    "group-wide": (GROUP, (((3, 20000), "input"), ((1, 20000), "input"))),
    "group-3d": (GROUP, (((3, 40, 500), "input"), ((1, 40, 500), "input"))),
    "select-wide": (Select(), (((3, 20000), "input"), ((3, 20000), "input"), ((1, 20000), "input"))),
    "group-column": (GROUP, (((70, 200), "input"), ((70, 1), "input"))),
    "softmax": (Softmax(), (((90, 70), "input"),)),
    "rms-norm": (RmsNorm(), (((90, 96), "input"), ((96,), "weight"))),
    "layer-norm": (LayerNorm(), (((90, 96), "input"), ((96,), "weight"), ((96,), "weight"))),
    "rope": (Rope(4, 64, 50), (((100, 256), "input"), ((50, 32), "weight"), ((50, 32), "weight"))),
    "attention": (
        Attention(2, 4, 2, 32, False, 0.2),
        (((200, 128), "input"), ((200, 64), "input"), ((200, 64), "input")),
    ),
    "attention-causal": (
        Attention(1, 4, 2, 32, True, 0.2),
        (((300, 128), "input"), ((300, 64), "input"), ((300, 64), "input")),
    ),
    "decode": (
        DecodeAttention(3, 8, 4, 32, 0.2, 90),
        (((3, 256), "input"), ((3, 4, 32, 96), "state"), ((3, 4, 96, 32), "state")),
    ),
    "shared-key": (
        SharedKeyAttention(2, 4, 4, 32, True, 0.2, rope=16),
        (
            ((200, 128), "input"),
            ((200, 128), "input"),
            ((200, 128), "input"),
            ((200, 64), "input"),
            ((200, 16), "input"),
        ),
    ),
    "latent-decode": (
        LatentDecode(3, 4, 16, 60, 0.2),
        (((3, 256), "input"), ((3, 64), "input"), ((3, 1, 64, 64), "state"), ((3, 1, 16, 64), "state")),
    ),
    "head-linear": (HeadLinear(4), (((70, 128), "input"), ((32, 256), "weight"))),
    "batch-matmul": (BatchMatmul(), (((6, 70, 40), "input"), ((6, 40, 90), "input"))),
    "one-matmul": (BatchMatmul(transpose_rhs=True), (((170, 40), "input"), ((190, 40), "input"))),
    "conv": (
        Conv2d(padding=1, bias=True),
        (((3, 16, 9, 9), "input"), ((70, 16, 3, 3), "weight"), ((70,), "weight")),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def grid() -> ArchSpec:
    return load_arch("a100-sxm4-80gb", overrides=SMALL)


@pytest.mark.parametrize("name", OPS)
def test_pieces_together_are_the_op(name: str, grid: ArchSpec) -> None:
    """In program order, and in the order of simulated time of one core that does all pieces."""
    op, operands = OPS[name]
    program = agrees(one_op(op, *operands), grid)
    assert program is not None
    assert program.launches == 1


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("attention-causal", [("heads", 1), ("queries", 64)]),
        ("attention-causal", [("heads", 1), ("group", 1), ("queries", 128)]),
        ("attention", [("batch", 1), ("heads", 1), ("queries", 96)]),
        ("linear", [("rows", 128), ("columns", 32)]),
        ("linear-all", [("rows", 32), ("columns", 64)]),
        ("decode", [("batch", 2), ("heads", 3)]),
        ("conv", [("images", 2), ("filters", 32)]),
        ("softmax", [("rows", 7)]),
        ("binary", [("rows", 16), ("columns", 64)]),
        ("batch-matmul", [("stack", 4)]),
        ("head-linear", [("rows", 32), ("heads", 3)]),
    ],
)
def test_any_cut_will_do(
    name: str, sizes: list[tuple[str, int]], grid: ArchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also cuts that the compiler does not choose, with short last pieces, and single ones within loops."""
    monkeypatch.setattr(grid_module, "choose", lambda b, site: sizes)
    op, operands = OPS[name]
    assert agrees(one_op(op, *operands), grid) is not None


def test_cache_updates_are_cut(grid: ArchSpec) -> None:
    op = KvWrite(7, False)
    assert {cut.name for cut in op.cuts((TensorType((3, 4, 16, 32), "bf16"), TensorType((3, 128), "bf16")))}


def _loops(nodes: tuple[Node, ...]) -> list[Loop]:
    found = [node for node in nodes if isinstance(node, Loop)]
    return found + [inner for node in found for inner in _loops(node.body)]


def _macs(program: Program, *, own: bool) -> int:
    nodes = dict(program.streams)["tensor"]
    return sum(i.macs * times for i, times in walk(nodes, own=own) if isinstance(i, Matmul))


@pytest.mark.parametrize("cores", [1, 3, 8, 64])
def test_busiest_core_has_its_share(cores: int) -> None:
    """All cores do the op's MACs; the busiest does at least an equal part, and one core does everything."""
    arch = load_arch("a100-sxm4-80gb", overrides={"cores": str(cores), "memories.hbm.shared_by": str(cores)})
    graph = build("gemm:m=512,k=128,n=512")
    program = compile_graph(graph, arch)
    whole, own = _macs(program, own=False), _macs(program, own=True)
    assert whole == graph.macs
    assert math.ceil(whole / cores) <= own <= whole
    assert (own == whole) == (cores == 1)


def test_one_core_is_the_same_as_all_its_pieces_in_turn() -> None:
    """With one core nothing is shared out: the busiest core's time is that of the undivided program."""
    arch = load_arch("a100-sxm4-80gb", overrides={"cores": "1", "memories.hbm.shared_by": "1"})
    program = compile_graph(build("gemm:m=300,k=200,n=130"), arch)
    assert (
        simulate_bound(bind(program, arch)).time_ps == simulate_bound(bind(undivided(program), arch)).time_ps
    )


@pytest.mark.parametrize("workload", ["gemm:m=700,k=256,n=900", "softmax:rows=999,cols=300"])
def test_folding_and_laws_hold(workload: str) -> None:
    arch = load_arch("h100-sxm5-80gb")
    bound = bind(compile_graph(build(workload), arch), arch)
    folded, plain = simulate_bound(bound), simulate_bound(bound, fold=False)
    assert folded.figures() == plain.figures()
    assert all(audit(folded, bound).values())


def test_cache_serves_what_several_cores_read() -> None:
    """With room for all operands each byte crosses the pins once; without, an operand once a wave."""

    def moved(cache: str) -> int:
        arch = load_arch("a100-sxm4-80gb", overrides={"grid.cache": cache})
        trace = simulate_bound(bind(compile_graph(build("gemm:m=2048,k=512,n=4096"), arch), arch))
        return trace.dram_read_bytes

    once = 2 * (2048 * 512 + 512 * 4096)
    assert moved("40 MiB") == once
    assert once < moved("1 MiB") < 6 * once


def test_crossings_by_hand() -> None:
    """8 x 16 tiles on 108 cores in waves of 8 x 13: the one operand moves twice, the other once a row."""
    assert wave([8, 16], 108) == [8, 13]
    assert wave([1000, 1000], 100) == [10, 10]
    assert wave([2, 1000], 100) == [2, 50]
    assert wave([7], 3) == [3]
    arch = load_arch("a100-sxm4-80gb", overrides={"grid.cache": "0 B"})
    program = compile_graph(build("gemm:m=2048,k=64,n=2048"), arch)
    bound = bind(program, arch)
    dealt = [loop.count for loop in _loops(dict(program.streams)["tensor"]) if loop.share is not None]
    rows, columns = wave(dealt, arch.cores)
    tiles = math.prod(dealt)
    for stream in bound.streams:
        for item, (instr, _, around) in zip(stream.instrs, nested(stream.nodes), strict=True):
            inner = math.prod(loop.count for loop in around if loop.share is None)
            if isinstance(instr, Dma) and instr.src.buffer == "x":
                assert item.fetches == math.ceil(tiles * inner / columns)
            elif isinstance(instr, Dma) and instr.src.buffer == "w":
                assert item.fetches == math.ceil(tiles * inner / rows)
            elif isinstance(instr, Dma):
                assert item.fetches == tiles * inner  # the result


def test_launch_is_paid_for_each_op_and_layer() -> None:
    point = Point("a100-sxm4-80gb", "llama-tiny:prefill,seq=32")
    longer = Point("a100-sxm4-80gb", "llama-tiny:prefill,seq=32", overrides=(("grid.launch", "1 ms"),))
    spent = {}
    for each in (point, longer):
        record = evaluate(each)
        assert record["status"] == "ok"
        assert all(record["audit"].values())
        spent[each] = record["time_ps"]
    ops = len(record["ops"])
    assert spent[longer] - spent[point] > ops * 900_000_000


def test_whole_axis_is_cut_once() -> None:
    ins = (TensorType((300, 64), "bf16"), TensorType((64, 100), "bf16"))
    found = pieces(Linear(), ins, [("rows", 128), ("columns", 32)])
    assert [(p.count, p.outs[0].shape) for p in found] == [
        (6, (128, 32)), (2, (128, 4)), (3, (44, 32)), (1, (44, 4)),
    ]  # fmt: skip
    assert sum(p.count * p.outs[0].elements for p in found) == 300 * 100


def test_dram_keeps_up_less_than_its_peak() -> None:
    fast, slow = (
        evaluate(
            Point("a100-sxm4-80gb", "gemm:m=1,k=8192,n=8192", overrides=(("memories.hbm.sustained", s),))
        )
        for s in ("1", "1/2")
    )
    assert slow["bounds"] == fast["bounds"] | {"serial_ps": slow["bounds"]["serial_ps"]}
    assert slow["time_ps"] > 1.6 * fast["time_ps"]
