"""Studies: their tables against hand-made numbers, and that they stand any set of records."""

import base64
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from study_records import failed, good, infeasible

from dse.evaluation import evaluate
from dse.point import Point
from dse.result import Record, validate_record
from dse.store import Journal
from studies import STUDIES
from studies.base import axes_of, in_order, labels, magnitude, short_workloads
from studies.breakdown import Breakdown
from studies.heatmap import Heatmap
from studies.pareto import Pareto, cost_proxy_mm2
from studies.plots import style
from studies.report import report_folder, show_rate, write_report
from studies.roofline import Roofline
from studies.sensitivity import Sensitivity
from studies.timeline import busy_share

GRID = [
    good(1000 + 100 * i + 10 * j, overrides={"m.sbuf.capacity": f"{s} MiB", "m.hbm.bandwidth": f"{b} GB/s"})
    for i, s in enumerate((24, 12))
    for j, b in enumerate((400, 800, 200))
]
HOLE = infeasible({"m.sbuf.capacity": "12 MiB", "m.hbm.bandwidth": "800 GB/s"})
SETS: dict[str, list[Record]] = {
    "none": [],
    "one": [good(1000)],
    "one infeasible": [infeasible()],
    "nothing fits": [infeasible({"x": "1"}), infeasible({"x": "2"}), failed()],
    "grid with holes": [*GRID[:4], HOLE, failed()],
    "archs": [good(1000, arch="a"), good(900, arch="dir/b.yaml"), infeasible(arch="c")],
    "many": [good(1000 + n, overrides={"x": str(n)}) for n in range(60)],
}


def test_the_made_up_records_are_records() -> None:
    for records in SETS.values():
        for record in records:
            validate_record(record)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("study", [s for s in STUDIES if s != "timeline"])
def test_every_study_stands_every_set(study: str, name: str, tmp_path: Path) -> None:
    with style():
        found = STUDIES[study].figures(STUDIES[study].table(SETS[name]))
        assert found
        for drawn in found:
            drawn.figure.savefig(tmp_path / "x.png", dpi=30)
            assert drawn.caption
            axes = [a for a in drawn.figure.axes if a.get_visible() and a.axison]
            assert all(a.get_xlabel() or a.get_ylabel() for a in axes if a.get_subplotspec()), study


def test_axes_that_change_together_are_one() -> None:
    records = [good(1, overrides={"e.pe.rows": n, "e.pe.cols": n, "z": "1"}) for n in ("128", "8", "32")]
    (axis,) = axes_of(records).values()
    assert (axis.path, axis.label) == ("e.pe.rows", "pe.rows = pe.cols")
    assert axis.values == ("8", "32", "128")
    assert labels(records)[1] == "a, pe.rows = pe.cols 8"


def test_values_are_ordered_by_size_where_they_have_one() -> None:
    assert in_order(["24 MiB", "2200 KiB", "1 GiB"]) == ("2200 KiB", "24 MiB", "1 GiB")
    assert in_order(["true", "1", "false"]) == ("true", "1", "false")
    assert magnitude("1.5 us") == 1.5e6
    assert magnitude("nonsense") is None


def test_the_breakdown_adds_up_to_the_time() -> None:
    table = Breakdown().table([good(1000), infeasible()])
    assert table.groupby("point")["part_ps"].sum().tolist()[0] == 1000
    assert table[table["part"] == "waits for dma"]["part_ps"].tolist() == [250 - 250 % 2]
    assert table["problem"].tolist()[-1] == "infeasible: scratchpad-capacity"


def test_the_roofline_by_hand() -> None:
    row = Roofline().table([good(1000)]).iloc[0]
    assert row["flop_per_byte"] == 100.0
    assert row["flop_per_s"] == 10**9 * 1e12 / 500


def test_the_cost_proxy_by_hand_and_the_front_of_a_tie() -> None:
    by_hand = 0.41 * 24 + 650e-6 * 16384 + 0.04 * 400
    assert cost_proxy_mm2(24 * 10**6, 128 * 128, 400 * 10**9) == pytest.approx(by_hand)
    table = Pareto().table([good(1000), good(1000), good(1100), infeasible()])
    assert table["on_front"].tolist() == [True, True, False, False]
    assert np.isnan(table["latency_s"].iloc[3])
    assert len(table) == 4
    assert table["cost_proxy_mm2"].iloc[0] == pytest.approx(by_hand)


def test_what_the_front_beats_by_less_than_the_expected_error_is_a_tie() -> None:
    records = [good(1000), good(1050), good(1200), good(1060)]
    for record, error in zip(records, (0.1, 0.1, 0.1, None), strict=True):
        record["accuracy"] = [
            {"op": "linear", "share": 1.0, "constants": "assumed", "error": error, "rows": 3, "on": "x"}
        ]
    table = Pareto().table(records)
    first = table["point"].iloc[0]
    assert table["tie_with"].tolist() == ["", first, "", ""]
    assert table["expected_error"].iloc[:3].tolist() == [0.1, 0.1, 0.1]


def test_more_bandwidth_is_not_free() -> None:
    slow, fast = good(1000), good(900)
    fast["memory"]["hbm"]["bandwidth_bytes_per_s"] = 800 * 10**9
    table = Pareto().table([slow, fast])
    assert table["on_front"].tolist() == [True, True]
    assert table["cost_proxy_mm2"].diff().iloc[1] == pytest.approx(16.0)


def test_the_numbers_of_a_roofline_do_not_lie_on_each_other() -> None:
    record = good(1000)
    first = record["ops"][0]
    record["ops"] = [{**first, "op": f"op{n}", "flops": 40_000 + n, "bytes": 1000} for n in range(4)]
    with style():
        (drawn,) = Roofline().figures(Roofline().table([record]))
        drawn.figure.draw_without_rendering()
        (axes,) = drawn.figure.axes
        numbers = [t for t in axes.texts if t.get_text() in ("1", "2", "3", "4")]
        boxes = [t.get_window_extent() for t in numbers]
        ticks = [t.get_window_extent() for t in axes.get_xticklabels() if t.get_text()]
        assert all(box.width > 2 for box in boxes), "they are drawn"
    assert len(boxes) == 4
    for group in (boxes, ticks):
        assert not any(a.overlaps(b) for a, b in itertools.combinations(group, 2))


def test_a_heatmap_cell_is_the_best_over_the_other_axes() -> None:
    records = [
        good(time, overrides={"x": x, "y": y, "z": z})
        for time, (x, y, z) in zip((5, 3, 9, 8, 7, 6, 2, 4), np.ndindex(2, 2, 2), strict=True)
        for x, y, z in [(str(x), str(y), str(z))]
    ]
    table = Heatmap().table(records)
    assert len(table) == 4
    cells = {(r.x, r.y): r.latency_s for r in table.itertuples()}
    assert cells[("0", "0")] == pytest.approx(3e-12)
    assert cells[("1", "1")] == pytest.approx(2e-12)


def test_sensitivity_moves_one_parameter_at_a_time() -> None:
    table = Sensitivity().table(GRID)
    assert table["axis"].tolist() == ["hbm.bandwidth", "hbm.bandwidth", "sbuf.capacity"]
    assert table["value"].tolist() == ["800 GB/s", "200 GB/s", "12 MiB"]
    assert table["change_percent"].tolist() == pytest.approx([1.0, 2.0, 10.0])


def test_busy_share_against_brute_force() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        gaps, lengths = rng.integers(0, 9, 30), rng.integers(0, 9, 30)
        starts = np.cumsum(gaps + np.concatenate([[0], lengths[:-1]]))
        end = int(starts[-1] + lengths[-1]) + 5
        edges = np.linspace(0, end, 8).astype(np.int64)
        busy = np.zeros(end)
        for start, length in zip(starts, lengths, strict=True):
            busy[start : start + length] = 1
        expected = [busy[a:b].mean() for a, b in itertools.pairwise(edges)]
        assert busy_share(np.stack([starts, lengths], axis=1), edges) == pytest.approx(expected)


@pytest.fixture(scope="module")
def real() -> list[Record]:
    return [evaluate(Point(arch, "gemm:m=256,n=256,k=256")) for arch in ("trn1", "edge-npu")]


def test_the_page_needs_nothing_else_and_has_its_numbers_beside_it(
    real: list[Record], tmp_path: Path
) -> None:
    page = write_report([*real, infeasible()], tmp_path, title="a <b> & c").read_text()
    assert "<title>a &lt;b&gt; &amp; c</title>" in page
    images = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(images) == len(STUDIES)
    assert all(b"<svg" in base64.b64decode(image)[:400] for image in images)
    assert not re.search(r'(src|href)="(https?:)?//', page)
    for study in STUDIES:
        assert (tmp_path / f"{study}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{study}.csv").exists()
    for word in ("scratchpad-capacity", "model source digest", "mfu", "cost proxy", "dse run trn1"):
        assert word in page
    assert (tmp_path / "points.csv").read_text().count("\n") == 4


def test_the_same_records_give_the_same_bytes(real: list[Record], tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(real[:1], tmp_path / name, title="t")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_the_page_of_a_sweep_has_the_name_and_the_question_of_its_study(
    real: list[Record], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    with Journal(folder) as journal:
        journal.append([("x", real[0])])
    (folder / "study.yaml").write_text("name: my <study>\nquestion: Which?\narch: trn1\nworkload: gemm\n")
    page = report_folder(folder).read_text()
    assert "<title>my &lt;study&gt;</title>" in page
    assert "<h1>my &lt;study&gt;</h1>\n<p><b>Which?</b></p>" in page
    for text in ("not: [a study", "name: x\n"):
        (folder / "study.yaml").write_text(text)
        assert "<h1>out</h1>" in report_folder(folder).read_text()


def test_the_page_says_when_and_with_what_it_was_made(real: list[Record], tmp_path: Path) -> None:
    page = write_report(real, tmp_path, title="t").read_text()
    date = str(real[0]["provenance"]["date"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", date)
    for name in ("date", "version", "commit"):
        assert str(real[0]["provenance"][name] or "") in page
        assert f"<td>{name}</td>" in page or real[0]["provenance"][name] is None


def test_rates_of_one_page_are_written_alike() -> None:
    assert [show_rate(rate) for rate in (29217.4, 1456.2, 154.13, 3.14159, 0.01234)] == [
        "29,217", "1,456", "154", "3.142", "0.01234",
    ]  # fmt: skip


def test_a_sweep_folder_without_its_table_is_still_reported(real: list[Record], tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append([("x", real[0]), ("y", infeasible())])
    assert "2 points: 1 ok, 1 infeasible" in report_folder(tmp_path).read_text()


def test_workloads_lose_their_keys_where_that_tells_them_apart() -> None:
    texts = ["llama3-8b:prefill,batch=1,seq=8", "vit-b16:batch=8", "gemm:m=1", "gemm:m=2"]
    found = short_workloads([good(1, workload=text) for text in texts])
    assert list(found.values()) == ["llama3-8b:prefill", "vit-b16", "gemm:m=1", "gemm:m=2"]
