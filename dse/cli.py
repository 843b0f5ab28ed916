"""The command line. Imports inside the commands keep `dse --help` fast; only this module prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dse.point import Point
    from dse.pool import Evaluate
    from dse.result import Record
    from dse.space import Study
    from dse.sweep import Listener

OK, PARTIAL, WRONG_INPUT, INFEASIBLE = 0, 1, 2, 3
_EXIT = {"ok": OK, "infeasible": INFEASIBLE, "error": PARTIAL}
ROOTS = ("arch_configs", "compiler", "eventsim", "workloads", "dse", "studies")

app = typer.Typer(
    help="Design-space exploration for machine-learning accelerators. Exit codes: 0 ok, 1 partial "
    "failure, 2 wrong input, 3 infeasible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Arch = Annotated[str, typer.Argument(help="Architecture: a name (dse list archs) or a YAML file.")]
WorkloadText = Annotated[
    str,
    typer.Argument(help="name[:phase][,key=value...] (dse list workloads), or a model's config.json."),
]
Sets = Annotated[
    list[str], typer.Option("--set", help="Override, e.g. --set engines.tensor.rows=256. Repeatable.")
]
Options = Annotated[
    list[str],
    typer.Option("--option", help="Compiler option, e.g. double_buffer=false. Repeatable."),
]
FidelityText = Annotated[str, typer.Option("--fidelity", help="roofline | event | exact (event, unfolded).")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of anything random; kept in the record.")]
JsonOut = Annotated[
    str | None,
    typer.Option("--json", help="Write JSON to this file; '-': to stdout, in place of text."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not read or write ~/.cache/accel-dse.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Worker processes; 0: one per core.")]


def main() -> None:
    """Entry point of the `dse` command."""
    app()


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def _fail(lines: list[str]) -> NoReturn:
    """Print a user's mistakes and leave with exit code 2."""
    for line in lines:
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(WRONG_INPUT)


@contextmanager
def _user_errors() -> Iterator[None]:
    """The user's mistakes are lines on stderr and exit code 2, never a traceback."""
    from compiler.errors import VerifyError
    from dse.evaluation import USER_ERRORS

    try:
        yield
    except VerifyError:
        raise  # our own mistake: the traceback is wanted
    except USER_ERRORS as error:
        _fail(str(error).splitlines())


def _emit(data: object, target: str | None, view: RenderableType | None) -> None:
    """Write JSON where `--json` says, and show `view` unless stdout has the JSON."""
    import json

    if target is not None:
        text = json.dumps(data, indent=1, allow_nan=False)
        if target == "-":
            typer.echo(text)
        else:
            Path(target).write_text(text + "\n", encoding="utf-8")
    if view is not None and target != "-":
        _console().print(view)


def _pairs(texts: list[str], flag: str) -> tuple[tuple[str, str], ...]:
    """`path=value` texts as pairs; all that are not are reported together."""
    wrong = [f"{flag} {text}: got no '=', want path=value" for text in texts if "=" not in text]
    if wrong:
        _fail(wrong)
    return tuple((name.strip(), value.strip()) for name, _, value in (text.partition("=") for text in texts))


def _point(arch: str, workload: str, sets: list[str], options: list[str], fidelity: str, seed: int) -> Point:
    from dse.point import Point
    from dse.point import fidelity as known_fidelity

    try:
        chosen = known_fidelity(fidelity)
    except ValueError as error:
        _fail([f"--{error}"])
    return Point(
        arch=arch,
        workload=workload,
        overrides=_pairs(sets, "--set"),
        options=_pairs(options, "--option"),
        fidelity=chosen,
        seed=seed,
    )


def _evaluator(no_cache: bool) -> Evaluate:
    from dse.cache import CachedEvaluate, default_folder
    from dse.evaluation import evaluate

    return evaluate if no_cache else CachedEvaluate(default_folder())


def _read_record(file: str) -> Record:
    from dse.errors import SpaceError
    from dse.result import parse_record

    try:
        return parse_record(Path(file).read_text(encoding="utf-8"), file)
    except OSError as error:
        problem = f"{file}: got no readable file ({error.strerror}), want a record of dse run --json"
        raise SpaceError([problem]) from error
    except ValueError as error:
        raise SpaceError([str(error)]) from error


def _jobs(jobs: int) -> int:
    import os

    return jobs or len(os.sched_getaffinity(0))


@app.command()
def run(
    arch: Arch,
    workload: WorkloadText,
    sets: Sets = [],  # noqa: B006 - typer copies it
    options: Options = [],  # noqa: B006
    fidelity: FidelityText = "event",
    seed: Seed = 0,
    json: JsonOut = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Perfetto trace (.json or .json.gz).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report folder: HTML, PNG, CSV.")] = None,
    no_cache: NoCache = False,
) -> None:
    """Time one workload on one architecture and say where the time goes."""
    from dse.present import record_view

    with _user_errors():
        point = _point(arch, workload, sets, options, fidelity, seed)
        record = _run_traced(point, trace) if trace is not None else _evaluator(no_cache)(point)
        _emit(record, json, record_view(record))
        if report is not None:
            from dse.digest import canonical_json
            from dse.store import write_text

            write_text(report / "record.json", canonical_json(record))
            _report(report)
    audit_failed = not all(record["audit"].values())
    raise typer.Exit(PARTIAL if audit_failed else _EXIT[record["status"]])


def _run_traced(point: Point, file: Path) -> Record:
    """Evaluate afresh, for a cached record has no trace, and write the trace."""
    from dse.evaluation import evaluate_traced
    from eventsim.perfetto import write_perfetto

    record, bound, trace = evaluate_traced(point)
    if bound is None or trace is None:
        typer.echo(f"no trace: status {record['status']}, fidelity {point.fidelity}", err=True)
    else:
        slices = write_perfetto(trace, bound, file)
        typer.echo(f"trace: {file}, {slices} slices; open it at https://ui.perfetto.dev", err=True)
    return record


@app.command()
def sweep(
    study: Annotated[Path, typer.Argument(help="Study YAML.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder; by default the study's name.")
    ] = None,
    jobs: Jobs = 0,
    limit: Annotated[int | None, typer.Option(min=0, help="Run at most so many new points.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="Seconds a point may take.")] = None,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Run failed points again.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report at the end.")] = False,
    json: JsonOut = None,
    no_cache: NoCache = False,
) -> None:
    """Run every point of a study; the same command resumes one that was stopped."""
    from dataclasses import asdict

    from dse.evaluation import USER_ERRORS, point_id
    from dse.present import sweep_table
    from dse.space import load_study, plan, resolved_yaml
    from dse.store import JOURNAL, read_journal, write_text
    from dse.sweep import SweepOptions, run_sweep, table_rows

    with _user_errors():
        found = load_study(study)
        folder = out or Path(found.spec.name)
        points = plan(found, point_id, USER_ERRORS)
        write_text(folder / "study.yaml", resolved_yaml(found))
        options = SweepOptions(
            jobs=_jobs(jobs), limit=limit, timeout_s=timeout, retry_errors=retry_errors,
            searcher=found.spec.search.kind, seed=found.spec.seed,
        )  # fmt: skip
        with _progress(found, len(points)) as heard:
            summary = run_sweep(
                points, folder, evaluate=_evaluator(no_cache), options=options, on_record=heard
            )
        records, _ = read_journal(folder / JOURNAL)
        rows = table_rows(points, records)
        _emit({"folder": str(folder), **asdict(summary), "points": rows}, json, sweep_table(rows))
        line = (
            f"{summary.total} points: {summary.ok} ok, {summary.infeasible} infeasible, "
            f"{summary.error} failed, {summary.missing} not run; {summary.resumed} were there before; "
            f"{folder / 'points.csv'}"
        )
        typer.echo(line, err=True)
        if summary.interrupted:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        if report:
            _report(folder)
    if summary.error or summary.interrupted:
        raise typer.Exit(PARTIAL)
    raise typer.Exit(INFEASIBLE if summary.infeasible == summary.total else OK)


@contextmanager
def _progress(study: Study, total: int) -> Iterator[Listener]:
    """A bar with rate and time left on a terminal, else a line every few seconds."""
    from dse.progress import Bar, Lines

    listener = Bar if sys.stderr.isatty() else Lines
    with listener(study.spec.name, total, _console(error=True)) as heard:
        yield heard


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    json: JsonOut = None,
) -> None:
    """Write HTML, PNG and CSV from a sweep's folder."""
    with _user_errors():
        page = _report(folder)
        _emit({"report": page}, json, None)


def _report(folder: Path) -> str:
    from studies.report import report_folder

    page = str(report_folder(folder))
    typer.echo(f"report: {page}", err=True)
    return page


@app.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="RUN.json|ARCH", help="A record, or an architecture.")],
    workload: Annotated[str | None, typer.Argument(help="Workload, with ARCH.")] = None,
    sets: Sets = [],  # noqa: B006
    options: Options = [],  # noqa: B006
    seed: Seed = 0,
    jobs: Jobs = 0,
    json: JsonOut = None,
    no_cache: NoCache = False,
) -> None:
    """Say what binds: waits by cause, critical path, and the gain of relieving each resource."""
    from dataclasses import asdict

    from rich.console import Group

    from dse.explain import explain as explain_point
    from dse.pool import evaluate_all
    from dse.present import explanation_view, record_view
    from dse.result import point_of
    from dse.roles import load_with_roles

    with _user_errors():
        if workload is None:
            point = point_of(_read_record(target))
        else:
            point = _point(target, workload, sets, options, "event", seed)
        _evaluator(no_cache)(point)  # the user's mistakes show here, as such
        found = explain_point(
            point,
            load_with_roles(point.arch, dict(point.overrides)),
            lambda points: evaluate_all(_evaluator(no_cache), points, _jobs(jobs)),
        )
        data = {
            "record": found.record,
            "binding": found.binding,
            "reason": found.reason,
            "what_if": [asdict(item) for item in found.what_ifs],
        }
        _emit(data, json, Group(record_view(found.record), explanation_view(found)))
    raise typer.Exit(_EXIT[found.record["status"]])


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="Record of dse run --json.")],
    b: Annotated[str, typer.Argument(help="Record to compare with it.")],
    json: JsonOut = None,
) -> None:
    """Compare two records: inputs, results, and which ops the difference comes from."""
    from dataclasses import asdict

    from dse.diff import diff_inputs, diff_ops, diff_results
    from dse.present import diff_view

    with _user_errors():
        left, right = _read_record(a), _read_record(b)
        inputs, results, ops = diff_inputs(left, right), diff_results(left, right), diff_ops(left, right)
        data = {
            "inputs": [asdict(item) for item in inputs],
            "results": [asdict(item) for item in results],
            "ops": [{**asdict(item), "delta_ps": item.delta_ps} for item in ops],
        }
        _emit(data, json, diff_view(inputs, results, ops))


@app.command(name="compile")
def compile_command(
    arch: Arch,
    workload: WorkloadText,
    sets: Sets = [],  # noqa: B006
    options: Options = [],  # noqa: B006
    dump: Annotated[str, typer.Option(help="graph | fused | tiles | program | memory.")] = "program",
    numerics: Annotated[bool, typer.Option("--numerics", help="Execute it against the reference.")] = False,
    json: JsonOut = None,
) -> None:
    """Compile only, and show what came of it."""
    from dse.dump import DUMPS, dump_point
    from dse.errors import did_you_mean

    if dump not in DUMPS:
        _fail([f"--dump: got {dump!r}, want one of {', '.join(DUMPS)}{did_you_mean(dump, DUMPS)}"])
    point = _point(arch, workload, sets, options, "event", 0)
    if numerics:
        _numerics(point, json)
    with _user_errors(), _infeasible():
        text = dump_point(point, dump)
    _emit({"dump": dump, "text": text}, json, None)
    if json != "-":
        typer.echo(text)


@app.command()
def kernel(
    target: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A function under @kernel(...).")],
    arch: Arch,
    shapes: Annotated[
        list[str], typer.Option("--shape", help="A size or parameter, e.g. --shape m=4096. Repeatable.")
    ] = [],  # noqa: B006
    dtype: Annotated[str | None, typer.Option(help="Element type, in place of the kernel's.")] = None,
    sets: Sets = [],  # noqa: B006
    json: JsonOut = None,
) -> None:
    """Time a kernel of your own and check its numbers."""
    from dataclasses import asdict

    from dse.kernel import kernel_view, load_kernel, parse_sizes, time_kernel
    from dse.roles import load_with_roles

    with _user_errors(), _infeasible(f"{target}: "):
        sizes = parse_sizes(_pairs(shapes, "--shape"))
        spec = load_with_roles(arch, dict(_pairs(sets, "--set")))
        report = time_kernel(load_kernel(target), spec, sizes, dtype)
        _emit({**asdict(report), "passed": report.passed}, json, kernel_view(report))
    raise typer.Exit(OK if report.passed else PARTIAL)


@contextmanager
def _infeasible(where: str = "") -> Iterator[None]:
    """A design that does not fit is exit code 3."""
    from compiler.errors import Infeasible

    try:
        yield
    except Infeasible as problem:
        typer.echo(f"infeasible: {where}{problem}", err=True)
        raise typer.Exit(INFEASIBLE) from problem


def _numerics(point: Point, json: str | None) -> NoReturn:
    """Execute the program and show how far it is from the reference."""
    from dataclasses import asdict

    from dse.numerics import numerics
    from dse.present import numerics_table

    with _user_errors(), _infeasible():
        found = numerics(point)
    _emit([{**asdict(item), "passed": item.passed} for item in found], json, numerics_table(found))
    raise typer.Exit(OK if all(item.passed for item in found) else PARTIAL)


@app.command()
def check(
    files: Annotated[list[str], typer.Argument(help="Architectures (name or YAML) and study YAMLs.")],
    json: JsonOut = None,
) -> None:
    """Check files; show the resolved architecture with its peaks, or the number of points of a study."""
    from dse.check import check_file
    from dse.evaluation import USER_ERRORS

    texts, problems = {}, []
    for file in files:
        try:
            texts[file] = check_file(file)
        except USER_ERRORS as error:
            problems += str(error).splitlines()
    _emit({"ok": texts, "problems": problems}, json, None)
    if json != "-":
        for text in texts.values():
            typer.echo(text)
    if problems:
        _fail(problems)


@app.command(name="list")
def list_command(
    what: Annotated[str, typer.Argument(help="archs | workloads | passes | kernels | searchers | studies")],
    json: JsonOut = None,
) -> None:
    """List what there is by name."""
    from dse.check import LISTS
    from dse.errors import did_you_mean

    if what == "studies":
        from studies import STUDIES

        found = {name: study.question for name, study in STUDIES.items()}
    elif what in LISTS:
        found = LISTS[what]()
    else:
        names = [*LISTS, "studies"]
        _fail([f"list: got {what!r}, want one of {', '.join(names)}{did_you_mean(what, names)}"])
    _emit(found, json, None)
    if json != "-":
        width = max(map(len, found), default=0)
        for name, text in found.items():
            typer.echo(f"{name:<{width}}  {text}".rstrip())


def _show_version(wanted: bool) -> None:
    """The version, and where each root was imported from; they must lie side by side."""
    if not wanted:
        return
    from importlib.metadata import version
    from importlib.util import find_spec

    typer.echo(f"accel-dse {version('accel-dse')}")
    folders = {}
    for root in ROOTS:
        spec = find_spec(root)
        locations = list(spec.submodule_search_locations or ()) if spec else []
        folders[root] = Path(locations[0]) if locations else None
        typer.echo(f"  {root:<13} {folders[root] or 'NOT FOUND'}")
    if len({folder.parent if folder else None for folder in folders.values()}) != 1:
        _fail(["the six packages do not come from one place; use a virtual environment of its own"])
    raise typer.Exit(OK)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Version and folders.")
    ] = False,
) -> None:
    """Options that stand before a command."""


if __name__ == "__main__":
    main()
