"""Kernels of users in whole models."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse import Point, evaluate
from dse.evaluation import point_id, resolve
from dse.numerics import numerics
from tests.dse.test_cli import dse

FLASH = "attention=examples/kernels/attention.py:flash"
SOFTMAX = """
import numpy as np
from compiler.user_kernel import Builder, Tensor, kernel

@kernel(inputs={"x": "m n"}, outputs={"y": "m n"}, sizes={"m": 64, "n": 64}, reference=lambda x: x)
def rows(b: Builder, x: Tensor, y: Tensor) -> None:
    for r in b.tiles(x.shape[0], 128):
        t = b.scratch((r.size, x.shape[1]), x.dtype)
        low, total = b.scratch((r.size, 1), "fp32"), b.scratch((r.size, 1), "fp32")
        e = b.scratch((r.size, x.shape[1]), "fp32")
        b.dma(t[:], x[(r.start, r.size), :])
        b.reduce(low[:], t[:], "max")
        b.tensor_scalar(low[:], low[:], "multiply", -1.0)
        b.activate(e[:], t[:], "exp", bias=low[:], accumulate=total[:])
        b.tensor_scalar(t[:], e[:], "divide", total[:])
        b.dma(y[(r.start, r.size), :], t[:], "output")
"""


def point(workload: str, *kernels: str, arch: str = "trn2") -> Point:
    return Point(arch, workload, options=(("kernels", ",".join(kernels)),))


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e"])
@pytest.mark.parametrize("workload", ["llama-tiny:prefill,seq=150", "vit-tiny:batch=2"])
def test_flash_attention_of_the_example_serves_whole_models(arch: str, workload: str) -> None:
    ours = point(workload, FLASH, arch=arch)
    assert all(item.passed for item in numerics(ours))
    record = evaluate(ours)
    assert record["status"] == "ok"
    assert all(record["audit"].values())
    kinds = {op["op"]: op["kind"] for op in record["ops"]}
    assert "" not in kinds.values()
    assert {kind for name, kind in kinds.items() if name.endswith(".attention") and " " not in name} == {
        "custom"
    }


def test_a_kernel_replaces_one_op_by_its_name_or_all_of_a_kind() -> None:
    def custom(text: str) -> list[str]:
        graph = resolve(point("llama-tiny:prefill", text))[1]
        return [node.name for node, _ in graph.walk() if node.op.kind == "custom"]

    named = FLASH.replace("attention=", "layer.attention=")
    assert custom(named) == custom(FLASH) == ["layer.attention"]


def test_another_text_of_the_kernel_is_another_design(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOFTMAX)
    ours = point("softmax:rows=70,cols=100", f"softmax={file}:rows")
    first = point_id(ours)
    assert evaluate(ours)["status"] == "ok"
    assert all(item.passed for item in numerics(ours))
    file.write_text(SOFTMAX + "\n# slower\n")
    assert point_id(ours) != first


def test_a_kernel_with_other_results_is_caught_by_numerics(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOFTMAX.replace('"divide", total[:]', '"multiply", 2.0'))
    code, _, _ = dse(
        "compile", "trn2", "softmax:rows=70,cols=100", "--kernel", f"softmax={file}:rows", "--numerics"
    )
    assert code == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention", "got no '=', want OP=FILE.py:NAME"),
        ("atention=x.py:f", "got no op 'atention' in the model; did you mean 'attention'"),
        ("attention=none.py:f", "none.py: got no Python file"),
        ("attention=examples/kernels/attention.py:flush", "did you mean 'flash'"),
        ("layer.attn_norm=examples/kernels/attention.py:flash", "want q, k, v and 1 of the kernel"),
        ("rope=examples/kernels/nki_matmul.py:basic", "got operands x, cos, sin and 1 results of rope"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_one_line(text: str, message: str) -> None:
    code, out, err = dse("run", "trn2", "llama-tiny:prefill", "--kernel", text)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("error: ")


def test_a_broken_rule_is_the_users_mistake(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOFTMAX.replace('b.scratch((r.size, 1), "fp32"), b', 'b.scratch((200, 1), "fp32"), b'))
    code, _, err = dse("run", "trn2", "softmax:rows=300,cols=100", "--kernel", f"softmax={file}:rows")
    assert code == 2, err
    assert "error: " in err


def test_the_text_of_a_graph_shows_whose_kernel_it_is() -> None:
    code, out, _ = dse("compile", "trn2", "llama-tiny:prefill", "--kernel", FLASH, "--dump", "graph")
    assert code == 0
    assert "attention.custom(" in out
