"""Whether a run lies outside of what the rows cover that an architecture was calibrated with."""

from __future__ import annotations

from arch_configs.fitted import CalibrationSpec
from arch_configs.units import BYTES, PICOSECONDS, format_quantity
from dse.result import Record


def extrapolated(record: Record, calibration: CalibrationSpec | None) -> list[str]:
    """A warning for each way in which `record` is outside, none for an architecture without calibration."""
    if calibration is None or record["time_ps"] is None:
        return []
    moved = (record["hbm_read_bytes"] or 0) + (record["hbm_write_bytes"] or 0)
    ranges = (
        ("time", record["time_ps"], calibration.time_min, calibration.time_max, PICOSECONDS),
        ("DRAM bytes", moved, calibration.dram_bytes_min, calibration.dram_bytes_max, BYTES),
        ("MACs", record["macs"] or 0, calibration.macs_min, calibration.macs_max, {"": 1}),
    )
    found = [
        f"{what} {format_quantity(value, units).strip()} against "
        f"{format_quantity(low, units).strip()} to {format_quantity(high, units).strip()}"
        for what, value, low, high, units in ranges
        if not low <= value <= high
    ]
    new = sorted({op["kind"] for op in record["ops"]} - set(calibration.ops))
    if new:
        found.append(f"ops {', '.join(new)} are in no row")
    rows = f"the {calibration.rows} rows of {calibration.source} that this architecture was calibrated with"
    return [f"extrapolated: {line}; outside of {rows}" for line in found]
