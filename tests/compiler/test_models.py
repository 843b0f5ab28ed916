"""Whole small models: the program gives the graph's result, in program order and in simulated time."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from compiler import CompileOptions, compile_graph
from tests.compiler.designs import check_program
from workloads import build

MODELS = (
    "llama-tiny:prefill,batch=2,seq=40,dtype={t}",
    "llama-tiny:decode,batch=3,context=70,dtype={t}",
    "llama-tiny:prefill,layers=1,seq=9,dtype={t}",
    "moe-tiny:prefill,batch=2,seq=21,dtype={t}",
    "moe-tiny:decode,batch=5,context=33,routing=skewed,dtype={t}",
    "deepseek-tiny:prefill,batch=2,seq=21,dtype={t}",
    "deepseek-tiny:chunk,chunk=24,context=40,dtype={t}",
    "deepseek-tiny:verify,batch=2,tokens=3,context=40,dtype={t}",
    "deepseek-tiny:decode,batch=3,context=50,dtype={t}",
    "mamba2-tiny:prefill,batch=2,seq=37,dtype={t}",
    "mamba2-tiny:decode,batch=3,dtype={t}",
    "vit-tiny:batch=2,dtype={t}",
    "bert-tiny:batch=2,seq=33,dtype={t}",
    "resnet-tiny:dtype={t}",
)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_compiles_to_its_own_meaning(model: str, dtype: str, arch: str) -> None:
    spec = load_arch(arch)
    if dtype not in spec.array.passes:
        pytest.skip(f"{arch} has no {dtype}")
    graph = build(model.format(t=dtype))
    check_program(graph, compile_graph(graph, spec), spec)


@pytest.mark.parametrize("options", [CompileOptions(pipeline=False), CompileOptions(double_buffer=False)])
def test_options_change_the_time_but_not_the_result(options: CompileOptions) -> None:
    spec, graph = load_arch("edge-npu"), build("llama-tiny:prefill,seq=40")
    check_program(graph, compile_graph(graph, spec, options), spec)
