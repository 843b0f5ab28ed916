"""What a pass is: a frozen dataclass whose fields are its options and whose text is its spelling."""

from __future__ import annotations

import abc
import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from typing_extensions import override

from arch_configs.spec import ArchSpec
from compiler.errors import CompileError
from compiler.ir.graph import Graph
from compiler.ir.verify_graph import verify_graph

Option = bool | int


@dataclass(frozen=True, slots=True)
class Pass(abc.ABC):
    """A rewrite of the graph that keeps its meaning. Options are bool or int fields with defaults."""

    name: ClassVar[str]

    @abc.abstractmethod
    def run(self, graph: Graph, arch: ArchSpec) -> Graph:
        """The rewritten graph; `graph` is legal and so must be the result."""

    @classmethod
    def space(cls, arch: ArchSpec) -> Iterator[Self]:
        """The variants worth trying, the default first."""
        yield cls()

    def options(self) -> dict[str, Option]:
        """Values of the options, in order."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @override
    def __str__(self) -> str:
        items = (f"{k}={str(v).lower()}" for k, v in self.options().items())
        return f"{self.name}{{{','.join(items)}}}" if self.options() else self.name


_SPELLING = re.compile(r"^\s*([a-z0-9-]+)\s*(?:\{([^{}]*)\})?\s*$")
_BOOLS = {"true": True, "false": False}


def read_pass(text: str, registry: Mapping[str, type[Pass]]) -> Pass:
    """The pass spelled `name` or `name{option=value,...}`; raises CompileError."""
    match = _SPELLING.match(text)
    if match is None:
        raise CompileError(f"pass: got {text!r}, want name or name{{option=value,...}}")
    name, body = match.group(1), match.group(2) or ""
    if name not in registry:
        raise CompileError(
            f"pass: got {name!r}, want one of: {', '.join(registry)}{_nearest(name, registry)}"
        )
    defaults = registry[name]().options()
    values: dict[str, Option] = {}
    for item in filter(None, (part.strip() for part in body.split(","))):
        option, _, value = (part.strip() for part in item.partition("="))
        if option not in defaults:
            have = f"one of: {', '.join(defaults)}" if defaults else "no options"
            raise CompileError(f"pass {name}: got {option!r}, want {have}{_nearest(option, defaults)}")
        if option in values:
            raise CompileError(f"pass {name}: {option}: given twice")
        values[option] = _read_option(f"pass {name}: {option}", value, defaults[option])
    return registry[name](**values)


def _read_option(where: str, text: str, default: Option) -> Option:
    if isinstance(default, bool):
        if text not in _BOOLS:
            raise CompileError(f"{where}: got {text!r}, want true or false")
        return _BOOLS[text]
    if not text.isdecimal():
        raise CompileError(f"{where}: got {text!r}, want a whole number, 0 or more")
    return int(text)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def run_pipeline(graph: Graph, passes: Sequence[Pass], arch: ArchSpec) -> Graph:
    """Run `passes` in order, verifying the graph before the first and after each."""
    verify_graph(graph)
    for step in passes:
        try:
            graph = step.run(graph, arch)
            verify_graph(graph)
        except CompileError as error:
            error.add_note(f"after pass {step}")
            raise
    return graph
