"""How far off predictions were on measured rows, by device and class of op: a small generated file.

`dse validate --write-bands` writes it. It is read when a record is shown or made, has no part in the identity
of a point, and no number is computed from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources

FILE = "bands.json"

# Classes of rows that say something of a kind of op, the nearest first.
CLASSES: dict[str, tuple[str, ...]] = {
    "linear": ("matmul",),
    "partial-linear": ("matmul",),
    "head-linear": ("matmul",),
    "grouped-linear": ("matmul",),
    "batch-matmul": ("batched-matmul", "matmul"),
    "attention": ("attention",),
    "latent-attention": ("attention",),
    "shared-key-attention": ("attention",),
    "decode-attention": ("attention-decode", "attention"),
    "partial-decode": ("attention-decode", "attention"),
    "latent-decode": ("attention-decode", "attention"),
    "rms-norm": ("rmsnorm", "layernorm"),
    "layer-norm": ("layernorm", "rmsnorm"),
    "softmax": ("softmax",),
    "rope": ("rope",),
    "binary": ("add",),
    "unary": ("gelu",),
    "pool2d": ("pooling",),
    "global-avg-pool": ("pooling",),
}


@dataclass(frozen=True, slots=True)
class Band:
    """Errors of the measured rows of one device and class, without those that something was fitted to."""

    device: str
    op: str
    rows: int
    mean_abs: float
    median_abs: float
    bias: float
    workloads: tuple[str, ...]  # names of them, with the phase


def workload_name(text: str) -> str:
    """`name:phase` of a workload, without its sizes."""
    first = text.partition(",")[0]
    name, _, phase = first.partition(":")
    return name if "=" in phase or not phase else first


def bands_text(bands: Sequence[Band]) -> str:
    """The file: one band a line."""
    lines = ",\n".join(json.dumps(asdict(band)) for band in bands)
    return f"[\n{lines}\n]\n"


@lru_cache(maxsize=1)
def known_bands() -> tuple[Band, ...]:
    """The bands that came with this version; none where the file is not there."""
    file = resources.files("dse") / FILE
    if not file.is_file():
        return ()
    found = json.loads(file.read_text(encoding="utf-8"))
    return tuple(Band(**{**item, "workloads": tuple(item["workloads"])}) for item in found)
