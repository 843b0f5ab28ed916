"""YAML text to a tree that remembers where every value stands.

A strict subset of YAML: mappings, lists, text and plain numbers. Built from parser events, because
the usual loader drops line numbers, keeps the last of two equal keys without a word, and reads
``off``, ``12:30`` and ``1e9`` as something else than what is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml
from typing_extensions import override

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]

MAX_BYTES = 1 << 20  # assumed; our largest file is under 10 KiB
MAX_DEPTH = 24  # the schema needs 6
_NUMBER = re.compile(r"[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?")
_MAX_DIGITS = 40
_WORDS: Mapping[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}
# The C parser is ten times faster; both produce the same events and marks.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something was written; line 0 is a whole file or a value given on the command line."""

    file: str
    line: int

    @override
    def __str__(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with the place of its key."""

    value: Scalar | list[Entry] | dict[str, Entry]
    mark: Mark

    def plain(self) -> Plain:
        """The value without marks."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value


class DocumentError(Exception):
    """The text is not what this subset of YAML allows; `problems` are complete lines."""

    def __init__(self, problems: list[str]) -> None:
        """Keep `problems` as data."""
        self.problems = problems
        super().__init__("\n".join(problems))


def scalar(text: str) -> Scalar:
    """The value of an unquoted scalar: a number if it looks like one, else text.

    ``1e9`` and ``1_400`` are numbers; ``off``, ``yes``, ``0x10``, ``12:30`` and dates are text.
    """
    if text in _WORDS:
        return _WORDS[text]
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MAX_DIGITS:
        return text
    digits = text.replace("_", "")
    return int(digits) if match.group(1) is None and match.group(2) is None else float(digits)


def parse(data: str | bytes, file: str) -> Entry:
    """Parse a YAML text whose top level is a mapping; raise DocumentError with all problems found."""
    text = _text(data, file)
    builder = _Builder(file)
    try:
        root = builder.document(iter(yaml.parse(text, Loader=_LOADER)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = (mark.line + 1) if mark else 1
        raise DocumentError([*builder.problems, f"{file}:{line}: {_syntax(error, text, line)}"]) from error
    except yaml.YAMLError as error:
        raise DocumentError(
            [f"{file}:{_line_of(error, text)}: got text that is not YAML: {_reason(error)}"]
        ) from error
    if builder.problems:
        raise DocumentError(builder.problems)
    if not isinstance(root.value, dict):
        got = "nothing" if root.value is None else _kind(root)
        raise DocumentError([f"{file}:{root.mark.line}: got {got}, want a mapping at the top level"])
    return root


def parse_value(text: str, mark: Mark) -> Entry:
    """Parse one value as written behind a key: a scalar, or a flow list or mapping."""
    builder = _Builder(mark.file, fixed=mark)
    try:
        root = builder.document(iter(yaml.parse(text, Loader=_LOADER)))
    except yaml.YAMLError as error:
        raise DocumentError([f"{mark}: got {text!r}, want a value as in YAML"]) from error
    if builder.problems:
        raise DocumentError(builder.problems)
    return root


def _text(data: str | bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        raise DocumentError([f"{file}:1: got {len(data)} bytes, want at most {MAX_BYTES}"])
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = data[error.start : error.start + 1].hex()
        raise DocumentError([f"{file}:{line}: got byte 0x{found}, want UTF-8 text"]) from error


def _line_of(error: yaml.YAMLError, text: str) -> int:
    """Line of an unreadable character; the parsers count characters or bytes, so it may be a line late."""
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1


def _reason(error: yaml.YAMLError) -> str:
    return f"{getattr(error, 'reason', None) or error}, want a mapping of keys"


def _syntax(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    """What is wrong with the text, in the form of all our messages."""
    lines = text.splitlines()
    shown = lines[line - 1].strip()[:60] if line <= len(lines) else "the end of the file"
    if line <= len(lines) and "\t" in lines[line - 1]:
        return f"got a tab in {shown!r}, want spaces for indentation"
    return f"got {shown!r}, want valid YAML: {error.problem or error.context}"


def _kind(entry: Entry) -> str:
    if isinstance(entry.value, dict):
        return "a mapping"
    return "a list" if isinstance(entry.value, list) else repr(entry.value)


class _Builder:
    """Turns parser events into entries and notes what the subset does not allow."""

    def __init__(self, file: str, fixed: Mark | None = None) -> None:
        self.file = file
        self.fixed = fixed
        self.problems: list[str] = []

    def mark(self, event: yaml.Event) -> Mark:
        assert event.start_mark is not None, event
        return self.fixed or Mark(self.file, event.start_mark.line + 1)

    def document(self, events: Iterator[yaml.Event]) -> Entry:
        root: Entry | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self.problems.append(f"{self.mark(event)}: got a second document, want one")
                    break
                root = self.value(next(events), events, None, ())
        return root or Entry(None, self.fixed or Mark(self.file, 1))

    def value(
        self, event: yaml.Event, events: Iterator[yaml.Event], at: Mark | None, path: tuple[str, ...]
    ) -> Entry:
        mark = at or self.mark(event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self.problems.append(f"{mark}: got an anchor or alias, want values written out; use extends")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            self.problems.append(f"{mark}: got the tag {tag!r}, want plain values")
        if len(path) > MAX_DEPTH:
            raise DocumentError([f"{mark}: got values nested deeper than {MAX_DEPTH} levels"])
        if isinstance(event, yaml.MappingStartEvent):
            return Entry(self.mapping(events, path), mark)
        if isinstance(event, yaml.SequenceStartEvent):
            return Entry(self.sequence(events, path), mark)
        if isinstance(event, yaml.ScalarEvent):
            return Entry(scalar(event.value) if event.implicit[0] else event.value, mark)
        return Entry(None, mark)

    def mapping(self, events: Iterator[yaml.Event], path: tuple[str, ...]) -> dict[str, Entry]:
        items: dict[str, Entry] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            mark = self.mark(event)
            key = self.value(event, events, mark, (*path, "key")).value
            name = event.value if isinstance(event, yaml.ScalarEvent) else None
            here = (*path, name or "?")
            entry = self.value(next(events), events, mark, here)
            if name is None or isinstance(key, (dict, list)):
                self.problems.append(f"{mark}: got a key that is not text, want a name")
            elif name == "<<":
                self.problems.append(f"{mark}: got a merge key '<<', want extends")
            elif name in items:
                self.problems.append(
                    f"{mark}: {'.'.join(here)}: got the key twice, want it once; first at {items[name].mark}"
                )
            else:
                items[name] = entry
        return items

    def sequence(self, events: Iterator[yaml.Event], path: tuple[str, ...]) -> list[Entry]:
        items: list[Entry] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self.value(event, events, None, (*path, str(len(items)))))
        return items
