"""Predictions against measurements, and constants from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dse.terminal import (
    Arch,
    ArchOut,
    Jobs,
    JsonOut,
    NoCache,
    Seed,
    ValidationOut,
    evaluator,
    fail,
    worker_count,
)


def validate(
    suites: Annotated[
        list[str], typer.Option("--suite", help="dse list suites, or a CSV of your own. Repeatable.")
    ] = [],  # noqa: B006
    out: ValidationOut = None,
    jobs: Jobs = 0,
    json: JsonOut = None,
    no_cache: NoCache = False,
    write_bands: Annotated[
        bool, typer.Option("--write-bands", help="Keep the errors for the labels of records; all suites.")
    ] = False,
) -> None:
    """Predict published measurements and say how far off that is, by device, op and regime."""
    from dse.validating import show_validation

    if write_bands and suites:
        fail(["--write-bands: got --suite too, want all suites: the bands replace those there were"])
    show_validation(suites, out, json, evaluator(no_cache), worker_count(jobs), write_bands=write_bands)


def calibrate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.csv", help="Rows as of dse validate.")],
    arch: Arch,
    fits: Annotated[
        list[str],
        typer.Option(
            "--fit",
            metavar="PATH[=LOW..HIGH]",
            help="A constant to fit, in place of all that the rows identify. Repeatable.",
        ),
    ] = [],  # noqa: B006
    held_out: Annotated[
        float | None,
        typer.Option("--held-out", min=0.05, max=0.9, help="Share of the rows kept for the test.  [0.3]"),
    ] = None,
    folds: Annotated[
        bool, typer.Option("--folds", help="Fit all rows; the error is that of rows left out in turn.")
    ] = False,
    seed: Seed = 0,
    out: ArchOut = None,
    jobs: Jobs = 0,
    json: JsonOut = None,
) -> None:
    """Fit constants of an architecture to measured rows; the result is a file that extends it."""
    if folds and held_out is not None:
        fail(["--folds: got --held-out too, want one of the two"])
    from dse.calibrating import show_calibration
    from dse.calibration import Request

    share = None if folds else held_out or 0.3
    request = Request(arch, tuple(fits), share, seed, worker_count(jobs))
    show_calibration(measured, request, out, json)
