"""What the compiler does not do, it says."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from compiler import CompileError, compile_graph
from workloads import build


def test_a_causal_sequence_of_too_many_chunks_is_refused_at_once() -> None:
    graph = build("attention:prefill,seq=1000000,heads=2,kv_heads=2,causal=1")
    with pytest.raises(CompileError, match="got 1000000 positions, want at most 262144"):
        compile_graph(graph, load_arch("trn2"))
