"""A workload's keys are the fields of its Request; this is how they are declared and read from text."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from compiler.ir.graph import Graph
from workloads.errors import nearest

T = TypeVar("T", int, str, bool)
Scalar = int | str | bool

FLOATS = ("bf16", "fp16", "fp32")
NARROW = ("fp8e4", "fp8e5")
# What a mesh of several chips would split; accepted only as 1.
PARALLEL_KEYS = ("tp", "pp", "dp", "ep")
_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def key(default: T, meaning: str, *, minimum: int = 1, choices: Sequence[str] = ()) -> T:
    """Declare a Request field that the user may set as `name=value`; text without `choices` is free."""
    metadata = {"meaning": meaning, "minimum": minimum, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Request(abc.ABC):
    """One phase of a workload with its sizes: knows which graph it asks for."""

    phase: ClassVar[str] = ""  # empty where a workload has only one
    binds: ClassVar[bool] = False  # whether other keys with a whole number are taken: sizes that a file names

    @abc.abstractmethod
    def graph(self, name: str) -> Graph:
        """The graph, called `name`."""

    def problems(self) -> list[str]:
        """What is wrong with the keys taken together; each key alone was checked before."""
        return []

    def with_bound(self, bound: dict[str, int]) -> Request:
        """The same with sizes that the file names; only asked of requests that bind."""
        raise NotImplementedError

    def settings(self) -> dict[str, Scalar]:
        """Values of the keys, in order."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata}


@dataclass(frozen=True, slots=True)
class Workload:
    """A named workload: one default Request for each phase, the first being the default phase."""

    name: str
    summary: str
    requests: tuple[Request, ...]

    def describe(self) -> str:
        """Name, summary, and each phase's keys with defaults and meanings."""
        lines = [f"{self.name}: {self.summary}"]
        for request in self.requests:
            lines.append(f"  {self.name}:{request.phase}" if request.phase else f"  {self.name}")
            for f in dataclasses.fields(request):
                if f.metadata:
                    options = f" ({' | '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
                    lines.append(f"    {f.name}={getattr(request, f.name)}  {f.metadata['meaning']}{options}")
        return "\n".join(lines)


def canonical(name: str, request: Request) -> str:
    """The text with every key that builds exactly this request."""
    items = [request.phase] if request.phase else []
    items += [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in request.settings().items()]
    return f"{name}:{','.join(items)}" if items else name


def read_request(workload: Workload, items: Sequence[str]) -> tuple[Request | None, list[str]]:
    """The request that `phase` and `key=value` items ask for, or None, and all problems found."""
    phases = {request.phase: request for request in workload.requests}
    words = [item for item in items if "=" not in item]
    request, problems = workload.requests[0], []
    for position, word in enumerate(words):
        if position or items[0] != word:
            problems.append(f"got {word!r}, want key=value (a phase comes first, once)")
        elif word in phases:
            request = phases[word]
        else:
            have = f"one of: {', '.join(phases)}" if request.phase else "no phase: there is only one"
            problems.append(f"phase: got {word!r}, want {have}{nearest(word, phases)}")
    values, wrong = _read_keys(request, [item for item in items if "=" in item])
    problems += wrong
    if problems:
        return None, problems
    fixed = {f.name for f in dataclasses.fields(request) if f.metadata}
    request = dataclasses.replace(request, **{name: v for name, v in values.items() if name in fixed})
    bound = {name: v for name, v in values.items() if name not in fixed and isinstance(v, int)}
    if bound:
        request = request.with_bound(bound)
    return request, request.problems()


def _read_keys(request: Request, items: Sequence[str]) -> tuple[dict[str, Scalar], list[str]]:
    fields = {f.name: f for f in dataclasses.fields(request) if f.metadata}
    values: dict[str, Scalar] = {}
    problems = []
    for item in items:
        name, _, text = (part.strip() for part in item.partition("="))
        if name in values:
            problems.append(f"{name}: given twice")
        elif name in PARALLEL_KEYS:
            if text != "1":
                problems.append(
                    f"{name}: got {text}, want 1: splitting over several chips is not available yet; "
                    f"leave {name} out"
                )
        elif name not in fields and request.binds and text.isascii() and text.isdecimal():
            values[name] = int(text)
        elif name not in fields:
            accepted = ", ".join(f"{k}={v}" for k, v in request.settings().items())
            problems.append(
                f"{name}: unknown key{nearest(name, fields)}; accepted, with defaults: {accepted}"
            )
        else:
            default = getattr(request, name)
            value = _read_value(text, default, fields[name].metadata["choices"])
            if value is None:
                problems.append(f"{name}: got {text!r}, want {_wanted(default, fields[name])}")
            elif type(value) is int and value < fields[name].metadata["minimum"]:
                problems.append(f"{name}: got {value}, want {fields[name].metadata['minimum']} or more")
            else:
                values[name] = value
    return values, problems


def _read_value(text: str, default: Scalar, choices: Sequence[str]) -> Scalar | None:
    """The value of a key of the type of `default`, or None."""
    if isinstance(default, bool):
        return _BOOLS.get(text.lower())
    if isinstance(default, int):
        try:
            return int(text) if text.isascii() else None  # int() takes the digits of any script
        except ValueError:
            return None
    return text if text in choices or not choices else None


def _wanted(default: Scalar, field: dataclasses.Field[Scalar]) -> str:
    if isinstance(default, bool):
        return "0 or 1"
    if isinstance(default, int):
        return f"a whole number, {field.metadata['minimum']} or more"
    return f"one of: {', '.join(field.metadata['choices'])}"
