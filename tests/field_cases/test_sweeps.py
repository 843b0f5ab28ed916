"""Cases from the field that concern sweeps: U014, U029, U062, U064, U115."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep_fakes as fakes

from dse.pareto import pareto_front
from dse.point import Point
from dse.pool import guarded
from dse.result import Record, validate_record
from dse.space import Planned
from dse.store import JOURNAL, read_journal
from dse.sweep import SweepOptions, SweepSummary, run_sweep

HERE = Path(__file__).resolve().parent


def plan(count: int) -> tuple[Planned, ...]:
    points = [Point("fake", "w", overrides=(("n", str(n)),)) for n in range(count)]
    return tuple(Planned(i, fakes.point_id(p), p, (("n", str(i)),)) for i, p in enumerate(points))


def without_provenance(folder: Path) -> dict[str, str]:
    records, _ = read_journal(folder / JOURNAL)
    return {
        key: json.dumps({**record, "provenance": None, "digests": None}, sort_keys=True)
        for key, record in records.items()
    }


SWEEP_SCRIPT = """
import sys
from pathlib import Path
from dse.sweep import SweepOptions, run_sweep
import sweep_fakes as fakes
from test_sweeps import plan

if __name__ == "__main__":
    done = 0
    def heard(planned, record):
        global done
        done += 1
        print(done, flush=True)
    jobs = int(sys.argv[2])
    options = SweepOptions(jobs=jobs)
    points, folder = plan(int(sys.argv[3])), Path(sys.argv[1])
    run_sweep(points, folder, evaluate=fakes.slow, options=options, on_record=heard)
"""


def start(folder: Path, jobs: int, seed: str = "0", count: int = 100) -> subprocess.Popen[str]:
    script = folder.parent / "sweep_script.py"
    script.write_text(SWEEP_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONHASHSEED": seed}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(jobs), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def kill_after(process: subprocess.Popen[str], records: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= records:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_U062_a_killed_sweep_resumes_and_bad_points_do_not_lose_it(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    kill_after(start(folder, 2), 70)
    before, _ = read_journal(folder / JOURNAL)
    assert 70 <= len(before) < 100
    ran: list[int] = []
    summary = run_sweep(
        plan(100),
        folder,
        evaluate=fakes.mixed,
        options=SweepOptions(jobs=2),
        on_record=lambda planned, record: ran.append(planned.index),
    )
    assert summary == SweepSummary(100, 98, 1, 1, resumed=len(before), interrupted=False)
    assert len(ran) == 100 - len(before)
    records, _ = read_journal(folder / JOURNAL)
    assert set(records) == {planned.id for planned in plan(100)}
    by_index = [records[planned.id] for planned in plan(100)]
    assert [r["status"] for r in by_index].index("infeasible") == 37
    assert by_index[58]["status"] == "error"
    assert by_index[58]["reason"]["fix"] == "fifty-eight"
    assert "RuntimeError" in str(by_index[58]["provenance"]["traceback"])
    lines = (folder / "points.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == [str(n) for n in range(100)]


def test_U062_a_kill_at_a_random_moment_and_a_rerun_give_the_undisturbed_set(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "a", tmp_path / "b"
    finish(start(undisturbed, 2, seed="1", count=60))
    process = start(killed, 1, seed="2", count=60)
    time.sleep(random.uniform(0.3, 1.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(killed, 1, seed="3", count=60))
    assert without_provenance(killed) == without_provenance(undisturbed)
    assert (killed / "points.csv").read_bytes() == (undisturbed / "points.csv").read_bytes()


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_U062_a_torn_last_line_is_cut_off_and_its_point_runs_again(tmp_path: Path, cut: int) -> None:
    options = SweepOptions(jobs=1)
    run_sweep(plan(4), tmp_path, evaluate=fakes.good, options=options)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-cut])
    ran: list[int] = []
    run_sweep(
        plan(4), tmp_path, evaluate=fakes.good, options=options, on_record=lambda p, r: ran.append(p.index)
    )
    assert ran == [3]
    assert journal.read_bytes() == whole


def test_U115_a_killed_worker_is_an_error_record_and_the_others_go_on(tmp_path: Path) -> None:
    summary = run_sweep(plan(12), tmp_path, evaluate=fakes.deadly, options=SweepOptions(jobs=2))
    assert (summary.ok, summary.error, summary.missing) == (11, 1, 0)
    records, _ = read_journal(tmp_path / JOURNAL)
    guilty = records[plan(12)[5].id]
    assert guilty["status"] == "error"
    assert guilty["reason"] is not None
    assert guilty["reason"]["code"] == "killed"
    again = run_sweep(
        plan(12), tmp_path, evaluate=fakes.good, options=SweepOptions(jobs=1, retry_errors=True)
    )
    assert (again.ok, again.error, again.resumed) == (12, 0, 11)


def test_U010_a_point_that_takes_too_long_is_an_error_record(tmp_path: Path) -> None:
    summary = run_sweep(
        plan(6), tmp_path, evaluate=fakes.endless, options=SweepOptions(jobs=2, timeout_s=0.3)
    )
    assert (summary.ok, summary.error) == (5, 1)
    records, _ = read_journal(tmp_path / JOURNAL)
    reason = records[plan(6)[3].id]["reason"]
    assert reason is not None
    assert reason["code"] == "timeout"


def test_U010_an_interrupt_stops_in_seconds_and_leaves_the_files_readable(tmp_path: Path) -> None:
    def interrupt(planned: Planned, record: Record) -> None:
        if planned.index >= 2:
            raise KeyboardInterrupt

    begun = time.monotonic()
    summary = run_sweep(
        plan(6), tmp_path, evaluate=fakes.endless, options=SweepOptions(jobs=2), on_record=interrupt
    )
    assert time.monotonic() - begun < 5
    assert summary.interrupted
    assert summary.ok >= 1
    records, _ = read_journal(tmp_path / JOURNAL)
    assert len(records) == summary.ok
    assert (tmp_path / "points.csv").exists()


def test_U014_the_number_of_workers_does_not_change_the_result(tmp_path: Path) -> None:
    for jobs in (1, 2):
        run_sweep(plan(40), tmp_path / str(jobs), evaluate=fakes.mixed, options=SweepOptions(jobs=jobs))
    assert without_provenance(tmp_path / "1") == without_provenance(tmp_path / "2")
    assert (tmp_path / "1/points.csv").read_bytes() == (tmp_path / "2/points.csv").read_bytes()


def test_U029_every_outcome_has_the_same_schema() -> None:
    point = Point("fake", "w", overrides=(("n", "58"),))
    outcomes = [fakes.good(point), fakes.infeasible(point), guarded(fakes.mixed, point)]
    for record in outcomes:
        validate_record(record)
    assert len({tuple(record) for record in outcomes}) == 1
    assert [record["status"] for record in outcomes] == ["ok", "infeasible", "error"]
    reason = outcomes[1]["reason"]
    assert reason is not None
    assert (reason["needed"], reason["available"]) == (200, 100)


def test_U064_a_tie_in_one_objective_does_not_keep_a_dominated_point() -> None:
    assert [m.index for m in pareto_front([(10, 100), (5, 100)], (True, True))] == [0]


def test_U064_exact_duplicates_are_all_kept_and_labelled() -> None:
    front = pareto_front([(1, 2), (2, 1), (1, 2), (3, 3), (1, 2)], (False, False))
    assert [(m.index, m.same_as) for m in front] == [(0, 0), (1, 1), (2, 0), (4, 0)]


def test_U064_a_constant_objective_leaves_the_best_of_the_other() -> None:
    front = pareto_front([(3, 7), (1, 7), (2, 7), (1, 7)], (False, True))
    assert [(m.index, m.same_as) for m in front] == [(1, 1), (3, 1)]
    assert [m.index for m in pareto_front([(4,), (4,)], (True,))] == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_U064_against_brute_force(seed: int) -> None:
    generator = random.Random(seed)
    dims = generator.randint(1, 3)
    senses = tuple(generator.random() < 0.5 for _ in range(dims))
    rows = [tuple(generator.randint(0, 4) for _ in range(dims)) for _ in range(generator.randint(1, 40))]

    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        gains = [(x - y) * (1 if up else -1) for x, y, up in zip(a, b, senses, strict=True)]
        return min(gains) >= 0 and max(gains) > 0

    expected = [i for i, row in enumerate(rows) if not any(beats(other, row) for other in rows)]
    assert [m.index for m in pareto_front(rows, senses)] == expected


def test_U016_the_same_bytes_under_any_hash_seed() -> None:
    code = (
        "import json\nfrom dse import Point, evaluate\n"
        "r = evaluate(Point('trn2', 'gemm:m=300,n=200,k=130'))\n"
        "r['provenance'], r['digests']['model'] = {}, ''\nprint(json.dumps(r))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "4242")
    }
    assert len(texts) == 1


def test_U065_memory_stays_flat_over_many_points_in_one_process() -> None:
    code = (
        "import gc, os\nfrom dse import Point, evaluate\n"
        "def pages(): return int(open('/proc/self/statm').read().split()[1])\n"
        "def some(first, count):\n"
        "    for n in range(first, first + count):\n"
        "        evaluate(Point('trn1', f'gemm:m={128 + n},n=200,k=130'))\n"
        "some(0, 50); gc.collect(); before = pages()\n"
        "some(50, 100); gc.collect(); print((pages() - before) / before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.05
