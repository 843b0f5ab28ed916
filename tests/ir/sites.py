"""Which statements of a checker report a fault, and which of them an error came from."""

from __future__ import annotations

import ast
import inspect
import traceback
from collections.abc import Iterable
from types import ModuleType


def missed(module: ModuleType, errors: Iterable[BaseException]) -> list[tuple[int, str]]:
    """(line, text) of the statements of `module` that report something, but from which no error came."""
    frames = [frame for error in errors for frame in traceback.extract_tb(error.__traceback__)]
    lines = {frame.lineno or 0 for frame in frames if frame.filename == module.__file__}
    text = inspect.getsource(module)
    found = []
    for node in ast.walk(ast.parse(text)):
        if reports(node):
            assert isinstance(node, ast.Call | ast.Raise)
            if not lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
                found.append((node.lineno, text.splitlines()[node.lineno - 1].strip()))
    return found


def reports(node: ast.AST) -> bool:
    """`place.fail(...)`, or any raise but of what cannot happen."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "fail"
    return isinstance(node, ast.Raise) and "AssertionError" not in ast.dump(node)
