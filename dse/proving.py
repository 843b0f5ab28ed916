"""`dse compile --verify --numerics`."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import typer

from dse.alive import alive
from dse.outputs import writing
from dse.point import Point
from dse.proofs import proof_view, prove
from dse.terminal import OK, PARTIAL, emit, infeasible_exits, user_errors


def show_proof(
    point: Point, json: str | None, folder: Path | None, *, numerics: bool, verify: bool
) -> NoReturn:
    """Show what was checked and executed, and exit by what came of it."""
    with user_errors(), infeasible_exits(), alive(f"{point.workload} on {point.arch}"):
        proof = prove(point, verify=verify, numbers=numerics)
        if folder is not None:
            from studies.numerics import write_numerics

            with writing("--report", folder):
                write_numerics(proof.ops, folder)
        emit(proof.record(), json, proof_view(proof))
    raise typer.Exit(OK if proof.passed else PARTIAL)
