"""The documents are true where a machine can tell: links, paths, commands, options, names and YAML."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from arch_configs import ArchError, list_archs, load_arch
from compiler.options import CompileOptions
from dse.cli import app
from workloads import build

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
OURS = ("my-core.yaml", "mine.py", "mine.yaml")  # files that a page tells the reader to write
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(page: Path, language: str | None = None) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if language is None or name == language]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[list[str]]:
    """Every `dse ...` line of a fenced block, in words; prompts and comments taken off."""
    lines = [line for text in blocks(page) for line in text.splitlines()]
    starts = (re.sub(r"^(\$ |\.venv/bin/)", "", line) for line in lines)
    return [shlex.split(line, comments=True) for line in starts if re.match(r"dse [a-z]", line)]


def marked(name: str) -> str:
    pattern = rf"<!-- command: {name} -->\n```sh\n(.*?)^```$"
    (text,) = re.findall(pattern, (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_paths_in_the_text_exist(page: Path) -> None:
    spans = re.findall(r"`([\w./-]+/[\w./-]*|[\w/-]+\.(?:py|yaml|md|toml))`", prose(page))
    tops = ("", "arch_configs", "compiler", "eventsim", "docs", "studies")  # pages may leave these out
    unknown = [
        span
        for span in spans
        if not span.startswith("runs/")
        and span not in OURS
        and not any((ROOT / top / span).exists() for top in tops)
        and (span.endswith((".py", ".yaml", ".md", ".toml")) or (ROOT / span.partition("/")[0]).is_dir())
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_their_options_exist(page: Path) -> None:
    spans = [shlex.split(" ".join(s.split())) for s in re.findall(r"`(dse [^`]+)`", prose(page))]
    for words in [*command_lines(page), *spans]:
        name, rest = words[1], words[2:]
        if name.startswith("--"):
            continue
        assert name in COMMANDS, f"{page.name}: no command {name!r}"
        known = {flag for parameter in COMMANDS[name].params for flag in parameter.opts} | {"--help"}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{page.name}: dse {name} {used - known}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_machines_and_workloads_in_commands_exist(page: Path) -> None:
    for words in command_lines(page):
        if words[1] in ("run", "explain", "compile") and words[2] not in ("ARCH", "..."):
            assert words[2] in (*list_archs(), *OURS), words
            build(words[3])


def test_the_readme_has_the_two_commands() -> None:
    setup, check = marked("setup"), marked("test")
    assert (ROOT / "examples/first-sweep.yaml").is_file()
    assert "examples/first-sweep.yaml" in setup
    for text in (setup, check):
        assert "venv" in text, "each works in a fresh clone, alone"
        assert not re.search(r"(?<!&&)\n(?!$)", text), "a failing step fails the command"
    for step in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest"):
        assert step in check
    assert check.rstrip().endswith(" pytest"), "the summary of the tests comes last; another -q would hide it"


def test_the_architecture_of_the_page_is_valid(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs/architecture-files.md", "yaml")
    file = tmp_path / "my-core.yaml"
    file.write_text(text)
    assert load_arch(str(file)).array.rows == 256


def test_the_error_of_the_page_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        "# Source: none",
        "name: my-core",
        "extends: trn2",
        "memories:",
        "  sbuf:",
        "    capacty: 56 MiB",
    ]
    Path("my-core.yaml").write_text("\n".join(lines) + "\n")
    with pytest.raises(ArchError) as caught:
        load_arch("my-core.yaml")
    assert f"error: {caught.value}" in (ROOT / "docs/architecture-files.md").read_text()


def test_every_option_of_the_compiler_has_its_line() -> None:
    page = (ROOT / "docs/compiler.md").read_text()
    table = page[page.index("## Options") :]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) != []
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(CompileOptions.__dataclass_fields__)
