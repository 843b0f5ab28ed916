"""Fixtures that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# NOTE: pytest puts tests/ on the path, whose folders have the names of our roots; the roots come first.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden from what the code says now"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("folder/name", text)`: text equals tests/golden/folder/name.txt; a missing file fails."""
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no {path}; run pytest --update-golden and read what it wrote"
        assert text == path.read_text(encoding="utf-8")

    return check
