"""What the commands share: options, exit codes, errors as lines, JSON out, and the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dse.outputs import STDOUT, file_problem, folder_problem, writing

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dse.point import Point
    from dse.pool import Evaluate
    from dse.result import Record

OK, PARTIAL, WRONG_INPUT, INFEASIBLE = 0, 1, 2, 3
EXIT_OF = {"ok": OK, "infeasible": INFEASIBLE, "error": PARTIAL}


def fail(lines: list[str]) -> NoReturn:
    """Print a user's mistakes and leave with exit code 2."""
    for line in lines:
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(WRONG_INPUT)


def _json_file(target: str | None) -> str | None:
    """Refuse at once what cannot be written, not after the work."""
    if target is not None and target != STDOUT:
        check_outputs(file_problem("--json", target))
    return target


def _trace_file(target: Path | None) -> Path | None:
    check_outputs(file_problem("--trace", str(target)) if target is not None else None)
    return target


def _report_folder(target: Path | None) -> Path | None:
    check_outputs(folder_problem("--report", target) if target is not None else None)
    return target


def _sweep_folder(target: Path | None) -> Path | None:
    check_outputs(folder_problem("--out", target) if target is not None else None)
    return target


def _arch_file(target: Path | None) -> Path | None:
    if target is not None:
        wrong = (
            None if target.suffix in (".yaml", ".yml") else f"--out {str(target)!r}: got no .yaml, want one"
        )
        check_outputs(wrong or file_problem("--out", str(target)))
    return target


def check_outputs(*problems: str | None) -> None:
    """Leave with exit code 2 if one of `problems` is a line."""
    found = [problem for problem in problems if problem is not None]
    if found:
        fail(found)


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
Kernels = Annotated[
    list[str],
    typer.Option("--kernel", help="A kernel of yours, e.g. attention=mine.py:flash. Repeatable."),
]
FidelityText = Annotated[str, typer.Option("--fidelity", help="roofline | event | exact (event, unfolded).")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of anything random; kept in the record.")]
JsonOut = Annotated[
    str | None,
    typer.Option(
        "--json", callback=_json_file, help="Write JSON to this file; '-': to stdout, in place of text."
    ),
]
TraceOut = Annotated[
    Path | None,
    typer.Option("--trace", callback=_trace_file, help="Write a Perfetto trace (.json or .json.gz)."),
]
ReportOut = Annotated[
    Path | None,
    typer.Option("--report", callback=_report_folder, help="Write a report folder: HTML, PNG, CSV."),
]
SweepOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", callback=_sweep_folder, help="Folder; by default the study's name."),
]
ValidationOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", callback=_sweep_folder, help="Write a report here: HTML, PNG, CSV."),
]
ArchOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", callback=_arch_file, metavar="FILE.yaml", help="Write the architecture."),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not read or write ~/.cache/accel-dse.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Worker processes; 0: one per core.")]


def console(*, error: bool = False) -> Console:
    """A console on stdout or stderr; wide where the output is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


@contextmanager
def user_errors() -> Iterator[None]:
    """The user's mistakes are lines on stderr and exit code 2, never a traceback."""
    from compiler.errors import VerifyError
    from dse.evaluation import USER_ERRORS
    from eventsim import Deadlock

    try:
        yield
    except (VerifyError, Deadlock):
        raise  # our own mistake: the traceback is wanted
    except USER_ERRORS as error:
        fail(str(error).splitlines())
    except BrokenPipeError:
        raise  # whoever read the output has gone: that is no mistake
    except OSError as error:  # what was looked at before, and changed since; or a file in the user's place
        where = error.filename if error.filename is not None else "output"
        fail([f"{where}: got {error.strerror or error}, want a place that can be read and written"])


def emit(data: object, target: str | None, view: RenderableType | None) -> None:
    """Show `view` unless stdout has the JSON, and write JSON where `--json` says; raises SpaceError."""
    import json

    if view is not None and target != STDOUT:
        console().print(view)
    if target is None:
        return
    text = json.dumps(data, indent=1, allow_nan=False)
    if target == STDOUT:
        typer.echo(text)
        return
    with writing("--json", target):
        Path(target).write_text(text + "\n", encoding="utf-8")


def pairs(texts: list[str], flag: str) -> tuple[tuple[str, str], ...]:
    """`path=value` texts as pairs; all that are not, or are given twice, are reported together."""
    names = [text.partition("=")[0].strip() for text in texts]
    wrong = [f"{flag} {text}: got no '=', want path=value" for text in texts if "=" not in text]
    wrong += [
        f"{flag} {name}: got {names.count(name)} values, want one"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if wrong:
        fail(wrong)
    return tuple((name.strip(), value.strip()) for name, _, value in (text.partition("=") for text in texts))


def with_kernels(options: list[str], kernels: list[str]) -> list[str]:
    """`--option` texts with those of `--kernel` as the option that they are."""
    return [*options, f"kernels={','.join(kernels)}"] if kernels else options


def make_point(
    arch: str, workload: str, sets: list[str], options: list[str], fidelity: str, seed: int
) -> Point:
    """The point that a command's arguments name."""
    from dse.point import Point
    from dse.point import fidelity as known_fidelity

    try:
        chosen = known_fidelity(fidelity)
    except ValueError as error:
        fail([f"--{error}"])
    return Point(
        arch=arch,
        workload=workload,
        overrides=pairs(sets, "--set"),
        options=pairs(options, "--option"),
        fidelity=chosen,
        seed=seed,
    )


def evaluator(no_cache: bool) -> Evaluate:
    """How points are evaluated: from the cache, or always afresh."""
    from dse.cache import CachedEvaluate, default_folder
    from dse.evaluation import evaluate

    return evaluate if no_cache else CachedEvaluate(default_folder())


def read_record(file: str) -> Record:
    """A record from a file that `dse run --json` wrote."""
    from dse.errors import SpaceError
    from dse.result import parse_record

    try:
        return parse_record(Path(file).read_text(encoding="utf-8"), file)
    except OSError as error:
        problem = f"{file}: got no readable file ({error.strerror}), want a record of dse run --json"
        raise SpaceError([problem]) from error
    except UnicodeDecodeError as error:
        problem = f"{file}: got bytes that are not UTF-8 text, want a record of dse run --json"
        raise SpaceError([problem]) from error
    except ValueError as error:
        raise SpaceError([str(error)]) from error


def worker_count(jobs: int) -> int:
    """Worker processes; 0 means one per core."""
    import os

    return jobs or len(os.sched_getaffinity(0))


@contextmanager
def infeasible_exits(where: str = "") -> Iterator[None]:
    """A design that does not fit is exit code 3."""
    from compiler.errors import Infeasible

    try:
        yield
    except Infeasible as problem:
        typer.echo(f"infeasible: {where}{problem}", err=True)
        raise typer.Exit(INFEASIBLE) from problem
