"""Design-space exploration: points, sweeps and records. Everything the command line does is one call.

The public names are loaded on first use, so that `dse --help` does not import the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arch_configs import load_arch
    from dse.evaluation import evaluate
    from dse.point import Point
    from dse.result import Record
    from workloads import build

_HOMES = {
    "Point": "dse.point",
    "Record": "dse.result",
    "build": "workloads",
    "evaluate": "dse.evaluation",
    "load_arch": "arch_configs",
}

__all__ = ["Point", "Record", "build", "evaluate", "load_arch"]


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dse' has no attribute {name!r}; have {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
