"""The text form of a Graph: one value or op a line, repeated regions indented."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from compiler.ir.graph import Carry, Graph, Node, Repeat, TensorType, Value
from compiler.ir.lexer import Line, lines, plain, quote
from compiler.ops import OPS
from compiler.ops.base import Op
from compiler.ops.custom import Custom

_INDENT = "  "


def print_graph(graph: Graph) -> str:
    """The text of `graph`; `parse_graph` gives back an equal one."""
    out = [f"graph {quote(graph.name)}"]
    out += [f"meta {quote(name)} {plain(value)}" for name, value in graph.meta]
    out += [f"output {quote(name)}" for name in graph.outputs]
    out += [_value(value) for value in graph.values]
    for node in graph.nodes:
        if isinstance(node, Repeat):
            out.append(f"repeat {quote(node.name)} {node.count}")
            out += [
                f"{_INDENT}carry {quote(c.init)} {quote(c.inner)} {quote(c.final)} {quote(c.result)}"
                for c in node.carries
            ]
            out += [_INDENT + print_node(inner) for inner in node.nodes]
        else:
            out.append(print_node(node))
    return "\n".join(out) + "\n"


def print_node(node: Node) -> str:
    """Such as `node y = linear(x, w) activation="relu" # fc1`."""
    op = node.op.op if isinstance(node.op, Custom) else node.op
    options = "".join(
        f" {field.name}={plain(getattr(op, field.name))}"
        for field in fields(op)
        if field.default is MISSING or not _same(getattr(op, field.name), field.default)
    )
    kind = f"{op.kind}.custom" if op is not node.op else op.kind  # NOTE: cannot be read back: it is code
    return f"node {_names(node.outputs)} = {kind}({_names(node.inputs)}){options} # {quote(node.name)}"


def _same(value: Any, default: Any) -> bool:
    """Equal and of one type, so that 1, 1.0 and true stay apart."""
    return type(value) is type(default) and bool(value == default)


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(quote(name) for name in names)


def _value(value: Value) -> str:
    shape = ", ".join(str(size) for size in value.type.shape)
    stacked = f" stacked {value.stacked}" if value.stacked else ""
    return f"value {quote(value.name)} {quote(value.kind)} {quote(value.type.dtype)} ({shape}){stacked}"


def parse_graph(text: str) -> Graph:
    """The Graph that `print_graph` wrote; raises TextError with the line."""
    rows = lines(text)
    if not rows:
        Line("", 1).fail("'graph'")
    rows[0].expect("graph")
    name = rows[0].name()
    rows[0].end()
    meta: list[tuple[str, Any]] = []
    outputs: list[str] = []
    values: list[Value] = []
    nodes: list[Node | Repeat] = []
    at = 1
    while at < len(rows):
        line = rows[at]
        at += 1
        if line.accept("meta"):
            meta.append((line.name(), line.plain()))
        elif line.accept("output"):
            outputs.append(line.name())
        elif line.accept("value"):
            values.append(_parse_value(line))
        elif line.accept("node"):
            nodes.append(_parse_node(line))
        elif line.accept("repeat"):
            last = at
            while last < len(rows) and rows[last].indent > line.indent:
                last += 1
            nodes.append(_parse_repeat(line, rows[at:last]))
            at = last
        else:
            line.fail("one of: meta, output, value, node, repeat")
        line.end()
    return Graph(name, tuple(values), tuple(nodes), tuple(outputs), tuple(meta))


def _parse_value(line: Line) -> Value:
    name, kind, dtype = line.name(), line.name(), line.name()
    shape = line.items(line.integer)
    stacked = line.integer() if line.accept("stacked") else 0
    return Value(name, TensorType(shape, dtype), kind, stacked)


def _parse_repeat(head: Line, body: list[Line]) -> Repeat:
    name, count = head.name(), head.integer()
    carries: list[Carry] = []
    nodes: list[Node] = []
    for line in body:
        if line.accept("carry"):
            carries.append(Carry(line.name(), line.name(), line.name(), line.name()))
        else:
            line.expect("node")
            nodes.append(_parse_node(line))
        line.end()
    return Repeat(name, count, tuple(nodes), tuple(carries))


def _parse_node(line: Line) -> Node:
    outputs: list[str] = []
    while not line.accept("="):
        if outputs:
            line.expect(",")
        outputs.append(line.name())
    kind = line.name()
    if kind not in OPS:
        line.at -= 1
        line.fail("an op, one of: " + ", ".join(OPS))
    inputs = line.items(line.name)
    options: dict[str, Any] = {}
    known = [field.name for field in fields(OPS[kind])]
    while not line.accept("#"):
        field = line.name()
        if field not in known:
            line.at -= 1
            line.fail(f"a field of {kind}: " + (", ".join(known) or "it has none"))
        line.expect("=")
        options[field] = line.plain()
    return Node(line.name(), _make(line, kind, options), inputs, tuple(outputs))


def _make(line: Line, kind: str, options: dict[str, Any]) -> Op:
    missing = [f.name for f in fields(OPS[kind]) if f.default is MISSING and f.name not in options]
    if missing:
        line.fail(f"fields {', '.join(missing)} of {kind}")
    return OPS[kind](**options)
