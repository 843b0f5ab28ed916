"""Where results live: an append-only journal that survives a kill at any byte, and flat tables of it."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dse.digest import canonical_json
from dse.errors import SpaceError
from dse.result import Record, parse_record

JOURNAL = "journal.jsonl"
Cell = str | int | float | bool | None


def _journal_line(point_id: str, record: Record) -> bytes:
    return f'{{"id":{json.dumps(point_id)},"record":{canonical_json(record)}}}\n'.encode()


def _parse_line(line: bytes, where: str) -> tuple[str, Record]:
    """Split the fixed head off, so that the record is parsed and checked once, by its schema."""
    head, comma, rest = line.decode().rstrip("\n").partition(',"record":')
    if not comma or not head.startswith('{"id":"') or not rest.endswith("}"):
        raise ValueError(f"{where}: got {line[:40]!r}, want a journal line")
    return json.loads(head[6:]), parse_record(rest[:-1], where)


def read_journal(path: Path) -> tuple[dict[str, Record], int]:
    """Records by point id (a later line wins), and the length in bytes of the intact part.

    A last line without its end (a kill during the write) is left out. A whole line that is none of ours
    cannot come from a kill and raises SpaceError.
    """
    records: dict[str, Record] = {}
    intact = 0
    if not path.exists():
        return records, intact
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpaceError([f"{path}: got {error.strerror}, want a journal that can be read"]) from error
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("torn")
            point_id, record = _parse_line(line, f"{path}:{number}")
        except ValueError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise SpaceError([f"{error}; delete line {number} to compute its point again"]) from error
        records[point_id] = record
        intact += len(line)
    return records, intact


class Journal:
    """The journal of one sweep directory, open for appending by one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Lock the journal, cut a torn last line off, and read what is there."""
        self.path = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("ab")
        except OSError as error:
            raise SpaceError(
                [f"{self.path}: got {error.strerror}, want a file that can be written; use another -o"]
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise SpaceError(
                [f"{self.path}: got a journal that another sweep is writing, want a free one; use another -o"]
            ) from error
        self.records, intact = read_journal(self.path)
        self._file.truncate(intact)

    def append(self, items: Iterable[tuple[str, Record]]) -> None:
        """Add records; they are on disk when this returns. Raises SpaceError when the disk is full."""
        try:
            for point_id, record in items:
                self._file.write(_journal_line(point_id, record))
                self.records[point_id] = record
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            got = f"{self.path}: got {error.strerror}, want room to write"
            raise SpaceError([f"{got}; what was written before is kept, the same command goes on"]) from error

    def close(self) -> None:
        """Release the lock."""
        self._file.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def flatten(record: Record) -> dict[str, Cell]:
    """The record as one row of a table; every column name carries its unit. No provenance."""
    reason, bounds, array = record["reason"], record["bounds"], record["array"]
    row: dict[str, Cell] = {
        "status": record["status"],
        "reason": reason["code"] if reason else "",
        "reason_resource": reason["resource"] if reason else "",
        "reason_needed": reason["needed"] if reason else None,
        "reason_available": reason["available"] if reason else None,
        "reason_unit": reason["unit"] if reason else "",
        "reason_fix": reason["fix"] if reason else "",
        "time_ps": record["time_ps"],
        "latency_s": record["latency_s"],
        "flops_model": record["flops_model"],
        "macs": record["macs"],
        "hbm_read_bytes": record["hbm_read_bytes"],
        "hbm_write_bytes": record["hbm_write_bytes"],
        "spill_bytes": record["spill_bytes"],
        "mfu": record["mfu"],
        "hfu": record["hfu"],
        "mbu": record["mbu"],
        "bound_compute_ps": bounds["compute_ps"] if bounds else None,
        "bound_memory_ps": bounds["memory_ps"] if bounds else None,
        "bound_serial_ps": bounds["serial_ps"] if bounds else None,
        "array_cells": array["rows"] * array["cols"] * array["units"] if array else None,
        "peak_flops_per_s": array["peak_flops_per_s"] if array else None,
        "sram_bytes": sram_bytes(record),
        "audit": all(record["audit"].values()) if record["audit"] else None,
    }
    row.update(record["throughput"])
    for name, memory in record["memory"].items():
        row[f"{name}_peak_bytes"] = memory["peak_bytes"]
    for kind, spent in engine_groups(record).items():
        row.update({f"{kind}_{part}": value for part, value in spent.items()})
    return row


def sram_bytes(record: Record) -> int | None:
    """Bytes of all on-chip memories of one core; None where the architecture was never resolved."""
    sizes = [m["capacity_bytes"] for m in record["memory"].values() if m["kind"] != "dram"]
    return sum(sizes) if sizes else None


def engine_groups(record: Record) -> dict[str, dict[str, int]]:
    """Busy time per engine; the DMA queues, which are many and alike, together."""
    groups: dict[str, dict[str, int]] = {}
    for name, engine in record["engines"].items():
        group = groups.setdefault("dma" if engine["kind"] == "dma" else name, {"busy_ps": 0, "wait_ps": 0})
        group["busy_ps"] += engine["busy_ps"]
        group["wait_ps"] += sum(engine["wait_ps"].values())
    return groups


def columns_of(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Union of the rows' keys in order of first appearance."""
    seen: dict[str, None] = {}
    for row in rows:
        seen.update(dict.fromkeys(row))
    return list(seen)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_csv(path: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """Write rows as CSV; a missing or null cell is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
