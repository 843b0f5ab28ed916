"""Python files of users: kernels, and models to be exported."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType

from compiler.errors import CompileError
from compiler.user_kernel import UserKernel
from dse.errors import SpaceError, did_you_mean


def split_target(target: str) -> tuple[str, str]:
    """File and name of `FILE.py:NAME`; the name may be empty."""
    file, colon, name = target.rpartition(":")
    return (target, "") if not colon or name.endswith(".py") else (file, name)


def load_kernel(target: str) -> UserKernel:
    """The kernel of `FILE.py:NAME`; the name may be left out if the file has only one.

    Raises: SpaceError for a file that cannot be run or a kernel that is not there.
    """
    file, name = split_target(target)
    found = {k: v for k, v in vars(run_file(file)).items() if isinstance(v, UserKernel)}
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    if not found:
        raise SpaceError([f"{file}: got no kernel, want a function under @kernel(...)"])
    raise SpaceError([f"{file}: got kernel {name!r}, want FILE.py:NAME{did_you_mean(name, found)}"])


def run_file(file: str) -> ModuleType:
    """Run a Python file under the name it was given, so that messages show that."""
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise SpaceError([f"{file}: got no Python file, want FILE.py:NAME"])
    module = ModuleType(f"kernels of {file}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    try:
        exec(compile(path.read_bytes(), file, "exec"), vars(module))
    except SyntaxError as error:
        raise SpaceError([f"{error.filename}:{error.lineno}: got {error.msg}, want Python"]) from error
    except CompileError as error:  # a declaration, with its place
        raise SpaceError(str(error).splitlines()) from error
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the user's mistake
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        line = f":{frames[-1].lineno}" if frames else ""
        raise SpaceError([f"{file}{line}: {type(error).__name__}: {error}"]) from error
    return module
