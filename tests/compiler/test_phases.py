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
TEXTS += ["clip-tiny:pairs,batch=3,seq=11", "clip-tiny:image,batch=2", "clip-tiny:text,batch=2,seq=20"]
TEXTS += ["llava-tiny:prefill,batch=2,seq=29", "llava-tiny:decode,batch=2,context=33"]
TEXTS += ["llava-tiny:chunk,chunk=9,context=20", "llava-tiny:verify,tokens=2,context=30"]
TEXTS += ["whisper-test:encode,batch=2", "whisper-test:prefill,batch=2,seq=5"]
TEXTS += ["whisper-test:decode,batch=3,context=17", "whisper-test:verify,batch=2,tokens=3,context=17"]
TEXTS += ["t5-tiny:encode,batch=2,seq=19", "t5-tiny:prefill,batch=2,seq=5,source=19"]
TEXTS += ["t5-tiny:decode,batch=3,context=17,source=9", "t5-tiny:verify,batch=2,tokens=3,context=17"]
TEXTS += [
    "unet-tiny:batch=1,text=5",
    "unet-tiny:batch=1,guidance=0,latent=4,text=3",
    "vae-tiny:batch=1,latent=4",
    "dit-tiny:batch=1",
    "dit-tiny:batch=3,guidance=0,layers=1,latent=2",
    "sd3-tiny:batch=1,text=5",
    "sd3-tiny:batch=3,guidance=0,layers=1,text=7",
    "flux-tiny:batch=2,latent=6,text=5",
    "flux-tiny:batch=1,latent=4,layers=1,singles=1,text=3",
]
CASES = [(text, turn) for turn, text in enumerate(TEXTS)]


@pytest.mark.parametrize(("model", "turn"), CASES)
def test_a_family_in_each_phase(model: str, turn: int) -> None:
    for arch in (ARCHS[turn % 5], ARCHS[(turn + 2) % 5]):
        spec, graph = load_arch(arch), build(model)
        check_program(graph, compile_graph(graph, spec), spec)
