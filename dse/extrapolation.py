"""Whether a run lies outside of what the rows cover that an architecture was calibrated with."""

from __future__ import annotations

from collections.abc import Mapping

from arch_configs.fitted import CalibrationSpec
from arch_configs.units import BYTES, PICOSECONDS, format_quantity
from dse.result import Record

DECIMAL_BYTES = {name: size for name, size in BYTES.items() if "i" not in name}
COUNTS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def extrapolated(record: Record, calibration: CalibrationSpec | None) -> list[str]:
    """A warning with each way in which `record` is outside; none for an architecture without calibration."""
    if calibration is None or record["time_ps"] is None:
        return []
    moved = (record["hbm_read_bytes"] or 0) + (record["hbm_write_bytes"] or 0)
    ranges = (
        ("time", record["time_ps"], calibration.time_min, calibration.time_max, PICOSECONDS),
        ("DRAM bytes", moved, calibration.dram_bytes_min, calibration.dram_bytes_max, DECIMAL_BYTES),
        ("MACs", record["macs"] or 0, calibration.macs_min, calibration.macs_max, COUNTS),
    )
    found = [
        f"{what} {_show(value, units)}, rows have {_show(low, units)} to {_show(high, units)}"
        for what, value, low, high, units in ranges
        if not low <= value <= high
    ]
    new = sorted({op["kind"] for op in record["ops"]} - set(calibration.ops))
    if new:
        found.append(f"ops {', '.join(new)} are in no row")
    if not found:
        return []
    rows = f"the {calibration.rows} rows of {calibration.source} that the constants were fitted to"
    return [f"extrapolated beyond {rows}: {'; '.join(found)}"]


def _show(value: int, units: Mapping[str, int]) -> str:
    """Four digits, in the shortest unit."""
    return format_quantity(int(float(f"{value:.4g}")), units).strip()
