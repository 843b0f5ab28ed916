"""Places to write to: looked at before the work begins, and named when writing fails all the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dse.errors import SpaceError

STDOUT = "-"


def file_problem(flag: str, target: str) -> str | None:
    """Why no file can be written at `target`, as a line; None if nothing speaks against it."""
    where, path = f"{flag} {target!r}", Path(target)
    if not target:
        return f"{flag}: got an empty text, want a file"
    if path.is_dir():
        return f"{where}: got a folder, want a file"
    if path.exists():
        return (
            None if os.access(path, os.W_OK) else f"{where}: got a file that cannot be written, want another"
        )
    if not path.parent.is_dir():
        return f"{where}: got no folder {str(path.parent)!r}, want a file in a folder that exists"
    return _refusal(where, path.parent)


def folder_problem(flag: str, folder: Path) -> str | None:
    """Why `folder` cannot be written to, or made, as a line; None if nothing speaks against it."""
    where = f"{flag} {str(folder)!r}"
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{where}: got the file {str(nearest)!r}, want a folder"
    return _refusal(where, nearest)


def _refusal(where: str, folder: Path) -> str | None:
    """Permissions do not say everything (read-only disks, /proc): try a file without a name."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{where}: got {error.strerror} in {str(folder)!r}, want a place that can be written"


@contextmanager
def writing(flag: str, target: object) -> Iterator[None]:
    """A disk that is full, or a place that is gone, is one line that names it."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has gone: that is no mistake
    except OSError as error:
        got = error.strerror or error
        raise SpaceError([f"{flag} {str(target)!r}: got {got}, want a place that can be written"]) from error


def write_each(*writers: Callable[[], object]) -> None:
    """Call all of them, so that one place that cannot be written does not cost the others their output.

    Raises: SpaceError with the problems of all.
    """
    problems: list[str] = []
    for write in writers:
        try:
            write()
        except SpaceError as error:
            problems += error.problems
    if problems:
        raise SpaceError(problems)
