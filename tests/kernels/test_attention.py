"""Attention in all its forms, at awkward sizes: program against reference, in both orders."""

from __future__ import annotations

import numpy as np
import pytest

from arch_configs import ArchSpec, load_arch
from compiler import compile_graph
from compiler.ir.graph import Graph
from compiler.isa import Dma
from compiler.isa import walk as instructions
from compiler.ops import Attention, DecodeAttention, Rope
from compiler.ops.sight import Sight
from tests.kernels.conftest import agrees, one_op


def over_activations(
    heads: tuple[int, int, int, int], queries: int, keys: int, *, causal: bool = True, bias=None, **fields
) -> Graph:
    """batch, heads, kv heads, head_dim; `bias` is (batch, heads) of that operand."""
    batch, h, kv, width = heads
    op = Attention(batch, h, kv, width, causal, width**-0.5, bias=bias is not None, **fields)
    operands = [((batch * queries, h * width), "input"), ((batch * keys, kv * width), "input")]
    operands.append(((batch * keys, kv * op.values), "input"))
    operands += [((*bias, queries, keys), "input")] if bias else []
    operands += [((h,), "weight")] if op.sinks else []
    return one_op(op, *operands)


def over_cache(
    heads: tuple[int, int, int, int],
    queries: int,
    length: int,
    context: int,
    *,
    causal: bool = True,
    bias=None,
    **fields,
) -> Graph:
    """The same over a cache of `context` positions of which `length` are filled."""
    batch, h, kv, width = heads
    scale = width**-0.5
    op = DecodeAttention(
        batch, h, kv, width, scale, length, queries=queries, causal=causal, bias=bias is not None, **fields
    )
    operands = [((batch * queries, h * width), "input"), ((batch, kv, width, context), "state")]
    operands.append(((batch, kv, context, op.values), "state"))
    operands += [((*bias, queries, length), "input")] if bias else []
    operands += [((h,), "weight")] if op.sinks else []
    return one_op(op, *operands)


CASES = {
    "softcap": over_activations((1, 4, 2, 32), 70, 70, softcap=5.0),
    "sinks": over_activations((2, 4, 2, 32), 70, 70, sinks=True),
    "narrow values": over_activations((1, 2, 2, 48), 70, 70, value_dim=32),
    "bias": over_activations((2, 4, 4, 32), 70, 70, causal=False, bias=(1, 4)),
    "bias of sequences": over_activations((2, 2, 1, 32), 70, 41, causal=False, bias=(2, 1)),
    "cross": over_activations((2, 4, 4, 32), 33, 150, causal=False),
    "window": over_activations((1, 4, 2, 32), 300, 300, window=50),
    "long window": over_activations((1, 1, 1, 16), 2500, 2500, window=130),
    "window and sinks": over_activations((1, 2, 1, 32), 700, 700, window=200, sinks=True),
    "offset": over_activations((2, 4, 2, 32), 33, 133, offset=100),
    "all but bias": over_activations((1, 2, 2, 32), 150, 407, offset=257, window=99, softcap=3.0, sinks=True),
    "window of a cache": over_cache((2, 4, 2, 32), 1, 377, 380, window=130),
    "verify": over_cache((2, 4, 2, 32), 4, 130, 140),
    "verify in a window": over_cache((2, 6, 2, 32), 5, 377, 380, window=140, sinks=True),
    "sinks of a cache": over_cache((2, 8, 8, 32), 1, 200, 200, sinks=True, softcap=4.0),
    "cross over a cache": over_cache((2, 4, 4, 32), 3, 150, 150, causal=False),
    "bias over a cache": over_cache((2, 4, 2, 32), 3, 150, 150, bias=(1, 4)),
    "wide values of a cache": over_cache((1, 4, 2, 48), 2, 150, 150, value_dim=64),
    "chunk": over_cache((2, 4, 2, 32), 150, 400, 410),
    "chunk in a window": over_cache((1, 4, 2, 32), 150, 700, 700, window=200, sinks=True),
}


@pytest.mark.parametrize("name", CASES)
def test_every_form_gives_its_reference(name: str, archs: tuple[ArchSpec, ...]) -> None:
    turn = list(CASES).index(name)
    bundled = ("trn2", "trn1", "tpu-v5e", "edge-npu")
    for arch in (load_arch(bundled[turn % 2]), load_arch(bundled[2 + turn % 2])):
        assert agrees(CASES[name], arch), arch.name
    agrees(CASES[name], archs[3 + turn % 4])


@pytest.mark.parametrize("window", [0, 1, 3, 20])
@pytest.mark.parametrize(("first", "queries", "keys"), [(0, 9, 9), (4, 5, 9), (8, 1, 9), (2, 3, 30)])
def test_pairs_are_those_of_the_mask(window: int, first: int, queries: int, keys: int) -> None:
    sight = Sight(causal=True, window=window)
    seen = np.zeros((queries, keys), bool)
    for q in range(queries):
        for key in range(keys):
            seen[q, key] = key <= first + q and (not window or key > first + q - window)
    assert (sight.mask(first, queries, keys) == seen).all()
    assert sight.pairs(first, queries, keys) == seen.sum()


def loaded_bytes(graph: Graph, arch: ArchSpec) -> int:
    """Bytes that transfers bring on chip."""
    program = agrees(graph, arch)
    assert program
    found = [i for _, nodes in program.streams for i in instructions(nodes)]
    return sum(n * i.src.nbytes for i, n in found if isinstance(i, Dma) and not i.src.partitions)


def test_a_window_reads_only_its_part_of_the_cache() -> None:
    arch, heads = load_arch("trn2"), (1, 4, 2, 32)
    whole, part = (loaded_bytes(over_cache(heads, 1, 2048, 2048, window=w), arch) for w in (0, 128))
    assert part < whole / 8


@pytest.mark.parametrize(
    ("head_dim", "fields"),
    [
        (64, {"style": "interleaved"}),
        (80, {"style": "interleaved", "rotary": 32}),
        (96, {"rotary": 24}),
        (192, {"first": 128}),
        (192, {"first": 128, "style": "interleaved"}),
        (256, {"first": 2, "rotary": 200}),
    ],
)
def test_rotary_styles(head_dim: int, fields: dict[str, int | str], archs: tuple[ArchSpec, ...]) -> None:
    op = Rope(3, head_dim, 21, offset=5, **fields)
    tables = [((21, op.turned // 2), "table")] * 2
    graph = one_op(op, ((42, 3 * head_dim), "input"), *tables)
    for arch in (load_arch("trn1"), load_arch("edge-npu")):
        assert agrees(graph, arch), arch.name
    agrees(graph, archs[3])


def test_wide_heads_fit_small_accumulators_one_at_a_time() -> None:
    assert agrees(over_cache((1, 2, 1, 256), 70, 130, 130), load_arch("edge-npu"))


def test_a_window_has_the_same_code_however_long_the_sequence() -> None:
    """Static instructions do not grow with the sequence."""
    found = []
    for seq in (32768, 262144):
        graph = over_activations((1, 2, 2, 128), seq, seq, window=4096)
        streams = compile_graph(graph, load_arch("trn2")).streams
        found.append(sum(1 for _, nodes in streams for _ in instructions(nodes)))
    assert found[0] == found[1]


def test_a_large_bias_over_a_cache() -> None:
    """More bytes than one queue is given otherwise."""
    assert agrees(over_cache((1, 16, 2, 32), 4, 1500, 1500, bias=(1, 16)), load_arch("trn2"))
