"""Linear layers: `out[s, m] = sum_k stationary[k, s] * moving[k, m]`, k on partitions.

With features on partitions the weight is stationary and the tokens move, and the result has features on
partitions again: a chain of linear layers needs no transpose. With tokens on partitions the roles swap.
Either operand can be held on chip while the other streams; if neither whole column of k fits, both
stream in k blocks and the sums stay in the accumulators (see `matmul_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Range, Tensor
from compiler.decisions import Decision
from compiler.ir.dtype import dtype_bytes
from compiler.ir.graph import Node, TensorType
from compiler.ir.layout import Layout, weight_blocked
from compiler.isa import Access, Affine
from compiler.kernels.matmul_plan import Plan, Shape, choose, count_of, held_slots, problem, weight_tiles
from compiler.kernels.move import load_features, load_vector, row_pairs, store_features, whole
from compiler.kernels.norm import Norm, normalise, normalised_copy
from compiler.kernels.site import LinearPorts, Port, Site, bank_pitch
from compiler.kernels.wants import PLAIN, Anything, Features, Follows, Kernel, Same, Want
from compiler.ops.matmul import Linear

WORTH_PS = 2_000_000  # of short runs saved, for which the first results may wait for the last; assumed
KEPT = 16  # share of the scratchpad that results kept for one long store may take; assumed


def linear(b: Builder, site: Site) -> None:
    """Lower a `Linear` op, with its fused norm, gate, bias, activation and residual."""
    op = site.op
    assert isinstance(op, Linear)
    ports = LinearPorts.of(site)
    shape = problem(site, ports)
    chosen = choose(site, shape, b, needs_norm=op.norm is not None)
    norm = op.norm is not None and chosen is not None
    if chosen is None:  # no room for whole columns of x: normalise in a pass of its own
        why = "no plan that holds whole columns of x fits"
        b.graph.decisions.append(Decision(site.name, "norm", "in a pass of its own", why))
        ports = ports.with_x(normalised_copy(b, site, ports.x, ports.gain, ports.beta))
        chosen = choose(site, shape, b, needs_norm=False)
        assert chosen is not None
    _Lowering(b, site, op, ports, *chosen, norm).run()


@dataclass(slots=True)
class _Lowering:
    """Writes the loops of one plan."""

    b: Builder
    site: Site
    op: Linear
    ports: LinearPorts
    shape: Shape
    plan: Plan
    norm: bool
    bias: Tensor | None = None
    constants: Norm | None = None

    def run(self) -> None:
        """Loop over blocks, the held operand outside; a norm runs one block ahead of the matmuls."""
        b, shape, plan = self.b, self.shape, self.plan
        self.bias = self._load_bias()
        if self.norm:
            gain, beta = self.ports.gain, self.ports.beta
            self.constants = Norm.load(b, self.site, shape.k, shape.k_tile, gain, beta)
        k, ahead = whole(shape.k), 1 if self.norm else 0
        if plan.hold == "m":
            for m in b.tiles(shape.m, plan.m_block, "m"):
                moving = self._load(False, m, k)
                with b.stage(ahead):
                    kept = self._out_tiles(whole(shape.s), m) if self._collects(m) else None
                    for s in b.tiles(shape.s, plan.s_block, "s"):
                        self._block(s, m, self._load(True, s, k), moving, kept)
                    if kept is not None:
                        self._store(kept[0], whole(shape.s), m)
        elif plan.hold == "s":
            for s in b.tiles(shape.s, plan.s_block, "s"):
                stationary = self._load(True, s, k)
                with b.stage(ahead):
                    for m in b.tiles(shape.m, plan.m_block, "m"):
                        self._block(s, m, stationary, self._load(False, m, k))
        else:
            for s in b.tiles(shape.s, plan.s_block, "s"):
                for m in b.tiles(shape.m, plan.m_block, "m"):
                    self._sums_block(s, m)

    # ---- operands --------------------------------------------------------------------------------
    def _load_bias(self) -> Tensor | None:
        """Biases with features on partitions, else one row repeated on every partition."""
        port, b = self.ports.bias, self.b
        if port is None:
            return None
        if self.shape.weight_is_stationary:
            return load_vector(b, port, port.type.shape[0], self.shape.s_tile, "bias")
        tile = b.scratch((self.shape.s_tile, port.type.shape[0]), port.type.dtype, name="bias")
        b.dma(tile[:], port.tensor.repeat(0, self.shape.s_tile)[:], "aux")
        return tile

    def _load(self, stationary: bool, block: Range, k: Range) -> list[Tensor]:
        """Tiles of one operand: x [k tile, k tiles, tokens], a weight [k tile, blocks, k tiles, block]."""
        if stationary == self.shape.weight_is_stationary:
            return [self._load_weight(port, block, k) for port in self.ports.weights]
        tile = self.b.scratch(
            (self.shape.k_tile, -(-k.size // self.shape.k_tile), block.size),
            self.ports.x.type.dtype, slots=self._slots(stationary), name="x",
        )  # fmt: skip
        load_features(self.b, tile, self.ports.x, k, block)
        if self.norm:
            assert self.constants is not None
            with self.b.on(self._engines()[1]):
                normalise(self.b, self.site, self.constants, tile)
        return [tile]

    def _engines(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Vector engines for taking sums out, and for a norm beside it: apart if there are enough."""
        arch = self.site.arch
        able = [n for n, e in arch.vectors.items() if arch.accumulator in e.reads and "copy" in e.ops]
        if not self.norm or len(able) < 2:
            return (), ()
        out = max(able, key=lambda n: ("activate" in arch.vectors[n].ops, n))
        return (out,), tuple(n for n in arch.vectors if n != out)

    def _slots(self, stationary: bool) -> int:
        return held_slots(self.shape, self.plan, norm=self.norm)[0 if stationary else 1]

    def _load_weight(self, port: Port, block: Range, k: Range) -> Tensor:
        b, rows = self.b, self.shape.k_tile
        cols = port.layout.splits[1][1]
        w = b.scratch(
            (rows, -(-block.size // cols), -(-k.size // rows), cols),
            port.type.dtype,
            slots=self._slots(self.shape.weight_is_stationary),
            name="w",
        )
        dram = port.tensor.permute(1, 0, 2, 3)
        for n0, n, width in _pieces(block.size, cols):
            wide = self._run(port, width, cols)
            for k0, kn, height in _pieces(k.size, rows):
                b.dma(
                    w[(0, height), (n0, n), (k0, kn), (0, wide)],
                    dram[(0, height), (block.start // cols + n0, n), (k.start // rows + k0, kn), (0, wide)],
                    "aux" if k0 else "weight",  # NOTE: the short last k tile starts beside the others
                )
        return w

    def _run(self, port: Port, width: int, cols: int) -> int:
        """Columns to load of a block of which `width` count: its padding too where that takes less time.

        A whole block is one run for all k tiles, and a part is one for each row.
        """
        felt = max(width * dtype_bytes(port.type.dtype), self.site.arch.dma.descriptor_bytes)
        return cols if cols * dtype_bytes(port.type.dtype) < felt else width

    def _view(self, tile: Tensor, stationary: bool, k: Affine, rows: int, piece: Range) -> Access:
        """`piece` of a loaded block at k tile `k`, `rows` partitions."""
        if stationary == self.shape.weight_is_stationary:
            return tile[
                (0, rows), piece.index if stationary else piece.start // tile.shape[3], k, (0, piece.size)
            ]
        return tile[(0, rows), k, (piece.start, piece.size)]

    # ---- compute ---------------------------------------------------------------------------------
    def _collects(self, m: Range) -> bool:
        """Whether results of few tokens are kept until all features are there: then their runs are long."""
        shape, dma = self.shape, self.site.arch.dma
        whole_run = count_of(shape.s, shape.s_tile) * m.size * shape.itemsize
        one_run = count_of(self.plan.s_block, shape.s_tile) * m.size * shape.itemsize
        if not shape.weight_is_stationary or m.size < shape.m or whole_run > self.site.room // KEPT:
            return False
        runs = shape.s_tile * count_of(shape.s, self.plan.s_block)
        wasted = runs * (dma.descriptor_bytes - one_run)
        return one_run < whole_run and wasted > 0 and self.b.cost.transfer_ps(wasted) > WORTH_PS

    def _block(
        self,
        s: Range,
        m: Range,
        stationary: list[Tensor],
        moving: list[Tensor],
        kept: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:
        b, shape = self.b, self.shape
        if kept is None:
            out, residual = self._out_tiles(s, m)
        else:
            mine = (s.start // shape.s_tile, count_of(s.size, shape.s_tile))
            out = kept[0].part(1, *mine)
            residual = kept[1] and kept[1].part(1, *mine)
        for si in b.tiles(s.size, shape.s_tile, "si"):
            for mi in b.tiles(m.size, shape.m_tile, "mi"):
                sums = [
                    b.accumulator((si.size, mi.size), slots=self.site.slots, name="sum")
                    for _ in self.ports.weights
                ]
                for i, total in enumerate(sums):
                    self._contract(
                        total[:], _nth(stationary, i), _nth(moving, i), si, mi, whole(shape.k), None
                    )
                with b.on(self._engines()[0]):
                    self._finish(sums, out, residual, s, m, si, mi)
        if kept is None:
            self._store(out, s, m)

    def _sums_block(self, s: Range, m: Range) -> None:
        """All sums of a block stay in the accumulators while k blocks of both operands stream by."""
        b, shape = self.b, self.shape
        pitch = bank_pitch(self.site.arch, shape.m_tile, 4)
        grid = (-(-s.size // shape.s_tile), -(-m.size // shape.m_tile), pitch)
        sums = [b.accumulator((shape.s_tile, *grid), name="sums") for _ in self.ports.weights]
        for k in b.tiles(shape.k, self.plan.k_block * shape.k_tile, "k"):
            stationary, moving = self._load(True, s, k), self._load(False, m, k)
            for si in b.tiles(s.size, shape.s_tile, "si"):
                for mi in b.tiles(m.size, shape.m_tile, "mi"):
                    for i, total in enumerate(sums):
                        part = total[(0, si.size), si.index, mi.index, (0, mi.size)]
                        self._contract(part, _nth(stationary, i), _nth(moving, i), si, mi, k, k)
        out, residual = self._out_tiles(s, m)
        for si in b.tiles(s.size, shape.s_tile, "si"):
            for mi in b.tiles(m.size, shape.m_tile, "mi"):
                self._finish(sums, out, residual, s, m, si, mi)
        self._store(out, s, m)

    def _contract(
        self,
        total: Access,
        stationary: Tensor,
        moving: Tensor,
        si: Range,
        mi: Range,
        k: Range,
        outer: Range | None,
    ) -> None:
        """Accumulate over the k tiles of `k`; `outer` is the k block if the sums outlive it."""
        started = False
        for k0, kn, rows in _pieces(k.size, self.shape.k_tile):
            for ki in self.b.tiles(kn, 1, "k"):
                index = ki.start + k0
                first = (index,) if outer is None else (index, outer.start)
                self.b.matmul(
                    total,
                    self._view(stationary, True, index, rows, si),
                    self._view(moving, False, index, rows, mi),
                    reset=None if started else first,
                )
            started = True

    # ---- results ---------------------------------------------------------------------------------
    def _out_tiles(self, s: Range, m: Range) -> tuple[Tensor, Tensor | None]:
        """The result tile of a block, and the residual loaded beside it."""
        b, shape = self.b, self.shape
        dims = (shape.s_tile, -(-s.size // shape.s_tile), m.size)
        out = b.scratch(dims, self.ports.out.type.dtype, slots=self.site.slots, name="out")
        port = self.ports.residual
        if port is None:
            return out, None
        residual = b.scratch(dims, port.type.dtype, slots=self.site.slots, name="residual")
        if shape.weight_is_stationary:
            load_features(b, residual, port, s, m)
        else:
            for inside, outside in row_pairs(residual, port.tensor, s, m):
                b.dma(inside, outside, "input")
        return out, residual

    def _finish(
        self,
        sums: list[Tensor],
        out: Tensor,
        residual: Tensor | None,
        s: Range,
        m: Range,
        si: Range,
        mi: Range,
    ) -> None:
        """Take the sums out of the accumulators, with everything that is fused behind."""
        b, op = self.b, self.op
        piece = ((0, si.size), si.index, (mi.start, mi.size))
        target = out[piece]
        value = _sum_view(sums[0], si, mi)
        if op.scale != 1.0:
            b.tensor_scalar(target, value, "multiply", op.scale)
            value = target
        if op.gated:
            gate = b.scratch((si.size, mi.size), "fp32", slots=self.site.slots, name="gate")
            b.activate(gate[:], value, op.activation or "copy")
            b.tensor_tensor(target, _sum_view(sums[1], si, mi), gate[:], "multiply")
            value = target
        bias = self._bias_view(s, m, si, mi)
        if bias is not None and not self.shape.weight_is_stationary:
            b.tensor_tensor(target, value, bias, "add")
            value, bias = target, None
        func = None if op.gated else op.activation
        if func is not None:
            b.activate(target, value, func, bias=0.0 if bias is None else bias)
            value = target
        elif bias is not None:
            b.tensor_scalar(target, value, "add", bias)
            value = target
        if residual is not None:
            b.tensor_tensor(target, value, residual[piece], "add")
        elif value is not target:
            b.copy(target, value)

    def _bias_view(self, s: Range, m: Range, si: Range, mi: Range) -> Access | None:
        if self.bias is None:
            return None
        if self.shape.weight_is_stationary:
            return self.bias[(0, si.size), s.start // self.shape.s_tile + si.index]
        return self.bias[(0, si.size), (m.start + mi.start, mi.size)]

    def _store(self, out: Tensor, s: Range, m: Range) -> None:
        b, port = self.b, self.ports.out
        with b.stage(2 if self.norm else 1):
            if self.shape.weight_is_stationary:
                store_features(b, out, port, s, m)
            else:
                for inside, outside in row_pairs(out, port.tensor, s, m):
                    b.dma(outside, inside, "output")


def _nth(tiles: list[Tensor], i: int) -> Tensor:
    """The tile for weight `i`; x is shared by both."""
    return tiles[min(i, len(tiles) - 1)]


def _sum_view(total: Tensor, si: Range, mi: Range) -> Access:
    if len(total.shape) == 2:
        return total[:]
    return total[(0, si.size), si.index, mi.index, (0, mi.size)]


def _pieces(extent: int, tile: int) -> list[tuple[int, int, int]]:
    """(first tile, tiles, size of each) of the whole tiles and of the short last one."""
    count, rest = divmod(extent, tile)
    return [p for p in ((0, count, tile), (count, 1, rest)) if p[1] and p[2]]


def _wants(node: Node, types: Mapping[str, TensorType], arch: ArchSpec) -> tuple[Want, ...]:
    """x has features on partitions; the result lies as its consumers want; weights follow from both."""
    out = len(node.inputs)

    def weight(layouts: Mapping[str, Layout], n: Node) -> Layout:
        k, cols = types[n.inputs[1]].shape
        x, y = layouts[n.inputs[0]], layouts[n.outputs[0]]
        block = y.splits[0][1] if y.splits else 0
        return weight_blocked(*weight_tiles(arch, k, cols, x.splits[0][1], block))

    by_role: dict[str, Want] = {
        "x": Features(),
        "w": Follows(weight),
        "w_up": Follows(weight),
        "r": Same(out),
    }
    return (*(by_role.get(role, PLAIN) for role in node.op.roles), Anything())


KERNEL = Kernel(_wants, linear)
