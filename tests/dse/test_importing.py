"""`dse import torch`; what needs torch itself is tested where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.dse.test_cli import dse
from workloads import build

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def blocks():
    layers = nn.Sequential(*(Block() for _ in range(3)))
    return layers, (torch.zeros(1, 32, 64, dtype=torch.bfloat16),)


def rows():
    module, args = blocks()
    return module, args, {}, {"input": {1: torch.export.Dim("rows", min=2, max=512)}}


def wrong():
    return Block()
"""
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("jax", "mine.py:f", "-o", "a.pt2"), "got 'jax', want torch"),
        (("torch", "mine.py:f", "-o", "a.txt"), "want a name that ends in .json.gz or .pt2"),
        (("torch", "mine.py:f", "-o", "a.pt2", "--dtype", "bf8"), "--dtype: got 'bf8', want one of fp32"),
        (("torch", "mine.py:f", "-o", "none/a.pt2"), "got no folder 'none'"),
    ],
)
def test_a_mistake_is_found_before_torch_is_asked(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = dse("import", *arguments)
    assert code == 2
    assert out == ""
    assert message in err


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_the_extra_is_named(model: Path, tmp_path: Path) -> None:
    code, _, err = dse("import", "torch", f"{model}:blocks", "-o", str(tmp_path / "a.pt2"))
    assert code == 2
    assert "pip install 'accel-dse[torch]'" in err
    assert not (tmp_path / "a.pt2").exists()


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize("name", ["model.json.gz", "model.pt2"])
def test_a_model_becomes_a_workload(model: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    code, out, err = dse("import", "torch", f"{model}:blocks", "-o", str(file), "--dtype", "bf16")
    assert code == 0, err
    graph = build(str(file))
    assert f"{graph.macs:,} MACs" in out
    assert graph.macs == 3 * 2 * 32 * 64 * 256
    assert graph.kind_bytes("weight") == 2 * 3 * (2 * 64 * 256 + 64 + 256 + 2 * 64)


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_symbols_that_are_left_open_are_told(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.json.gz"
    code, out, _ = dse("import", "torch", f"{model}:rows", "-o", str(file), "--dtype", "bf16")
    assert code == 0
    assert "note: " in out
    assert "axis 1 of input" in out


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize(
    ("name", "message"), [("wrong", "want a tuple (module, args)"), ("block", "got function 'block'")]
)
def test_what_is_no_model_is_one_line(model: Path, tmp_path: Path, name: str, message: str) -> None:
    code, _, err = dse("import", "torch", f"{model}:{name}", "-o", str(tmp_path / "a.pt2"))
    assert code == 2
    assert message in err
