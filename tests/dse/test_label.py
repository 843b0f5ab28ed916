"""Accuracy labels: what constants rest on, the band of measured rows, and no part in any identity."""

from pathlib import Path

import pytest

import dse.label
from arch_configs import list_archs
from arch_configs.provenance import origin_of, origins
from compiler.ops import OPS
from dse.bands import CLASSES, Band, bands_text, known_bands, workload_name
from dse.cache import CachedEvaluate
from dse.digest import MODEL_MODULES
from dse.evaluation import evaluate
from dse.measured import Measured
from dse.point import Point
from dse.predict import Prediction
from dse.present import accuracy_line
from dse.result import validate_record
from dse.validate import bands_of, load_suites
from studies.validation import SUITES

GEMM = "gemm:m=512,n=512,k=512"


@pytest.mark.parametrize(
    ("comment", "origin"),
    [
        ("calibrated: 7 rows of mine.csv", "calibrated"),
        ("ARCH: 128 x 128", "documented"),
        ("derived: 128 / 4", "documented"),
        ("PAPER: 1024 FMA; the shape is assumed", "assumed"),
        ("assumed", "assumed"),
        ("", "assumed"),
    ],
)
def test_origin_is_what_the_comment_says(comment: str, origin: str) -> None:
    assert origin_of(comment) == origin


def test_origins_follow_what_a_file_extends(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: trn1\ndma:\n  issue: 1 us\n  latency: 2 us  # calibrated: 3 rows\n")
    found = origins(str(file))
    assert found["dma.issue"] == "assumed"
    assert found["dma.latency"] == "calibrated"
    assert found["engines.tensor.rows"] == "documented"
    assert found["engines.gpsimd.ops.memset"] == "assumed"


def test_every_bundled_architecture_has_origins() -> None:
    for name in list_archs():
        assert {"documented", "assumed"} >= set(origins(name).values()) - {"calibrated"}


def test_a_record_says_what_its_numbers_rest_on() -> None:
    record = evaluate(Point("trn1", GEMM))
    validate_record(record)
    (entry,) = record["accuracy"]
    band = next(band for band in known_bands() if (band.device, band.op) == ("trn1", "matmul"))
    assert entry == {
        "op": "linear",
        "share": 1.0,
        "constants": "calibrated",
        "error": band.mean_abs,
        "rows": band.rows,
        "on": "trn1",
    }
    line = accuracy_line(record)
    assert (
        line
        == f"expected error: linear ±{band.mean_abs:.0%} ({band.rows} rows on trn1, constants calibrated)"
    )


def test_a_whole_run_has_its_own_band_and_the_family_stands_in() -> None:
    entries = evaluate(Point("inf2", "bert-base:batch=1,seq=128,layers=1"))["accuracy"]
    assert entries[0]["op"] == "encoder (whole run)"
    assert entries[0]["on"] == "inf2"
    linear = next(entry for entry in entries if entry["op"] == "linear")
    assert linear["on"] == "trn1"  # which inf2 extends: no product was measured on inf2
    assert [entry["share"] for entry in entries[1:]] == sorted(
        (entry["share"] for entry in entries[1:]), reverse=True
    )


def test_no_rows_and_changed_values_are_said() -> None:
    record = evaluate(Point("edge-npu", GEMM))
    assert accuracy_line(record) == "expected error: linear: no measured rows, constants assumed"
    changed = evaluate(Point("trn2", GEMM, (("engines.array.overhead", "5"), ("dma.issue", "1 us"))))
    assert changed["accuracy"][0]["constants"] == "assumed"
    none = evaluate(Point("trn1", "gemm:m=4096,n=4096,k=1000000000"))
    assert (none["status"], none["accuracy"]) == ("infeasible", [])


def test_roofline_has_a_label_too() -> None:
    assert evaluate(Point("trn1", GEMM, fidelity="roofline"))["accuracy"][0]["op"] == "linear"


def test_a_cached_record_gets_the_bands_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedEvaluate(tmp_path)
    before = cached(Point("trn1", GEMM))
    band = Band("trn1", "matmul", 3, 0.5, 0.5, 0.1, ("gemm",))
    monkeypatch.setattr(dse.label, "known_bands", lambda: (band,))
    after = cached(Point("trn1", GEMM))
    assert after["provenance"]["cached"] == 1
    assert (before["accuracy"][0]["error"], after["accuracy"][0]["error"]) == (
        band_error("trn1", "matmul"),
        0.5,
    )
    assert not {"label", "bands"} & set(MODEL_MODULES)


def band_error(device: str, op: str) -> float:
    return next(band.mean_abs for band in known_bands() if (band.device, band.op) == (device, op))


def test_bands_leave_out_what_was_fitted_or_computed() -> None:
    def row(name: str, value: float, **changes: str) -> Prediction:
        values = {"metric": "time", "unit": "ps", "conditions": "measured", "source": "s", **changes}
        measured = Measured(id=name, arch="a.yaml", workload="gemm:m=1", value=10, op="matmul", **values)  # type: ignore[arg-type]
        return Prediction(measured, "ok", value, 1)

    rows = [row("a", 11), row("b", 7), row("c", 90, fitted="x"), row("d", 90, conditions="computed")]
    assert bands_of(rows) == [Band("a", "matmul", 2, 0.2, 0.2, -0.1, ("gemm",))]
    assert bands_text(bands_of(rows)).count("\n") == 3


def test_the_shipped_bands_are_of_the_shipped_suites() -> None:
    rows = [row for suite in load_suites(SUITES, ()) for row in suite.rows]
    free = {(Path(row.arch).stem, row.op) for row in rows if not row.fitted and row.conditions != "computed"}
    assert known_bands()
    assert {(band.device, band.op) for band in known_bands()} <= free
    assert set(CLASSES) <= set(OPS)
    assert {name for names in CLASSES.values() for name in names} <= {row.op for row in rows}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gemm:m=1,n=2", "gemm"),
        ("attention:decode,batch=1", "attention:decode"),
        ("vit-b16:batch=8", "vit-b16"),
        ("bert-base", "bert-base"),
    ],
)
def test_name_of_a_workload_has_its_phase(text: str, name: str) -> None:
    assert workload_name(text) == name
