"""Printing and parsing again gives an equal value; broken text is refused with its line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import tile_matmul

import compiler.isa as isa
from compiler.ir.graph import Carry, Graph, Node, Repeat, TensorType, Value
from compiler.ir.layout import Layout
from compiler.ir.text import TextError, parse_graph, parse_program, print_graph, print_program
from compiler.isa import Access, Affine, Buffer, Channel, Loop, Program
from compiler.ops import OPS

names = st.sampled_from(["x", "layers.3/q:w", "a-1", "i", "p", "at", "slot", "inf", "none", "wait", "#"])
odd_names = st.one_of(names, st.text(min_size=1, max_size=5))
ints = st.integers(-(2**40), 2**40)
numbers = st.one_of(ints, st.floats(allow_nan=False))
affines = st.builds(
    Affine,
    ints,
    st.lists(st.tuples(odd_names, ints.filter(bool)), max_size=3, unique_by=lambda t: t[0]).map(tuple),
)
dims = st.lists(st.tuples(ints, ints), max_size=3).map(tuple)
dtypes = st.sampled_from(["fp32", "bf16", "fp8e4", "int32"])
accesses = st.builds(Access, odd_names, dtypes, dims, affines, ints, ints, affines)
operands = st.one_of(accesses, numbers)
tokens = st.lists(st.tuples(odd_names, ints), max_size=3).map(tuple)
common = {"waits": tokens, "signals": tokens, "op": st.one_of(st.just(""), odd_names)}
resets = st.one_of(st.none(), st.lists(affines, max_size=3).map(tuple))
maybe = st.one_of(st.none(), accesses)


def built(cls: type, **parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(cls, **common, **parts)


a = accesses
instrs = st.one_of(
    built(isa.Sync),
    built(isa.Matmul, dst=a, stationary=a, moving=a, reset=resets, load=st.booleans(), model=st.booleans()),
    built(isa.Transpose, dst=a, src=a),
    built(isa.Activate, dst=a, src=a, func=odd_names, scale=operands, bias=operands, accumulate=maybe),
    built(
        isa.TensorScalar, dst=a, src=a, op0=names, a=operands, op1=st.one_of(st.none(), names), b=operands
    ),
    built(isa.TensorTensor, dst=a, lhs=a, rhs=a, operation=names),
    built(isa.Reduce, dst=a, src=a, operation=names, axes=ints),
    built(isa.Copy, dst=a, src=a),
    built(isa.Memset, dst=a, value=numbers),
    built(
        isa.AffineSelect, dst=a, src=a, base=affines, partition_step=ints, free_step=ints, fill=numbers
    ),
    built(isa.Dma, dst=a, src=a),
    built(isa.Gather, dst=a, src=a, index=a, row_stride=ints),
    built(isa.Collective, dst=a, src=a, kind=names, axes=st.lists(odd_names, max_size=2).map(tuple)),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(instrs, min_size=1, max_size=3), odd_names, st.integers(0, 5))
def test_every_instruction_survives(found: list[isa.Instr], name: str, count: int) -> None:
    inner = Loop(name, count, tuple(found), 3)
    program = Program(
        name=name,
        streams=((name, (found[0], Loop("j", 2, (inner, found[-1]), 1), found[0])), ("empty", ())),
        buffers=(Buffer(name, name, "bf16", 1, 2, 3, 4, name, "tile"), Buffer("b", "m", "fp32", 0, 0)),
        channels=(Channel(name, "x", name, count),),
        outputs=(name, "y"),
        layouts=((name, Layout(((0, 128), (1, 4)), (2, 1, 0, 3))), ("z", Layout())),
        shapes=((name, (1, 2)), ("scalar", ())),
    )
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_program_golden() -> None:
    """The form that a reader sees."""
    text = print_program(tile_matmul(6))
    assert 'buffer x_tile sbuf bf16 @64 2*32 p8 tile ""\nbuffer y_tile' in text
    assert "channel x_free tensor -> dma0 2\n" in text
    assert (
        "stream dma1\n"
        "  loop i 6 region 1\n"
        "    Dma dst=bf16 y[8:16, 16:1, at 128*i] src=bf16 y_tile[p 0+8, 16:1, slot i] "
        "wait(y_ready 1) signal(y_free 1) # store\n"
    ) in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program tile", "progam tile", r"line 1: got 'progam', want 'program'"),
        ("buffer acc", "bufer acc", r"line 12: got 'bufer', want one of: output, shape, layout, buffer, ch"),
        ("Copy dst", "Copi dst", r"got 'Copi', want loop or one of: Sync, Matmul, Transpose"),
        ("stationary=", "stationery=", r"got 'stationery', want a field of Matmul: dst, stationary, moving"),
        ("@64 2*32", "@64 2*x", r"line 10: got 'x', want a number"),
        ("region 1", "region 1.5", r"got '1.5', want a whole number"),
        ("-> dma0 2", "dma0 2", r"got 'dma0', want '->'"),
        ("p 0+8, 16:1, slot i]", "p 0+8, 16:1 slot i]", r"got 'slot', want ',' or '\]'"),
        ("src=fp32 acc[p 0+8, 16:1, slot i] ", "", r"got end of line, want fields src"),
    ],
)
def test_broken_program_text_is_refused(old: str, new: str, message: str) -> None:
    text = print_program(tile_matmul(6))
    assert old in text
    with pytest.raises(TextError, match=message):
        parse_program(text.replace(old, new, 1))


def model() -> Graph:
    act, row = TensorType((8, 64), "bf16"), TensorType((64,), "bf16")
    norm = Node("norm", OPS["rms-norm"](eps=1e-6), ("h", "g"), ("n",))  # type: ignore[call-arg]
    relu = Node("act", OPS["unary"](func="relu"), ("n",), ("r",))  # type: ignore[call-arg]
    add = Node("add", OPS["binary"](func="add"), ("r", "h"), ("h2",))  # type: ignore[call-arg]
    return Graph(
        "two-layers",
        (
            Value("x", act, "input"), Value("g", row, "weight", 4), Value("h", act), Value("n", act),
            Value("r", act), Value("h2", act), Value("y", act), Value("odd name #1", TensorType((), "fp32")),
        ),
        (Repeat("layers", 4, (norm, relu, add), (Carry("x", "h", "h2", "y"),)), replace(relu, inputs=("y",))),
        ("y", "r"),
        (("tokens", 8), ("scale", 0.5), ("family", "llama")),
    )  # fmt: skip


def test_graph_round_trip_and_form() -> None:
    text = print_graph(model())
    assert parse_graph(text) == model()
    assert print_graph(parse_graph(text)) == text
    assert 'meta family "llama"\n' in text
    assert "value g weight bf16 (64) stacked 4\n" in text
    assert "repeat layers 4\n  carry x h h2 y\n  node n = rms-norm(h, g) eps=1e-06 # norm\n" in text


def test_every_registered_op_survives() -> None:
    """Each op, with every field set to something other than its default."""
    other = {"int": 7, "float": 0.1, "str": "half of", "bool": True, "str | None": "silu"}
    for kind, cls in OPS.items():
        values = {
            f.name: other.get(str(f.type), ("a", 1)) for f in cls.__dataclass_fields__.values() if f.init
        }
        values = {k: v for k, v in values.items() if k != "kind"}
        op = cls.__new__(cls)
        for name, value in values.items():
            object.__setattr__(op, name, value)
        graph = Graph("g", (), (Node("n", op, ("x", "y"), ("z",)),), ("z",))
        try:
            again = parse_graph(print_graph(graph))
        except (TypeError, ValueError) as error:  # a field that is not a plain value
            raise AssertionError(f"{kind}: {error}") from error
        assert again == graph, kind


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph two", "grph two", r"line 1: got 'grph', want 'graph'"),
        ("rms-norm(", "rms_norm(", r"got 'rms_norm', want an op, one of: "),
        ("eps=", "epsilon=", r"got 'epsilon', want a field of rms-norm: "),
        ("(8, 64)", "(8 64)", r"got '64', want ','"),
        ("  carry x h h2 y", "  carry x h h2", r"got end of line, want a name"),
        (' func="relu"', "", r"want fields func of unary"),
    ],
)
def test_broken_graph_text_is_refused(old: str, new: str, message: str) -> None:
    text = print_graph(model())
    assert old in text
    with pytest.raises(TextError, match=message):
        parse_graph(text.replace(old, new, 1))
