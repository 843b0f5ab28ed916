"""How workloads are spelled, and what a wrong spelling gets told."""

import subprocess
import sys

import pytest

import workloads
from workloads import WorkloadError, build, describe, list_workloads


def problem(text):
    with pytest.raises(WorkloadError) as error:
        build(text)
    return str(error.value)


@pytest.mark.parametrize("name", list_workloads())
def test_a_graph_is_named_by_the_full_text_that_builds_it(name):
    graph = build(name)
    assert build(graph.name) == graph


def test_spellings():
    full = "llama-tiny:prefill,layers=2,batch=1,seq=9,dtype=bf16"
    assert build("llama-tiny:prefill,seq=9").name == full
    assert build("llama-tiny:seq=9").name == full  # the first phase is the default
    assert build(" llama-tiny : prefill , seq = 9 ").name == full
    assert build("llama-tiny,seq=9").name == full
    assert build("llama-tiny:prefill,seq=9,tp=1").name == full
    assert build("gemm").name == "gemm:m=1024,n=1024,k=1024,dtype=bf16"
    assert build("attention:causal=false").name == build("attention:causal=0").name


WRONG = {
    "lama3-8b": "workload: got 'lama3-8b'; did you mean 'llama3-8b'?; want a config.json, a .pt2, an",
    "": "workload: got ''",
    "gemm:m=1,q=2": (
        "gemm: q: unknown key; accepted, with defaults: m=1024, n=1024, k=1024, dtype=bf16"
    ),
    "llama3-8b:decode,contxt=4": "contxt: unknown key; did you mean 'context'?; accepted, with defaults: ",
    "llama3-8b:decode,seq=4": "llama3-8b: seq: unknown key",
    "llama3-8b:prefil": "want one of: prefill, decode, chunk, verify; did you mean 'prefill'?",
    "vit-b16:prefill": "vit-b16: phase: got 'prefill', want no phase: there is only one",
    "llama3-8b:batch=1,prefill": "got 'prefill', want key=value (a phase comes first, once)",
    "gemm:m=1.5": "gemm: m: got '1.5', want a whole number, 1 or more",
    "gemm:m=": "gemm: m: got '', want a whole number",
    "gemm:m=0": "gemm: m: got 0, want 1 or more",
    "gemm:m=-4": "gemm: m: got -4, want 1 or more",
    "gemm:m=1,m=2": "gemm: m: given twice",
    "gemm:dtype=f32": "gemm: dtype: got 'f32', want one of: bf16, fp16, fp32, fp8e4, fp8e5",
    "attention:causal=2": "attention: causal: got '2', want 0 or 1",
    "attention:heads=4,kv_heads=3": "attention: kv_heads: got 3, want a divisor of heads=4",
    "conv:groups=3": "conv: groups: got 3, want a divisor of c=64 and k=64",
    "conv:h=2,r=7": "conv: r: got 7, want at most 4: h with padding",
    "llama3-70b:decode,tp=8": "tp: got 8, want 1: splitting over several chips is not available yet",
    "llama3-8b:layers=33": "llama3-8b: layers: got 33, want 1 to 32",
    "vit-b16:image=225": "image: got 225, want a multiple of the patch size 16",
    "bert-base:seq=513": "bert-base: seq: got 513, want 1 to 512",
    "model.gguf": "model.gguf: files of this kind cannot be read; want one of: .json.gz, .pt2, .onnx, .mlir",
    "nowhere/config.json:decode": "nowhere/config.json: cannot be read: No such file",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_texts(text):
    assert WRONG[text] in problem(text)


def test_all_problems_are_told_at_once():
    assert problem("gemm:m=0,mm=1,dtype=x").splitlines() == [
        "gemm: m: got 0, want 1 or more",
        "gemm: mm: unknown key; did you mean 'm'?; "
        "accepted, with defaults: m=1024, n=1024, k=1024, dtype=bf16",
        "gemm: dtype: got 'x', want one of: bf16, fp16, fp32, fp8e4, fp8e5",
    ]  # fmt: skip


def test_describe_lists_phases_keys_and_defaults():
    text = describe("llama3-8b")
    assert "llama3-8b:decode" in text
    assert "context=2048" in text
    assert "causal=True" in describe("attention")


def test_importing_is_light():
    code = "import sys, workloads; print([m for m in ('pandas', 'matplotlib', 'simpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_shipped_config_is_registered():
    from importlib import resources

    files = {f.name.removesuffix(".json") for f in (resources.files(workloads) / "configs").iterdir()}
    assert files == set(workloads.MODELS)
