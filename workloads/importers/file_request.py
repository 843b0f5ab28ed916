"""What the workloads in files have in common: keys that are bound, operations declared opaque."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from typing_extensions import override

from compiler.ir.graph import Graph
from workloads.errors import WorkloadError, nearest
from workloads.importers.flat import ImportedModel
from workloads.request import Request, Scalar, key


@dataclass(frozen=True, slots=True)
class FileRequest(Request):
    """A model file; everything but what is bound here is fixed in it."""

    binds: ClassVar[bool] = True
    path: str
    bound: tuple[tuple[str, int], ...] = field(default=())
    opaque: str = key("", "operations that count as elementwise work, NAME+NAME")

    @abc.abstractmethod
    def model(self, path: Path, bound: Mapping[str, int], opaque: tuple[str, ...]) -> ImportedModel:
        """The model in `path`. Raises WorkloadError."""

    @override
    def with_bound(self, bound: dict[str, int]) -> Self:
        return replace(self, bound=tuple(sorted(bound.items())))

    @override
    def settings(self) -> dict[str, Scalar]:
        opaque: dict[str, Scalar] = {"opaque": self.opaque} if self.opaque else {}
        return {**dict(self.bound), **opaque}

    @override
    def graph(self, name: str) -> Graph:
        opaque = tuple(filter(None, self.opaque.split("+")))
        return replace(self.model(Path(self.path), dict(self.bound), opaque).graph, name=name)


def check_bound(path: Path, bound: Iterable[str], have: Collection[str]) -> None:
    """Raise WorkloadError for every key that the file has no place for."""
    want = f"one of: {', '.join(have)}" if have else "none: all sizes are fixed in the file"
    wrong = [f"{path}: {n}: unknown key{nearest(n, have)}; want {want}" for n in bound if n not in have]
    if wrong:
        raise WorkloadError("\n".join(wrong))


def check_exists(path: Path) -> None:
    """Raise WorkloadError where there is no file."""
    if not path.is_file():
        raise WorkloadError(f"{path}: cannot be read: No such file or directory")
