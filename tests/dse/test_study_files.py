"""Study files: what they mean, and the one clear line for each way to get them wrong."""

from pathlib import Path

import pytest

from arch_configs import ArchError, load_arch
from dse.alive import Checking
from dse.errors import SpaceError
from dse.evaluation import USER_ERRORS, point_id
from dse.point import Point
from dse.roles import load_with_roles
from dse.space import candidates, load_study, parse_study, plan, resolved_yaml

GOOD = """\
name: sram
arch: [trn1, trn2]
workload: "gemm:m=64,n=64,k=64"
space:
  memories.sbuf.capacity: [12 MiB, 24 MiB]
  "engines.tensor.rows, engines.tensor.cols": [64, 128]
options: {double_buffer: [true, false]}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        parse_study(text, Path("s.yaml"))
    return caught.value.problems


def test_every_combination_is_a_point_in_study_order() -> None:
    found = candidates(parse_study(GOOD, Path("s.yaml")))
    assert len(found) == 2 * 1 * 2 * 2 * 2
    first, last = found[0].point, found[-1].point
    assert (first.arch, last.arch) == ("trn1", "trn2")
    assert first.overrides == (
        ("memories.sbuf.capacity", "12 MiB"),
        ("engines.tensor.rows", "64"),
        ("engines.tensor.cols", "64"),
    )
    assert first.options == (("double_buffer", True),)
    assert found[0].axes[0] == ("options.double_buffer", "true")
    assert len({c.point for c in found}) == len(found)


def test_the_resolved_study_reads_back_as_itself() -> None:
    study = parse_study(GOOD, Path("s.yaml"))
    again = parse_study(resolved_yaml(study), Path("s.yaml"))
    assert again.spec == study.spec


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD.replace("space:", "spase:"), "s.yaml:4: spase: got an unknown key; did you mean 'space'"),
        (GOOD.replace("name: sram\n", ""), "s.yaml:1: name: got nothing, want a value; add 'name:'"),
        (GOOD + "seed: x\n", "s.yaml:8: seed: got 'x', want a whole number"),
        (GOOD + "arch: [trn3]\n", "s.yaml:8: arch: got the key twice, want it once; first at s.yaml:2"),
        (GOOD + "fidelity: fast\n", "s.yaml:8: fidelity: got 'fast', want one of roofline, event, exact"),
        (
            GOOD + "search: {kind: gird}\n",
            "s.yaml:8: search.kind: got 'gird', want a searcher; did you mean 'grid'",
        ),
        (GOOD.replace("24 MiB]", "12 MiB]"), "s.yaml:5: space.memories.sbuf.capacity: got"),
        (GOOD.replace("[12 MiB, 24 MiB]", "[]"), "s.yaml:5: space.memories.sbuf.capacity: got []"),
        (GOOD + "constraints: [a]\n", "s.yaml:8: constraints: got an unknown key"),
        (GOOD + "search: 3\n", "s.yaml:8: search: got 3, want a mapping"),
        (GOOD + "question: [a]\n", "s.yaml:8: question: got ['a'], want text"),
        (
            GOOD.replace("[64, 128]", "[[1]]"),
            "s.yaml:6: space.engines.tensor.rows, engines",
        ),
        (
            GOOD.replace("name: sram", "name: ../../x"),
            "s.yaml:1: name: got '../../x', want a name of",
        ),
        (GOOD.replace("name: sram", "name: .."), "s.yaml:1: name: got '..', want a name of at most"),
        ("- a\n", "s.yaml:1: got a list, want a mapping at the top level"),
        (GOOD.replace("space:", "space: {"), "s.yaml:6: got"),
    ],
)
def test_a_mistake_is_a_line_with_its_place(text: str, line: str) -> None:
    assert any(problem.startswith(line) for problem in problems(text)), problems(text)


def test_no_message_speaks_of_the_library_behind_it() -> None:
    for bad in ("space: 3", "space: {a: {b: 1}}", "options: [1]", "search: 3", "seed: 1.5", "fidelity: 3"):
        text = "name: x\narch: trn1\nworkload: gemm\n" + bad + "\n"
        (line,) = problems(text)
        assert line.startswith("s.yaml:4: ")
        assert "Input should" not in line
        assert ", want " in line


def test_an_axis_may_set_a_path_only_once() -> None:
    twice = GOOD.replace('"engines.tensor.rows, engines', '"memories.sbuf.capacity, engines')
    assert "got 'memories.sbuf.capacity' in two axes" in problems(twice)[0]


def test_a_missing_file_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="got no readable file"):
        load_study(tmp_path / "none.yaml")


def test_too_many_points_are_refused_at_once() -> None:
    values = ", ".join(str(n) for n in range(1, 1102))
    text = f"name: x\narch: trn1\nworkload: gemm\nspace:\n  a: [{values}]\n  b: [{values}]\n"
    assert "want at most 100000; shorten an axis" in problems(text)[0]


def test_every_point_is_resolved_before_the_first_runs_and_all_problems_are_told() -> None:
    text = GOOD.replace("12 MiB", "12 MB/s").replace("trn2", "trn22").replace("gemm:m=64", "gemm:mm=64")
    with pytest.raises(SpaceError) as caught:
        plan(parse_study(text, Path("s.yaml")), point_id, USER_ERRORS)
    text = "\n".join(caught.value.problems)
    assert "s.yaml:2: trn22: " in text
    assert "s.yaml:5: override memories.sbuf.capacity=12 MB/s" in text
    assert "s.yaml:3: gemm: mm: unknown key" in text
    assert len(caught.value.problems) == len(set(caught.value.problems))


def test_the_id_follows_the_content_of_the_architecture_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    study = parse_study(GOOD.replace("[trn1, trn2]", "mine.yaml"), tmp_path / "s.yaml")

    def ids(text: str) -> list[str]:
        file.write_text(text)
        return [planned.id for planned in plan(study, point_id, USER_ERRORS)]

    before = ids("name: mine\nextends: trn1\n")
    assert len(set(before)) == 8
    assert ids("# a remark\nname: mine\nextends: trn1\n") == before
    assert not set(ids("name: mine\nextends: trn1\ndma: {queues: 8}\n")) & set(before)


def test_a_part_may_be_called_by_its_role_unless_one_has_that_name() -> None:
    by_role = {"memories.scratchpad.capacity": "32 MiB", "engines.array.rows": "64"}
    by_name = {"memories.sbuf.capacity": "32 MiB", "engines.tensor.rows": "64"}
    assert load_with_roles("trn1", by_role) == load_arch("trn1", by_name)
    assert load_with_roles("tpu-v5e", by_role).array.rows == 64
    assert load_with_roles("edge-npu", {"engines.array.rows": "16"}).array.rows == 16
    with pytest.raises(ArchError, match="capacitee"):
        load_with_roles("trn1", {"memories.scratchpad.capacitee": "1 MiB"})


@pytest.mark.parametrize("role", ["engines.array", "engines.tensor"])
def test_one_study_varies_the_array_of_machines_that_name_it_differently(role: str) -> None:
    text = f"""\
name: arrays
arch: [trn1, tpu-v5e, edge-npu]
workload: "gemm:m=64,n=64,k=64"
space:
  "{role}.rows, {role}.cols": [16, 32]
"""
    points = plan(parse_study(text, Path("s.yaml")), point_id, USER_ERRORS)
    assert len({planned.id for planned in points}) == 6
    sides = [load_with_roles(p.point.arch, dict(p.point.overrides)).array.rows for p in points]
    assert sides == [16, 32] * 3


def test_a_value_under_two_names_is_refused() -> None:
    twice = {"memories.sbuf.capacity": "32 MiB", "memories.scratchpad.capacity": "16 MiB"}
    message = "memories.scratchpad.capacity: got the value of memories.sbuf.capacity under another name"
    with pytest.raises(ArchError, match=message):
        load_with_roles("trn1", twice)
    axes = "".join(f"  {path}: [{text}]\n" for path, text in twice.items())
    study = parse_study(f"name: x\narch: trn1\nworkload: gemm\nspace:\n{axes}", Path("s.yaml"))
    with pytest.raises(SpaceError, match=rf"s.yaml:[56]: override {message}"):
        plan(study, point_id, USER_ERRORS)
    with pytest.raises(ArchError, match=r"engines.array.rows: got the value of engines.tensor.rows"):
        load_with_roles("tpu-v5e", {"engines.tensor.rows": "16", "engines.array.rows": "32"})


def wide(count: int, extra: str = "") -> str:
    values = ", ".join(f"{n} KiB" for n in range(2064, 2064 + count))
    return (
        f"name: x\narch: [trn1, trn2]\nworkload: gemm\nspace:\n  memories.sbuf.capacity: [{values}]\n{extra}"
    )


def test_a_typing_mistake_in_a_large_study_costs_a_value_each_and_not_every_combination() -> None:
    asked = []

    def identify(point: Point) -> str:
        asked.append(point)
        if dict(point.overrides)["dma.queues"] == "x":
            raise SpaceError(["override dma.queues=x: no number"])
        return str(point)

    study = parse_study(wide(900, "  dma.queues: [1, 2, x]\n"), Path("s.yaml"))
    with pytest.raises(SpaceError, match=r"s.yaml:6: override dma.queues=x: no number"):
        plan(study, identify, (SpaceError,))
    assert len(asked) == 2 * (900 + 2)


def test_checking_a_large_study_is_heard_of(capsys: pytest.CaptureFixture[str]) -> None:
    study = parse_study(wide(600), Path("s.yaml"))
    plan(study, str, (SpaceError,), Checking("x", every_s=0.0))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1200
    assert lines[-1].startswith("x: checked 1,199 of 1,200 points, about 0 s left")


def test_two_spellings_of_a_value_are_one_point() -> None:
    def of(text: str) -> str:
        return point_id(Point("trn1", "gemm", (("memories.scratchpad.capacity", text),)))

    assert of("24 MiB") == of("24576 KiB") != of("23 MiB")
    assert of("24 MiB") != point_id(Point("trn1", "gemm")), "a table of a sweep needs its coordinates"
    text = GOOD.replace("[12 MiB, 24 MiB]", "[12 MiB, 24576 KiB, 24 MiB]")
    with pytest.raises(SpaceError) as caught:
        plan(parse_study(text, Path("s.yaml")), point_id, USER_ERRORS)
    where = "s.yaml:5: space.memories.sbuf.capacity"
    assert caught.value.problems == [f"{where}: got 24576 KiB and 24 MiB, which are one value, want it once"]
