"""What is installed, and from where."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import typer

from dse.terminal import OK, fail

ROOTS = ("arch_configs", "compiler", "eventsim", "workloads", "dse", "studies")


def show_version(wanted: bool) -> None:
    """Print the version, and where each root was imported from; they must lie side by side."""
    if not wanted:
        return
    typer.echo(f"accel-dse {version('accel-dse')}")
    folders = {}
    for root in ROOTS:
        spec = find_spec(root)
        locations = list(spec.submodule_search_locations or ()) if spec else []
        folders[root] = Path(locations[0]) if locations else None
        typer.echo(f"  {root:<13} {folders[root] or 'NOT FOUND'}")
    if len({folder.parent if folder else None for folder in folders.values()}) != 1:
        fail(["the six packages do not come from one place; use a virtual environment of its own"])
    raise typer.Exit(OK)
