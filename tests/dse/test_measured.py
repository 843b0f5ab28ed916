from pathlib import Path

import pytest

from dse.accuracy import accuracy, accuracy_of_groups, rank_correlation
from dse.errors import SpaceError
from dse.evaluation import evaluate
from dse.measured import Measured, load_measured
from dse.predict import Prediction, predict

HEAD = "id,arch,workload,metric,value,unit,op,conditions,source,set,margin\n"
GOOD = 'a,trn1,"gemm:m=128,n=128,k=128",kernel,5,us,gemm,measured,a page,,\n'


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(SpaceError) as caught:
        load_measured(file)
    return [line.replace(str(file), "F") for line in caught.value.problems]


def measured(**changes: object) -> Measured:
    values: dict[str, object] = {
        "id": "a", "arch": "trn1", "workload": "gemm:m=256,n=256,k=256", "metric": "kernel", "value": 5.0,
        "unit": "us", "op": "gemm", "conditions": "measured", "source": "a page",
    }  # fmt: skip
    return Measured(**{**values, **changes})  # type: ignore[arg-type]


def only(**changes: object) -> Prediction:
    (found,) = predict([measured(**changes)], evaluate)
    return found


def test_a_row_is_what_its_line_says(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    (tmp_path / "mine.yaml").write_text("extends: trn1\n")
    limit = "b,mine.yaml,rope,time,10,ms,rope,threshold,a page,dma.queues=8; dma.engines=4,1.25\n"
    file.write_text(HEAD + GOOD + "\n" + limit)
    first, second = load_measured(file)
    assert first.workload == "gemm:m=128,n=128,k=128"
    assert (first.reference, first.where) == (5.0, f"{file}:2")
    assert second.arch == str(tmp_path / "mine.yaml")
    assert second.overrides == (("dma.queues", "8"), ("dma.engines", "4"))
    assert second.reference == pytest.approx(8.0), "a limit is 1.25 times what was measured"


def test_every_problem_of_the_header_is_told(tmp_path: Path) -> None:
    assert problems(tmp_path, "id,arch,wrkload,metric,value,unit,op,conditions,source,source\n") == [
        "F:1: got an unknown column 'wrkload'; did you mean 'workload'",
        "F:1: got no column 'workload', want it",
        "F:1: got column 'source' twice, want it once",
    ]


def test_every_problem_of_the_rows_is_told(tmp_path: Path) -> None:
    bad = "b,trn1,rope,kernl,-1,uss,rope,measurd,a page,dma.queues,1.1\n"
    assert problems(tmp_path, HEAD + GOOD + bad + GOOD + "c,trn1\n") == [
        "F:3: unit: got 'uss'; did you mean 'us'",
        "F:3: conditions: got 'measurd'; did you mean 'measured'",
        "F:3: metric: got 'kernl'; did you mean 'kernel'",
        "F:3: value: got '-1', want a number above 0",
        "F:3: margin: got '1.1', want nothing: only a threshold has one",
        "F:3: set: got 'dma.queues', want path=value;path=value",
        "F:4: id: got 'a' again, want it once; it is at F:2",
        "F:5: got 2 cells, want 11; quote a cell with commas",
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            "a,trn1,rope,time,5,cycles,rope,measured,s,,",
            "unit: got cycles of 'time', want them of an engine, such as metric busy:tensor",
        ),
        (
            "a,trn1,rope,time,5,us,rope,threshold,s,,",
            "margin: got '', want a number of at least 1",
        ),
        ("a,trn1,,time,nan,us,rope,measured,s,,", "workload: got nothing, want a text"),
        ("a,trn1,rope,time,nan,us,rope,measured,s,,", "value: got 'nan', want a number above 0"),
    ],
)
def test_a_row_that_says_too_little(tmp_path: Path, row: str, problem: str) -> None:
    assert f"F:2: {problem}" in problems(tmp_path, HEAD + row + "\n")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="got no readable file"):
        load_measured(tmp_path / "absent.csv")
    assert problems(tmp_path, HEAD) == ["F: got no row, want at least one"]
    assert "got no CSV" in problems(tmp_path, HEAD + 'a,"b\n')[0]


def test_metrics_are_parts_of_one_record() -> None:
    time, kernel, busy = (only(metric=m).value for m in ("time", "kernel", "busy:tensor"))
    assert time is not None
    assert kernel == pytest.approx(time - 12.0), "12 us is the launch of trn1"
    assert busy is not None
    assert 0 < busy < kernel
    cycles = only(metric="busy:tensor", unit="cycles").value
    assert cycles == pytest.approx(busy * 2800, rel=1e-6), "2.8 GHz"
    flops = only(unit="TFLOP/s").value
    assert flops == pytest.approx(2 * 256**3 / kernel / 1e6, rel=1e-6)
    assert only(unit="GB/s").value == pytest.approx(3 * 256 * 256 * 2 / kernel / 1e3, rel=1e-6)
    assert only(metric="time", unit="ops/s").value == pytest.approx(1e6 / time, rel=1e-6)


def test_a_rate_that_is_half_is_a_time_that_is_double() -> None:
    slow = Prediction(measured(unit="ops/s", value=100.0), "ok", 50.0, 20)
    assert slow.ratio == Prediction(measured(unit="us", value=100.0), "ok", 200.0, 20).ratio == 2.0
    assert slow.times_ps == (10.0, 20.0)


def test_a_kernel_is_a_workload_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from compiler.user_kernel import kernel\n"
        '@kernel(inputs={"x": "m n"}, outputs={"y": "m n"}, sizes={"m": 9, "n": 64}, reference=abs)\n'
        "def move(b, x, y):\n"
        "    t = b.scratch(x.shape, x.dtype)\n"
        "    b.dma(t[:], x[:])\n"
        '    b.dma(y[:], t[:], "output")\n'
    )
    small, large = (only(workload=f"{file}:move,m={m},dtype=fp32") for m in (64, 128))
    assert small.value is not None
    assert large.value is not None
    assert 0 < small.value < large.value
    wrong = only(workload=f"{file}:moves")
    assert (wrong.status, wrong.value) == ("error", None)
    assert "did you mean 'move'" in wrong.reason


def test_regimes() -> None:
    assert only().regime == "launch-bound"
    assert only(workload="gemm:m=4096,n=4096,k=4096").regime == "compute-bound"
    assert only(workload="gemv:n=8192,k=8192").regime == "memory-bound"


def test_what_has_no_value_says_why() -> None:
    full = only(workload="llama3-70b:decode,layers=80")
    assert (full.status, full.ratio) == ("infeasible", None)
    assert full.reason.startswith("dram-capacity: ")
    wrong = only(workload="gem:m=1")
    assert (wrong.status, wrong.value) == ("error", None)
    assert "gem" in wrong.reason
    assert "want one of tensor" in only(metric="busy:tensr").reason
    assert "the workload counts ops_per_s" in only(unit="tokens/s").reason


def test_equal_points_are_evaluated_once() -> None:
    asked = []

    def counting(point):  # type: ignore[no-untyped-def]
        asked.append(point)
        return evaluate(point)

    rows = [measured(), measured(id="b", metric="time"), measured(id="c", overrides=(("dma.queues", "8"),))]
    heard = []
    found = predict(rows, counting, heard=heard.append)
    assert [item.row.id for item in found] == ["a", "b", "c"]
    assert len(asked) == len(heard) == 2


def test_statistics_by_hand() -> None:
    found = accuracy([(100, 110), (100, 80), (10, 10), (1, 1.5)])
    assert found.count == 4
    assert found.mean_abs == pytest.approx((0.1 + 0.2 + 0 + 0.5) / 4)
    assert found.median_abs == pytest.approx(0.15)
    assert found.max_abs == pytest.approx(0.5)
    assert found.bias == pytest.approx((0.1 - 0.2 + 0 + 0.5) / 4)
    assert found.geomean == pytest.approx((1.1 * 0.8 * 1.5) ** 0.25)
    assert (found.within_10, found.within_25) == (0.5, 0.75)


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 15)]) == pytest.approx(0.5), "1 - 6 * 2 / (3 * 8)"
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1.0)
    assert rank_correlation([(1, 1), (2, 2)]) is None
    assert rank_correlation([(1, 5), (2, 5), (3, 5)]) is None
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert rank_correlation([(1, 1), (2, 2), (2, 3), (4, 4)]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_groups_count_alike() -> None:
    groups = {"a": [(10, 11), (10, 13)], "b": [(10, 6)]}
    found = accuracy_of_groups(groups)
    assert found.count == 3
    assert found.mean_abs == pytest.approx((0.2 + 0.4) / 2)
    assert found.bias == pytest.approx((0.2 - 0.4) / 2)
    assert found.median_abs == pytest.approx(0.3), "of rows"
