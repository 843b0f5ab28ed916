"""A linear layer an expert: rows of some experts stay on chip while the weights of each stream by.

Experts with equally many rows are one loop, whatever their number, and the weights of the next expert load
while one is multiplied. Where rows or weights of one expert do not fit, each is a linear layer by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from arch_configs.spec import ArchSpec
from compiler.allocation import aligned
from compiler.builder import Builder, Range, Tensor
from compiler.decisions import Decision
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import ROW_MAJOR, Layout, feature_blocked, weight_blocked
from compiler.isa import Access, Affine
from compiler.kernels.matmul import linear
from compiler.kernels.matmul_plan import weight_tiles
from compiler.kernels.move import load_features, row_pairs, store_features, whole
from compiler.kernels.site import Port, Site, bank_pitch
from compiler.kernels.strips import tile_counts
from compiler.kernels.wants import Anything, Features, Follows, Kernel, Want
from compiler.ops.matmul import Linear
from compiler.ops.moe import GroupedLinear
from compiler.routing import Run, runs

WIDE = 8192  # bytes a partition of a weight tile from which a transfer reaches the full rate; assumed
COLUMNS = 512  # rows of experts that share one tile where each has few; assumed


def expert_weights(rows: int, cols: int) -> Layout:
    """[experts, k, n]: each expert's weight as `weight_blocked`."""
    return Layout(((1, rows), (2, cols)), (0, 3, 2, 1, 4))


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """x has features on partitions; the result lies as its consumers want; weights follow from both."""

    def weight(layouts: Mapping[str, Layout], n: Node) -> Layout:
        _, k, cols = types[n.inputs[1]].shape
        x, y = layouts[n.inputs[0]], layouts[n.outputs[0]]
        block = y.splits[0][1] if y.splits else 0
        return expert_weights(*weight_tiles(arch, k, cols, x.splits[0][1], block))

    def bias(layouts: Mapping[str, Layout], n: Node) -> Layout:
        y = layouts[n.outputs[0]]
        return feature_blocked(y.splits[0][1]) if y.splits else ROW_MAJOR

    by_role: dict[str, Want] = {
        "x": Features(), "w": Follows(weight), "w_up": Follows(weight), "b": Follows(bias),
    }  # fmt: skip
    return (*(by_role[role] for role in node.op.roles), Anything())


@dataclass(frozen=True, slots=True)
class _Plan:
    """Tile sizes: rows on chip at once, whole experts of them, weight blocks and k tiles a transfer."""

    rows: int
    experts: int
    blocks: int
    k_tiles: int
    slots: int  # of a weight tile
    whole_out: bool  # results of all features stay on chip until the rows are done


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The problem in array terms."""

    k: int
    n: int
    k_tile: int
    n_tile: int
    features: bool  # the result has features on partitions, so the weight is stationary
    itemsize: int
    weights: int
    experts: int  # with a bias: its copies on chip

    @property
    def k_count(self) -> int:
        return -(-self.k // self.k_tile)

    @property
    def n_count(self) -> int:
        return -(-self.n // self.n_tile)

    def row_tile(self, site: Site, rows: int) -> int:
        """Rows of one matmul."""
        array, bank = site.arch.array, site.arch.bank_bytes(site.arch.accumulator) // 4
        return min(rows, min(array.moving_max, bank) if self.features else array.cols)


def grouped_linear(b: Builder, site: Site) -> None:
    """Lower a `GroupedLinear` op."""
    op = site.op
    assert isinstance(op, GroupedLinear)
    named = dict(zip(op.roles, site.inputs, strict=True))
    weights = tuple(named[role] for role in ("w", "w_up") if role in named)
    (_, k_tile), (_, n_tile) = weights[0].layout.splits
    sizes = _Sizes(
        k=weights[0].type.shape[1],
        n=weights[0].type.shape[2],
        k_tile=k_tile,
        n_tile=n_tile,
        features=site.outputs[0].block > 0,
        itemsize=dtype_bytes(weights[0].type.dtype),
        weights=len(weights),
        experts=len(op.rows) if op.bias else 0,
    )
    held = None
    for run in runs(op.rows):
        plan = _choose(site, sizes, run)
        if plan is None and op.bias:
            raise site.too_small("smallest tiles", _scratch_bytes(site, sizes, _Plan(1, 1, 1, 1, 1, False)))
        if plan is None:
            _one_by_one(b, site, op, named, run)
            continue
        if held is None and op.bias and sizes.features:
            held = b.scratch((n_tile, sizes.n_count, len(op.rows)), named["b"].type.dtype, name="bias")
            load_features(b, held, named["b"], whole(sizes.n), whole(len(op.rows)), "aux")
        b.graph.decisions.append(_decision(site, plan, run))
        _Stream(b, site, op, named, sizes, plan, run, held).build()


def _decision(site: Site, plan: _Plan, run: Run) -> Decision:
    rows = f"{run.count} experts of {run.rows} rows"
    chosen = f"{plan.experts} experts at once, {plan.rows} rows, {plan.k_tiles} k tiles, {plan.slots} slots"
    return Decision(site.name, f"tiles of {rows}", chosen, "first that fits: slots, whole k, long transfers")


def _choose(site: Site, sizes: _Sizes, run: Run) -> _Plan | None:
    """The first plan that fits: many slots, whole columns of k and long transfers before small tiles."""
    options = []
    most = max(1, min(run.count, COLUMNS // run.rows))
    per_block = sizes.k_count * sizes.n_tile * sizes.itemsize
    blocks = max(1, min(sizes.n_count, WIDE // per_block)) if sizes.features else 1
    for slots in (3, 2) if site.options.double_buffer else (1,):
        for k_tiles in _halved(sizes.k_count, 1):
            for experts in _halved(most, 1):
                options += [(slots, k_tiles, experts, run.rows, whole_out) for whole_out in (True, False)]
            for rows in _halved(run.rows, sizes.row_tile(site, run.rows)):
                options.append((slots, k_tiles, 1, rows, False))
    for slots, k_tiles, experts, rows, whole_out in options:
        if whole_out and not sizes.features:
            continue
        one = blocks if k_tiles == sizes.k_count else 1
        plan = _Plan(rows, experts, one, k_tiles, slots, whole_out)
        if _scratch_bytes(site, sizes, plan) <= site.room and _sums_fit(site, sizes, plan):
            return plan
    return None


def _halved(size: int, least: int) -> Iterator[int]:
    while size > least:
        yield size
        size = -(-size // 2)
    yield least


def _scratch_bytes(site: Site, sizes: _Sizes, plan: _Plan) -> int:
    """Bytes a partition of all tiles."""
    size, rows = sizes.itemsize, plan.rows * plan.experts
    tile = sizes.row_tile(site, plan.rows)
    x = aligned(sizes.k_count * rows * size) * site.slots
    w = aligned(plan.k_tiles * plan.blocks * sizes.n_tile * size) * plan.slots * sizes.weights
    if sizes.features:
        out = aligned((sizes.n_count if plan.whole_out else plan.blocks) * rows * size) * site.slots
        temporary = aligned(4 * tile) * site.slots
    else:
        out = aligned(-(-plan.rows // tile) * sizes.n_tile * size) * site.slots
        temporary = aligned(4 * sizes.n_tile) * 2 * site.slots
    return x + w + out + temporary + aligned(sizes.n_count * sizes.experts * size)


def _sums_fit(site: Site, sizes: _Sizes, plan: _Plan) -> bool:
    """Whether sums that outlive a block of k fit the accumulators."""
    if plan.k_tiles >= sizes.k_count:
        return True
    memory, tile = site.arch.accumulator, sizes.row_tile(site, plan.rows)
    pitch = bank_pitch(site.arch, tile if sizes.features else sizes.n_tile, 4)
    return -(-plan.rows // tile) * pitch * 4 * sizes.weights <= site.arch.partition_bytes(memory)


@dataclass(slots=True)
class _Stream:
    """Writes the loops of one run of experts."""

    b: Builder
    site: Site
    op: GroupedLinear
    ports: Mapping[str, Port]
    sizes: _Sizes
    plan: _Plan
    run: Run
    bias: Tensor | None

    def build(self) -> None:
        """Experts outside, or rows of one expert where they do not fit at once; weights stream inside."""
        b, run, plan = self.b, self.run, self.plan
        for group in b.tiles(run.count, plan.experts, "group"):
            for part in b.tiles(run.rows, plan.rows, "part"):
                start = group.start * run.rows + part.start + run.start
                columns = Range(start, group.size * part.size, start)
                x = self._load_rows(columns)
                out = self._features_tile(self.sizes.n_count, columns) if plan.whole_out else None
                for e in b.tiles(group.size, 1, "e"):
                    expert = (group.start + e.start) * run.stride + run.first
                    mine = Range(e.start * run.rows, part.size, e.start)
                    self._expert(expert, mine, columns, x, out)
                if out is not None:
                    with b.stage(1):
                        store_features(b, out, self.site.outputs[0], whole(self.sizes.n), columns)

    def _load_rows(self, columns: Range) -> Tensor:
        b, s = self.b, self.sizes
        port = self.ports["x"]
        shape = (s.k_tile, s.k_count, columns.size)
        tile = b.scratch(shape, port.type.dtype, slots=self.site.slots, name="x")
        load_features(b, tile, port, whole(s.k), columns)
        return tile

    def _features_tile(self, blocks: int, columns: Range) -> Tensor:
        shape = (self.sizes.n_tile, blocks, columns.size)
        return self.b.scratch(shape, self.site.outputs[0].type.dtype, slots=self.site.slots, name="out")

    def _expert(self, expert: Affine, mine: Range, columns: Range, x: Tensor, kept: Tensor | None) -> None:
        """All products of one expert; `mine` are its columns of `x`, which starts at `columns`."""
        b, s, plan = self.b, self.sizes, self.plan
        port = self.site.outputs[0]
        first = columns.start + mine.start
        place = Range(first, mine.size, first)
        rows = x.part(2, mine.start, mine.size)
        for n in b.tiles(s.n, plan.blocks * s.n_tile, "n"):
            if kept is not None:
                out = kept.part(2, mine.start, mine.size).part(1, n.start // s.n_tile, -(-n.size // s.n_tile))
                self._block(expert, n, rows, out)
            elif s.features:
                out = self._features_tile(-(-n.size // s.n_tile), place)
                self._block(expert, n, rows, out)
                with b.stage(1):
                    store_features(b, out, port, n, place)
            else:
                tile = s.row_tile(self.site, mine.size)
                shape = (tile, -(-mine.size // tile), n.size)
                out = b.scratch(shape, port.type.dtype, slots=self.site.slots, name="out")
                self._block(expert, n, rows, out)
                with b.stage(1):
                    self._store_rows(out, place, n)

    def _store_rows(self, out: Tensor, place: Range, n: Range) -> None:
        view = self.site.outputs[0].tensor.part(0, place.start, place.size)
        for inside, outside in row_pairs(out, view, whole(place.size), n):
            self.b.dma(outside, inside, "output")

    # ---- weights and products --------------------------------------------------------------------
    def _weights(self, expert: Affine, n: Range, k: Range) -> list[Tensor]:
        """[k tile, blocks, k tiles, n tile] of each weight."""
        b, s = self.b, self.sizes
        found = []
        for role in ("w", "w_up")[: s.weights]:
            port = self.ports[role]
            shape = (s.k_tile, -(-n.size // s.n_tile), -(-k.size // s.k_tile), s.n_tile)
            tile = b.scratch(shape, port.type.dtype, slots=self.plan.slots, name=role)
            dram = port.tensor.pick(0, expert).permute(1, 0, 2, 3)
            for n0, count, width in tile_counts(n.size, s.n_tile):
                for k0, kn, height in tile_counts(k.size, s.k_tile):
                    b.dma(
                        tile[(0, height), (n0, count), (k0, kn), (0, width)],
                        dram[
                            (0, height),
                            (n.start // s.n_tile + n0, count),
                            (k.start // s.k_tile + k0, kn),
                            (0, width),
                        ],
                        "weight",
                    )
            found.append(tile)
        return found

    def _block(self, expert: Affine, n: Range, x: Tensor, out: Tensor) -> None:
        """Products with some columns of the weight, to `out`."""
        b, s, rows = self.b, self.sizes, x.shape[2]
        tile = s.row_tile(self.site, rows)
        if self.plan.k_tiles >= s.k_count:
            weights = self._weights(expert, n, whole(s.k))
            for ni in b.tiles(n.size, s.n_tile, "ni"):
                for r in b.tiles(rows, tile, "r"):
                    shape = (ni.size, r.size) if s.features else (r.size, ni.size)
                    totals = [b.accumulator(shape, slots=self.site.slots, name="sum")[:] for _ in weights]
                    for total, weight in zip(totals, weights, strict=True):
                        self._contract(total, weight, x, ni, r, whole(s.k), None)
                    self._finish(expert, totals, out, n, ni, r)
            return
        (ni,) = b.tiles(n.size, s.n_tile, "ni")  # k streams in blocks, so columns come one tile at a time
        counts = (-(-rows // tile), bank_pitch(self.site.arch, tile if s.features else s.n_tile, 4))
        grid = [
            b.accumulator((s.n_tile if s.features else tile, *counts), name="sums") for _ in range(s.weights)
        ]
        for k in b.tiles(s.k, self.plan.k_tiles * s.k_tile, "k"):
            weights = self._weights(expert, n, k)
            for r in b.tiles(rows, tile, "r"):
                for kept, weight in zip(grid, weights, strict=True):
                    self._contract(self._part(kept, ni, r), weight, x, ni, r, k, k.start)
        for r in b.tiles(rows, tile, "r"):
            self._finish(expert, [self._part(kept, ni, r) for kept in grid], out, n, ni, r)

    def _part(self, grid: Tensor, ni: Range, r: Range) -> Access:
        """The sums of one tile of rows."""
        partitions, columns = (ni.size, r.size) if self.sizes.features else (r.size, ni.size)
        return grid[(0, partitions), r.index, (0, columns)]

    def _contract(
        self, total: Access, weight: Tensor, x: Tensor, ni: Range, r: Range, k: Range, outer: Affine | None
    ) -> None:
        """Add the k tiles of `k`; with `outer`, to the sums of the blocks of k before."""
        s, started = self.sizes, False
        for k0, count, height in tile_counts(k.size, s.k_tile):
            for ki in self.b.tiles(count, 1, "k"):
                index = ki.start + k0
                first = (index,) if outer is None else (index, outer)
                w = weight[(0, height), ni.index, index, (0, ni.size)]
                rows = x[(0, height), k.start // s.k_tile + index, (r.start, r.size)]
                stationary, moving = (w, rows) if s.features else (rows, w)
                self.b.matmul(total, stationary, moving, reset=None if started else first)
            started = True

    # ---- results ---------------------------------------------------------------------------------
    def _finish(self, expert: Affine, sums: list[Access], out: Tensor, n: Range, ni: Range, r: Range) -> None:
        """Take the sums out, with what is fused behind."""
        b, op, s = self.b, self.op, self.sizes
        value, (partitions, columns) = sums[0], (ni.size, r.size) if s.features else (r.size, ni.size)
        index, start = (ni.index, r.start) if s.features else (r.index, ni.start)
        target = out[(0, partitions), index, (start, columns)]
        if op.gated:
            gate = b.scratch((partitions, columns), "fp32", slots=self.site.slots, name="gate")
            b.activate(gate[:], value, op.activation or "copy")
            b.tensor_tensor(target, sums[1], gate[:], "multiply")
            value = target
        func = None if op.gated else op.activation
        if op.bias and s.features:
            assert self.bias is not None
            bias = self.bias[(0, partitions), n.start // s.n_tile + ni.index, expert]
            if func is None:
                b.tensor_scalar(target, value, "add", bias)
            else:
                b.activate(target, value, func, bias=bias)
            return
        if op.bias:
            bias = self._bias_rows(expert, partitions, n.start + ni.start, columns)
            b.tensor_tensor(target, value, bias, "add")
            value = target
        if func is not None:
            b.activate(target, value, func)
        elif value is not target:
            b.copy(target, value)

    def _bias_rows(self, expert: Affine, rows: int, start: Affine, columns: int) -> Access:
        port = self.ports["b"]
        tile = self.b.scratch((rows, columns), port.type.dtype, slots=self.site.slots, name="bias")
        self.b.dma(tile[:], port.tensor.pick(0, expert).repeat(0, rows)[:, (start, columns)], "aux")
        return tile[:]


def _one_by_one(b: Builder, site: Site, op: GroupedLinear, ports: Mapping[str, Port], run: Run) -> None:
    """Each expert of a run as a linear layer."""
    as_linear = Linear(activation=op.activation, gated=op.gated)
    out = site.outputs[0]
    for e in b.tiles(run.count, 1, "e"):
        start = e.start * run.rows + run.start
        expert = e.start * run.stride + run.first
        inputs = [_rows_of(ports["x"], start, run.rows)]
        for role in ("w", "w_up"):
            if role in ports:
                port = ports[role]
                (_, k_tile), (_, n_tile) = port.layout.splits
                kind = TensorType(port.type.shape[1:], port.type.dtype)
                inputs.append(Port(port.tensor.pick(0, expert), kind, weight_blocked(k_tile, n_tile)))
        outputs = (_rows_of(out, start, run.rows),)
        linear(b, replace(site, op=as_linear, inputs=tuple(inputs), outputs=outputs))


def _rows_of(port: Port, start: Affine, rows: int) -> Port:
    """Some rows of a [rows, features] value."""
    kind = TensorType((rows, port.type.shape[1]), port.type.dtype)
    return Port(port.tensor.part(2 if port.block else 0, start, rows), kind, port.layout)


KERNEL = Kernel(_wants, grouped_linear)
