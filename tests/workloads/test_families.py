"""Every family, small: each phase runs on every kind of machine, and the audit passes."""

import pytest

from dse.evaluation import evaluate
from dse.point import Point

TINY = (
    "llama-tiny:verify,batch=2,tokens=3,context=40",
    "llama-tiny:chunk,batch=2,chunk=24,context=40",
    "gemma3-tiny:decode,batch=2,context=70",
    "gpt-oss-tiny:prefill,seq=70",
    "gpt-oss-tiny:decode,batch=2,context=70,routing=skewed",
    "gpt-oss-tiny:chunk,chunk=24,context=70",
    "gpt-oss-tiny:verify,tokens=3,context=70",
    "gpt2-tiny:decode,batch=2,context=30",
    "moe-tiny:prefill,batch=2,seq=24,routing=skewed",
    "moe-tiny:decode,batch=3,context=40",
    "deepseek-tiny:prefill,seq=40",
    "deepseek-tiny:decode,batch=2,context=40,routing=skewed",
    "deepseek-tiny:verify,batch=2,tokens=3,context=40",
    "deepseek-tiny:chunk,batch=2,chunk=24,context=40",
    "mamba2-tiny:prefill,batch=2,seq=40",
    "mamba2-tiny:decode,batch=2",
)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "trn3", "tpu-v5e", "edge-npu"])
@pytest.mark.parametrize("workload", TINY)
def test_small_models_run_everywhere(workload, arch):
    record = evaluate(Point(arch, workload))
    assert record["status"] == "ok"
    assert record["audit"]
    assert all(record["audit"].values()), record["audit"]


@pytest.mark.parametrize(
    ("workload", "arch"),
    [("deepseek-v3:decode,layers=1", "tpu-v5e"), ("mixtral-8x7b:decode,layers=2", "edge-npu")],
)
def test_what_does_not_fit_is_told_with_the_shortfall(workload, arch):
    record = evaluate(Point(arch, workload))
    assert record["status"] == "infeasible"
    assert record["reason"]["code"] == "dram-capacity"
    assert record["reason"]["needed"] > record["reason"]["available"]
