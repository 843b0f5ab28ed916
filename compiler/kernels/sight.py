"""Which stretches of keys a tile of queries looks at, and where a mask is needed.

Keys that no query of the tile sees are skipped; those that only some see get a mask that is added to the
scores. All positions are numbers of keys; a tile of `rows` queries begins at position `first`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.builder import Builder, Tensor
from compiler.isa import Affine
from compiler.kernels.flash import MASKED, Masked
from compiler.ops.sight import Sight


@dataclass(frozen=True, slots=True)
class Edge:
    """Columns that only some queries see; query p is at position `delta + p` from the first column."""

    column: int
    width: int
    delta: int


@dataclass(frozen=True, slots=True)
class Cell:
    """Query tile number `tile` and the keys `start .. start + width`; with the `last` of them it is done."""

    tile: int
    start: int
    width: int
    edges: tuple[Edge, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Keys `start .. start + width` that are loaded at once, and the cells that look at them."""

    start: int
    width: int
    cells: tuple[Cell, ...]

    @property
    def plain(self) -> bool:
        """Whether every cell sees all of it, and is not done with it."""
        return all(c.width == self.width and not c.edges and not c.last for c in self.cells)

    def moved(self, by: int) -> Part:
        """The same keys counted from another one."""
        cells = tuple(replace(c, start=c.start + by) for c in self.cells)
        return Part(self.start + by, self.width, cells)


@dataclass(frozen=True, slots=True)
class Field:
    """What is looked at: `keys` in all, cut at multiples of `block`, loaded `chunk` at once."""

    sight: Sight
    keys: int
    block: int
    chunk: int

    def parts(self, tiles: list[tuple[int, int]]) -> tuple[Part, ...]:
        """For query tiles (first, rows) of rising positions: all parts of the keys in order."""
        low = self._low(tiles[0][0])
        high = max(self._high(first, rows) for first, rows in tiles)
        found = []
        for start in range(low, high, self.chunk):
            width = min(self.chunk, high - start)
            cells = [self._cell(i, tile, start, width) for i, tile in enumerate(tiles)]
            kept = tuple(cell for cell in cells if cell is not None)
            found.append(Part(start, width, kept))
        return tuple(found)

    def _low(self, first: int) -> int:
        return self.sight.first(first) // self.block * self.block

    def _high(self, first: int, rows: int) -> int:
        return self.sight.end(first + rows - 1, self.keys)

    def _cell(self, number: int, tile: tuple[int, int], start: int, width: int) -> Cell | None:
        first, rows = tile
        high = self._high(first, rows)
        low, end = max(start, self._low(first)), min(start + width, high)
        if low >= end:
            return None
        return Cell(number, low, end - low, self._edges(first, rows, low, end), end == high)

    def _edges(self, first: int, rows: int, start: int, end: int) -> tuple[Edge, ...]:
        pieces = []
        if self.sight.window:
            pieces.append((start, min(end, first + rows - self.sight.window)))
        if self.sight.causal:
            pieces.append((max(start, first + 1), end))
        pieces = [(low, high) for low, high in pieces if low < high]
        if len(pieces) == 2 and pieces[1][0] <= pieces[0][1]:
            pieces = [(start, end)]
        return tuple(Edge(low - start, high - low, first - low) for low, high in pieces)


def masks_of(b: Builder, sight: Sight, rows: int, parts: list[Part]) -> dict[tuple[int, int], Tensor]:
    """A mask [rows, width] for each (delta, width) of the edges in `parts`."""
    edges = {(e.delta, e.width) for part in parts for c in part.cells for e in c.edges}
    return {key: edge_mask(b, sight, rows, *key) for key in sorted(edges)}


def edge_mask(b: Builder, sight: Sight, rows: int, delta: int, width: int) -> Tensor:
    """[rows, width]: 0 where query p sees key f of the edge, else very negative."""
    mask = b.scratch((rows, width), "fp32", name="mask")
    b.memset(mask[:], 0.0)
    if sight.causal and delta < width - 1:
        b.affine_select(mask[:], mask[:], Affine(delta), 1, -1, MASKED)
    if sight.window and delta + rows > sight.window:
        b.affine_select(mask[:], mask[:], Affine(sight.window - 1 - delta), -1, 1, MASKED)
    return mask


def masked(masks: dict[tuple[int, int], Tensor], cell: Cell, rows: int) -> tuple[Masked, ...]:
    """The masks of a cell of `rows` queries."""
    return tuple((e.column, masks[e.delta, e.width][(0, rows), :]) for e in cell.edges)
