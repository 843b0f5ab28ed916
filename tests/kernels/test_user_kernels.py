"""The kernel API for people: declarations, compilation by the compiler's rules, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arch_configs import load_arch
from compiler import CompileError, Infeasible, VerifyError, compile_kernel
from compiler.user_kernel import Builder, Tensor, UserKernel, kernel
from dse.cli import app
from dse.kernel import time_kernel

ARCH = load_arch("trn1")
SOURCE = '''
from compiler.user_kernel import Builder, Tensor, kernel

@kernel(inputs={"x": "m n"}, outputs={"y": "m n"}, sizes={"m": 128, "n": 512},
        small={"n": 64}, reference=lambda x: {reference})
def double(b: Builder, x: Tensor, y: Tensor, *, times: int = 1) -> None:
    """Twice x."""
    t = b.scratch((x.shape[0], x.shape[1]), x.dtype)
    b.dma(t[:], x[:])
    for _ in range(times):
        b.tensor_scalar(t[:], t[:], "multiply", 2.0)
    {extra}
    b.dma(y[:], t[:], "output")
'''


def source(tmp_path: Path, extra: str = "pass", reference: str = "2 * x") -> str:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.replace("{extra}", extra).replace("{reference}", reference))
    return str(file)


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["kernel", *args])
    return done.exit_code, done.output


def declare(function: object, **changes: object) -> UserKernel:
    fields: dict = {"inputs": {"x": "m n"}, "outputs": {"y": "m n"}, "sizes": {"m": 4, "n": 8}}
    return kernel(**{**fields, "reference": lambda x: x, **changes})(function)  # type: ignore[arg-type]


def copy_through(b: Builder, x: Tensor, y: Tensor) -> None:
    t = b.scratch(x.shape, x.dtype)
    b.dma(t[:], x[:])
    b.dma(y[:], t[:], "output")


def test_json_report(tmp_path: Path) -> None:
    code, text = run(f"{source(tmp_path)}:double", "trn1", "--shape", "n=256", "--json", "-")
    report = json.loads(text)
    assert code == 0
    assert report["sizes"] == {"m": 128, "n": 256, "times": 1}
    assert report["dma"]["read_bytes"] == report["dma"]["write_bytes"] == 128 * 256 * 2
    assert report["dma"]["bytes_per_descriptor"] == 256 * 2
    assert report["time_ps"] >= report["program_bound_ps"] >= report["problem_bound_ps"] > 0
    assert report["peak_bytes"]["sbuf"][0] == 128 * 256 * 2 + ARCH.memories["sbuf"].reserved
    for row in report["streams"]:
        assert row["busy_ps"] + sum(row["wait_ps"].values()) + row["idle_ps"] == report["time_ps"]
    assert report["passed"]


def test_text_report(tmp_path: Path) -> None:
    code, text = run(source(tmp_path), "trn1")  # the only kernel of the file needs no name
    assert code == 0
    for part in ("double on trn1", "lower bound", "sbuf peak", "engines and queues", "dma", "pass"):
        assert part in text


def test_a_wrong_kernel_is_caught_by_its_numbers(tmp_path: Path) -> None:
    code, text = run(source(tmp_path), "trn1", "--json", "-", "--shape", "times=2")
    assert code == 0  # the small sizes are the declared ones, with one multiplication
    code, text = run(source(tmp_path, reference="3 * x"), "trn1", "--json", "-")
    assert code == 1
    assert not json.loads(text)["passed"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("b.matmul(t[:], t[:], t[:])", r"\[engine-memory\] .*kernel double: .*mine.py:12.*writes only: psum"),
        ("b.dma(y[:, (5, 512)], t[:])", r"\[buffer-bounds\] .*mine.py:12"),
        ("t.sizes", r"mine.py:12: kernel double: AttributeError"),
        ("b.dma(y[:], t[:], 'inptu')", r"mine.py:12: kernel double: .*got role 'inptu'"),
        ("b.dma(y[:], t[:], lanes=99)", r"mine.py:12: kernel double: .*99 lanes, want .* 1 to 16"),
        ("b.scratch((500, 3), 'bf16')", r"mine.py:12: kernel double: .*500 partitions, sbuf has 128"),
        ("return", r"kernel double: never writes y"),
    ],
)
def test_broken_rules_name_the_kernel_and_the_line(tmp_path: Path, extra: str, message: str) -> None:
    code, text = run(source(tmp_path, extra), "trn1")
    assert code == 2
    assert re.search(message, text.replace("\n", "")), text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{file}:doble"], "got kernel 'doble', want FILE.py:NAME; did you mean 'double'"),
        (["{file}x.py:double"], "got no Python file"),
        (["{file}", "--shape", "k=3", "--shape", "tims=2"], "did you mean 'times'"),
        (["{file}", "--shape", "m=x"], "--shape m: got 'x', want a whole number"),
        (["{file}", "--shape", "m"], "--shape m: got no '='"),
        (["{file}", "--shape", "m=0"], "sizes: m: got 0"),
        (["{file}", "--dtype", "bf61"], "did you mean 'bf16'"),
    ],
)
def test_mistakes_of_the_command_line(tmp_path: Path, args: list[str], message: str) -> None:
    file = source(tmp_path)
    filled = [arg.replace("{file}", file) for arg in args]
    code, text = run(filled[0], "trn1", *filled[1:])
    assert code == 2
    assert message in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "mine.py:1: got invalid syntax, want Python"),
        ("x = 1\n1 / 0\n", "mine.py:2: ZeroDivisionError: division by zero"),
        ("x = 1\n", "mine.py: got no kernel, want a function under @kernel"),
    ],
)
def test_files_that_hold_no_kernel(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    code, output = run(f"{file}:double", "trn1")
    assert code == 2
    assert message in output


def test_what_does_not_fit_is_infeasible(tmp_path: Path) -> None:
    code, text = run(f"{source(tmp_path)}:double", "trn1", "--shape", "n=200000")
    assert code == 3
    assert re.search(r"infeasible: .*mine.py:double: sbuf: need 400000 B", text)
    with pytest.raises(Infeasible) as caught:
        compile_kernel(declare(copy_through), ARCH, {"n": 200000})
    assert "kernel copy_through" in caught.value.__notes__[0]
    assert caught.value.shortfall.needed == 400000


def test_declarations_are_checked() -> None:
    with pytest.raises(CompileError) as caught:
        declare(copy_through, inputs={"z": "m q"}, small={"mm": 3}, macs="k")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert all("test_user_kernels.py" in line and "kernel copy_through" in line for line in lines)
    assert "got arguments x, y behind the Builder, want z, y" in lines[0]


def test_macs_must_be_those_declared() -> None:
    with pytest.raises(VerifyError, match=r"has 0 multiply-accumulates, want m \* n = 32"):
        compile_kernel(declare(copy_through, macs="m n"), ARCH)


def test_tensors_may_have_types_of_their_own() -> None:
    def widen(b: Builder, x: Tensor, y: Tensor) -> None:
        t, wide = b.scratch(x.shape, x.dtype), b.scratch(y.shape, y.dtype)
        b.dma(t[:], x[:])
        b.copy(wide[:], t[:])
        b.dma(y[:], wide[:], "output")

    report = time_kernel(declare(widen, outputs={"y": "m n:fp32"}, small={"m": 4}), ARCH)
    assert report.dma.write_bytes == 2 * report.dma.read_bytes == 4 * 8 * 4
    assert report.passed
    assert report.numerics[0].max_abs == 0


def test_software_pipelining_is_given_up_where_it_does_not_fit() -> None:
    """Three tiles late on their queue need four slots; the scratchpad has room for two."""

    def late(b: Builder, x: Tensor, y: Tensor) -> None:
        for row in b.tiles(x.shape[0], 128):
            t = b.scratch((128, x.shape[1]), x.dtype, slots=4)
            b.dma(t[:], x[(row.start, 128), :], lanes=1)
            with b.stage(3):
                b.dma(y[(row.start, 128), :], t[:], "input", lanes=1)

    sizes = {"m": 1024, "n": ARCH.partition_bytes("sbuf") // 2 // 3}
    assert time_kernel(declare(late, small={"m": 512}), ARCH, sizes).passed
