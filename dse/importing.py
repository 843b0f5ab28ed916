"""`dse import`: a model in Python becomes a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from dse.alive import alive
from dse.errors import SpaceError, did_you_mean
from dse.kernel_files import run_file, split_target
from dse.outputs import writing
from workloads import WorkloadError, build
from workloads.importers.torch_export.make import DTYPES, check_torch, export_model

SUFFIXES = (".json.gz", ".pt2")


def import_torch(target: str, out: Path, dtype: str) -> str:
    """Export what the function `target` returns to `out`; what a user should know of the file.

    Raises: SpaceError or WorkloadError for a mistake of the user.
    """
    problems = [] if dtype in DTYPES else [f"--dtype: got {dtype!r}, want one of {', '.join(DTYPES)}"]
    if not out.name.endswith(SUFFIXES):
        problems.append(f"--out: got {str(out)!r}, want a name that ends in {' or '.join(SUFFIXES)}")
    if problems:
        raise SpaceError(problems)
    check_torch()
    make = _function(target)
    with alive(f"export of {target}"), writing("--out", out):
        export_model(make, out, dtype)
    try:
        graph = build(str(out))
    except WorkloadError as error:  # the file is right; something is still to be said about it
        return f"wrote {out}\n" + "\n".join(f"note: {line}" for line in str(error).splitlines())
    weights = graph.kind_bytes("weight")
    return f"wrote {out}: {graph.macs:,} MACs, {weights:,} bytes of weights; dse run trn2 {out}"


def _function(target: str) -> Callable[[], object]:
    file, name = split_target(target)
    found = {k: v for k, v in vars(run_file(file)).items() if callable(v) and not k.startswith("_")}
    if name not in found:
        close = did_you_mean(name, found) if name else ""
        raise SpaceError([f"{file}: got function {name!r}, want FILE.py:FUNCTION{close}"])
    return cast("Callable[[], object]", found[name])
