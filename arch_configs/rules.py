"""Rules between the sections of an architecture: every name exists and every role is filled.

They work on an outline, so that they can be checked beside errors in single values.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Path = tuple[str | int, ...]
Problem = tuple[Path, str]  # where, and "got X, want Y"
_CLOSE = 0.6  # difflib's own default for a close match


class RuleError(ValueError):
    """Some rules do not hold; `problems` says which and where."""

    def __init__(self, problems: list[Problem]) -> None:
        """Keep `problems` as data."""
        self.problems = problems
        super().__init__("; ".join(f"{dotted(path)}: {text}" if path else text for path, text in problems))


@dataclass(slots=True)
class Outline:
    """The names of an architecture and how they refer to each other."""

    engines: dict[str, str] = field(default_factory=dict)  # name -> kind
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memories: dict[str, str] = field(default_factory=dict)  # name -> kind
    exclusions: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    @classmethod
    def of(cls, data: object) -> Outline:
        """The outline of plain data that need not be valid; what is malformed is left out."""
        top = _mapping(data)
        engines = {name: _mapping(value) for name, value in _mapping(top.get("engines")).items()}
        memories = {name: _mapping(value) for name, value in _mapping(top.get("memories")).items()}
        rules = top.get("exclusions")
        return cls(
            engines={name: str(value.get("kind")) for name, value in engines.items()},
            reads={name: _names(value.get("reads")) for name, value in engines.items()},
            writes={name: _names(value.get("writes")) for name, value in engines.items()},
            memories={name: str(value.get("kind")) for name, value in memories.items()},
            exclusions=[
                (_names(_mapping(rule).get("engines")), str(_mapping(rule).get("memory")))
                for rule in (rules if isinstance(rules, (list, tuple)) else ())
            ],
        )

    def memory(self, kind: str) -> str | None:
        """Name of the first memory of `kind`."""
        return next((name for name, found in self.memories.items() if found == kind), None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else ()


def dotted(path: Iterable[str | int]) -> str:
    """``engines.tensor.rows``."""
    return ".".join(str(part) for part in path)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, the first of equals; None if none is close."""
    ratios = [(difflib.SequenceMatcher(None, name, other).ratio(), other) for other in known]
    best = max(ratios, key=lambda item: item[0], default=(0.0, ""))
    return best[1] if best[0] >= _CLOSE else None


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a known name is close, else nothing."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def outline_problems(outline: Outline, *, complete: bool = True) -> list[Problem]:
    """Names that do not exist, and roles that are not filled exactly once.

    With `complete` false some sections are known to be broken: what may only follow from that is left out.
    """
    missing = list(_references(outline)) if complete or outline.memories else []
    if not complete:
        return missing
    return [*_roles(outline), *missing, *([] if missing else _reach(outline))]


def _roles(outline: Outline) -> Iterator[Problem]:
    for kind in ("dram", "scratchpad", "accumulator"):
        found = [name for name, of in outline.memories.items() if of == kind]
        if len(found) != 1:
            yield ("memories",), f"got {_list(found)} of kind {kind}, want exactly one"
    arrays = [name for name, kind in outline.engines.items() if kind == "systolic"]
    if len(arrays) != 1:
        yield ("engines",), f"got {_list(arrays)} of kind systolic, want exactly one"
    if "vector" not in outline.engines.values():
        yield ("engines",), "got none of kind vector, want at least one"
    for name in outline.engines:
        if name in outline.memories:
            yield ("engines", name), f"got {name!r} for an engine and a memory, want different names"
        if name.startswith("dma") and name[3:].isdigit():
            yield ("engines", name), f"got {name!r}, which names a DMA queue, want another name"


def _references(outline: Outline) -> Iterator[Problem]:
    for side, links in (("reads", outline.reads), ("writes", outline.writes)):
        for engine, memories in links.items():
            for index, memory in enumerate(memories):
                where = ("engines", engine, side, index)
                if memory not in outline.memories:
                    yield where, _unknown("a memory", memory, outline.memories)
                elif outline.memories[memory] == "dram":
                    yield where, f"got {memory!r}, want on-chip memories; DRAM is reached by DMA alone"
    for number, (engines, memory) in enumerate(outline.exclusions):
        for index, engine in enumerate(engines):
            if engine not in outline.engines:
                yield ("exclusions", number, "engines", index), _unknown("an engine", engine, outline.engines)
        if memory not in outline.memories:
            yield ("exclusions", number, "memory"), _unknown("a memory", memory, outline.memories)


def _reach(outline: Outline) -> Iterator[Problem]:
    """The array is fed from the scratchpad, and its results can come back there."""
    pad, acc = outline.memory("scratchpad"), outline.memory("accumulator")
    if pad is None or acc is None:
        return
    for name, kind in outline.engines.items():
        if kind == "systolic" and pad not in outline.reads[name]:
            yield ("engines", name, "reads"), f"got {_list(outline.reads[name])}, want {pad!r} among them"
        if kind == "systolic" and acc not in outline.writes[name]:
            yield ("engines", name, "writes"), f"got {_list(outline.writes[name])}, want {acc!r} among them"
    vectors = [name for name, kind in outline.engines.items() if kind == "vector"]
    if vectors and not any(acc in outline.reads[n] and pad in outline.writes[n] for n in vectors):
        yield (
            ("engines",),
            f"got no vector engine that reads {acc!r} and writes {pad!r}, want one to evict results",
        )


def _unknown(what: str, name: str, known: Mapping[str, str]) -> str:
    return f"got {name!r}, want {what} of this file: {', '.join(known) or 'none'}{nearest(name, known)}"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
