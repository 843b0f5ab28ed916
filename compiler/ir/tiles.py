"""TileGraph: the program before it is split into streams, placed and synchronised.

One tree of loops and tile instructions in program order. Each instruction names its stream; buffers
have no address yet. Nothing here waits or signals: `compiler.sync` derives that from who touches what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.decisions import Decision
from compiler.isa import Affine, Instr


@dataclass(slots=True, eq=False)
class TileBuffer:
    """A buffer to be placed: `slots` copies of `slot_bytes` (per partition on chip)."""

    name: str
    memory: str
    dtype: str
    slot_bytes: int
    slots: int
    partitions: int  # 0 in DRAM
    home: TileLoop  # the loop each of whose iterations makes a new instance
    slot: Affine  # which instance, counted over all loops around its home
    kind: str = "tile"
    tensor: str = ""
    need: int = 1  # slots it cannot do with less of


@dataclass(slots=True, eq=False)
class TileInstr:
    """An instruction on a stream. `stage` > 0 runs that many iterations late (software pipelining)."""

    stream: str
    instr: Instr
    stage: int = 0


@dataclass(slots=True, eq=False)
class TileLoop:
    """A loop of the tree; the root is a loop of count 1."""

    var: str
    count: int
    region: int
    body: list[TileInstr | TileLoop] = field(default_factory=list)
    stage: int = 0

    def instructions(self) -> Iterator[TileInstr]:
        """All static instructions below, in program order."""
        for node in self.body:
            if isinstance(node, TileLoop):
                yield from node.instructions()
            else:
                yield node


@dataclass(slots=True, eq=False)
class TileGraph:
    """A whole program in tile form."""

    name: str
    root: TileLoop
    buffers: dict[str, TileBuffer]
    decisions: list[Decision] = field(default_factory=list)  # of the kernels, in order
