"""Tokens of the text forms of Graph and Program: names, numbers, strings and plain values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from compiler.errors import CompileError

Value = int | float | str | bool | tuple["Value", ...] | None
T = TypeVar("T")

_NAME = r"[A-Za-z_][\w./:]*(?:-[\w./:]+)*"
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(
    rf'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<name>{_NAME})|(?P<number>{_NUMBER})|(?P<mark>->|\S))'
)
_IS_NAME = re.compile(_NAME)


class TextError(CompileError):
    """A text form that cannot be read; the message says the line, what was got and what was wanted."""


def quote(name: str) -> str:
    """A name as it is, or as a JSON string if it has other characters."""
    return name if _IS_NAME.fullmatch(name) else json.dumps(name)


def number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(value) if isinstance(value, int) else repr(float(value))


def plain(value: Value) -> str:
    """A plain value: number, string, true, false, none or a tuple of them."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(plain(item) for item in value) + ")"
    return number(value)


class Line:
    """Reads the tokens of one line from left to right."""

    def __init__(self, text: str, row: int) -> None:
        """Split `text`, which is line `row` (from 1)."""
        self.text = text
        self.row = row
        self.indent = len(text) - len(text.lstrip(" "))
        self.tokens = [(m.lastgroup or "", m.group(m.lastgroup or 0)) for m in _TOKEN.finditer(text.rstrip())]
        self.at = 0

    def fail(self, want: str) -> NoReturn:
        """Raise for the next token."""
        got = repr(self.tokens[self.at][1]) if self.at < len(self.tokens) else "end of line"
        raise TextError(f"line {self.row}: got {got}, want {want}: {self.text.strip()}")

    def more(self) -> bool:
        """Whether tokens are left."""
        return self.at < len(self.tokens)

    def peek(self, mark: str) -> bool:
        """Whether the next token is the bare word or mark `mark`."""
        return self.more() and self.tokens[self.at][1] == mark and self.tokens[self.at][0] != "string"

    def accept(self, mark: str) -> bool:
        """Take the next token if it is `mark`."""
        found = self.peek(mark)
        self.at += found
        return found

    def expect(self, mark: str) -> None:
        """Take `mark`."""
        if not self.accept(mark):
            self.fail(repr(mark))

    def end(self) -> None:
        """Nothing may be left."""
        if self.more():
            self.fail("end of line")

    def name(self) -> str:
        """Take a name, bare or quoted."""
        kind, text = self.tokens[self.at] if self.more() else ("", "")
        if kind not in ("name", "string"):
            self.fail("a name")
        self.at += 1
        return str(json.loads(text)) if kind == "string" else text

    def integer(self) -> int:
        """Take a whole number."""
        value = self.number()
        if not isinstance(value, int):
            self.at -= 1
            self.fail("a whole number")
        return value

    def number(self) -> int | float:
        """Take a number, `inf`, `-inf` or `nan`."""
        if self.accept("-"):
            return -self.number()
        for word in ("inf", "nan"):
            if self.accept(word):
                return math.inf if word == "inf" else math.nan
        if not self.is_number():
            self.fail("a number")
        text = self.tokens[self.at][1]
        self.at += 1
        return float(text) if any(mark in text for mark in ".eE") else int(text)

    def is_number(self) -> bool:
        """Whether a number comes next."""
        return self.more() and self.tokens[self.at][0] == "number"

    def items(self, item: Callable[[], T]) -> tuple[T, ...]:
        """Take `(item, item, ...)`."""
        self.expect("(")
        found: list[T] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)

    def plain(self) -> Value:
        """Take a plain value."""
        for word, value in (("none", None), ("true", True), ("false", False)):
            if self.accept(word):
                return value
        if self.more() and self.tokens[self.at][0] == "string":
            return self.name()
        return self.items(self.plain) if self.peek("(") else self.number()


def lines(text: str) -> list[Line]:
    """The lines of `text` that are not empty."""
    return [Line(line, row) for row, line in enumerate(text.splitlines(), 1) if line.strip()]
