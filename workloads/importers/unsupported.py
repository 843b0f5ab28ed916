"""Operations of a file that no translation was found for: all of them in one message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from workloads.errors import WorkloadError


@dataclass(slots=True)
class Unsupported:
    """Operations that no translation was found for."""

    names: dict[str, list[str]] = field(default_factory=dict)
    elements: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, name: str, elements: int) -> None:
        """Note one."""
        self.names.setdefault(kind, []).append(name)
        self.elements[kind] += elements

    def check(self, where: str, known: int) -> None:
        """Raise WorkloadError with all, their number, and their share of the elements of all results.

        `known` is the number of elements of the results of operations that were translated.
        """
        if not self.names:
            return
        total = known + sum(self.elements.values())
        lines = [f"{where}: {sum(map(len, self.names.values()))} operations cannot be translated"]
        for kind in sorted(self.names, key=lambda k: (-self.elements[k], k)):
            found = self.names[kind]
            shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
            share = self.elements[kind] / total if total else 0.0
            lines.append(
                f"{where}: {kind}: {len(found)} times ({shown}), {share:.2%} of all results' elements"
            )
        lines.append(f"{where}: declare such as cost-only elementwise work with opaque=NAME+NAME")
        raise WorkloadError("\n".join(lines))
