"""Make the file that the importer reads, from a model in PyTorch; needs torch (extra `torch`).

The model is built on the meta device: no byte of weights is made or written, whatever its size.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError

# Operators that stay whole when the rest is made functional: what the importer knows as one op.
COMPOSITES = (
    "aten.silu",
    "aten.linear",
    "aten.scaled_dot",
    "aten.layer_norm",
    "aten.gelu",
    "aten.embedding",
    "aten.conv2d",
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check_torch() -> None:
    """Raise WorkloadError without torch."""
    if find_spec("torch") is None:
        raise WorkloadError("torch: not installed, want: pip install 'accel-dse[torch]'")


def export_model(make: Callable[[], object], target: Path, dtype: str) -> None:
    """Write what `make()` returns as `.pt2`, or its graph alone as `.json.gz`.

    `make` returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes), as
    `torch.export.export` takes them; parameters are of `dtype` unless it says otherwise. Raises
    WorkloadError for what torch cannot export.
    """
    program = export(_made(make, dtype))
    import torch

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own code
        torch.export.save(program, buffer)
    target.write_bytes(buffer.getvalue() if target.suffix == ".pt2" else graph_alone(buffer))


def export(made: tuple[Any, ...]) -> Any:
    """The functional program of (module, args, kwargs, dynamic_shapes), composites kept."""
    import torch

    module, args, kwargs, dynamic = made
    module.eval().requires_grad_(False)
    try:
        with torch.no_grad():
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
            table = torch.export.default_decompositions()
            for op in [op for op in table if str(op).startswith(COMPOSITES) and "backward" not in str(op)]:
                table.pop(op)
            return program.run_decompositions(table)
    except Exception as error:  # whatever torch raises for a model that it cannot export
        first = str(error).strip().partition("\n")[0]
        raise WorkloadError(f"torch.export: {type(error).__name__}: {first}") from error


def graph_alone(archive: io.BytesIO) -> bytes:
    """The compressed `model.json` of a `.pt2`; the same bytes for the same program."""
    with zipfile.ZipFile(archive) as file:
        path = next(name for name in file.namelist() if name.endswith("models/model.json"))
        return gzip.compress(file.read(path), mtime=0)


def _made(make: Callable[[], object], dtype: str) -> tuple[Any, ...]:
    """(module, args, kwargs, dynamic_shapes) on the meta device."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, DTYPES[dtype]))
    try:
        with torch.device("meta"):
            made = make()
    finally:
        torch.set_default_dtype(before)
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4 or not isinstance(made[0], torch.nn.Module):
        raise WorkloadError(
            f"{getattr(make, '__name__', make)}: got {type(made).__name__}, want a tuple (module, args), "
            "or with kwargs and dynamic_shapes behind them"
        )
    return (*made, None, None)[:4]
