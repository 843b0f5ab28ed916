"""StableHLO text: functions of operations with attributes, types and regions, read line by line.

The pretty form that jax prints is read, and of the generic form what it uses inside (`"stablehlo.gather"`
with regions). What an attribute means is left to those who translate the operation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import ml_dtypes
import numpy as np

from compiler.ops.base import Array
from workloads.errors import WorkloadError

_TENSOR = re.compile(r"tensor<((?:[0-9]+x)*)([^<>]+(?:<[^<>]*>)?)>")
_OPERATION = re.compile(r'^(?:(%[\w$.]+(?::\d+)?(?:, %[\w$.]+)*) = )?"?([a-z_]\w*(?:\.\w+)*)"?(.*)$')
_VALUE = re.compile(r"%[\w$.]+(?:#\d+)?")
_ARGUMENT = re.compile(r"(%[\w$.]+): (tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>)")
_LOCATION = re.compile(r'^#(loc\d*) = loc\("([^"]*)"')
_PLACE = re.compile(r'loc\((?:#(loc\d*)|"([^"]*)")[^()]*(?:\([^()]*\)[^()]*)*\)\s*$')
_OPENING, _CLOSING = "([{<", ")]}>"


@dataclass(frozen=True, slots=True)
class Type:
    """A ranked tensor; `dtype` as the text has it, such as `bf16` or `i32`."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One line; `text` is all between the name and the types."""

    name: str
    kind: str
    operands: tuple[str, ...]
    text: str
    types: tuple[Type, ...]
    regions: tuple[Block, ...] = ()
    path: str = ""
    operand_types: tuple[Type, ...] = ()
    others: tuple[str, ...] = ()  # names of the second and further results, where each has its own

    @property
    def type(self) -> Type:
        """Of the first result."""
        return self.types[0] if self.types else Type((), "none")


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in order; the last one returns."""

    arguments: tuple[tuple[str, Type], ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A `func.func`; `labels` names arguments as their locations do."""

    name: str
    block: Block
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """All functions by name; `shardings` counts the lines that tell of sharding."""

    functions: dict[str, Function]
    shardings: int

    @property
    def main(self) -> Function:
        """The function that is called from outside."""
        return self.functions.get("main") or next(iter(self.functions.values()))


def read_module(where: str, text: str) -> Module:
    """The functions in `text`. Raises WorkloadError naming the line that is not understood."""
    if "stablehlo." not in text:
        raise WorkloadError(f"{where}: not StableHLO text: no operation stablehlo.* in it")
    if '"func.func"' in text:
        raise WorkloadError(
            f"{where}: got the generic form of MLIR; want the pretty form, as jax's as_text() gives"
        )
    lines = text.splitlines()
    reader = _Reader(where, lines, {m[1]: m[2] for line in lines if (m := _LOCATION.match(line))})
    functions = {f.name: f for f in reader.functions()}
    if not functions:
        raise WorkloadError(f"{where}: no func.func in it")
    return Module(functions, sum("sdy." in line for line in lines))


@dataclass(slots=True)
class _Reader:
    where: str
    lines: list[str]
    places: dict[str, str]
    at: int = field(default=0)

    def functions(self) -> list[Function]:
        found = []
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            self.at += 1
            if line.startswith("func.func"):
                found.append(self._function(line))
        return found

    def _function(self, line: str) -> Function:
        name = re.search(r"@([\w$.\"]+)", line)
        if name is None:
            raise self._error("a function without a name")
        head = line[: _matching(line, line.index("(")) + 1]
        arguments = _arguments(head)
        return Function(name[1].strip('"'), Block(arguments, self._operations()), self._labels(head))

    def _labels(self, head: str) -> tuple[str, ...]:
        labels = []
        for part in re.split(r", (?=%)", head):
            place = re.search(r'loc\((?:#(loc\d*)|"([^"]*)")', part)
            labels.append((place[2] or self.places.get(place[1] or "", "")) if place else "")
        return tuple(labels)

    def _operations(self) -> tuple[Operation, ...]:
        """Up to the line that closes the block, which is left as the current one."""
        found: list[Operation] = []
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("}"):
                self.at += 1
                return tuple(found)
            self.at += 1
            if line and not line.startswith(("//", "^bb", "#")):
                found.append(self._operation(line))
        raise self._error("the end of the text inside a block")

    def _region(self) -> Block:
        """A block in braces; its arguments are on a `^bb0` line."""
        line = self.lines[self.at].strip() if self.at < len(self.lines) else ""
        return Block(_arguments(line) if line.startswith("^bb") else (), self._operations())

    def _operation(self, line: str) -> Operation:
        place = _PLACE.search(line)
        path = ""
        if place:
            line = line[: place.start()].rstrip()
            path = place[2] or self.places.get(place[1] or "", "")
        found = _OPERATION.match(line)
        if found is None:
            raise self._error(f"got {line[:80]!r}, want an operation")
        name, *others = (found[1] or "").split(":")[0].split(", ")
        kind, rest = found[2], found[3]
        regions: list[Block] = []
        inner: tuple[tuple[str, Type], ...] = ()
        if rest.endswith("{"):
            head = rest.rstrip("{(").rstrip()
            inner = _arguments(head) if kind.startswith("sdy.") else ()
            regions.append(self._region())
            while self._closed().startswith("}, {"):
                regions.append(self._region())
            rest = head + " " + self._closed().lstrip("})")
        while self.at < len(self.lines) and re.match(r"(cond|reducer\b.*) ?\{$", self.lines[self.at].strip()):
            self.at += 1
            regions.append(self._region())
            while re.match(r"\} do \{$", self._closed()):
                regions.append(self._region())
        if inner:
            regions[0] = Block(inner, regions[0].operations)
        text, types, given = _split_types(rest)
        if kind == "stablehlo.while":
            operands = tuple(re.findall(r"= (%[\w$.]+(?:#\d+)?)", text))
            names = re.findall(r"(%[\w$.]+) =", text)
            arguments = tuple(zip(names, types, strict=True))
            regions = [Block(arguments, block.operations) for block in regions]
        else:
            part = text[: text.index(")")] if kind.startswith("sdy.") and ")" in text else text
            operands = tuple(_VALUE.findall(part))
        return Operation(
            name,
            kind.removeprefix("func."),
            operands,
            text,
            types,
            tuple(regions),
            _module_of(path),
            given,
            tuple(others),
        )

    def _closed(self) -> str:
        return self.lines[self.at - 1].strip()

    def _error(self, message: str) -> WorkloadError:
        return WorkloadError(f"{self.where}: line {self.at}: {message}")


def _matching(text: str, start: int) -> int:
    """Where the bracket at `start` is closed."""
    depth, quoted = 0, False
    for i in range(start, len(text)):
        char = text[i]
        if char == '"':
            quoted = not quoted
        elif quoted or (char == ">" and text[i - 1] == "-"):
            continue
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth == 0:
                return i
    return len(text) - 1


def _arguments(text: str) -> tuple[tuple[str, Type], ...]:
    return tuple((name, read_types(kind)[0]) for name, kind in _ARGUMENT.findall(text))


def _split_types(rest: str) -> tuple[str, tuple[Type, ...], tuple[Type, ...]]:
    """The text in front of the last ` : ` outside of brackets, and the types of results and operands."""
    at = rest.rfind(" : ")
    while at >= 0:
        behind = rest[at + 3 :]
        if behind.startswith(("tensor<", "(tensor<", "() ->")) and _is_balanced(behind):
            left, arrow, right = behind.rpartition("->")
            types = read_types(right)
            many = bool(arrow) or " = %" in rest[:at]
            return rest[:at], types if many else types[-1:], read_types(left)
        at = rest.rfind(" : ", 0, at)
    return rest, (), ()


def _is_balanced(text: str) -> bool:
    text = text.replace("->", "")
    return all(text.count(a) == text.count(b) for a, b in zip(_OPENING, _CLOSING, strict=True))


def read_types(text: str) -> tuple[Type, ...]:
    """All tensor types in a text."""
    return tuple(
        Type(tuple(int(n) for n in dims.split("x") if n), dtype) for dims, dtype in _TENSOR.findall(text)
    )


def _module_of(path: str) -> str:
    """The dotted path of the module that `jit(f)/layers.1/attn/mul` comes from."""
    parts = [
        p for p in path.split("/")[:-1] if p and "(" not in p and p not in ("while", "body", "closed_call")
    ]
    return ".".join(parts)


# ---- attributes ----------------------------------------------------------------------------------


def integers(text: str, key: str, default: Sequence[int] = ()) -> list[int]:
    """The numbers of `key = [1, 2]`, `key = array<i64: 1, 2>` or `key = 3`."""
    found = re.search(rf"\b{key} = (?:array<i\d+(?::([^>]*))?>|\[([^\]]*)\]|(-?\d+))", text)
    if found is None:
        return list(default)
    return [int(n) for n in re.findall(r"-?\d+", found[1] or found[2] or found[3] or "")]


def pairs(text: str, key: str) -> tuple[list[int], list[int]]:
    """The numbers of `key = [1] x [0, 2]`, of the left and of the right operand."""
    found = re.search(rf"\b{key} = \[([^\]]*)\] x \[([^\]]*)\]", text)
    sides = (found[1], found[2]) if found else ("", "")
    return [int(n) for n in re.findall(r"\d+", sides[0])], [int(n) for n in re.findall(r"\d+", sides[1])]


# ---- constants -----------------------------------------------------------------------------------

_NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i1": np.dtype(bool), "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "ui8": np.dtype(np.uint8), "ui16": np.dtype(np.uint16), "ui32": np.dtype(np.uint32),
    "ui64": np.dtype(np.uint64),
}  # fmt: skip


def is_float(dtype: str) -> bool:
    """Whether an element type of the text is one of real numbers."""
    return dtype.startswith(("f", "bf"))


def held(array: Array, dtype: str) -> Array:
    """An array in the precision that constants are folded in: fp32, int64 or bool."""
    kind = np.float32 if is_float(dtype) else bool if dtype == "i1" else np.int64
    return np.asarray(array).astype(kind)


def dense(where: str, text: str, kind: Type) -> Array | None:
    """The array of `dense<...>`; None if the text does not hold it, or in a type that has no numbers here."""
    found = re.search(r"dense<(.*)>", text, re.DOTALL)
    if found is None or kind.dtype not in _NUMPY:
        return None
    dtype, body = _NUMPY[kind.dtype], found[1].strip()
    if body.startswith('"0x'):
        return _from_bytes(bytes.fromhex(body[3:-1]), kind, dtype)
    if "..." in body:
        return None
    values = [_number(n, dtype) for n in re.findall(r"true|false|0x[0-9A-Fa-f]+|-?[\d.][\w.+-]*", body)]
    if len(values) not in (1, prod(kind.shape)):
        raise WorkloadError(f"{where}: got {len(values)} numbers, want {prod(kind.shape)}")
    if len(values) == 1:
        return held(np.full(kind.shape, values[0]), kind.dtype)
    return held(np.asarray(values).reshape(kind.shape), kind.dtype)


def _from_bytes(data: bytes, kind: Type, dtype: np.dtype) -> Array:
    if kind.dtype == "i1":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        whole = bits if len(bits) >= prod(kind.shape) > len(data) else np.frombuffer(data, np.uint8)
        flat = np.broadcast_to(whole[:1], prod(kind.shape)) if len(data) == 1 else whole[: prod(kind.shape)]
        return held(flat.reshape(kind.shape), kind.dtype)
    found = np.frombuffer(data, dtype)
    shape = kind.shape
    return held(np.broadcast_to(found, shape) if found.size == 1 else found.reshape(shape), kind.dtype)


def _number(text: str, dtype: np.dtype) -> float | int | bool:
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("0x"):
        bits = int(text, 16).to_bytes(dtype.itemsize, "little")
        return float(np.frombuffer(bits, dtype)[0])
    return float(text) if dtype.kind not in "iub" else int(text)
