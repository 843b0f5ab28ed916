"""Graph -> TileGraph: lay out the values in DRAM and call each op's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.builder import Builder, Tensor
from compiler.cost import CostModel
from compiler.errors import CompileError, Infeasible
from compiler.grid import deal_out
from compiler.ir.graph import Carry, Graph, Node, Repeat, Value
from compiler.ir.layout import Layout
from compiler.ir.tiles import TileGraph
from compiler.isa import Affine
from compiler.kernels import KERNELS
from compiler.kernels.site import Port, Site
from compiler.layouts import assign_layouts
from compiler.ops.conv import Conv2d
from compiler.ops.image import Pixels, Tokens
from compiler.ops.tensor import Reshape
from compiler.options import CompileOptions
from compiler.tensor import reshaped


@dataclass(frozen=True, slots=True)
class Lowered:
    """The tile program and how its DRAM buffers map to graph values."""

    tiles: TileGraph
    layouts: tuple[tuple[str, Layout], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]
    eased: tuple[tuple[str, int], ...]  # ops that did not fit at first, and the entry of EASED they got
    misfits: tuple[Infeasible, ...]  # ops that found no tiles small enough; they are not in the program


def lower(
    graph: Graph,
    arch: ArchSpec,
    options: CompileOptions,
    cost: CostModel | None = None,
    eased: Mapping[str, int] | None = None,
) -> Lowered:
    """Lower every node in order; a repeated region becomes one loop.

    `eased` says which ops to lower with `options.eased(level)`, because more did not fit.
    """
    for node, _ in graph.walk():
        if node.op.kind not in KERNELS:
            raise CompileError(f"{node.name}: no kernel for op {node.op.kind!r}, have {', '.join(KERNELS)}")
    _check_dtypes(graph, arch)
    layouts = assign_layouts(graph, arch)
    b = Builder(arch, graph.name, cost)
    lowering = _Lowering(graph, arch, options, b, layouts, eased or {})
    lowering.run()
    values = sorted(graph.values, key=lambda v: v.name)
    states = tuple(v.name for v in values if v.kind == "state")
    return Lowered(
        tiles=b.graph,
        layouts=tuple((v.name, layouts[v.name]) for v in values),
        shapes=tuple((v.name, (*((v.stacked,) if v.stacked else ()), *v.type.shape)) for v in values),
        outputs=graph.outputs + tuple(s for s in states if s not in graph.outputs),
        eased=tuple(sorted(lowering.eased.items())),
        misfits=tuple(lowering.misfits),
    )


def _check_dtypes(graph: Graph, arch: ArchSpec) -> None:
    """The array has a rate for the operands of every op that contracts; depthwise ones are not its work."""
    values = graph.value_map()
    wrong = []
    for node, _ in graph.walk():
        if not node.inputs:
            continue
        ins = tuple(values[name].type for name in node.inputs)
        on_vectors = isinstance(node.op, Conv2d) and node.op.is_depthwise(ins)
        if node.op.macs(ins) and not on_vectors and ins[0].dtype not in arch.array.passes:
            known = ", ".join(sorted(arch.array.passes))
            where = f"engines.{arch.tensor}.passes"
            wrong.append(f"{node.name}: got operands of {ins[0].dtype}, want one of {known}; see {where}")
    if wrong:
        raise CompileError("\n".join(wrong))


class _Lowering:
    def __init__(
        self,
        graph: Graph,
        arch: ArchSpec,
        options: CompileOptions,
        b: Builder,
        layouts: dict[str, Layout],
        eased: Mapping[str, int],
    ) -> None:
        self.graph, self.arch, self.options, self.b = graph, arch, options, b
        self.layouts, self.eased = layouts, eased
        self.values = graph.value_map()
        self.tensors: dict[str, Tensor] = {}
        self.uses: dict[str, int] = {}
        self.misfits: list[Infeasible] = []
        carries = [c for region in graph.nodes if isinstance(region, Repeat) for c in region.carries]
        reads = [name for node, _ in graph.walk() for name in node.inputs] + [c.init for c in carries]
        for name in reads:
            self.uses[name] = self.uses.get(name, 0) + 1
        self.shared = set(graph.outputs)  # values whose buffer is also that of others, or is read at the end
        self.shared.update(name for c in carries for name in (c.init, c.inner, c.final, c.result))

    def run(self) -> None:
        for value in self.graph.values:
            if value.kind != "activation" and not value.stacked:
                self.tensors[value.name] = self._dram(value)
        for node in self.graph.nodes:
            if isinstance(node, Repeat):
                self._region(node)
            else:
                self._node(node, Affine())

    def _dram(self, value: Value) -> Tensor:
        shape = self.layouts[value.name].stored_shape(value.type.shape)
        return self.b.dram(
            value.name,
            shape,
            value.type.dtype,
            kind=value.kind,
            slots=max(1, value.stacked),
            tensor=value.name,
        )

    def _region(self, region: Repeat) -> None:
        entered = {carry: self._enter(region, carry) for carry in region.carries}
        with self.b.loop(region.count, "layer") as layer:
            for node in region.nodes:
                for name in (*node.inputs, *node.outputs):
                    value = self.values[name]
                    if value.stacked and name not in self.tensors:
                        self.tensors[name] = self._dram(value).at_slot(layer)
                self._node(node, layer)
            for carry, held in entered.items():
                if self.tensors[carry.final] is not held:
                    self._copy(held, self.tensors[carry.final], f"{region.name}.{carry.result}")

    def _enter(self, region: Repeat, carry: Carry) -> Tensor:
        """One buffer for a carried value: initial value, each iteration's input and output, and result."""
        init = self.values[carry.init]
        alone = (
            init.kind == "activation" and self.uses[carry.init] == 1 and carry.init not in self.graph.outputs
        )
        held = self.tensors.get(carry.init)
        if not alone or held is None:
            result = self.values[carry.result]
            shape = self.layouts[result.name].stored_shape(result.type.shape)
            fresh = self.b.dram(f"{carry.result}.carried", shape, result.type.dtype, tensor=carry.result)
            if held is None:
                raise CompileError(f"{region.name}: {carry.init} is not defined before the region")
            self._copy(fresh, held, f"{region.name}.{carry.init}")
            held = fresh
        else:
            self.b.graph.buffers[held.name].tensor = carry.result
        self.tensors[carry.inner] = self.tensors[carry.result] = held
        if _can_overwrite(region, carry):
            self.tensors[carry.final] = held
        return held

    def _copy(self, dst: Tensor, src: Tensor, op: str) -> None:
        self.b.begin(op)
        self.b.dma(dst[:], src[:], "aux")

    def _node(self, node: Node, layer: Affine) -> None:
        if self._is_view(node):
            result = self.values[node.outputs[0]]
            shape = self.layouts[result.name].stored_shape(result.type.shape)
            self.tensors[result.name] = reshaped(self.tensors[node.inputs[0]], shape)
            return
        for name in node.outputs:
            if name not in self.tensors:
                self.tensors[name] = self._dram(self.values[name])
        options = self.options.eased(self.eased.get(node.name, 0))
        site = Site(
            name=node.name,
            op=node.op,
            inputs=tuple(self._port(name) for name in node.inputs),
            outputs=tuple(self._port(name) for name in node.outputs),
            arch=self.arch,
            options=options,
        )
        self.b.begin(node.name, pipelined=options.pipeline and options.double_buffer)
        for part in deal_out(self.b, site) if self.arch.grid else (site,):
            self.b.begin_piece()
            try:
                KERNELS[node.op.kind].build(self.b, part)
            except Infeasible as misfit:  # go on: the fix must be enough for all ops
                self.misfits.append(Infeasible(misfit.shortfall, (node.name,)))

    def _is_view(self, node: Node) -> bool:
        """Whether the result may be the bytes of the operand: they stay as they are as long as it is read."""
        names = (*node.inputs, *node.outputs)
        if isinstance(node.op, (Tokens, Pixels)):
            blocks = {self.layouts[name].splits for name in names}
            if len(blocks) > 1:
                return False
        elif not isinstance(node.op, Reshape):
            return False
        is_own = all(self.values[name].kind == "activation" and name not in self.shared for name in names)
        return is_own and node.outputs[0] not in self.tensors

    def _port(self, name: str) -> Port:
        return Port(self.tensors[name], self.values[name].type, self.layouts[name])


def _can_overwrite(region: Repeat, carry: Carry) -> bool:
    """Whether the handed-on value may be written over the input: nothing reads the input any more."""
    made = next((i for i, n in enumerate(region.nodes) if carry.final in n.outputs), -1)
    last = max((i for i, n in enumerate(region.nodes) if carry.inner in n.inputs), default=-1)
    return made > last
