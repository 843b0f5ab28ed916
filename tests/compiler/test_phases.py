"""Small models of each decoder family in each phase: the program gives the result of the graph."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from compiler import compile_graph
from tests.compiler.designs import check_program
from workloads import build

FAMILIES = ("llama", "gemma", "gemma3", "gpt2", "gpt-oss", "moe", "deepseek")
PHASES = (
    "prefill,batch=2,seq=37",
    "decode,batch=3,context=41",
    "chunk,batch=2,chunk=19,context=30",
    "verify,batch=2,tokens=3,context=35",
)
ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu", "trn3")
TEXTS = [f"{f}-tiny:{p}" for f in FAMILIES for p in PHASES if (f, p[:5]) != ("deepseek", "chunk")]
CASES = [(text, turn) for turn, text in enumerate(TEXTS)]


@pytest.mark.parametrize(("model", "turn"), CASES)
def test_a_family_in_each_phase(model: str, turn: int) -> None:
    for arch in (ARCHS[turn % 5], ARCHS[(turn + 2) % 5]):
        spec, graph = load_arch(arch), build(model)
        check_program(graph, compile_graph(graph, spec), spec)
