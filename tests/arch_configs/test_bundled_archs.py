"""The architectures that come with the package, against published figures and the schema."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from strategies import archs, random_arch, random_arch_yaml

import arch_configs
from arch_configs import (
    ArchSpec,
    derived,
    describe,
    json_schema,
    list_archs,
    load_arch,
    load_arch_text,
    resolve_text,
)
from arch_configs.document import parse

FOLDER = Path(arch_configs.__file__).parent


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [  # vendors' figures per core, as published (rounded by them)
        ("trn1", "bf16", 92), ("trn1", "fp32", 23), ("trn2", "bf16", 79), ("trn2", "fp32", 20),
        ("trn3", "bf16", 79), ("tpu-v4i-like", "bf16", 138), ("tpu-v5e", "bf16", 197),
    ],
)  # fmt: skip
def test_peaks_are_the_published_ones(name: str, dtype: str, tflops: int) -> None:
    assert round(load_arch(name).peak_flops(dtype) / 1e12) == tflops


@pytest.mark.parametrize(
    ("name", "partition_kib", "reserved_kib", "dma_gb_per_s"),
    [("trn1", 192, 16, 272), ("trn2", 224, 16, 368), ("trn3", 256, 16, 528)],
)
def test_trainium_memories_and_dma(
    name: str, partition_kib: int, reserved_kib: int, dma_gb_per_s: int
) -> None:
    spec = load_arch(name)
    assert spec.partitions("sbuf") == spec.partitions("psum") == 128
    assert spec.partition_bytes("sbuf") == (partition_kib - reserved_kib) * 1024
    assert spec.bank_bytes("psum") == 2048
    assert spec.dma.engines * spec.dma.engine_bandwidth == dma_gb_per_s * 10**9


def test_intensity_knee_of_trn1_is_what_its_profiler_reports() -> None:
    spec = load_arch("trn1")
    assert spec.peak_flops("bf16") / spec.dram_bandwidth == pytest.approx(223.78, abs=0.01)


def test_exclusions_are_of_the_first_generation_only() -> None:
    pairs = [(rule.engines, rule.memory) for rule in load_arch("trn1").exclusions]
    assert pairs == [(("vector", "gpsimd"), "sbuf"), (("vector", "scalar"), "psum")]
    assert load_arch("trn2").exclusions == load_arch("trn3").exclusions == ()


@pytest.mark.parametrize("name", list_archs())
def test_every_value_has_a_source(name: str) -> None:
    """Each line with a value is commented, unless the whole file says that all is assumed."""
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert re.match(r"# .+", lines[0])
    if any("Every value is assumed" in line for line in lines[:2]):
        return
    told = re.compile(
        r"\s*(name|extends|description|kind|reads|writes|topology)\b.*"
    )  # structure, not numbers
    inherited = False  # a comment behind `ops:` speaks for all of its entries
    for line in lines:
        value = line.partition(":")[2].strip()
        if value.startswith("#"):
            inherited = True
        elif value and not inherited and "#" not in line and not told.fullmatch(line):
            pytest.fail(f"{name}.yaml: no source: {line}")
        elif not value:
            inherited = False


@pytest.mark.parametrize("name", list_archs())
def test_resolved_text_reads_back_equal(name: str) -> None:
    spec = load_arch(name)
    assert load_arch_text(resolve_text(spec)) == spec
    assert load_arch_text(describe(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert json.loads(json.dumps(spec.canonical())) == spec.canonical()
    json.dumps(derived(spec))


@given(spec=archs())
@settings(max_examples=40, deadline=None)
def test_random_archs_read_back_equal_and_are_consistent(spec: ArchSpec) -> None:
    assert load_arch_text(resolve_text(spec)) == spec
    for memory in ("pad", "acc"):
        assert spec.partition_bytes(memory) * spec.partitions(memory) <= spec.memories[memory].capacity
    assert spec.array.rows <= spec.partitions("pad")
    assert spec.array.cols <= spec.partitions("acc")
    expected = 2 * spec.array.rows * spec.array.cols * spec.array.units * spec.array.clock
    assert spec.peak_flops("bf16") == expected
    assert spec.peak_flops("int32") == 0


def test_random_archs_are_reproducible_and_varied() -> None:
    assert random_arch_yaml(random.Random(3)) == random_arch_yaml(random.Random(3))
    specs = [random_arch(random.Random(seed)) for seed in range(200)]
    assert any(s.array.rows != s.array.cols for s in specs)
    assert any(s.dma.queues == 1 and s.memories["acc"].banks == 1 for s in specs)
    assert any(s.exclusions for s in specs)
    assert {len(s.vectors) for s in specs} == {1, 2, 3}
    assert min(s.memories["pad"].capacity for s in specs) == 32 * 1024
    assert all(any(op in v.ops for v in s.vectors.values()) for s in specs for op in ("reduce", "activate"))


def test_ratios_are_exact() -> None:
    spec = load_arch("trn1", {"engines.vector.ops.copy": "1/3", "engines.vector.ops.reduce": "0.1"})
    assert spec.vectors["vector"].ops["copy"].base == Fraction(1, 3)
    assert spec.vectors["vector"].ops["reduce"].base == Fraction(1, 10)


TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "object": (dict,), "array": (list,),
}  # fmt: skip


def accepts(schema: dict, value: object, top: dict) -> bool:
    """The part of JSON Schema that ours uses, by its specification."""
    if "$ref" in schema:
        return accepts(top["$defs"][schema["$ref"].rpartition("/")[2]], value, top)
    wanted = schema.get("type", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    if names and not any(
        isinstance(value, TYPES[n]) and (n == "boolean" or value is not True) for n in names
    ):
        return False
    checks = [
        "anyOf" not in schema or any(accepts(option, value, top) for option in schema["anyOf"]),
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "minimum" not in schema or not isinstance(value, int) or value >= schema["minimum"],
        "maximum" not in schema or not isinstance(value, int) or value <= schema["maximum"],
        "pattern" not in schema or not isinstance(value, str) or bool(re.search(schema["pattern"], value)),
    ]
    if isinstance(value, list):
        checks += [accepts(schema.get("items", {}), item, top) for item in value]
    if isinstance(value, dict):
        others = schema.get("additionalProperties", True)
        for key, item in value.items():
            known = schema.get("properties", {}).get(key)
            rule = known if known is not None else others
            checks.append(rule if isinstance(rule, bool) else accepts(rule, item, top))
            checks.append(accepts(schema.get("propertyNames", {}), key, top))
    return all(checks)


@pytest.mark.parametrize("name", list_archs())
def test_json_schema_accepts_our_files_and_refuses_broken_ones(name: str) -> None:
    schema = json_schema()
    tree = parse((FOLDER / f"{name}.yaml").read_bytes(), name).plain()
    assert isinstance(tree, dict)
    assert accepts(schema, tree, schema)
    assert not accepts(schema, {**tree, "bandwith": "1 GB/s"}, schema)
    assert not accepts(schema, {**tree, "cores": 0}, schema)
    assert not accepts(schema, {**tree, "schema": 2}, schema)
    assert not accepts(schema, {**tree, "memories": {"hbm": {"capacity": "3 GB/s"}}}, schema)
    assert not accepts(schema, {**tree, "engines": {"tensor": {"rows": 128, "lanes": 4}}}, schema)
    assert not accepts(schema, {**tree, "engines": {"vector": {"ops": {"coppy": 1}}}}, schema)


@given(spec=archs())
@settings(max_examples=20, deadline=None)
def test_json_schema_accepts_random_archs(spec: ArchSpec) -> None:
    schema = json_schema()
    assert accepts(schema, parse(resolve_text(spec), "random").plain(), schema)


def test_import_is_light() -> None:
    """Reading an architecture must not pull in numpy, pandas or matplotlib."""
    code = (
        "import sys, arch_configs; print([m for m in ('numpy', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER.parent
    )
    assert done.stdout.strip() == "[]"
