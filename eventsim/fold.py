"""Exact folding (stub)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventsim.trace import Jump

if TYPE_CHECKING:
    from eventsim.sim import Sim
    from eventsim.stream import Stream


class Folder:
    """x."""

    def __init__(self, sim: Sim) -> None:
        self.jumps = 0
        self.jump_list: list[Jump] = []

    def visit(self, stream: Stream) -> None:
        """x."""
