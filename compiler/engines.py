"""Which vector engine runs an instruction: one that can, and that would be done with its work first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from arch_configs.spec import ArchSpec
from compiler.cost import CostModel, vector_class
from compiler.errors import Infeasible, Shortfall
from compiler.ir.tiles import TileBuffer
from compiler.isa import WRITTEN_FIELDS, Instr, operands


class EngineChooser:
    """Balances the vector work of one op over the engines that can do it."""

    def __init__(self, arch: ArchSpec, cost: CostModel, buffers: Mapping[str, TileBuffer]) -> None:
        """`buffers` says in which memory each operand lies; it grows while the op is built."""
        self._arch, self._cost, self._buffers = arch, cost, buffers
        self._kinds = {name: spec.kind for name, spec in arch.memories.items()}
        self.load: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """Begin an op: no engine has work yet."""
        self.load = dict.fromkeys(self._arch.engines, 0)

    def able(self, instr: Instr) -> list[str]:
        """The engines that have the operation and reach all operands."""
        need = vector_class(instr)
        read = {self._memory(a.buffer) for n, a in operands(instr) if n not in WRITTEN_FIELDS}
        written = {self._memory(a.buffer) for n, a in operands(instr) if n in WRITTEN_FIELDS}
        return [
            name
            for name, spec in self._arch.vectors.items()
            if need in spec.ops and read <= set(spec.reads) and written <= set(spec.writes)
        ]

    def best(self, ways: Sequence[Instr], times: int, preferred: Sequence[str]) -> tuple[int, str] | None:
        """(which way, engine) of equivalent instructions that run `times` times; None if no engine can.

        Preferred engines come first; ties go to the earlier way, then to the engine first in the file.
        """
        found: tuple[bool, int, int, int] | None = None
        names = list(self._arch.vectors)
        for way, instr in enumerate(ways):
            kinds = {a.buffer: self._kinds[self._memory(a.buffer)] for _, a in operands(instr)}
            for name in self.able(instr):
                done = self.load[name] + times * self._cost.vector_ps(instr, name, kinds)
                key = (bool(preferred) and name not in preferred, done, way, names.index(name))
                if found is None or key < found:
                    found = key
        return None if found is None else (found[2], names[found[3]])

    def pick(self, instr: Instr, times: int, preferred: Sequence[str], op: str) -> str:
        """The engine for `instr`, which gets its work; raise Infeasible if there is none."""
        chosen = self.best([instr], times, preferred)
        if chosen is None:
            need = vector_class(instr)
            touched = " and ".join(sorted({self._memory(a.buffer) for _, a in operands(instr)}))
            fix = f"an engine with ops.{need} that reads and writes {touched}"
            raise Infeasible(
                Shortfall("engine-capability", f"{need} on {touched}", 1, 0, "engines", ((op, 1),), fix)
            )
        name = chosen[1]
        kinds = {a.buffer: self._kinds[self._memory(a.buffer)] for _, a in operands(instr)}
        self.load[name] += times * self._cost.vector_ps(instr, name, kinds)
        return name

    def _memory(self, buffer: str) -> str:
        return self._buffers[buffer].memory
