"""From a YAML file, what it extends, and overrides to an `ArchSpec`; or all problems at once."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError
from typing_extensions import override

from arch_configs.document import MAX_BYTES, DocumentError, Entry, parse
from arch_configs.explain import explain, line
from arch_configs.overrides import apply_overrides
from arch_configs.rules import Outline, Problem, RuleError, nearest, outline_problems
from arch_configs.spec import ArchSpec

SCHEMA_VERSION = 1
MAX_CHAIN = 16  # assumed; our longest chain of `extends` is 2
_SUFFIXES = (".yaml", ".yml")
_OWN_FOLDER = "arch_configs"


class ArchError(Exception):
    """An architecture cannot be read; `problems` are complete lines `where: path: got X, want Y`."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Keep `problems` as data, without repeats."""
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))

    @override
    def __reduce__(self) -> tuple[type[ArchError], tuple[tuple[str, ...]]]:
        """Survive the trip through a process pool."""
        return (type(self), (self.problems,))


def list_archs() -> tuple[str, ...]:
    """Names of the architectures that come with the package, sorted."""
    folder = importlib.resources.files(_OWN_FOLDER)
    return tuple(sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")))


def load_arch(source: str, overrides: Mapping[str, str] | None = None) -> ArchSpec:
    """Read the architecture `source`: a name of `list_archs()` or the path of a YAML file.

    `overrides` maps dotted paths to values as they would stand in the file; they are applied after
    `extends`. Raises: ArchError with every problem found.
    """
    try:
        first = _find(source, Path(), source)
        tree = _resolve(first, _read(first))
    except DocumentError as error:
        raise ArchError(error.problems) from error
    return _build(tree, overrides)


def lineage(source: str) -> tuple[str, ...]:
    """Name of the architecture `source` and of all that it extends, nearest first. Raises: as `load_arch`."""
    try:
        first = _find(source, Path(), source)
        files, _ = _chain(first, _read(first))
    except DocumentError as error:
        raise ArchError(error.problems) from error
    return tuple(Path(file.label).stem for file in files)


def read_tree(source: str) -> tuple[Entry, dict[str, str]]:
    """What `source` says with all that it extends, each value with its place; and the text of each file.

    Raises: DocumentError.
    """
    first = _find(source, Path(), source)
    files, layers = _chain(first, _read(first))
    texts = {file.label: file.path.read_text(encoding="utf-8") for file in files}
    return _merged(layers), texts


def load_arch_text(text: str, overrides: Mapping[str, str] | None = None, *, label: str = "text") -> ArchSpec:
    """Read an architecture from YAML text; `label` stands for the file in messages and for `extends`.

    Raises: ArchError with every problem found.
    """
    try:
        tree = _resolve(_File(label, Path(label)), parse(text, label))
    except DocumentError as error:
        raise ArchError(error.problems) from error
    return _build(tree, overrides)


def _build(tree: Entry, overrides: Mapping[str, str] | None) -> ArchSpec:
    """Apply `overrides` and check everything."""
    refused = apply_overrides(tree, overrides or {})
    tree = _without_nulls(tree)
    found: list[Problem] = []
    spec = None
    try:
        spec = ArchSpec.model_validate(tree.plain())
    except ValidationError as error:
        found = explain(error, tree)
        if not _rules_were_checked(error):
            found += outline_problems(Outline.of(tree.plain()), complete=False)
    located = sorted(
        (line(problem, tree) for problem in found), key=lambda item: (item[0].file, item[0].line)
    )
    if refused or spec is None:
        raise ArchError([*refused, *(text for _, text in located)])
    return spec


def _rules_were_checked(error: ValidationError) -> bool:
    return any(isinstance(detail.get("ctx", {}).get("error"), RuleError) for detail in error.errors())


@dataclass(frozen=True, slots=True)
class _File:
    """A YAML file and how messages call it."""

    label: str
    path: Traversable


def _resolve(first: _File, layer: Entry) -> Entry:
    """The tree of the file `first` with content `layer`, merged over all that it extends."""
    return _merged(_chain(first, layer)[1])


def _merged(layers: list[Entry]) -> Entry:
    """The layers laid over each other, the first on top."""
    tree = layers.pop()
    while layers:
        tree = _merge(tree, layers.pop())
    return tree


def _chain(first: _File, layer: Entry) -> tuple[list[_File], list[Entry]]:
    """The file `first` with content `layer`, then what it extends, and so on; contents without headers."""
    chain, layers = [first], [layer]
    while (base := _header(layers[-1])) is not None:
        chain.append(_base(base, chain))
        layer = _read(chain[-1])
        assert isinstance(layer.value, dict), layer
        # An heir is another machine, so what its base is called is not passed on.
        layer.value.pop("name", None)
        layer.value.pop("description", None)
        layers.append(layer)
    return chain, layers


def _header(layer: Entry) -> Entry | None:
    """Take out what a file says about itself; return what it extends."""
    assert isinstance(layer.value, dict), layer
    version = layer.value.pop("schema", None)
    if version is not None and version.value != SCHEMA_VERSION:
        raise DocumentError(
            [
                f"{version.mark}: schema: got {version.plain()!r}, want {SCHEMA_VERSION}, the only version "
                "there is; take the key out, then `dse check` shows what has to change"
            ]
        )
    base = layer.value.pop("extends", None)
    return None if base is None or base.value is None else base


def _find(source: str, folder: Path, where: str) -> _File:
    """The file of a name, or of a path relative to `folder`."""
    names = list_archs()
    if source in names:
        label = f"{source}.yaml"
        return _File(f"{_OWN_FOLDER}/{label}", importlib.resources.files(_OWN_FOLDER).joinpath(label))
    if source.endswith(_SUFFIXES) or "/" in source:
        path = folder / source
        return _File(str(path), path)
    beside = [f"./{source}{end}" for end in _SUFFIXES if (folder / f"{source}{end}").is_file()]
    hint = f"; did you mean {beside[0]!r}?" if beside else nearest(source, names)
    raise DocumentError(
        [f"{where}: got {source!r}, want one of {', '.join(names)} or the path of a YAML file{hint}"]
    )


def _base(base: Entry, chain: list[_File]) -> _File:
    """The file that the last of `chain` extends."""
    where = f"{base.mark}: extends"
    if not isinstance(base.value, str):
        raise DocumentError([f"{where}: got {base.plain()!r}, want one name or path"])
    folder = Path(chain[-1].label).parent
    found = _find(base.value, folder, where)
    if _identity(found) in [_identity(file) for file in chain]:
        names = " -> ".join(file.label for file in (*chain, found))
        raise DocumentError([f"{where}: got a circle {names}, want a base that does not extend this file"])
    if len(chain) >= MAX_CHAIN:
        raise DocumentError([f"{where}: got more than {MAX_CHAIN} files that extend each other"])
    return found


def _identity(file: _File) -> str:
    return str(file.path.resolve()) if isinstance(file.path, Path) else file.label


def _read(file: _File) -> Entry:
    path = file.path
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise DocumentError([f"{file.label}: got {got}, want a YAML file"])
    if isinstance(path, Path) and path.stat().st_size > MAX_BYTES:
        raise DocumentError([f"{file.label}:1: got {path.stat().st_size} bytes, want at most {MAX_BYTES}"])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError([f"{file.label}: got {error.strerror}, want a file that can be read"]) from error
    return parse(data, file.label)


def _merge(base: Entry, over: Entry) -> Entry:
    """`over` laid over `base`: mappings key by key, everything else whole; null removes a key."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = dict(base.value)
    for key, entry in over.value.items():
        if entry.value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged[key], entry) if key in merged else entry
    return Entry(merged, over.mark)


def _without_nulls(tree: Entry) -> Entry:
    if not isinstance(tree.value, dict):
        return tree
    kept = {key: _without_nulls(entry) for key, entry in tree.value.items() if entry.value is not None}
    return Entry(kept, tree.mark)
