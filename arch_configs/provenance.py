"""Where values come from, as the comments behind them say: `# calibrated: ...`, `# assumed`, a document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from arch_configs.document import DocumentError, Entry, Mark
from arch_configs.load import ArchError, read_tree

Origin = Literal["calibrated", "documented", "assumed"]
_COMMENT = re.compile(r"\s#\s*(.*)$")
_ASSUMED = re.compile(r"\bassumed\b")


def origins(source: str) -> dict[str, Origin]:
    """Origin of each number of the architecture `source`, by dotted path, without overrides.

    A value is calibrated if its comment begins so, assumed if it has no comment or that word is in it, and
    else documented, which includes what is derived from documents. Raises: as `load_arch`.
    """
    try:
        tree, texts = read_tree(source)
    except DocumentError as error:
        raise ArchError(error.problems) from error
    lines = {label: text.splitlines() for label, text in texts.items()}
    return {path: origin_of(_comment(lines, mark)) for path, mark in _numbers(tree, "")}


def origin_of(comment: str) -> Origin:
    """What a comment says of the value before it."""
    if comment.startswith("calibrated"):
        return "calibrated"
    return "assumed" if not comment or _ASSUMED.search(comment) else "documented"


def _comment(lines: Mapping[str, list[str]], mark: Mark) -> str:
    text = lines[mark.file][mark.line - 1] if mark.line else ""
    found = _COMMENT.search(text)
    return found.group(1) if found else ""


def _numbers(entry: Entry, path: str) -> Iterator[tuple[str, Mark]]:
    """Paths of values that are or begin with a number: names and lists of them have no origin."""
    if isinstance(entry.value, dict):
        for key, below in entry.value.items():
            yield from _numbers(below, f"{path}.{key}" if path else key)
    elif str(entry.value)[:1].isdigit():
        yield path, entry.mark
