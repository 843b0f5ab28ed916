"""The command line. Imports inside the commands keep `dse --help` fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.about import show_version
from dse.alive import Checking, alive
from dse.commands.measurements import calibrate, validate
from dse.commands.programs import compile_command, import_command, kernel
from dse.outputs import folder_problem, write_each, writing
from dse.terminal import (
    EXIT_OF,
    INFEASIBLE,
    OK,
    PARTIAL,
    Arch,
    FidelityText,
    Jobs,
    JsonOut,
    Kernels,
    NoCache,
    Options,
    ReportOut,
    Seed,
    Sets,
    SweepOut,
    TraceOut,
    WorkloadText,
    check_outputs,
    console,
    emit,
    evaluator,
    fail,
    make_point,
    read_record,
    user_errors,
    with_kernels,
    worker_count,
)

if TYPE_CHECKING:
    from dse.result import Record
    from dse.space import Study
    from dse.sweep import Listener
    from eventsim import BoundProgram, Trace

app = typer.Typer(
    help="Design-space exploration for machine-learning accelerators. Exit codes: 0 ok, 1 partial "
    "failure, 2 wrong input, 3 infeasible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Entry point of the `dse` command."""
    app()


@app.command()
def run(
    arch: Arch,
    workload: WorkloadText,
    sets: Sets = [],  # noqa: B006 - typer copies it
    options: Options = [],  # noqa: B006
    kernels: Kernels = [],  # noqa: B006
    fidelity: FidelityText = "event",
    seed: Seed = 0,
    json: JsonOut = None,
    trace: TraceOut = None,
    report: ReportOut = None,
    no_cache: NoCache = False,
) -> None:
    """Time one workload on one architecture and say where the time goes."""
    from dse.evaluation import evaluate_traced
    from dse.present import record_view

    with user_errors():
        point = make_point(arch, workload, sets, with_kernels(options, kernels), fidelity, seed)
        if trace is not None and point.fidelity == "roofline":
            fail(["--trace: got fidelity 'roofline', want event or exact: a bound has no events to draw"])
        run = evaluate_traced if trace is not None else lambda p: (evaluator(no_cache)(p), None, None)
        with alive(f"{workload} on {arch}"):
            record, bound, events = run(point)
        write_each(
            lambda: emit(record, json, record_view(record)),
            lambda: _write_trace(record, bound, events, trace),
            lambda: _write_report(record, report),
        )
    audit_failed = not all(record["audit"].values())
    raise typer.Exit(PARTIAL if audit_failed else EXIT_OF[record["status"]])


def _write_trace(record: Record, bound: BoundProgram | None, trace: Trace | None, file: Path | None) -> None:
    from eventsim.perfetto import write_perfetto

    if file is None:
        return
    if bound is None or trace is None:
        typer.echo(f"no trace: status {record['status']}", err=True)
        return
    with writing("--trace", file):
        slices = write_perfetto(trace, bound, file)
    typer.echo(f"trace: {file}, {slices} slices; open it at https://ui.perfetto.dev", err=True)


def _write_report(record: Record, folder: Path | None) -> None:
    from dse.digest import canonical_json
    from dse.store import write_text

    if folder is not None:
        with writing("--report", folder):
            write_text(folder / "record.json", canonical_json(record))
        _report(folder)


@app.command()
def sweep(
    study: Annotated[Path, typer.Argument(help="Study YAML.")],
    out: SweepOut = None,
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

    with user_errors():
        found = load_study(study)
        folder = out or Path(found.spec.name)
        check_outputs(folder_problem("--out", folder))
        points = plan(found, point_id, USER_ERRORS, Checking(found.spec.name))
        write_text(folder / "study.yaml", resolved_yaml(found))
        options = SweepOptions(
            jobs=worker_count(jobs), limit=limit, timeout_s=timeout, retry_errors=retry_errors,
            searcher=found.spec.search.kind, seed=found.spec.seed,
        )  # fmt: skip
        with _progress(found, len(points)) as heard:
            summary = run_sweep(
                points, folder, evaluate=evaluator(no_cache), options=options, on_record=heard
            )
        records, _ = read_journal(folder / JOURNAL)
        rows = table_rows(points, records)
        data = {"folder": str(folder), **asdict(summary), "points": rows}
        line = (
            f"{summary.total} points: {summary.ok} ok, {summary.infeasible} infeasible, "
            f"{summary.error} failed, {summary.missing} not run; {summary.resumed} were there before; "
            f"{folder / 'points.csv'}"
        )
        if summary.cut_bytes:
            cut = f"{folder / JOURNAL}: cut off {summary.cut_bytes} bytes of a line without its end"
            typer.echo(f"warning: {cut}; its point was not kept and ran again", err=True)
        typer.echo(line, err=True)
        if summary.interrupted:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        write_each(lambda: emit(data, json, sweep_table(rows)), lambda: _report(folder) if report else None)
    if summary.error or summary.interrupted:
        raise typer.Exit(PARTIAL)
    raise typer.Exit(INFEASIBLE if summary.infeasible == summary.total else OK)


@contextmanager
def _progress(study: Study, total: int) -> Iterator[Listener]:
    """A bar with rate and time left on a terminal, else a line every few seconds."""
    from dse.progress import Bar, Lines

    listener = Bar if sys.stderr.isatty() else Lines
    with listener(study.spec.name, total, console(error=True)) as heard:
        yield heard


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    json: JsonOut = None,
) -> None:
    """Write HTML, PNG and CSV from a sweep's folder."""
    with user_errors():
        if folder.is_dir():
            check_outputs(folder_problem("report", folder / "report"))
        page = _report(folder)
        emit({"report": page}, json, None)


def _report(folder: Path) -> str:
    from studies.report import report_folder

    with writing("report", folder / "report"), alive("report"):
        page = str(report_folder(folder))
    typer.echo(f"report: {page}", err=True)
    return page


@app.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="RUN.json|ARCH", help="A record, or an architecture.")],
    workload: Annotated[str | None, typer.Argument(help="Workload, with ARCH.")] = None,
    sets: Sets = [],  # noqa: B006
    options: Options = [],  # noqa: B006
    kernels: Kernels = [],  # noqa: B006
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

    with user_errors():
        if workload is None:
            point = point_of(read_record(target))
        else:
            point = make_point(target, workload, sets, with_kernels(options, kernels), "event", seed)
        with alive(f"{point.workload} on {point.arch} and its what-ifs"):
            evaluator(no_cache)(point)  # the user's mistakes show here, as such
            found = explain_point(
                point,
                load_with_roles(point.arch, dict(point.overrides)),
                lambda points: evaluate_all(evaluator(no_cache), points, worker_count(jobs)),
            )
        data = {
            "record": found.record,
            "binding": found.binding,
            "reason": found.reason,
            "what_if": [asdict(item) for item in found.what_ifs],
        }
        emit(data, json, Group(record_view(found.record), explanation_view(found)))
    raise typer.Exit(EXIT_OF[found.record["status"]])


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

    with user_errors():
        left, right = read_record(a), read_record(b)
        inputs, results, ops = diff_inputs(left, right), diff_results(left, right), diff_ops(left, right)
        data = {
            "inputs": [asdict(item) for item in inputs],
            "results": [asdict(item) for item in results],
            "ops": [{**asdict(item), "delta_ps": item.delta_ps} for item in ops],
        }
        emit(data, json, diff_view(inputs, results, ops))


app.command(name="compile")(compile_command)
app.command()(kernel)
app.command(name="import")(import_command)


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
    with user_errors():
        emit({"ok": texts, "problems": problems}, json, None)
    if json != "-":
        for text in texts.values():
            typer.echo(text)
    if problems:
        fail(problems)


app.command()(validate)
app.command()(calibrate)


@app.command(name="list")
def list_command(
    what: Annotated[
        str, typer.Argument(help="archs | workloads | passes | kernels | searchers | studies | suites")
    ],
    json: JsonOut = None,
) -> None:
    """List what there is by name."""
    from dse.check import LISTS
    from dse.errors import nearest

    if what == "studies":
        from studies import STUDIES

        found = {name: study.question for name, study in STUDIES.items()}
    elif what == "suites":
        from dse.validating import list_suites

        found = list_suites()
    elif what in LISTS:
        found = LISTS[what]()
    else:
        names = [*LISTS, "studies", "suites"]
        fail([f"list: got {what!r}, want one of {', '.join(names)}{nearest(what, names)}"])
    with user_errors():
        emit(found, json, None)
    if json != "-":
        width = max(map(len, found), default=0)
        for name, text in found.items():
            typer.echo(f"{name:<{width}}  {text}".rstrip())


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Version and folders.")
    ] = False,
) -> None:
    """Options that stand before a command."""


if __name__ == "__main__":
    main()
