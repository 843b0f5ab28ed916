"""TileGraph: the program before it is split into streams, placed and synchronised.

One tree of loops and tile instructions in program order. Each instruction names its stream; buffers
have no address yet. Nothing here waits or signals: `compiler.sync` derives that from who touches what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.decisions import Decision
from compiler.errors import CompileError
from compiler.isa import Affine, Instr, reads, writes


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
    piece: int = 0  # which piece of its op, where each has a program of its own


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
    share: int | None = None  # iterations of the busiest core, where those of a grid deal them out

    def instructions(self) -> Iterator[TileInstr]:
        """All static instructions below, in program order."""
        for node in self.body:
            if isinstance(node, TileLoop):
                yield from node.instructions()
            else:
                yield node

    def check_stages(self) -> None:
        """Refuse a stage that feeds a lower one: with children in order of stages it would come too late."""
        if not any(child.stage for child in self.body):
            return
        made: dict[str, int] = {}
        for child in self.body:
            nodes = list(child.instructions()) if isinstance(child, TileLoop) else [child]
            for node in nodes:
                for access in reads(node.instr):
                    if made.get(access.buffer, 0) > child.stage:
                        raise CompileError(
                            f"{node.instr.op}: {access.buffer} is written at stage {made[access.buffer]} of "
                            f"loop {self.var} and read at stage {child.stage}, want a stage that is not lower"
                        )
            for node in nodes:
                made.update(dict.fromkeys((access.buffer for access in writes(node.instr)), child.stage))


@dataclass(slots=True, eq=False)
class TileGraph:
    """A whole program in tile form."""

    name: str
    root: TileLoop
    buffers: dict[str, TileBuffer]
    decisions: list[Decision] = field(default_factory=list)  # of the kernels, in order
    launches: int = 0  # ops that start on all cores of a grid
