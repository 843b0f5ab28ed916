"""The import arrows between the roots hold, and the contract really forbids something."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINTER = "from importlinter.cli import lint_imports_command as run; run()"


def lint(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in its own process: it changes the path and caches modules."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LINTER, "--no-cache", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_contract_of_the_project_is_kept() -> None:
    done = lint(folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_an_import_against_the_arrows_is_found(tmp_path: Path) -> None:
    for root, line in (("low", "import high\n"), ("high", "")):
        (tmp_path / root).mkdir()
        (tmp_path / root / "__init__.py").write_text(line)
    (tmp_path / "pyproject.toml").write_text(
        textwrap.dedent(
            """
            [tool.importlinter]
            root_packages = ["low", "high"]

            [[tool.importlinter.contracts]]
            name = "layers"
            type = "layers"
            layers = ["high", "low"]
            """
        )
    )
    done = lint(folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "low is not allowed to import high" in done.stdout
