"""Reading architectures: lines, extends, overrides, and every problem at once."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from arch_configs import ArchError, list_archs, load_arch, load_arch_text, resolve_text

EDGE = resolve_text(load_arch("edge-npu"))
Golden = Callable[[str, str], None]


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems(source: str, overrides: dict[str, str] | None = None) -> str:
    with pytest.raises(ArchError) as caught:
        load_arch(source, overrides)
    return "".join(f"{line}\n" for line in caught.value.problems)


ALL_AT_ONCE = """\
name: broken
extends: edge-npu
schema: 1
bandwith: 3 GB/s
engines:
  array: {rows: 0, clock: 1.4, sbuf_kib: 3}
  simd:
    lanes: many
    ops: {coppy: 1, reduce: -2}
    reads: [sram, akk]
    queues: 4
  extra: {kind: vectr}
memories:
  sram: {capacity: 1 MB/s}
  dram: {capacity: 0 B, bandwidth: 12}
dma: {queues: true, latency: 3 seconds}
exclusions:
  - {engines: [simd, array2], memory: sram}
"""


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("all_at_once", ALL_AT_ONCE),
        ("duplicate_keys", EDGE.replace("  sram: {", "  dram: {kind: dram}\n  sram: {") + "name: again\n"),
        ("not_a_mapping", "- a\n- b\n"),
        ("empty", ""),
        ("tab", "name: x\nengines:\n\tpe: {}\n"),
        ("bad_flow", "name: x\nengines: {pe: [}\n"),
        ("anchor", "name: &n x\ndescription: *n\n<<: {a: 1}\n"),
        ("tag", "name: !!python/object/apply:os.system ['true']\n"),
        ("two_documents", "name: x\n---\nname: y\n"),
        ("deep", "name: " + "[" * 60 + "]" * 60 + "\n"),
        ("list_key", "name: x\n? [a, b]\n: 1\n"),
        ("wrong_version", "schema: 7\nname: x\n"),
        ("no_base", "extends: trn9\nname: x\n"),
        ("no_name", "extends: trn1\n"),
        ("misfits", "name: x\nextends: trn1\nengines: {tensor: {rows: 256}}\n"
                    "memories:\n  sbuf: {partitions: 128, reserved: 24 MiB, banks: 2}\n"
                    "  psum: {capacity: 1 KiB, bandwidth: 1 TB/s}\n"
                    "exclusions:\n- {engines: [vector], memory: sbuf}\n"),
        ("roles", "name: x\nextends: edge-npu\nengines: {simd: null}\nmemories: {acc: {kind: dram}}\n"),
        ("reach", "name: x\nextends: edge-npu\nengines: {simd: {writes: [dram]}, array: {reads: [acc]}}\n"),
        ("wrong_kinds", "name: 3\nextends: edge-npu\nengines: {simd: 4}\nmemories: [sram]\ncores: [1]\n"),
    ],
)  # fmt: skip
def test_error_texts(tmp_path: Path, golden: Golden, case: str, text: str) -> None:
    source = write(tmp_path, "bad.yaml", text)
    golden(f"arch_errors/{case}", problems(source).replace(f"{tmp_path}/", ""))


@pytest.mark.parametrize(
    ("case", "overrides"),
    [
        ("override_unknown", {"engines.tensr.rows": "1", "engines.tensor.row": "1", "engine.pe.rows": "1"}),
        ("override_values", {"engines.tensor.rows": "0", "memories.hbm.capacity": "3", "dma.queues": "many"}),
        ("override_depth", {"engines.tensor.rows.x": "1", "mesh.axes.z.y": "1", "exclusions.7.memory": "a"}),
        ("override_syntax", {"engines.tensor.rows": "[", "": "1", "dma.queues": ""}),
        ("override_place", {"engines.tensor.bandwidth": "1 GB/s", "dma.capacity": "3 MiB"}),
    ],
)  # fmt: skip
def test_override_error_texts(golden: Golden, case: str, overrides: dict[str, str]) -> None:
    golden(f"arch_errors/{case}", problems("trn1", overrides))


def test_unknown_names_and_files(tmp_path: Path, golden: Golden) -> None:
    text = problems("trn") + problems("./nowhere.yaml") + problems(str(tmp_path) + "/")
    golden("arch_errors/sources", text.replace(str(tmp_path), "FOLDER"))


def test_bad_utf8_and_large_files_give_one_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: x\ndescription: caf\xe9\n")
    assert problems(str(path)) == f"{path}:2: got byte 0xe9, want UTF-8 text\n"
    path.write_bytes(b"#" * (2 << 20))
    assert problems(str(path)).startswith(f"{path}:1: got 2097152 bytes, want at most")


def test_line_numbers_name_the_file_a_value_comes_from(tmp_path: Path) -> None:
    text = EDGE.replace("dma: {queues: 2", "dma: {queues: 0")
    base = write(tmp_path, "base.yaml", text)
    heir = write(tmp_path, "heir.yaml", "# comment\n\nname: heir\nextends: ./base.yaml\ncores: 0\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "queues: 0" in row)
    want = "got 0, want a whole number from 1 to"
    assert problems(heir) == f"{base}:{line}: dma.queues: {want} 1024\n{heir}:5: cores: {want} 1048576\n"


def test_extends_merges_deeply_and_null_removes(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.yaml",
        "name: a\nextends: trn1\ndma: {queues: 3}\nengines: {gpsimd: null}\nexclusions: []\n",
    )
    source = write(
        tmp_path,
        "b.yaml",
        "name: b\nextends: a.yaml\nmesh: null\nengines: {tensor: {passes: {int8: null, fp32: 2}}}\n",
    )
    spec, base = load_arch(source), load_arch("trn1")
    assert (spec.name, spec.dma.queues, spec.mesh, spec.exclusions) == ("b", 3, None, ())
    assert spec.description == ""
    assert list(spec.engines) == ["tensor", "vector", "scalar"]
    assert spec.array.passes == {"bf16": 1, "fp16": 1, "fp8e4": 1, "fp8e5": 1, "fp32": 2}
    assert spec.dma.engine_bandwidth == base.dma.engine_bandwidth
    assert spec.memories == base.memories


def test_a_removed_base_entry_does_not_come_back(tmp_path: Path) -> None:
    write(tmp_path, "mid.yaml", "name: mid\nextends: trn2\nengines: {tensor: {ramp: null}}\n")
    source = write(
        tmp_path,
        "top.yaml",
        "name: top\nextends: mid.yaml\nengines: {tensor: {ramp: {start: 1, time: 1 us}}}\n",
    )
    ramp = load_arch(source).array.ramp
    assert ramp is not None
    assert (ramp.start, ramp.time) == (1, 10**6)


def test_extends_in_a_circle_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "name: a\nextends: ./b.yaml\n")
    source = write(tmp_path, "b.yaml", "name: b\nextends: ./sub/../a.yaml\n")
    (tmp_path / "sub").mkdir()
    assert "extends: got a circle" in problems(source)
    own = write(tmp_path, "own.yaml", "name: own\nextends: own.yaml\n")
    assert problems(own).startswith(f"{own}:2: extends: got a circle")


def test_a_base_beside_the_file_needs_a_path(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", EDGE)
    source = write(tmp_path, "heir.yaml", "name: heir\nextends: base\n")
    assert "did you mean './base.yaml'?" in problems(source)


def test_overrides_reach_what_the_file_leaves_out() -> None:
    spec = load_arch(
        "trn1",
        {
            "memories.sbuf.partitions": "128",
            "engines.vector.ops.copy.narrow": "1/2",
            "engines.vector.ops.select": "3",
            "engines.tensor.passes.int32": "8",
            "mesh.axes.z": "2",
            "exclusions.1.memory": "sbuf",
            "dma.queue_bandwidth": "null",
        },
    )
    assert spec.memories["sbuf"].partitions == 128
    assert (spec.vectors["vector"].ops["copy"].base, spec.vectors["vector"].ops["copy"].narrow) == (1, 0.5)
    assert spec.vectors["vector"].ops["select"].base == 3
    assert spec.array.passes["int32"] == 8
    assert spec.mesh is not None
    assert spec.mesh.axes == {"x": 4, "y": 4, "z": 2}
    assert spec.exclusions[1].memory == "sbuf"
    assert spec.dma.queue_bandwidth is None
    assert load_arch("trn1", {"exclusions": "[]", "mesh": "null"}).exclusions == ()


@pytest.mark.parametrize(
    ("text", "value"), [("off", "off"), ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("0x10", "0x10")]
)
def test_words_stay_words(text: str, value: str) -> None:
    assert load_arch_text(EDGE + "", overrides={"description": text}).description == value


def test_arch_error_survives_pickling() -> None:
    error = ArchError(["a:1: x", "a:2: y", "a:1: x"])
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == error.problems == ("a:1: x", "a:2: y")
    assert str(again) == "a:1: x\na:2: y"


def test_loading_is_fast() -> None:
    load_arch("inf2")
    best = min(_timed() for _ in range(5))
    assert best < 0.03, f"{best * 1e3:.1f} ms for a chain of two files"


def _timed() -> float:
    start = time.perf_counter()
    load_arch("inf2")
    return time.perf_counter() - start


def test_list_is_sorted_and_complete() -> None:
    names = list_archs()
    assert list(names) == sorted(names)
    assert {"trn1", "trn2", "trn3", "inf2", "tpu-v4i-like", "tpu-v5e", "edge-npu"} <= set(names)
