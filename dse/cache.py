"""Records kept between runs of the command line, by point id.

The id covers the resolved architecture, the graph, the options and the model's own source, so an
entry never has to be invalidated; deleting the folder is always safe. It lies where the platform
keeps caches (`$XDG_CACHE_HOME/accel-dse`, by default `~/.cache/accel-dse`), not in the working
directory, so that studies in different folders share it and nothing ends in a repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dse.digest import canonical_json
from dse.evaluation import evaluate, point_id
from dse.label import label
from dse.point import Point
from dse.result import Record, parse_record, point_record
from dse.roles import load_with_roles
from dse.store import write_text


def default_folder() -> Path:
    """The folder of cached records."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "accel-dse"


@dataclass(frozen=True, slots=True)
class CachedEvaluate:
    """`evaluate` that looks in a folder first. Only ok and infeasible records are kept."""

    folder: Path

    def __call__(self, point: Point) -> Record:
        """The record, from the folder if it is there; its provenance then says so."""
        identity = point_id(point)
        file = self.folder / identity[:2] / f"{identity}.json"
        found = _read(file)
        if found is not None:
            found["point"] = point_record(point)  # the same values, perhaps spelt otherwise
            found["accuracy"] = label(found, load_with_roles(point.arch, dict(point.overrides)))
            return found
        record = evaluate(point)
        if record["status"] == "error":
            return record
        try:
            write_text(file, canonical_json(record))
        except OSError:
            return record  # a cache that cannot be written is only slower
        return record


def _read(file: Path) -> Record | None:
    """A cached record; None if there is none or it is not one (half a disk, an older schema)."""
    try:
        record = parse_record(file.read_text(encoding="utf-8"), str(file))
    except (OSError, ValueError):
        return None
    record["provenance"]["cached"] = 1
    return record
