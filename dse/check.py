"""Checks of files, and lists of what there is by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arch_configs import describe, list_archs, load_arch
from arch_configs.document import DocumentError, parse
from compiler.kernels import KERNELS
from compiler.passes import PASSES
from dse.alive import Checking
from dse.errors import SpaceError
from dse.evaluation import USER_ERRORS, point_id
from dse.search import SEARCHERS
from dse.space import load_study, plan
from workloads import WORKLOADS, Workload, list_workloads

STUDY_KEYS = ("workload", "space")  # an architecture has neither


def check_file(file: str) -> str:
    """The resolved architecture with its peaks, or a study's size. Raises the user's errors."""
    is_file = Path(file).suffix in (".yaml", ".yml")
    if not is_file or not _is_study(Path(file)):
        return describe(load_arch(file))
    study = load_study(Path(file))
    points = plan(study, point_id, USER_ERRORS, Checking(file))
    axes = "".join(f"\n  {key}: {', '.join(map(str, values))}" for key, values in study.spec.space.items())
    return f"{file}: study {study.spec.name!r}, {len(points)} points, all valid{axes}"


def _is_study(file: Path) -> bool:
    """Whether the top level of a file has a key that only studies have."""
    try:
        root = parse(file.read_bytes(), str(file))
    except OSError as error:
        raise SpaceError(
            [f"{file}: got no readable file ({error.strerror}), want an architecture or a study"]
        ) from error
    except DocumentError as error:
        raise SpaceError(error.problems) from error
    return isinstance(root.value, dict) and any(key in root.value for key in STUDY_KEYS)


def _archs() -> dict[str, str]:
    return {name: load_arch(name).description for name in list_archs()}


def _workloads() -> dict[str, str]:
    return {name: _summary(WORKLOADS[name]()) for name in list_workloads()}


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "archs": _archs,
    "workloads": _workloads,
    "passes": lambda: {name: _first_line(kind) for name, kind in PASSES.items()},
    "kernels": lambda: dict.fromkeys(KERNELS, ""),
    "searchers": lambda: {name: _first_line(kind) for name, kind in SEARCHERS.items()},
}


def _summary(workload: Workload) -> str:
    """What it is, and its phases if there are several."""
    phases = [request.phase for request in workload.requests if request.phase]
    return f"{workload.summary}: {', '.join(phases)}" if phases else workload.summary
