"""Study files: which architectures, workloads and values are combined into points.

A study is read strictly: unknown keys, duplicate keys and values that do not fit are errors with
file and line. Every point is resolved before the first one runs, so a typing mistake costs a second
and not a night.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from arch_configs.document import DocumentError, Entry, parse
from dse.errors import SpaceError, did_you_mean
from dse.point import FIDELITIES, Fidelity, Option, Point
from dse.search import SEARCHERS

MAX_POINTS = 100_000  # assumed; about 2 ms each to check, and a day or more to run
PROBE_OVER = 1000  # assumed; a larger study is first checked one value at a time, which takes a second
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,100}")
Heard = Callable[[int, int], None]  # points checked so far, of how many


def _many(value: object) -> object:
    """A single value stands for a list of one."""
    return value if isinstance(value, (list, tuple)) else [value]


def _no_duplicates(value: object) -> object:
    """Equal entries would be the same point twice."""
    values = _many(value)
    assert isinstance(values, (list, tuple))
    texts = [str(item) for item in values]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"got {', '.join(twice)} twice, want each value once")
    return values


Names = Annotated[tuple[str, ...], BeforeValidator(_no_duplicates), Field(min_length=1)]
Values = Annotated[tuple[bool | int | float | str, ...], BeforeValidator(_no_duplicates), Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SearchSpec(_Section):
    """How candidates are chosen."""

    kind: str = "grid"


class StudySpec(_Section):
    """What a study file may say."""

    name: str
    question: str = ""
    arch: Names  # names in arch_configs/ or files, relative to the study file
    workload: Names
    space: dict[str, Values] = Field(default_factory=dict)  # "path" or "path, path": same value in each
    options: dict[str, Values] = Field(default_factory=dict)  # fields of CompileOptions
    fidelity: Fidelity = "event"
    seed: int = 0
    search: SearchSpec = SearchSpec()


@dataclass(frozen=True, slots=True)
class Study:
    """A study with the place of each of its keys, for messages."""

    spec: StudySpec
    file: Path
    source: Entry

    def place(self, *path: str | int) -> str:
        """``file:line`` of the deepest part of `path` that is written in the file."""
        return _place(self.source, path)


def _place(entry: Entry, path: tuple[str | int, ...]) -> str:
    for part in path:
        inner = _child(entry, part)
        if inner is None:
            break
        entry = inner
    return str(entry.mark)


def _child(entry: Entry, part: str | int) -> Entry | None:
    if isinstance(entry.value, dict):
        return entry.value.get(str(part))
    if isinstance(entry.value, list) and isinstance(part, int) and part < len(entry.value):
        return entry.value[part]
    return None


def load_study(file: Path) -> Study:
    """Read and check a study file; raises SpaceError with every problem found."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise SpaceError([f"{file}: got no readable file ({error.strerror}), want a study YAML"]) from error
    return parse_study(text, file)


def parse_study(text: str | bytes, file: Path) -> Study:
    """Check the text of a study; `file` is for messages and as the base of relative paths."""
    try:
        source = parse(text, str(file))
    except DocumentError as error:
        raise SpaceError(error.problems) from error
    try:
        spec = StudySpec.model_validate(source.plain(), strict=False)
    except ValidationError as error:
        lines = dict.fromkeys(_problem(source, dict(item)) for item in error.errors())
        raise SpaceError(list(lines)) from error
    study = Study(spec, file, source)
    problems = _semantic_problems(study)
    if problems:
        raise SpaceError(problems)
    return study


def _problem(source: Entry, error: Mapping[str, object]) -> str:
    """One pydantic error as a line of ours."""
    location, kind = error["loc"], str(error["type"])
    assert isinstance(location, tuple)
    want = _WANTED.get(kind) or str(error["msg"]).removeprefix("Value error, ")
    if location[-1] in _MEMBERS and len(location) > 3:  # one line for the whole union
        location, want = location[:-1], "a number, text, true or false"
    if kind == "literal_error":
        want = f"one of {', '.join(FIDELITIES)}"
    where = f"{_place(source, location)}: {'.'.join(str(part) for part in location)}"
    if kind == "extra_forbidden":
        return f"{where}: got an unknown key{did_you_mean(str(location[-1]), StudySpec.model_fields)}"
    if kind == "missing":
        return f"{where}: got nothing, want a value; add '{location[-1]}:'"
    if want.startswith("got "):
        return f"{where}: {want}"
    return f"{where}: got {error['input']!r}, want {want}"


# What is wanted, by the kind of a pydantic error, and how it calls the members of a union.
_WANTED = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "too_short": "at least one value",
}
_MEMBERS = ("bool", "int", "float", "str")


def _semantic_problems(study: Study) -> list[str]:
    problems = []
    spec = study.spec
    if not _NAME.fullmatch(spec.name) or set(spec.name) == {"."}:
        want = "a name of at most 100 characters without / or \\, for it is that of a folder"
        problems.append(f"{study.place('name')}: name: got {spec.name!r}, want {want}")
    if spec.search.kind not in SEARCHERS:
        place = study.place("search", "kind")
        hint = did_you_mean(spec.search.kind, SEARCHERS)
        problems.append(f"{place}: search.kind: got {spec.search.kind!r}, want a searcher{hint}")
    paths = [path for key in spec.space for path in _paths(key)]
    problems += [
        f"{study.place('space', key)}: space.{key}: got {path!r} in two axes, want it in one"
        for key in spec.space
        for path in _paths(key)
        if paths.count(path) > 1
    ]
    count = len(spec.arch) * len(spec.workload)
    for values in (*spec.space.values(), *spec.options.values()):
        count *= len(values)
    if count > MAX_POINTS:
        problems.append(f"{study.file}: got {count} points, want at most {MAX_POINTS}; shorten an axis")
    return problems


def _paths(key: str) -> tuple[str, ...]:
    """Dotted paths that one axis sets together."""
    return tuple(part.strip() for part in key.split(","))


def _text(value: Option) -> str:
    """A value as a YAML file would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point of a study with its coordinates: (axis, value) in study order."""

    point: Point
    axes: tuple[tuple[str, str], ...]


def candidates(study: Study) -> tuple[Candidate, ...]:
    """Every combination: architectures outermost, then workloads, options and the space's axes in order."""
    spec = study.spec
    axes = tuple(spec.space.items())
    options = tuple(spec.options.items())
    found = []
    for arch, workload in itertools.product(spec.arch, spec.workload):
        for chosen in itertools.product(*(values for _, values in options)):
            for values in itertools.product(*(values for _, values in axes)):
                coordinates = tuple((key, _text(v)) for (key, _), v in zip(axes, values, strict=True))
                point = Point(
                    arch=_relative(study.file, arch),
                    workload=_relative(study.file, workload),
                    overrides=tuple((path, text) for key, text in coordinates for path in _paths(key)),
                    options=tuple((key, v) for (key, _), v in zip(options, chosen, strict=True)),
                    fidelity=spec.fidelity,
                    seed=spec.seed,
                )
                named = tuple((f"options.{key}", _text(v)) for key, v in point.options)
                found.append(Candidate(point, (*named, *coordinates)))
    return tuple(found)


def _relative(study: Path, name: str) -> str:
    """A file beside the study is meant as such; anything else is left as it is."""
    head, colon, tail = name.partition(":")
    beside = study.parent / head
    is_file = Path(head).suffix in (".yaml", ".yml", ".json") and beside.is_file()
    return f"{beside}{colon}{tail}" if is_file else name


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate that was resolved: its id says everything that can change the answer."""

    index: int
    id: str
    point: Point
    axes: tuple[tuple[str, str], ...]


def plan(
    study: Study,
    identify: Callable[[Point], str],
    user_errors: tuple[type[Exception], ...],
    heard: Heard | None = None,
) -> tuple[Planned, ...]:
    """Resolve every point of a study before the first runs.

    `identify` resolves a point and returns its id; what it raises of `user_errors` is collected.
    Raises SpaceError with all distinct problems, each at its line. A large study is checked value by value
    first, so that a typing mistake shows at once.
    """
    found = candidates(study)
    if len(found) > PROBE_OVER:
        _identified(study, _one_at_a_time(found), identify, user_errors, None)
    ids = _identified(study, found, identify, user_errors, heard)
    _refuse_equals(study, found, ids)
    return tuple(Planned(i, ids[i], c.point, c.axes) for i, c in enumerate(found))


def _identified(
    study: Study,
    found: Sequence[Candidate],
    identify: Callable[[Point], str],
    user_errors: tuple[type[Exception], ...],
    heard: Heard | None,
) -> list[str]:
    """Ids of all candidates; raises SpaceError with all problems."""
    ids = []
    problems: dict[str, None] = {}
    for done, candidate in enumerate(found):
        try:
            ids.append(identify(candidate.point))
        except user_errors as error:
            problems.update(dict.fromkeys(_located(study, candidate, error)))
        if heard is not None:
            heard(done, len(found))
    if problems:
        raise SpaceError(list(problems))
    return ids


def _one_at_a_time(found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that differ from the first of their architecture in one value, or in the workload."""
    firsts: dict[str, Candidate] = {}
    chosen = []
    for candidate in found:
        first = firsts.setdefault(candidate.point.arch, candidate)
        differences = sum(a != b for a, b in zip(first.axes, candidate.axes, strict=True))
        if differences + (first.point.workload != candidate.point.workload) <= 1:
            chosen.append(candidate)
    return chosen


def _refuse_equals(study: Study, found: Sequence[Candidate], ids: Sequence[str]) -> None:
    """Two spellings of one value (24 MiB, 24576 KiB) are one point, and the study says it twice."""
    first: dict[str, Candidate] = {}
    problems: dict[str, None] = {}
    for candidate, point_id in zip(found, ids, strict=True):
        other = first.setdefault(point_id, candidate)
        for (key, a), (_, b) in zip(other.axes, candidate.axes, strict=True):
            if a != b:
                place = study.place("space", key)
                problems[f"{place}: space.{key}: got {a} and {b}, which are one value, want it once"] = None
    if problems:
        raise SpaceError(list(problems))


def _located(study: Study, candidate: Candidate, error: Exception) -> list[str]:
    """Put the study's own line in front of each line of an error about one point."""
    return [f"{_blame(study, candidate, line)}: {line.strip()}" for line in str(error).splitlines()]


def _blame(study: Study, candidate: Candidate, line: str) -> str:
    """The place in the study that an error line is about: an axis, an option, the workload, else the arch."""
    for key in study.spec.space:
        if any(path in line for path in _paths(key)):
            return study.place("space", key)
    for key in study.spec.options:
        if line.startswith(f"options.{key}:"):
            return study.place("options", key)
    name = candidate.point.workload.partition(":")[0].partition(",")[0]
    if line.startswith((f"{name}:", "workload:")):
        return study.place("workload")
    return study.place("arch")


def resolved_yaml(study: Study) -> str:
    """The study with every default written out."""
    data = study.spec.model_dump(mode="json")
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
