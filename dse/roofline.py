"""Analytic lower bounds of a graph: per op, and summed per resource. Nothing here knows a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node, TensorType, Value
from compiler.ops import Conv2d, Embedding, KvWrite, Pool2d, TakeRows

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class OpBound:
    """Lower bounds of one op over all its repetitions."""

    op: str
    kind: str
    count: int
    macs: int
    nbytes: int  # compulsory DRAM bytes
    compute_ps: int
    memory_ps: int

    @property
    def time_ps(self) -> int:
        """The larger bound: what the op needs on its own."""
        return max(self.compute_ps, self.memory_ps)


@dataclass(frozen=True, slots=True)
class GraphBounds:
    """Lower bounds of a whole graph on one core."""

    ops: tuple[OpBound, ...]
    read_bytes: int
    write_bytes: int
    compute_ps: int
    memory_ps: int

    @property
    def time_ps(self) -> int:
        """Time that no schedule can beat: every resource may overlap with every other."""
        return max(self.compute_ps, self.memory_ps)


def memory_rate(arch: ArchSpec) -> int:
    """Bytes/s between DRAM and the chip at most: the slower of DRAM and all DMA engines together."""
    return min(arch.dram_bandwidth, arch.dma_bandwidth * arch.run_cores)


def transfer_ps(nbytes: int, arch: ArchSpec) -> int:
    """Time of `nbytes` at the full rate, rounded up."""
    return -(-nbytes * PS_PER_S // memory_rate(arch))


def array_ps(macs: int, dtype: str, arch: ArchSpec) -> int:
    """Time of `macs` with every cell of the array busy in every cycle, rounded up.

    A type that the array cannot take counts as its fastest one.
    """
    array = arch.array
    passes: Fraction = dict(array.passes).get(dtype, min(array.passes.values()))  # type: ignore[call-overload]
    cells = array.rows * array.cols * array.units * arch.run_cores
    return ceil(macs * passes * PS_PER_S / (cells * array.clock))


def graph_bounds(graph: Graph, arch: ArchSpec) -> GraphBounds:
    """Bounds of every op and of the whole.

    Memory: weights, states and inputs are read once, by their first user, and outputs and state
    updates are written once; activations may stay on chip. Compute: the array alone. The sums per
    resource are true bounds of the whole graph; the sum of the ops' own times is not, for ops overlap.
    """
    values = graph.value_map()
    seen: set[str] = set()
    ops, reads, writes = [], 0, 0
    for node, times in graph.walk():
        ins = tuple(values[name].type for name in node.inputs)
        needs = {name: _read_bytes(node, values[name], ins) for name in node.inputs if name not in seen}
        seen.update(name for name, nbytes in needs.items() if nbytes)
        read = times * sum(needs.values())
        write = times * sum(_write_bytes(node, values[name], ins, graph) for name in node.outputs)
        macs = node.op.macs(ins)
        dtype = ins[0].dtype if ins else "bf16"
        ops.append(
            OpBound(
                op=node.name,
                kind=node.op.kind,
                count=times,
                macs=times * macs,
                nbytes=read + write,
                compute_ps=array_ps(0 if _off_the_array(node, ins) else times * macs, dtype, arch),
                memory_ps=transfer_ps(read + write, arch),
            )
        )
        reads, writes = reads + read, writes + write
    return GraphBounds(
        ops=tuple(ops),
        read_bytes=reads,
        write_bytes=writes,
        # NOTE: rounding once per op could exceed the exact sum by a picosecond an op.
        compute_ps=max(0, sum(op.compute_ps for op in ops) - sum(op.compute_ps > 0 for op in ops)),
        memory_ps=transfer_ps(reads + writes, arch),
    )


def _off_the_array(node: Node, ins: tuple[TensorType, ...]) -> bool:
    """Depthwise convolutions contract nothing: a compiler may well give them to the vector engines."""
    return isinstance(node.op, Conv2d) and node.op.groups == ins[0].shape[1] > 1


def _read_bytes(node: Node, value: Value, ins: tuple[TensorType, ...]) -> int:
    """DRAM bytes of an operand that the op cannot do without; activations need none."""
    if value.kind == "activation":
        return 0
    op, whole = node.op, value.type.nbytes
    if isinstance(op, KvWrite) and value.name == node.inputs[0]:
        return 0
    if isinstance(op, Embedding) and value.name == node.inputs[1]:
        return min(whole, whole // ins[1].shape[0])  # every id may name the same row
    if isinstance(op, TakeRows):
        return whole // op.seq
    if isinstance(op, (Conv2d, Pool2d)) and value.name == node.inputs[0]:
        return min(whole, _window_bytes(node, ins))
    return op.read_bytes(ins)[node.inputs.index(value.name)]


def _window_bytes(node: Node, ins: tuple[TensorType, ...]) -> int:
    """Bytes of all windows: a stride beyond the kernel leaves input unread."""
    out = node.op.infer(ins)[0]
    taps = ins[1].shape[2] * ins[1].shape[3] if isinstance(node.op, Conv2d) else 0
    if isinstance(node.op, Pool2d):
        taps = node.op.kernel**2
    per_position = ins[0].nbytes // ins[0].elements * ins[0].shape[1]
    return out.shape[0] * out.shape[2] * out.shape[3] * taps * per_position


def _write_bytes(node: Node, value: Value, ins: tuple[TensorType, ...], graph: Graph) -> int:
    """DRAM bytes that the op must leave: outputs of the graph and updates of states."""
    if isinstance(node.op, KvWrite):
        return ins[1].nbytes
    return value.type.nbytes if value.name in graph.outputs or value.kind == "state" else 0
