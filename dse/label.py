"""The accuracy label of a record: for each kind of op, what its constants rest on and the error to expect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from arch_configs import ArchSpec
from arch_configs.load import lineage
from arch_configs.provenance import Origin, origins
from dse.bands import CLASSES, Band, known_bands, workload_name
from dse.result import AccuracyRecord, OpRecord, Record, busiest_engine, op_cost_ps
from dse.roles import by_name

MOSTLY = 0.5  # assumed: of the cost, so that what was measured speaks for the rest


def label(record: Record, arch: ArchSpec) -> list[AccuracyRecord]:
    """One entry for the whole run where such runs were measured, then one a kind of op, the dearest first."""
    asked = record["point"]
    if record["status"] != "ok":
        return []
    found = origins(asked["arch"])
    for path in by_name(asked["overrides"], arch):
        found[path] = "assumed"
    names = lineage(asked["arch"])
    kinds: dict[str, list[OpRecord]] = defaultdict(list)
    for op in record["ops"]:
        kinds[op["kind"]].append(op)
    total = sum(map(op_cost_ps, record["ops"])) or 1
    entries = [
        _entry(kind, sum(map(op_cost_ps, ops)) / total, _origin(_parts(ops, arch), found), names, arch)
        for kind, ops in kinds.items()
        if kind
    ]
    entries.sort(key=lambda entry: (-entry["share"], entry["op"]))
    if arch.calibration is not None:  # what was seen with other constants is not the error of these
        return entries
    return [*_whole(workload_name(asked["workload"]), names, entries), *entries]


def expected_error(record: Record) -> float | None:
    """Error to expect of a whole run: of such runs, else of its kinds of op by their share.

    Null where most of the cost is of kinds without measured rows.
    """
    entries = record["accuracy"]
    if entries and entries[0]["share"] == 1.0:
        return entries[0]["error"]
    known = [(entry["share"], entry["error"]) for entry in entries if entry["error"] is not None]
    share = sum(share for share, _ in known)
    return sum(share * error for share, error in known) / share if share > MOSTLY else None


def _entry(kind: str, share: float, origin: Origin, names: Sequence[str], arch: ArchSpec) -> AccuracyRecord:
    fitted = arch.calibration
    if fitted is not None and kind in fitted.ops:
        error = fitted.unseen_error_pct / 100
        return _record(kind, share, origin, error, fitted.rows, f"{names[0]}, its calibration")
    nearest = (_nearest(names, {name}) for name in CLASSES.get(kind, (kind,)))
    return _of_band(kind, share, origin, next((band for band in nearest if band), None))


def _whole(name: str, names: Sequence[str], entries: Sequence[AccuracyRecord]) -> list[AccuracyRecord]:
    """The band of runs of this very workload; none where it has rows of several classes."""
    band = _nearest(names, {band.op for band in known_bands() if name in band.workloads})
    if band is None or not entries:
        return []
    others = [b for b in known_bands() if b.device == band.device and name in b.workloads and b.op != band.op]
    is_one_op = len(entries) == 1 and band.op in CLASSES.get(entries[0]["op"], ())
    if others or is_one_op:
        return []
    return [_of_band(f"{band.op} (whole run)", 1.0, entries[0]["constants"], band)]


def _nearest(names: Sequence[str], classes: Set[str]) -> Band | None:
    """The band of the device, else of what it extends, else of one that extends the same."""
    found = [band for band in known_bands() if band.op in classes]
    for name in names:
        same = [band for band in found if band.device == name]
        if same:
            return same[0]
    family = [band for band in found if names[-1] in lineage(band.device)]
    return max(family, key=lambda band: (band.rows, band.device), default=None)


def _of_band(op: str, share: float, origin: Origin, band: Band | None) -> AccuracyRecord:
    if band is None:
        return _record(op, share, origin, None, 0, "")
    return _record(op, share, origin, band.mean_abs, band.rows, band.device)


def _record(op: str, share: float, origin: Origin, error: float | None, rows: int, on: str) -> AccuracyRecord:
    return {"op": op, "share": share, "constants": origin, "error": error, "rows": rows, "on": on}


def _parts(ops: Sequence[OpRecord], arch: ArchSpec) -> tuple[str, ...]:
    """Sections of the architecture that set the time of these ops: their engine, or DRAM and DMA."""
    spent: dict[str, int] = defaultdict(int)
    memory = 0
    for op in ops:
        engine, busy = busiest_engine(op)
        if engine:
            spent[engine] += busy
        spent[arch.tensor] += op["compute_ps"] if not engine else 0
        memory += op["memory_ps"]
    engine = max(spent, key=lambda name: (spent[name], name))
    return (f"memories.{arch.dram}", "dma") if memory >= spent[engine] else (f"engines.{engine}",)


def _origin(parts: Sequence[str], found: Mapping[str, Origin]) -> Origin:
    """Calibrated if a value of these sections was fitted, else assumed if one has no source."""
    heads = tuple(f"{part}." for part in parts)
    inside = {origin for path, origin in found.items() if path.startswith(heads)}
    if "calibrated" in inside:
        return "calibrated"
    return "assumed" if "assumed" in inside or not inside else "documented"
