"""Content digests: canonical text of a value, and sha256 of it."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib import resources
from importlib.metadata import version

DIGEST_CHARS = 16  # 64 bits: for a million points the chance of a collision is below 1e-7
MODEL_ROOTS = ("arch_configs", "compiler", "eventsim", "workloads")
# Modules of dse that can change a record, but for its label, which is made anew when it is read.
MODEL_MODULES = ("costs", "custom", "evaluation", "extrapolation", "result", "roles", "roofline", "summary")
ENGINE_PACKAGES = ("simpy",)  # third parties whose rules the result follows


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest_text(text: str) -> str:
    """Short sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def digest_json(value: object) -> str:
    """Short sha256 of the canonical JSON of plain data."""
    return digest_text(canonical_json(value))


def digest_value(value: object) -> str:
    """Short sha256 of an immutable value of the compiler (Graph, Program) by its `repr`.

    Their classes are frozen dataclasses of tuples, strings and numbers, so the text says everything
    and has no address or set order in it.
    """
    return digest_text(repr(value))


@lru_cache(maxsize=1)
def model_digest() -> str:
    """Digest of every source file that can change a record, and of the event kernel's version."""
    hasher = hashlib.sha256()
    for package in ENGINE_PACKAGES:
        hasher.update(f"{package}=={version(package)}\n".encode())
    for root in MODEL_ROOTS:
        _hash_tree(hasher, resources.files(root), root)
    for module in MODEL_MODULES:
        source = resources.files("dse") / f"{module}.py"
        if source.is_file():
            hasher.update(source.read_bytes())
    return hasher.hexdigest()[:DIGEST_CHARS]


def _hash_tree(hasher: hashlib._Hash, folder: resources.abc.Traversable, name: str) -> None:
    """Add all Python files below `folder`, in name order."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        path = f"{name}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            _hash_tree(hasher, entry, path)
        elif entry.name.endswith(".py"):
            hasher.update(path.encode() + b"\0" + entry.read_bytes())
