"""Programs and times of a fixed corpus: a change that means to move no number moves none.

A change that does move them regenerates the file (`pytest tests/test_replay.py --update-golden`) and says
in its commit why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from arch_configs import load_arch
from compiler import compile_graph
from compiler.ir.text import print_program
from eventsim import simulate
from workloads import build

CORPUS = (
    ("trn1", "gemm:m=4096,k=8192,n=8192"),
    ("trn2", "gemm:m=2048,k=2048,n=2048"),
    ("edge-npu", "gemm:m=131,k=257,n=67"),
    ("trn1", "llama3-8b:prefill,batch=1,seq=2048"),
    ("trn2", "llama3-8b:decode,batch=8,context=2048"),
    ("trn2", "vit-b16:batch=8"),
    ("tpu-v5e", "bert-base:batch=8,seq=384"),
    ("edge-npu", "resnet50:batch=1"),
)


def test_replay(golden: Callable[[str, str], None]) -> None:
    rows = {}
    for arch_name, workload in CORPUS:
        arch, graph = load_arch(arch_name), build(workload)
        program = compile_graph(graph, arch)
        trace = simulate(program, arch)
        digest = hashlib.sha256(print_program(program).encode()).hexdigest()[:16]
        rows[f"{arch_name} {workload}"] = {"program": digest, "time_ps": trace.time_ps, "macs": graph.macs}
    golden("replay", json.dumps(rows, indent=1) + "\n")
