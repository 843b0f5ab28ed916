"""The rules that need every dynamic instruction: races, reads of what was never written, the array."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from arch_configs.spec import ArchSpec
from compiler.ir.races import Array, Detector, Env
from compiler.ir.reference import FED_KINDS
from compiler.ir.rules import RuleError
from compiler.isa import Access, Dma, Instr, Matmul, Program, Transpose, reads

Key = tuple[Access, int]  # a destination and its first cell


def check_run(program: Program, arch: ArchSpec) -> None:
    """As `check_races`, and: nothing is read that was never written, the array holds what matmuls say.

    A race or a deadlock is raised rather than what follows from it. For small programs.
    """
    rules = _Rules(program)
    rules.detector.run()
    rules.end()


@dataclass(slots=True)
class _Chain:
    """Matmuls that added to the same sums since these were overwritten."""

    shapes: Counter[tuple[int, int]] = field(default_factory=Counter)
    claims: dict[tuple[int, int], Matmul] = field(default_factory=dict)


class _Rules:
    """Looks at each instruction before the detector notes its accesses; keeps the first fault."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.detector = Detector(program, before=self.visit)
        self.fed = _fed(self.detector)
        self.steps: Counter[str] = Counter()
        self.fault: RuleError | None = None
        self.held: tuple[Array, ...] | None = None  # of the tile in the array: cells, and who wrote them
        self.chains: dict[Key, _Chain] = {}

    def visit(self, stream: str, instr: Instr, env: Env) -> None:
        """All rules for one dynamic instruction."""
        if self.fault is None:
            where = f"stream {stream!r} dynamic instruction {self.steps[stream]}, counters {env}"
            for access in reads(instr):
                if not _overwrites(instr, env) or access is not instr.dst:
                    self._written(where, instr, access, env)
            if isinstance(instr, Transpose):
                self.held = None
            elif isinstance(instr, Matmul):
                self._matmul(where, instr, env)
        self.steps[stream] += 1

    def end(self) -> None:
        """Close what is open and raise the first fault."""
        for chain in self.chains.values():
            self._close(chain)
        if self.fault is not None:
            raise self.fault

    def _fail(self, rule: str, where: str, instr: Instr, text: str) -> None:
        if self.fault is None:
            name = f"{type(instr).__name__}, op {instr.op!r}"
            self.fault = RuleError(rule, f"program {self.program.name!r}, {where} ({name}): {text}")

    def _written(self, where: str, instr: Instr, access: Access, env: Env) -> None:
        _, shadow, cells = self.detector.cells(instr, access, env)
        missing = (shadow.written[cells] == 0) & ~self.fed[id(shadow)][cells]
        if (
            _in_dram(instr) and not missing.all()
        ):  # a copy of a whole value takes the padding of its layout along
            return
        if missing.any():
            unit = self.detector.cell
            self._fail(
                "uninitialised-read", where, instr,
                f"reads {access.buffer!r}: {int(missing.sum()) * unit} of {cells.size * unit} B "
                "were never written",
            )  # fmt: skip

    def _matmul(self, where: str, instr: Matmul, env: Env) -> None:
        _, shadow, cells = self.detector.cells(instr, instr.stationary, env)
        tile = (cells, shadow.writer[cells], shadow.written[cells])
        if not instr.load and not _same(self.held, tile):
            self._fail(
                "array-held", where, instr,
                f"loads no stationary tile, but {instr.stationary.buffer!r} as it is now is not in the array",
            )  # fmt: skip
        self.held = tile
        self._chain(instr, env)

    def _chain(self, instr: Matmul, env: Env) -> None:
        key = (instr.dst, int(self.detector.cells(instr, instr.dst, env)[2][0]))
        if _overwrites(instr, env):
            self._close(self.chains.pop(key, _Chain()))
        shape = (instr.stationary.partitions, instr.stationary.free_elements)
        chain = self.chains.setdefault(key, _Chain())
        chain.shapes[shape] += 1
        if shape not in chain.claims or chain.claims[shape].chain < instr.chain:
            chain.claims[shape] = instr

    def _close(self, chain: _Chain) -> None:
        for shape, instr in chain.claims.items():
            if chain.shapes[shape] < instr.chain:
                self._fail(
                    "array-chain", "stream of the array", instr,
                    f"says that {instr.chain} matmuls in a row add to {instr.dst.buffer!r}, "
                    f"got {chain.shapes[shape]}",
                )  # fmt: skip


def _in_dram(instr: Instr) -> bool:
    """Whether this moves bytes from DRAM to DRAM."""
    return isinstance(instr, Dma) and not instr.src.partitions and not instr.dst.partitions


def _overwrites(instr: Instr, env: Env) -> TypeGuard[Matmul]:
    """Whether a matmul starts new sums here."""
    return isinstance(instr, Matmul) and instr.reset is not None and not any(a.at(env) for a in instr.reset)


def _same(one: tuple[Array, ...] | None, other: tuple[Array, ...]) -> bool:
    return one is not None and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _fed(detector: Detector) -> dict[int, Array]:
    """By shadow: the cells that hold inputs, weights, tables and states at the start."""
    found = {id(shadow): np.zeros(shadow.written.size, np.bool_) for shadow in detector.shadows.values()}
    for buffer in detector.program.buffers:
        if not buffer.partitions and buffer.kind in FED_KINDS:
            start, end = buffer.address // detector.cell, (buffer.address + buffer.nbytes) // detector.cell
            found[id(detector.shadows[buffer.memory])][start:end] = True
    return found
