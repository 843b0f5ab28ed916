"""Override paths that name a part by what it is, so that one study fits machines with other names.

`memories.scratchpad.capacity`, `memories.dram.bandwidth`, `memories.accumulator.banks` and
`engines.array.rows` (or `engines.tensor.rows`) mean the one part of that kind, unless a part really
has that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from arch_configs import ArchError, ArchSpec, load_arch

ROLES: dict[tuple[str, ...], Callable[[ArchSpec], str]] = {
    ("memories", "dram"): lambda arch: arch.dram,
    ("memories", "scratchpad"): lambda arch: arch.scratchpad,
    ("memories", "accumulator"): lambda arch: arch.accumulator,
    ("engines", "array"): lambda arch: arch.tensor,
    ("engines", "tensor"): lambda arch: arch.tensor,
}


def load_with_roles(source: str, overrides: Mapping[str, str]) -> ArchSpec:
    """`load_arch` after roles in the override paths are replaced by this architecture's names.

    Raises: ArchError, also for a value that is given twice under two names.
    """
    if not any(tuple(path.split(".")[:2]) in ROLES for path in overrides):
        return load_arch(source, overrides)
    base = load_arch(source)
    names: dict[str, list[str]] = {}
    for path in overrides:
        names.setdefault(_named(path, base), []).append(path)
    twice = [paths for paths in names.values() if len(paths) > 1]
    if twice:
        raise ArchError(
            f"override {paths[-1]}: got the value of {paths[0]} under another name, want it once"
            for paths in twice
        )
    return load_arch(source, by_name(overrides, base))


def by_name(overrides: Mapping[str, str], arch: ArchSpec) -> dict[str, str]:
    """The overrides with the names of `arch`; of one value under two names the last counts."""
    return {_named(path, arch): text for path, text in overrides.items()}


def _named(path: str, arch: ArchSpec) -> str:
    section, _, rest = path.partition(".")
    part, _, tail = rest.partition(".")
    role = ROLES.get((section, part))
    if role is None or part in (arch.memories if section == "memories" else arch.engines):
        return path
    return f"{section}.{role(arch)}.{tail}"
