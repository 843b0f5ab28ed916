"""What a file says of values that `dse calibrate` fitted: which rows, and what they cover."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from arch_configs.units import Bytes, Picoseconds

Whole = Annotated[int, Field(ge=0)]


class CalibrationSpec(BaseModel):
    """Rows that values were fitted to. No time depends on it; a run outside of it is warned of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str  # file of the rows
    rows: Whole  # that were fitted
    unseen_error_pct: Annotated[float, Field(ge=0)]  # mean absolute error of rows that were not
    classes: tuple[str, ...]  # of the rows
    ops: tuple[str, ...]  # kinds of ops in them
    time_min: Picoseconds
    time_max: Picoseconds
    dram_bytes_min: Bytes
    dram_bytes_max: Bytes
    macs_min: Whole
    macs_max: Whole
