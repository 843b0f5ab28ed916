"""The text form of a Program: one instruction a line, loops indented, the op as a comment at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import compiler.isa as isa
from compiler.ir.layout import Layout
from compiler.ir.lexer import Line, lines, number, quote
from compiler.isa import Access, Affine, Buffer, Channel, Instr, Loop, Node, Program, Token

_INDENT = "  "


# ---- printing ------------------------------------------------------------------------------------


def print_program(program: Program) -> str:
    """The text of `program`; `parse_program` gives back an equal one."""
    launches = f" launches {program.launches}" if program.launches else ""
    out = [f"program {quote(program.name)}{launches}"]
    out += [f"output {quote(name)}" for name in program.outputs]
    out += [f"shape {quote(name)} {_ints(shape)}" for name, shape in program.shapes]
    out += [f"layout {quote(name)} {_layout(layout)}" for name, layout in program.layouts]
    out += [_buffer(buffer) for buffer in program.buffers]
    out += [
        f"channel {quote(c.name)} {quote(c.producer)} -> {quote(c.consumer)} {c.initial}"
        for c in program.channels
    ]
    for stream, nodes in program.streams:
        out.append(f"stream {quote(stream)}")
        _print_nodes(nodes, 1, out)
    return "\n".join(out) + "\n"


def print_instr(instr: Instr) -> str:
    """One instruction on one line."""
    parts = [type(instr).__name__]
    for name, default, write, _ in _FIELDS[type(instr)]:
        value = getattr(instr, name)
        if value is default or (value == default and type(value) is type(default)):
            continue
        parts.append(f"{name}={write(value)}")
    for word, tokens in (("wait", instr.waits), ("signal", instr.signals)):
        if tokens:
            parts.append(f"{word}({', '.join(f'{quote(name)} {count}' for name, count in tokens)})")
    if instr.op:
        parts.append(f"# {quote(instr.op)}")
    return " ".join(parts)


def _print_nodes(nodes: tuple[Node, ...], depth: int, out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, Loop):
            share = "" if node.share is None else f" share {node.share}"
            out.append(f"{_INDENT * depth}loop {quote(node.var)} {node.count} region {node.region}{share}")
            _print_nodes(node.body, depth + 1, out)
        else:
            out.append(_INDENT * depth + print_instr(node))


def _ints(values: tuple[int, ...]) -> str:
    return f"({', '.join(str(value) for value in values)})"


def _layout(layout: Layout) -> str:
    splits = ", ".join(f"{axis} {block}" for axis, block in layout.splits)
    return f"splits({splits}) order{_ints(layout.order)}"


def _buffer(buffer: Buffer) -> str:
    return (
        f"buffer {quote(buffer.name)} {quote(buffer.memory)} {quote(buffer.dtype)} "
        f"@{buffer.address} {buffer.slots}*{buffer.slot_bytes} p{buffer.partitions} "
        f"{quote(buffer.kind)} {quote(buffer.tensor)}"
    )


def _affine(affine: Affine) -> str:
    """Such as `128*i - j + 4`."""
    text = ""
    for name, factor in affine.terms:
        size = quote(name) if abs(factor) == 1 else f"{abs(factor)}*{quote(name)}"
        text += _signed(factor, size, text)
    if affine.const or not text:
        text += _signed(affine.const, str(abs(affine.const)), text)
    return text


def _signed(value: int, size: str, before: str) -> str:
    if before:
        return f" {'-' if value < 0 else '+'} {size}"
    return f"- {size}" if value < 0 else size


def _access(access: Access) -> str:
    """Such as `bf16 x[p 0+128, 4:512, 512:1, at 2*i, slot j]`; an axis is size:stride."""
    parts = [f"p {access.partition}+{access.partitions}"] if access.partition or access.partitions else []
    parts += [f"{size}:{stride}" for stride, size in access.dims]
    if access.offset != Affine():
        parts.append(f"at {_affine(access.offset)}")
    if access.slot != Affine():
        parts.append(f"slot {_affine(access.slot)}")
    return f"{quote(access.dtype)} {quote(access.buffer)}[{', '.join(parts)}]"


# ---- parsing -------------------------------------------------------------------------------------


def parse_program(text: str) -> Program:
    """The Program that `print_program` wrote; raises TextError with the line."""
    rows = lines(text)
    if not rows:
        Line("", 1).fail("'program'")
    rows[0].expect("program")
    name = rows[0].name()
    launches = rows[0].integer() if rows[0].accept("launches") else 0
    found: dict[str, list[Any]] = {word: [] for word in _HEADS}
    streams: list[tuple[str, tuple[Node, ...]]] = []
    at = 1
    while at < len(rows):
        line = rows[at]
        at += 1
        if line.accept("stream"):
            stream = line.name()
            nodes, at = _parse_nodes(rows, at, line.indent)
            streams.append((stream, nodes))
            continue
        word = next((head for head in _HEADS if line.accept(head)), None)
        if word is None:
            line.fail("one of: " + ", ".join((*_HEADS, "stream")))
        found[word].append(_HEADS[word](line))
        line.end()
    return Program(
        name=name,
        streams=tuple(streams),
        buffers=tuple(found["buffer"]),
        channels=tuple(found["channel"]),
        outputs=tuple(found["output"]),
        layouts=tuple(found["layout"]),
        shapes=tuple(found["shape"]),
        launches=launches,
    )


def _parse_nodes(rows: list[Line], at: int, indent: int) -> tuple[tuple[Node, ...], int]:
    """The nodes on the lines from `at` that are deeper than `indent`, and the line after them."""
    nodes: list[Node] = []
    while at < len(rows) and rows[at].indent > indent:
        line = rows[at]
        at += 1
        if line.accept("loop"):
            variable, count = line.name(), line.integer()
            line.expect("region")
            region = line.integer()
            share = line.integer() if line.accept("share") else None
            body, at = _parse_nodes(rows, at, line.indent)
            nodes.append(Loop(variable, count, body, region, share))
        else:
            nodes.append(parse_instr(line))
        line.end()
    return tuple(nodes), at


def parse_instr(line: Line) -> Instr:
    """One instruction."""
    word = line.name()
    if word not in _CLASSES:
        line.at -= 1
        line.fail("loop or one of: " + ", ".join(_CLASSES))
    cls = _CLASSES[word]
    readers = {name: read for name, _, _, read in _FIELDS[cls]}
    values: dict[str, Any] = {}
    while line.more():
        if line.accept("wait"):
            values["waits"] = line.items(lambda: _token(line))
        elif line.accept("signal"):
            values["signals"] = line.items(lambda: _token(line))
        elif line.accept("#"):
            values["op"] = line.name()
        else:
            field = line.name()
            if field not in readers:
                line.at -= 1
                line.fail("a field of " + word + ": " + ", ".join(readers))
            line.expect("=")
            values[field] = readers[field](line)
    missing = [name for name, default, _, _ in _FIELDS[cls] if default is MISSING and name not in values]
    if missing:
        line.fail(f"fields {', '.join(missing)}")
    return cls(**values)


def _token(line: Line) -> Token:
    return line.name(), line.integer()


def _parse_ints(line: Line) -> tuple[int, ...]:
    return line.items(line.integer)


def _parse_layout(line: Line) -> tuple[str, Layout]:
    name = line.name()
    line.expect("splits")
    splits = line.items(lambda: (line.integer(), line.integer()))
    line.expect("order")
    return name, Layout(splits, _parse_ints(line))


def _parse_buffer(line: Line) -> Buffer:
    name, memory, dtype = line.name(), line.name(), line.name()
    line.expect("@")
    address, slots = line.integer(), line.integer()
    line.expect("*")
    slot_bytes = line.integer()
    partitions = line.name()
    if not partitions[1:].isdigit() or partitions[0] != "p":
        line.at -= 1
        line.fail("p and the number of partitions")
    kind, tensor = line.name(), line.name()
    return Buffer(name, memory, dtype, address, slot_bytes, slots, int(partitions[1:]), tensor, kind)


def _parse_channel(line: Line) -> Channel:
    name, producer = line.name(), line.name()
    line.expect("->")
    return Channel(name, producer, line.name(), line.integer())


def _parse_shape(line: Line) -> tuple[str, tuple[int, ...]]:
    return line.name(), _parse_ints(line)


def _parse_affine(line: Line) -> Affine:
    const, terms = 0, []
    while True:
        sign = -1 if line.accept("-") else 1
        if line.is_number():
            value = sign * line.integer()
            if line.accept("*"):
                terms.append((line.name(), value))
            else:
                const += value
        else:
            terms.append((line.name(), sign))
        if not line.accept("+") and not line.peek("-"):
            return Affine(const, tuple(terms))


def _parse_access(line: Line) -> Access:
    dtype, buffer = line.name(), line.name()
    partition, partitions = 0, 0
    dims: list[tuple[int, int]] = []
    offset, slot = Affine(), Affine()
    line.expect("[")
    while not line.accept("]"):
        if line.accept("p"):
            partition = line.integer()
            line.expect("+")
            partitions = line.integer()
        elif line.accept("at"):
            offset = _parse_affine(line)
        elif line.accept("slot"):
            slot = _parse_affine(line)
        else:
            size = line.integer()
            line.expect(":")
            dims.append((line.integer(), size))
        if not line.accept(",") and not line.peek("]"):
            line.fail("',' or ']'")
    return Access(buffer, dtype, tuple(dims), offset, partition, partitions, slot)


# ---- fields of the instructions ------------------------------------------------------------------

Writer = Callable[[Any], str]
Reader = Callable[[Line], Any]


def _write_operand(value: isa.Operand) -> str:
    return _access(value) if isinstance(value, Access) else number(value)


def _read_operand(line: Line) -> isa.Operand:
    if line.is_number() or any(line.peek(word) for word in ("-", "inf", "nan")):
        return line.number()
    return _parse_access(line)


def _write_reset(value: tuple[Affine, ...] | None) -> str:
    return "none" if value is None else f"({', '.join(_affine(affine) for affine in value)})"


def _read_reset(line: Line) -> tuple[Affine, ...] | None:
    return None if line.accept("none") else line.items(lambda: _parse_affine(line))


def _read_bool(line: Line) -> bool:
    if line.accept("true"):
        return True
    line.expect("false")
    return False


def _write_names(names: tuple[str, ...]) -> str:
    return f"({', '.join(quote(name) for name in names)})"


_ACCESS: tuple[Writer, Reader] = (_access, _parse_access)
_NAME: tuple[Writer, Reader] = (quote, Line.name)
_CODECS: dict[str, tuple[Writer, Reader]] = {
    "Access": _ACCESS,
    "Access | None": _ACCESS,
    "Affine": (_affine, _parse_affine),
    "Operand": (_write_operand, _read_operand),
    "bool": (lambda value: "true" if value else "false", _read_bool),
    "float": (number, Line.number),
    "int": (number, Line.integer),
    "str": _NAME,
    "str | None": _NAME,
    "tuple[Affine, ...] | None": (_write_reset, _read_reset),
    "tuple[str, ...]": (_write_names, lambda line: line.items(line.name)),
}
"""How to write and read a field, by its annotation. A field at its default, such as None, is left out."""

_HEADS: dict[str, Reader] = {
    "output": Line.name,
    "shape": _parse_shape,
    "layout": _parse_layout,
    "buffer": _parse_buffer,
    "channel": _parse_channel,
}

_CLASSES: dict[str, type[Instr]] = {
    cls.__name__: cls
    for cls in (
        isa.Sync, isa.Matmul, isa.Transpose, isa.Activate, isa.TensorScalar, isa.TensorTensor, isa.Reduce,
        isa.Copy, isa.Memset, isa.AffineSelect, isa.Dma, isa.Gather, isa.Collective,
    )
}  # fmt: skip


def _described(field: Field[Any]) -> tuple[str, Any, Writer, Reader]:
    write, read = _CODECS[str(field.type)]
    return field.name, field.default, write, read


_COMMON = {field.name for field in fields(Instr)}
_FIELDS: dict[type[Instr], tuple[tuple[str, Any, Writer, Reader], ...]] = {
    cls: tuple(_described(field) for field in fields(cls) if field.name not in _COMMON)
    for cls in _CLASSES.values()
}
