"""Rewrites of the graph, by name."""

from __future__ import annotations

from compiler.passes.absorb_latent import AbsorbLatent
from compiler.passes.base import Pass, read_pass, run_pipeline
from compiler.passes.canonicalize import Canonicalize
from compiler.passes.dce import Dce
from compiler.passes.fuse_elementwise import FuseElementwise
from compiler.passes.fuse_epilogue import FuseEpilogue
from compiler.passes.fuse_gate import FuseGate
from compiler.passes.fuse_norm import FuseNorm
from compiler.passes.split_contraction import SplitContraction

PASSES: dict[str, type[Pass]] = {
    step.name: step
    for step in (
        Canonicalize,
        Dce,
        AbsorbLatent,
        FuseNorm,
        FuseGate,
        FuseEpilogue,
        FuseElementwise,
        SplitContraction,
    )
}


def parse_pass(text: str) -> Pass:
    """The pass spelled `name` or `name{option=value,...}`: what `str(pass)` prints."""
    return read_pass(text, PASSES)


__all__ = ["PASSES", "Pass", "parse_pass", "run_pipeline"]
