"""Suites of measurements: complete, and held against predictions from the command line."""

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dse.cli import app
from dse.errors import SpaceError
from dse.evaluation import compile_options
from dse.kernel import parse_sizes
from dse.kernel_files import load_kernel
from dse.measured import Measured
from dse.predict import Prediction
from dse.roles import load_with_roles
from dse.validate import Suite, Validation, load_suites, load_unmapped
from studies.validation import SUITES, UNMAPPED, claims
from workloads import build

# Rows of each source of published measurements, and the suites that it went into.
SOURCES = {
    "neuron": (1409, ("neuron-kernels", "neuron-instructions", "neuron-models")),
    "closed-form": (154, ("closed-form",)),
    "gpu-operators": (6695, ("gpu-operators",)),
    "gpu-models": (1534, ("gpu-models",)),
}
ROWS = [(suite.name, row) for suite in load_suites(SUITES, ()) for row in suite.rows]
HEAD = "id,arch,workload,metric,value,unit,op,conditions,source,fitted\n"
TINY = [
    'a,trn1,"gemm:m=128,n=128,k=128",time,20,us,matmul,measured,a page,',
    'b,trn1,"gemm:m=256,n=128,k=128",time,10,us,matmul,measured,a page,',
    'c,trn2,"softmax:rows=128,cols=128",kernel,10,us,softmax,measured,a page,trn2 dma.issue',
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def dse(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def suite_file(folder: Path, *lines: str) -> str:
    file = folder / "tiny.csv"
    file.write_text(HEAD + "\n".join(lines) + "\n")
    return str(file)


def predicted(name: str, op: str, measured: float, value: float, **changes: object) -> Prediction:
    values: dict[str, object] = {"metric": "time", "unit": "ps", "conditions": "measured", "source": "s"}
    row = Measured(id=name, arch="a.yaml", workload="w", value=measured, op=op, **{**values, **changes})  # type: ignore[arg-type]
    return Prediction(row, "ok", value, int(value), int(value) // 2, "compute-bound")


@pytest.mark.parametrize("source", SOURCES)
def test_every_published_row_is_mapped_or_has_a_reason(source: str) -> None:
    total, suites = SOURCES[source]
    ids = [row.id for name, row in ROWS if name in suites]
    left = [name for item in load_unmapped(UNMAPPED) if item.source == source for name in item.ids]
    assert [name for name, times in Counter(ids + left).items() if times > 1] == []
    assert len(ids) + len(left) == total


def test_every_suite_has_a_source() -> None:
    assert {name for name, _ in ROWS} == {name for _, suites in SOURCES.values() for name in suites}
    assert {item.source for item in load_unmapped(UNMAPPED)} == set(SOURCES)


def test_counts_of_reasons_are_those_of_their_ids() -> None:
    for file in UNMAPPED.glob("*.csv"):
        for line in file.read_text().splitlines()[1:]:
            _, count, ids = line.rsplit(",", 2)
            assert int(count) == len(ids.split()), line


@pytest.mark.parametrize("suite", dict.fromkeys(name for name, _ in ROWS))
def test_every_row_names_what_exists(suite: str) -> None:
    rows = [row for name, row in ROWS if name == suite]
    for row in rows:
        arch = load_with_roles(row.arch, dict(row.overrides))
        assert row.engine is None or row.engine in arch.engines, row.id
        compile_options(row.options)
    for text in dict.fromkeys(row.workload for row in rows if not row.is_kernel):
        build(text)
    for row in rows:
        if row.is_kernel:
            target, *sizes = row.workload.split(",")
            pairs = tuple(size.partition("=")[::2] for size in sizes if not size.startswith("dtype="))
            load_kernel(target).resolve(parse_sizes(pairs))


def test_rows_that_constants_were_derived_from_say_which() -> None:
    fitted = {row.id: row.fitted for _, row in ROWS if row.fitted}
    assert fitted["NKB-188"] == "trn1 engines.tensor.sustained"
    for text in set(fitted.values()):
        name, _, paths = text.partition(" ")
        for path in paths.split(", "):
            value: object = load_with_roles(name, {}).canonical()
            for part in path.split("."):
                assert isinstance(value, dict)
                value = value[part]


def test_claims_have_sources() -> None:
    assert all(claim["source"] and claim["error_pct"] for claim in claims())


def test_lines_by_hand() -> None:
    rows = [
        predicted("a", "x", 100, 110),
        predicted("b", "x", 100, 130),
        predicted("c", "y", 100, 60),
        predicted("d", "y", 100, 500, fitted="something"),
    ]
    suite = Suite("s", tuple(item.row for item in rows))
    found = Validation((suite,), tuple(("s", item) for item in rows))
    lines = {(line.device, line.op, line.regime): line for line in found.lines}
    whole = lines["all", "all", "all"]
    assert whole.accuracy.count == 3, "a row that something was fitted to tests nothing"
    assert whole.accuracy.mean_abs == pytest.approx((0.2 + 0.4) / 2), "of ops, not of rows"
    assert whole.accuracy.bias == pytest.approx((0.2 - 0.4) / 2)
    assert whole.roofline == pytest.approx(((0.45 + 0.35) / 2 + 0.7) / 2)
    assert lines["a", "x", "compute-bound"].accuracy.max_abs == pytest.approx(0.3)
    assert found.conditions["measured"] == whole.accuracy
    assert [item.row.id for _, item in found.worst(2)] == ["c", "b"], "a factor either way"
    assert [item.row.id for _, item in found.fitted] == ["d"]


def test_suites_are_named() -> None:
    (one,) = load_suites(SUITES, ["closed-form"])
    assert one.name == "closed-form"
    with pytest.raises(SpaceError) as caught:
        load_suites(SUITES, ["neuron-kernel", "zzz"])
    first, second = caught.value.problems
    assert first == "--suite: got 'neuron-kernel'; did you mean 'neuron-kernels'"
    assert second.startswith("--suite: got 'zzz'; have closed-form, ")


def test_a_suite_of_ones_own_from_the_command_line(tmp_path: Path) -> None:
    file, out = suite_file(tmp_path, *TINY), tmp_path / "out"
    code, text, err = dse("validate", "--suite", file, "-o", str(out), "-j", "1", "--no-cache")
    assert code == 0, err
    for word in ("tiny: errors", "the worst rows", "claimed by others", "3 rows, 0 without a prediction, 1"):
        assert word in text
    names = {path.name for path in out.iterdir()}
    assert {"index.html", "rows.csv", "errors.csv", "scatter-trn1.png", "errors-by-op.png"} <= names
    page = (out / "index.html").read_text()
    assert "derived: trn2 dma.issue" in page
    assert "one core is modelled" in page
    code, text, _ = dse("validate", "--suite", file, "-j", "1", "--json", "-")
    data = json.loads(text)
    assert code == 0
    assert data["suites"] == {"tiny": 3}
    assert [row["status"] for row in data["rows"]] == ["ok"] * 3
    assert data["errors"][0]["rows"] == 2


def test_what_does_not_fit_is_kept_and_a_mistake_is_an_exit_code(tmp_path: Path) -> None:
    large = "d,trn1,llama3-70b:decode,time,10,ms,llm,measured,a page,"
    code, text, _ = dse("validate", "--suite", suite_file(tmp_path, TINY[0], large), "-j", "1", "--json", "-")
    rows = {row["id"]: row for row in json.loads(text)["rows"]}
    assert code == 0
    assert (rows["d"]["status"], rows["d"]["predicted"]) == ("infeasible", None)
    assert "dram-capacity" in rows["d"]["reason"]
    wrong = large.replace("llama3-70b", "lama3-70b")
    code, text, _ = dse("validate", "--suite", suite_file(tmp_path, TINY[0], wrong), "-j", "1")
    assert code == 1
    assert "rows without a prediction" in text
    assert "did you mean" in " ".join(text.split())


def test_mistakes_of_the_user(tmp_path: Path) -> None:
    assert dse("validate", "--suite", "neuron-kernel")[0] == 2
    code, _, err = dse("validate", "--suite", suite_file(tmp_path, TINY[0].replace("us", "uss")))
    assert code == 2
    assert f"error: {tmp_path}/tiny.csv:2: unit: got 'uss'; did you mean 'us'\n" in err
