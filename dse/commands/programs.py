"""Compile, time kernels, import models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dse.alive import alive
from dse.outputs import file_problem
from dse.terminal import (
    OK,
    PARTIAL,
    Arch,
    JsonOut,
    Kernels,
    Options,
    ReportOut,
    Sets,
    WorkloadText,
    check_outputs,
    emit,
    fail,
    infeasible_exits,
    make_point,
    pairs,
    user_errors,
    with_kernels,
)


def compile_command(
    arch: Arch,
    workload: WorkloadText,
    sets: Sets = [],  # noqa: B006
    options: Options = [],  # noqa: B006
    kernels: Kernels = [],  # noqa: B006
    dump: Annotated[
        str, typer.Option(help="graph | fused | decisions | tiles | program | memory.")
    ] = "program",
    numerics: Annotated[bool, typer.Option("--numerics", help="Execute it; errors of ops, outputs.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Run every check and list them: one line a rule, with what it looked at."
        ),
    ] = False,
    report: ReportOut = None,
    json: JsonOut = None,
) -> None:
    """Compile only, and show what came of it."""
    from dse.dump import DUMPS, dump_point
    from dse.errors import nearest

    if dump not in DUMPS:
        fail([f"--dump: got {dump!r}, want one of {', '.join(DUMPS)}{nearest(dump, DUMPS)}"])
    point = make_point(arch, workload, sets, with_kernels(options, kernels), "event", 0)
    if report is not None and not numerics:
        fail(["--report: got no --numerics, want both: the report is of the errors of each op"])
    if numerics or verify:
        from dse.proving import show_proof

        show_proof(point, json, report, numerics=numerics, verify=verify)
    with user_errors(), infeasible_exits(), alive(f"{workload} on {arch}"):
        text = dump_point(point, dump)
        emit({"dump": dump, "text": text}, json, None)
    if json != "-":
        typer.echo(text)


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

    from dse.kernel import kernel_view, parse_sizes, time_kernel
    from dse.kernel_files import load_kernel
    from dse.roles import load_with_roles

    with user_errors(), infeasible_exits(f"{target}: "):
        sizes = parse_sizes(pairs(shapes, "--shape"))
        spec = load_with_roles(arch, dict(pairs(sets, "--set")))
        with alive(f"{target} on {arch}"):
            report = time_kernel(load_kernel(target), spec, sizes, dtype)
        emit({**asdict(report), "passed": report.passed}, json, kernel_view(report))
    raise typer.Exit(OK if report.passed else PARTIAL)


def import_command(
    source: Annotated[str, typer.Argument(help="torch")],
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="Returns (module, args).")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A .json.gz (graph only) or a .pt2.")],
    dtype: Annotated[
        str, typer.Option(help="fp32 | bf16 | fp16: of parameters, unless the model says.")
    ] = "fp32",
) -> None:
    """Export a model of yours to a file that every command takes as a workload."""
    from dse.importing import import_torch

    if source != "torch":
        fail([f"import: got {source!r}, want torch; other files (.onnx, .mlir, config.json) need no import"])
    check_outputs(file_problem("--out", str(out)))
    with user_errors():
        typer.echo(import_torch(target, out, dtype))
