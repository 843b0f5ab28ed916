"""Field cases about architecture files: what users wrote, and what they must be told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arch_configs import ArchError, derived, describe, load_arch, load_arch_text, resolve_text

EDGE = resolve_text(load_arch("edge-npu"))


def refused(text: str) -> tuple[str, ...]:
    with pytest.raises(ArchError) as caught:
        load_arch_text(text, label="arch.yaml")
    return caught.value.problems


def line_of(text: str, part: str) -> int:
    """Number of the last line that contains `part`."""
    return max(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def test_U008_a_bandwidth_needs_its_unit() -> None:
    (problem,) = refused(EDGE.replace("bandwidth: 25.6 GB/s", "bandwidth: 10"))
    assert "memories.dram.bandwidth: got 10, want a bandwidth with a unit, one of: B/s, kB/s" in problem


@pytest.mark.parametrize(
    ("text", "value"),
    [("400 GB/s", 400 * 10**9), ("400 GiB/s", 400 * 2**30), ("2.9 TB/s", 2900 * 10**9)],
)
def test_U008_gb_and_gib_stay_apart(text: str, value: int) -> None:
    assert load_arch("edge-npu", {"memories.dram.bandwidth": text}).dram_bandwidth == value


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("memories.dram.partitions", "4", "got a value, want none: DRAM has no partitions"),
        ("memories.sram.bandwidth", "1 TB/s", "got a value, want none: on chip"),
        ("memories.sram.banks", "2", "got 2, want banks on the accumulator only"),
    ],
)
def test_U008_a_knob_that_would_be_ignored_is_an_error(path: str, value: str, problem: str) -> None:
    with pytest.raises(ArchError, match=re.escape(f"{path}: {problem}")):
        load_arch("edge-npu", {path: value})


def test_U013_the_resolved_array_is_echoed() -> None:
    spec = load_arch("trn1", {"engines.tensor.rows": "200", "engines.tensor.cols": "200"})
    assert derived(spec)["processing_elements"] == 40_000
    assert "array       200 x 200 = 40,000 PEs at 2.8 GHz" in describe(spec)
    assert "rows: 200" in describe(spec)
    assert spec.partitions("sbuf") == 200, "no leftover of the default array"


def test_U013_a_leftover_default_that_cannot_feed_the_array_is_an_error() -> None:
    with pytest.raises(
        ArchError, match=r"engines\.tensor\.rows: got 200, want at most the 128 partitions of sbuf"
    ):
        load_arch("trn1", {"engines.tensor.rows": "200", "memories.sbuf.partitions": "128"})


def test_U034_a_misspelt_key_is_met_with_the_right_one() -> None:
    text = EDGE.replace("{kind: scratchpad, capacity:", "{kind: scratchpad, capacty:")
    found = refused(text)
    where = f"arch.yaml:{line_of(text, 'capacty')}: memories.sram.capacty: got an unknown key"
    assert any(p.startswith(where) and p.endswith("did you mean 'capacity'?") for p in found)
    assert any("memories.sram.capacity: got nothing, want a size" in p for p in found)


def test_U034_a_known_key_in_the_wrong_place_is_told_where_it_belongs() -> None:
    text = EDGE + "queues: 4\n"
    (problem,) = refused(text)
    assert problem.startswith(
        f"arch.yaml:{line_of(text, 'queues: 4')}: queues: got an unknown key, want one of"
    )
    assert problem.endswith("; 'queues' belongs at dma.queues")


def test_U034_a_duplicate_key_is_an_error_with_both_lines() -> None:
    text = EDGE + "cores: 2\n"
    first, second = text.splitlines().index("cores: 1") + 1, line_of(text, "cores: 2")
    assert refused(text) == (
        f"arch.yaml:{second}: cores: got the key twice, want it once; first at arch.yaml:{first}",
    )


@pytest.mark.parametrize(
    "text", ["1.4 GHz", "1400 MHz", "1.4e9 Hz", "1_400_000_000 Hz", "'1.4 GHz'", "1.4e0 GHz"]
)
def test_U068_ways_to_write_a_clock_are_the_same_number(text: str) -> None:
    spec = load_arch_text(EDGE.replace("clock: 1 GHz", f"clock: {text}"))
    assert spec.array.clock == 1_400_000_000


@pytest.mark.parametrize("text", ["1e9", "1.4e9", "1_400_000_000", "'1e9'"])
def test_U068_a_bare_number_is_a_clear_error(text: str) -> None:
    found = refused(EDGE.replace("clock: 1 GHz", f"clock: {text}"))
    assert all("want a frequency with a unit, one of: Hz, kHz, MHz, GHz" in problem for problem in found)
    assert len(found) == 2, "both engines say 1 GHz"


def test_U068_plain_numbers_may_use_an_exponent() -> None:
    assert load_arch_text(EDGE.replace("moving_max: 256", "moving_max: 1e3")).array.moving_max == 1000


def test_U076_an_unknown_schema_version_names_file_line_and_versions() -> None:
    assert load_arch_text("schema: 1\n" + EDGE).name == "edge-npu"
    (problem,) = refused(EDGE + "schema: 0.4\n")
    assert problem.startswith(f"arch.yaml:{line_of(EDGE + 'schema:', 'schema:')}: schema: got 0.4, want 1")


def test_U080_two_memories_of_one_name_are_an_error_with_both_lines(tmp_path: Path) -> None:
    text = EDGE.replace("  acc: {kind", "  sram: {kind")
    first, second = line_of(EDGE, "  sram: {"), line_of(text, "  sram: {")
    path = tmp_path / "two.yaml"
    path.write_text(text)
    with pytest.raises(ArchError) as caught:
        load_arch(str(path))
    assert caught.value.problems == (
        f"{path}:{second}: memories.sram: got the key twice, want it once; first at {path}:{first}",
    )


def test_U080_an_engine_may_not_be_called_as_a_memory() -> None:
    found = refused(EDGE.replace("  simd:\n", "  sram:\n"))
    assert any("engines.sram: got 'sram' for an engine and a memory" in problem for problem in found)
