"""The journal at its edges: torn, broken, locked, old."""

from pathlib import Path

import pytest

from dse.digest import canonical_json
from dse.errors import SpaceError
from dse.point import Point
from dse.result import SCHEMA, Record, empty_record, parse_record
from dse.store import JOURNAL, Journal, flatten, read_journal, write_csv


def record(name: str) -> Record:
    return empty_record(Point("a", name), "m")


def test_every_cut_of_the_file_leaves_a_readable_prefix(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([(f"id{n}", record(f"größe {n}")) for n in range(3)])
    file = tmp_path / JOURNAL
    whole = file.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(0, len(whole) + 1, 13):
        file.write_bytes(whole[:cut])
        with Journal(tmp_path) as journal:
            assert len(journal.records) == sum(end <= cut for end in ends)
            journal.append([("new", record("new"))])
        assert list(read_journal(file)[0])[-1] == "new"


def test_a_later_line_of_an_id_wins(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([("x", record("old")), ("x", record("new"))])
    assert read_journal(tmp_path / JOURNAL)[0]["x"]["point"]["workload"] == "new"


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([("x", record("x"))])
    file = tmp_path / JOURNAL
    file.write_bytes(b"garbage\n" + file.read_bytes())
    with pytest.raises(SpaceError, match=r"journal.jsonl:1: got b'garbage.*delete line 1"):
        read_journal(file)


def test_a_whole_last_line_that_is_none_of_ours_is_named_and_kept(tmp_path: Path) -> None:
    """A kill leaves no line with its end; this one came from elsewhere, as from another version."""
    with Journal(tmp_path) as journal:
        journal.append([("x", record("x")), ("y", record("y"))])
    file = tmp_path / JOURNAL
    other = file.read_bytes().replace(b'"seed":0', b'"seeds":0')
    file.write_bytes(other)
    with pytest.raises(SpaceError, match=r"journal.jsonl:1: .*delete line 1"):
        Journal(tmp_path)
    last = other.partition(b"\n")[2]
    file.write_bytes(last)
    with pytest.raises(SpaceError, match=r"journal.jsonl:1: .*delete line 1"):
        Journal(tmp_path)
    assert file.read_bytes() == last


def test_two_sweeps_cannot_write_one_folder(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(SpaceError, match="another sweep is writing"):
        Journal(tmp_path)
    with Journal(tmp_path):
        pass


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"status":"error"', '"status":"fine"', "status: Input should be"),
        ('"time_ps":null', '"time_ps":1.5', "time_ps: "),
        ('"seed":0', '"seeds":0', "point.seed: Field required"),
        ('"schema":"', '"schéma":"', "schema: Field required"),
    ],
)
def test_a_record_of_another_shape_is_refused(old: str, new: str, message: str) -> None:
    text = canonical_json(record("x"))
    assert old in text
    with pytest.raises(ValueError, match=message) as caught:
        parse_record(text.replace(old, new), "file.json")
    assert str(caught.value).startswith("file.json: not a record of schema")


def test_rows_with_different_columns_make_one_table(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"a": 1, "b": None}, {"a": 2, "c": "x, y"}])
    assert (tmp_path / "t.csv").read_text() == 'a,b,c\n1,,\n2,,"x, y"\n'


def test_flat_columns_name_their_unit() -> None:
    units = ("_ps", "_s", "_bytes", "_per_s", "_cells")
    plain = {"status", "reason", "reason_resource", "reason_needed", "reason_available", "reason_unit",
             "reason_fix", "flops_model", "macs", "mfu", "hfu", "mbu", "audit"}  # fmt: skip
    assert [c for c in flatten(record("x")) if not c.endswith(units) and c not in plain] == []


def test_what_a_kill_or_a_crash_can_leave_is_cut_off_and_counted(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([("x", record("x"))])
    file = tmp_path / JOURNAL
    whole = file.read_bytes()
    for tail in (b"{", b'{"id":"', b'{"id":"abc","rec', b"\0" * 99, b'{"id":"abc"\0\0', whole[:-1]):
        file.write_bytes(whole + tail)
        with Journal(tmp_path) as journal:
            assert list(journal.records) == ["x"]
            assert journal.cut_bytes == len(tail)
        assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "tail",
    [b"[1]", b'{"id":"x"}', b'{"id2"', b"\xff\xfe\x00random", b'{"id":"x"}\n', b"[1]\n", b"\0\0\n", b"\r"],
)
def test_a_last_line_that_no_kill_leaves_is_named_and_kept(tail: bytes, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([("x", record("x"))])
    file = tmp_path / JOURNAL
    both = file.read_bytes() + tail
    file.write_bytes(both)
    with pytest.raises(SpaceError, match=r"journal.jsonl:2: got b.*want a journal line; delete line 2"):
        Journal(tmp_path)
    assert file.read_bytes() == both


def test_a_record_of_another_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    text = canonical_json(record("x"))
    message = r"f.json: got a record of schema 'accel-dse/record/99', want 'accel-dse/record/3'"
    other = text.replace(SCHEMA, "accel-dse/record/99")
    for changed in (other, other.replace('"seed":0', '"seeds":0')):
        with pytest.raises(ValueError, match=message):
            parse_record(changed, "f.json")
    (tmp_path / JOURNAL).write_text(f'{{"id":"x","record":{other}}}\n')
    with pytest.raises(SpaceError, match=r"journal.jsonl:1: got a record of schema '.*/99'"):
        Journal(tmp_path)


def test_columns_do_not_depend_on_whether_a_record_was_read_or_made() -> None:
    fresh = record("x")
    for name in ("b", "a"):
        fresh["throughput"][f"{name}_per_s"] = 1.0
        fresh["memory"][name] = {
            "kind": "dram", "capacity_bytes": 1, "bandwidth_bytes_per_s": 1, "peak_bytes": 1, "by_tensor": [],
        }  # fmt: skip
        fresh["engines"][name] = {
            "kind": "vector", "busy_ps": 1, "wait_ps": {}, "idle_ps": 1, "instructions": 1,
            "utilization": 0.5,
        }  # fmt: skip
    read = parse_record(canonical_json(fresh), "x")
    assert list(flatten(fresh)) == list(flatten(read))
