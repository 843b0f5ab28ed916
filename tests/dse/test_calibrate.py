"""`dse calibrate`: finds planted constants, improves rows it has not seen, and refuses what it cannot fit."""

import json
import math
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from typer.testing import CliRunner

from arch_configs import load_arch
from dse.calibration import Request, calibrate, calibrated_text
from dse.calibration.calibrate import Calibration
from dse.calibration.constants import constants_of
from dse.calibration.fitting import identified
from dse.calibration.replay import Replay, Target, compile_row, run_row
from dse.calibration.split import folds_of, held_out
from dse.cli import app
from dse.errors import SpaceError
from dse.evaluation import evaluate
from dse.measured import Measured, load_measured
from dse.point import Point
from dse.predict import predict
from studies.validation import SUITES

HEAD = "id,arch,workload,metric,value,unit,op,conditions,source\n"
PLANTED = {
    "engines.tensor.sustained": "0.74",
    "launch_overhead": "17 us",
    "dma.engine_bandwidth": "14.2 GB/s",
}
WORKLOADS = (
    *(("matmul", f"gemm:m={m},n={n},k=2048") for m in (1024, 2048) for n in (2048, 4096)),
    *(("matmul", f"gemm:m={m},n=2048,k=4096") for m in (512, 1536, 3072)),
    *(("matmul", f"gemm:m={m},n=256,k=256") for m in (128, 256, 384)),
    *(("add", f"elementwise:rows={rows},cols=2048,func=add") for rows in (512, 1024, 2048, 4096)),
    *(("add", f"elementwise:rows={rows},cols=1024,func=add") for rows in (128, 256, 640)),
    *(("softmax", f"softmax:rows={rows},cols=512") for rows in (128, 256, 512)),
)


def measured(name: str, op: str, workload: str, value: float, **changes: object) -> Measured:
    values: dict[str, object] = {"metric": "time", "unit": "ps", "conditions": "measured", "source": "s"}
    return Measured(id=name, arch="trn1", workload=workload, value=value, op=op, **{**values, **changes})  # type: ignore[arg-type]


def synthetic(noise: float) -> list[Measured]:
    """Our own simulator with other constants, each workload measured twice, with seeded noise."""
    draw = Random(7)
    rows = []
    for index, (op, workload) in enumerate(WORKLOADS):
        time_ps = evaluate(Point("trn1", workload, tuple(PLANTED.items())))["time_ps"]
        assert time_ps is not None
        rows += [
            measured(f"{index}{again}", op, workload, time_ps * math.exp(draw.gauss(0, noise)))
            for again in "ab"
        ]
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Measured]:
    return synthetic(0.03)


@pytest.fixture(scope="module")
def found(rows: list[Measured]) -> Calibration:
    return calibrate(rows, Request("trn1", seed=1))


def test_recovers_planted_constants_within_2_percent(found: Calibration) -> None:
    fitted = {item.constant.path: item for item in found.fitted}
    wanted = load_arch("trn1", PLANTED)
    planted = {
        "engines.tensor.sustained": float(wanted.array.sustained),
        "launch_overhead": wanted.launch_overhead,
        "dma.engine_bandwidth": wanted.dma.engine_bandwidth,
    }
    assert set(planted) <= set(fitted), found.left
    for path, value in planted.items():
        assert fitted[path].value == pytest.approx(value, rel=0.02), path
        assert abs(fitted[path].value - value) < 4 * fitted[path].error


def test_other_constants_stay_where_documents_put_them(found: Calibration) -> None:
    for item in found.fitted:
        if item.constant.path not in PLANTED:
            assert abs(item.constant.at(item.value)) < 1, item
    assert found.left["memories.hbm.sustained"] == "no row depends on it"


def test_error_on_unseen_rows_is_the_noise(found: Calibration) -> None:
    errors = {item.name: item for item in found.errors}
    for name in ("leave-one-out", "10 folds", "held-out rows"):
        if name in errors:
            assert errors[name].before.mean_abs > 0.1
            assert errors[name].after.mean_abs < 0.04
    assert found.is_settled
    assert found.scatter == pytest.approx(0.03, rel=0.4)


def test_result_loads_extends_and_warns_outside_of_its_rows(found: Calibration, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(calibrated_text(found, name="mine", extends="trn1", source="rows.csv"))
    arch = load_arch(str(file))
    assert arch.name == "mine"
    assert float(arch.array.sustained) == pytest.approx(0.74, rel=0.02)
    assert arch.engines["vector"] == load_arch("trn1").engines["vector"]
    assert arch.calibration is not None
    assert arch.calibration.ops == ("binary", "linear", "softmax")
    assert "# calibrated: " in file.read_text()
    inside = evaluate(Point(str(file), "gemm:m=1024,n=2048,k=2048"))
    assert inside["warnings"] == []
    outside = " ".join(evaluate(Point(str(file), "rmsnorm:rows=65536,cols=4096"))["warnings"])
    assert "extrapolated beyond the " in outside
    assert "time " in outside
    assert "ops rms-norm are in no row" in outside
    documented = evaluate(Point("trn1", "rmsnorm:rows=65536,cols=4096"))
    assert not any("extrapolated" in line for line in documented["warnings"])


def test_a_replay_is_what_validate_predicts() -> None:
    chosen = [row for row in load_measured(SUITES / "neuron-kernels.csv") if row.arch == "trn1"][::6]
    chosen += [row for row in load_measured(SUITES / "neuron-instructions.csv") if row.arch == "trn1"][::4]
    for row, predicted in zip(chosen, predict(chosen, evaluate), strict=True):
        target = Target("trn1", {})
        replay = compile_row((row, target))
        if predicted.ratio is None:
            assert not isinstance(replay, Replay)
            continue
        assert isinstance(replay, Replay), replay
        assert run_row((replay, (target,)))[0].error == pytest.approx(math.log(predicted.ratio), abs=1e-12)


def test_of_two_constants_that_look_alike_one_is_fitted() -> None:
    slopes = np.array([[0.1, 0.1, 0.0], [0.2, 0.2, 0.0], [0.1, 0.1, 0.0]])
    kept, dropped = identified(slopes, 0.05, 3)
    assert len(kept) == 1
    assert dropped[2] == 1.0


def test_split_is_by_id_and_seed_and_never_tests_what_was_fitted() -> None:
    some = [measured(f"r{index}", "x", "w", 1.0) for index in range(20)]
    chosen = held_out(some, 0.3, 0)
    assert len(chosen) == 6
    assert chosen == held_out(some[::-1], 0.3, 0)
    assert chosen != held_out(some, 0.3, 1)
    marked = [measured(f"r{index}", "x", "w", 1.0, fitted="dma.issue") for index in range(20)]
    assert held_out(marked, 0.3, 0) == frozenset()


@pytest.mark.parametrize(("count", "groups"), [(7, 7), (40, 40), (41, 10)])
def test_folds_cover_every_row_once(count: int, groups: int) -> None:
    folds = folds_of([f"r{index}" for index in range(count)], 3)
    assert len(folds) == groups
    assert sorted(index for fold in folds for index in fold) == list(range(count))


def test_constants_an_architecture_lacks_are_left_out() -> None:
    paths = {item.path for item in constants_of(load_arch("edge-npu"), ())[0]}
    assert "grid.launch" not in paths
    assert "memories.dram.sustained" in paths
    assert "dma.queue_bandwidth" not in paths
    assert "grid.launch" in {item.path for item in constants_of(load_arch("a100-sxm4-80gb"), ())[0]}


def test_bounds_of_ones_own_hold(rows: list[Measured]) -> None:
    found = calibrate(
        rows[::2], Request("trn1", ("engines.array.sustained=0.8..0.9", "launch_overhead"), None)
    )
    values = {item.constant.path: item for item in found.fitted}
    assert values["engines.tensor.sustained"].value == pytest.approx(0.8, rel=1e-3)
    assert values["engines.tensor.sustained"].remark == "at its lower bound"
    assert found.unseen.name == "leave-one-out"


def test_held_out_error_improves_on_published_rows() -> None:
    """Elementwise ops and norms of one GPU, every fourth row: small and quick."""
    every = load_measured(SUITES / "gpu-operators.csv")
    heads = ("elementwise", "rmsnorm", "rope", "softmax")
    chosen = [row for row in every if row.arch == "a100-sxm4-80gb" and row.workload.startswith(heads)][::4]
    found = calibrate(chosen, Request("a100-sxm4-80gb", jobs=2))
    assert found.unseen.name == "held-out rows"
    assert found.unseen.after.count >= 10
    assert found.unseen.after.mean_abs < found.unseen.before.mean_abs - 0.02
    assert found.unseen.after.median_abs < found.unseen.before.median_abs


# ---- the command ----------------------------------------------------------------------------------


def dse(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def csv(folder: Path, lines: list[str], head: str = HEAD) -> str:
    file = folder / "rows.csv"
    file.write_text(head + "\n".join(lines) + "\n")
    return str(file)


def lines_of(rows: list[Measured]) -> list[str]:
    return [f'{r.id},trn1,"{r.workload}",time,{r.value!r},ps,{r.op},measured,s' for r in rows]


def test_same_bytes_on_any_number_of_workers(rows: list[Measured], tmp_path: Path) -> None:
    file = csv(
        tmp_path, [*lines_of(rows[::3]), 'big,trn1,"gemm:m=64,n=64,k=99999999999",time,1,s,x,report,s']
    )
    texts = []
    for jobs in ("1", "2"):
        out, data = tmp_path / f"r{jobs}" / "trn1-mine.yaml", tmp_path / f"{jobs}.json"
        out.parent.mkdir()
        arguments = ("-j", jobs, "-o", str(out), "--json", str(data), "--seed", "2")
        code, shown, _ = dse("calibrate", file, "trn1", *arguments)
        assert code == 0
        assert "launch_overhead" in shown
        assert "rows without a prediction" in shown
        texts.append((out.read_bytes(), data.read_bytes(), shown))
    assert texts[0] == texts[1]
    data = json.loads(texts[0][1])
    assert list(data["rows_without_prediction"]) == ["big"]
    assert {row["held_out"] for row in data["rows"]} == {True, False}


TINY = [f'r{size},trn1,"gemm:m={size},n=128,k=128",time,20,us,matmul,measured,a page' for size in (128, 256)]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("none.csv", "trn1"), "none.csv: got no readable file"),
        (("ROWS", "trn9"), "got 'trn9', want one of"),
        (("ROWS", "trn2"), "arch: got rows of trn1 only, want rows of trn2"),
        (("ROWS", "trn1"), "rows: got 1 to fit, want at least 4 for a fit"),
        (("ROWS", "trn1", "--folds", "--fit", "dma.isue"), "did you mean 'dma.issue'"),
        (("ROWS", "trn1", "--fit", "engines.tensor.rows"), "got a path that is not to be fitted"),
        (("ROWS", "trn1", "--fit", "dma.issue=1..2"), "want a time with a unit"),
        (("ROWS", "trn1", "--fit", "dma.issue=1 us"), "want LOW..HIGH"),
        (("ROWS", "trn1", "--fit", "dma.issue=2 us..3 us"), "want them around the documented value 780 ns"),
        (("ROWS", "trn1", "--fit", "engines.array.sustained=0.5..1.5"), "want a share of at most 1"),
        (("ROWS", "trn1", "--fit", "dma.issue", "--fit", "dma.issue"), "got it twice"),
        (("ROWS", "trn1", "--folds", "--held-out", "0.3"), "want one of the two"),
        (("ROWS", "trn1", "-o", "x.txt"), "x.txt': got no .yaml"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = csv(tmp_path, TINY)
    code, _, errors = dse("calibrate", *(file if text == "ROWS" else text for text in arguments), "-j", "1")
    assert code == 2
    problems = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(problems) == 1, errors
    assert wanted in problems[0]


def test_rows_that_say_nothing_of_a_constant(rows: list[Measured]) -> None:
    with pytest.raises(SpaceError, match=r"got none that identify .*memories.hbm.sustained: no row depends"):
        calibrate(rows[::4], Request("trn1", ("memories.dram.sustained",), None))


def test_the_architecture_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nextends: trn1\n")
    code, _, errors = dse("calibrate", csv(tmp_path, TINY), str(mine), "-o", str(mine))
    assert (code, mine.read_text()) == (2, "name: mine\nextends: trn1\n")
    assert "got the architecture itself" in errors


def test_a_file_of_ones_own_takes_rows_of_what_it_extends(rows: list[Measured], tmp_path: Path) -> None:
    mine, out = tmp_path / "mine.yaml", tmp_path / "sub" / "fitted.yaml"
    mine.write_text("name: mine\nextends: trn1\n")
    out.parent.mkdir()
    file = csv(tmp_path, lines_of(rows[::4]))
    code, _, _ = dse("calibrate", file, str(mine), "--fit", "launch_overhead", "-o", str(out), "-j", "1")
    assert code == 0
    assert "extends: ../mine.yaml" in out.read_text()
    assert load_arch(str(out)).launch_overhead > 13 * 10**6


def test_a_wrong_column_is_named(tmp_path: Path) -> None:
    file = csv(tmp_path, [f"{line},1" for line in TINY], HEAD.replace("source", "source,vale"))
    code, _, errors = dse("calibrate", file, "trn1")
    assert code == 2
    assert "got an unknown column 'vale'; did you mean 'value'" in errors


def test_without_scipy_there_is_one_line(rows: list[Measured], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SpaceError, match=r"got no scipy, .* pip install 'accel-dse\[calibrate\]'"):
        calibrate(rows[::3], Request("trn1", ("launch_overhead",)))
