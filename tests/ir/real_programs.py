"""Compiled programs for the tests that edit them: small, of every kind of kernel, on four machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from arch_configs import load_arch
from arch_configs.spec import ArchSpec
from compiler import compile_graph
from compiler.ir.graph import Graph
from compiler.isa import Program
from workloads import build

ARCHS = ("trn1", "trn2", "tpu-v5e", "edge-npu")
WORKLOADS = {
    "gemm": "gemm:m=40,k=300,n=600,dtype=bf16",
    "attention": "attention:batch=1,heads=2,kv_heads=1,seq=40,head_dim=16,causal=1,dtype=bf16",
    "decode": "attention:decode,batch=2,heads=4,kv_heads=2,context=60,head_dim=16,dtype=bf16",
    "layernorm": "layernorm:rows=150,cols=64,dtype=bf16",
    "softmax": "softmax:rows=150,cols=48,dtype=bf16",
    "conv": "conv:n=1,c=8,k=10,h=9,w=9,r=3,s=3,stride=1,padding=1,dtype=bf16",
}
MORE = (("trn2", "llama-tiny:decode,context=40"), ("trn2", "gemm:m=40,k=300,n=64,dtype=fp8e4"))


@dataclass(frozen=True, eq=False)
class Case:
    """A compiled program and where it came from."""

    name: str
    arch: ArchSpec
    graph: Graph
    program: Program


@lru_cache
def small() -> tuple[Case, ...]:
    """Every workload on every machine."""
    return tuple(_case(arch, f"{name} on {arch}", text) for arch in ARCHS for name, text in WORKLOADS.items())


@lru_cache
def more() -> tuple[Case, ...]:
    """A gather, and a type of half a pass."""
    return tuple(_case(arch, f"{text} on {arch}", text) for arch, text in MORE)


def _case(arch_name: str, name: str, text: str) -> Case:
    arch, graph = load_arch(arch_name), build(text)
    return Case(name, arch, graph, compile_graph(graph, arch))
