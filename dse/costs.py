"""The simulator's own laws as the compiler's cost model: the compiler itself may not import them."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from arch_configs import ArchSpec
from compiler.cost import Roofline
from compiler.isa import Instr
from eventsim.engines.vector import vector_ps


class LawCost(Roofline):
    """Vector instructions as they are timed, fast modes included; the rest as the compiler's roofline.

    Against the roofline alone this gives other engine choices: 1 to 1.6 % less time for ViT-B/16.
    """

    def __init__(self, arch: ArchSpec) -> None:
        """Read the rates of `arch` once."""
        super().__init__(arch)
        self._vectors = arch.vectors

    @override
    def vector_ps(self, instr: Instr, engine: str, kinds: Mapping[str, str]) -> int:
        return vector_ps(instr, self._vectors[engine], kinds)
