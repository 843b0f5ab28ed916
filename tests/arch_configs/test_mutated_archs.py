"""Damaged files: each is either still valid or gives one clear error that names file and line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from strategies import random_arch_yaml

from arch_configs import ArchError, load_arch, load_arch_text, resolve_text

SEEDS = 300
WHERE = re.compile(r"^broken\.yaml:[0-9]+: .*(got|want)")
JUNK = (
    "\t",
    "\x00",
    "{",
    "}",
    "[",
    "]",
    ":",
    "- ",
    "&a ",
    "*a",
    "<<: ",
    "!!python/name:os ",
    "'",
    '"',
    "#",
    "é",
    "\x85",
)
VALUES = (
    "-1", "0", "null", "true", "off", "1e9", "1e400", "12:30", "2024-01-01", ".inf", ".nan", "9" * 60, "0x10",
    "10", "10 GB", "10 GiB/s", "-3 GHz", "0 B", "1e30 GB", "0.3 ps", "''", "[]", "{}", "[1, 2]", "{a: 1}",
    "1/0", "3/2", "sbuff", "systolik", "65537",
)  # fmt: skip


def _structure(rng: random.Random, lines: list[str]) -> None:
    """Drop, repeat, move or indent a line."""
    at = rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    else:
        lines[at] = " " * rng.randrange(6) + lines[at].lstrip()


def _value(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    key = lines[at].split(":")[0]
    lines[at] = f"{key}: {rng.choice(VALUES)}"


def _key(rng: random.Random, lines: list[str]) -> None:
    """Misspell a key by one character."""
    at = rng.randrange(len(lines))
    key, colon, rest = lines[at].partition(":")
    place = rng.randrange(len(key) + 1)
    lines[at] = key[:place] + rng.choice("abcxyz_") + key[place + rng.randrange(2) :] + colon + rest


def _characters(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    place = rng.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + rng.choice(JUNK) + lines[at][place:]


def mutated(seed: int) -> str:
    """A valid file with one to three changes."""
    rng = random.Random(seed)
    text = (
        resolve_text(load_arch(rng.choice(("trn1", "edge-npu")))) if seed % 3 == 0 else random_arch_yaml(rng)
    )
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        rng.choice((_structure, _value, _key, _characters))(rng, lines)
    return "\n".join(lines) + "\n"


def problems(text: str) -> tuple[str, ...] | None:
    """The problems of a text; None if it is valid. Any other exception is a failure."""
    try:
        load_arch_text(text, label="broken.yaml")
    except ArchError as error:
        return error.problems
    return None


@pytest.mark.parametrize("start", range(0, SEEDS, 100))
def test_mutated_files_give_located_errors_and_never_crash(start: int) -> None:
    refused = 0
    for seed in range(start, start + 100):
        text = mutated(seed)
        found = problems(text)
        if found is not None:
            refused += 1
            assert found, text
            assert all(WHERE.match(problem) for problem in found), (seed, found, text)
    assert refused > 50, "the mutations do not break enough to test anything"


def test_truncated_bytes_never_crash(tmp_path: Path) -> None:
    path = tmp_path / "cut.yaml"
    data = resolve_text(load_arch("trn2")).encode()
    rng = random.Random(7)
    for _ in range(60):
        path.write_bytes(data[: rng.randrange(len(data))] + bytes(rng.randrange(256) for _ in range(3)))
        with pytest.raises(ArchError, match=r"cut\.yaml:[0-9]+: "):
            load_arch(str(path))
