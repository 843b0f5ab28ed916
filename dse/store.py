"""Where results live: an append-only journal that survives a kill at any byte, and flat tables of it."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from dse.digest import canonical_json
from dse.errors import SpaceError
from dse.result import Record, parse_record

JOURNAL = "journal.jsonl"
_BEGIN = b'{"id":"'
_REST = b',"record":'
_HEAD = re.compile(rb'\{"id":"([^"\\]*)"')
Cell = str | int | float | bool | None


def _journal_line(point_id: str, record: Record) -> bytes:
    return f'{{"id":{json.dumps(point_id)},"record":{canonical_json(record)}}}\n'.encode()


def _parse_line(line: bytes, where: str) -> tuple[str, Record]:
    """Split the fixed head off, so that the record is parsed and checked once, by its schema."""
    head, comma, rest = line.rstrip(b"\n").partition(_REST)
    match = _HEAD.fullmatch(head)
    if not comma or match is None or not rest.endswith(b"}"):
        raise ValueError(f"{where}: got {line[:40]!r}, want a journal line")
    try:
        text = rest[:-1].decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: got bytes that are not UTF-8 text, want a journal line") from error
    return match[1].decode(), parse_record(text, where)


def read_journal(path: Path) -> tuple[dict[str, Record], int]:
    """Records by point id (a later line wins), and the length in bytes of the intact part.

    A last line without its end is left out if it can come from a kill during the write, or a crash of the
    machine (which may leave NUL bytes). Anything else that is none of ours raises SpaceError.
    """
    records: dict[str, Record] = {}
    intact = 0
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return records, intact
    except OSError as error:
        raise SpaceError([f"{path}: got {error.strerror}, want a journal that can be read"]) from error
    *lines, tail = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            point_id, record = _parse_line(line, f"{path}:{number}")
        except ValueError as error:
            raise SpaceError([f"{error}; delete line {number} to compute its point again"]) from error
        records[point_id] = record
        intact += len(line) + 1
    if not _can_be_torn(tail):
        where = f"{path}:{len(lines) + 1}"
        raise SpaceError([f"{where}: got {tail[:40]!r}, want a journal line; delete line {len(lines) + 1}"])
    return records, intact


def _can_be_torn(tail: bytes) -> bool:
    """Whether these bytes can be the beginning of a journal line, or what a crash leaves of one."""
    begun = tail.rstrip(b"\0")
    if len(begun) < len(_BEGIN):
        return _BEGIN.startswith(begun)
    other = begun.endswith(b"}") and _REST not in begun  # an object that is closed, but without a record
    return begun.startswith(_BEGIN) and not other


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
        self.cut_bytes = self._file.seek(0, os.SEEK_END) - intact  # of a torn last line
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
    # By name: a record that was read from disk has its keys in another order than a fresh one.
    row.update(sorted(record["throughput"].items()))
    for name, memory in sorted(record["memory"].items()):
        row[f"{name}_peak_bytes"] = memory["peak_bytes"]
    for kind, spent in sorted(engine_groups(record).items()):
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
