"""`.ci/run` runs what the README says, and fails when that fails. Tried on a small stand-in tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = """# x
<!-- command: setup -->
```bash
echo made > made.txt
```
<!-- command: test -->
```bash
cat made.txt tracked.txt
echo "3 passed in 0.1s"
{last}
```
"""


def run(folder: Path, readme: str) -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / "README.md").write_text(readme)
    (folder / "tracked.txt").write_text("tracked\n")
    (folder / ".gitignore").write_text("ignored.txt\n")
    (folder / "ignored.txt").write_text("ignored\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return subprocess.run([str(folder / ".ci" / "run")], capture_output=True, text=True, check=False, cwd="/")


def test_commands_of_the_readme_run_in_a_copy_and_the_summary_is_last(tmp_path: Path) -> None:
    done = run(tmp_path, README.format(last="ls; echo done"))
    assert done.returncode == 0, done.stderr
    assert "made\ntracked\n" in done.stdout
    assert "ignored.txt" not in done.stdout
    assert done.stdout.splitlines()[-1] == "3 passed in 0.1s"
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.parametrize("last", ["false", "exit 3"])
def test_a_failing_command_fails_the_run(tmp_path: Path, last: str) -> None:
    done = run(tmp_path, README.format(last=last))
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "3 passed in 0.1s"


def test_a_missing_marker_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, README.replace("command: test", "other"))
    assert done.returncode == 2
    assert "README.md: got no fenced block behind the marker of 'check'" in done.stderr
