"""Program and trace to the parts of a record: engines, memories, ops, the array, bounds and audit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.ir.graph import Graph, Node
from compiler.isa import Access, Buffer, Matmul, Program, TensorScalar, Transpose, walk
from compiler.ops import Conv2d, DecodeAttention
from dse.result import ArrayRecord, EngineRecord, MemoryRecord, OpRecord, PathRecord
from dse.roofline import GraphBounds, array_ps, transfer_ps
from eventsim import BoundProgram, Trace, num_records
from eventsim.path import critical_path
from eventsim.stats import times_add_up

PATH_ROWS = 24
MEMORY_ROWS = 24
LAUNCH = "launch"  # wait cause of the host gap in front of a run
_KIND_LINES = {
    "weight": "weights",
    "state": "kv cache and states",
    "input": "inputs",
    "activation": "activations",
}


def engine_records(trace: Trace, bound: BoundProgram) -> dict[str, EngineRecord]:
    """Every engine, and the DMA queues that the program uses. The launch gap is a wait of each."""
    arch, launch = bound.arch, bound.launch_ps
    time_ps = trace.time_ps + launch
    streams = {stream.name: stream for stream in trace.streams}
    found: dict[str, EngineRecord] = {}
    for name in (*arch.engines, *arch.queue_names):
        stream = streams.get(name)
        if stream is None and name not in arch.engines:
            continue
        waits = dict(sorted(stream.wait_ps.items())) if stream else {}
        if launch:
            waits[LAUNCH] = launch
        busy = stream.busy_ps if stream else 0
        found[name] = {
            "kind": arch.engines[name].kind if name in arch.engines else "dma",
            "busy_ps": busy,
            "wait_ps": waits,
            "idle_ps": stream.idle_ps if stream else trace.time_ps,
            "instructions": stream.instructions if stream else 0,
            "utilization": busy / time_ps if time_ps else 0.0,
        }
    return found


def memory_skeleton(arch: ArchSpec) -> dict[str, MemoryRecord]:
    """The memories of an architecture, empty."""
    return {
        name: {
            "kind": spec.kind,
            "capacity_bytes": spec.capacity,
            "bandwidth_bytes_per_s": arch.dram_bandwidth if name == arch.dram else spec.bandwidth,
            "peak_bytes": 0,
            "by_tensor": [],
        }
        for name, spec in arch.memories.items()
    }


def memory_records(program: Program, arch: ArchSpec) -> dict[str, MemoryRecord]:
    """Peaks from the addresses; on chip over all partitions. The reserve of the runtime is a line.

    `by_tensor` of an on-chip memory lists buffers that may be alive together, largest first: of buffers
    that share addresses only the largest.
    """
    found = memory_skeleton(arch)
    for name, memory in found.items():
        rows = 1 if name == arch.dram else arch.partitions(name)
        buffers = [buffer for buffer in program.buffers if buffer.memory == name]
        reserve = arch.memories[name].reserved
        top = max((buffer.address + buffer.nbytes for buffer in buffers), default=0)
        memory["peak_bytes"] = top * rows + reserve
        lines: dict[str, int] = defaultdict(int)
        if reserve:
            lines["runtime reserve"] = reserve
        for buffer in buffers if name == arch.dram else _together(buffers):
            label = _KIND_LINES.get(buffer.kind, buffer.kind) if name == arch.dram else buffer.tensor
            lines[label or buffer.name] += buffer.nbytes * (buffer.partitions or 1)
        memory["by_tensor"] = sorted(lines.items(), key=lambda item: (-item[1], item[0]))[:MEMORY_ROWS]
    return found


def _together(buffers: list[Buffer]) -> list[Buffer]:
    """Buffers without common addresses, the largest first."""
    taken: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes * b.partitions, b.name)):
        end = buffer.address + buffer.nbytes
        if all(end <= other.address or buffer.address >= other.address + other.nbytes for other in taken):
            taken.append(buffer)
    return taken


def array_skeleton(arch: ArchSpec, dtype: str) -> ArrayRecord:
    """The matrix engine before a program is known."""
    array = arch.array
    return {
        "rows": array.rows,
        "cols": array.cols,
        "units": array.units,
        "dtype": dtype,
        "peak_flops_per_s": arch.peak_flops(dtype),
        "model_macs": None,
        "masked_macs": None,
        "other_macs": None,
        "padded_macs": None,
    }


def array_record(program: Program, arch: ArchSpec, dtype: str, model_macs: int) -> ArrayRecord:
    """MACs of the program: of the model, masked out, other array work, and cells beside small tiles."""
    issued, other, offered = 0, 0, 0
    cells = arch.array.rows * arch.array.cols
    for instr, times in walk(dict(program.streams).get(arch.tensor, ())):
        if isinstance(instr, Matmul):
            macs, columns = instr.macs, instr.moving.free_elements
        elif isinstance(instr, Transpose):
            macs, columns = instr.src.elements * instr.src.partitions, instr.src.partitions
        else:
            continue
        is_model = isinstance(instr, Matmul) and instr.model
        issued += times * macs * is_model
        other += times * macs * (not is_model)
        offered += times * cells * columns
    return {
        **array_skeleton(arch, dtype),
        "model_macs": min(issued, model_macs),
        "masked_macs": max(0, issued - model_macs),
        "other_macs": other,
        "padded_macs": offered - issued - other,
    }


@dataclass(frozen=True, slots=True)
class OpWork:
    """What the graph says of one op, all repetitions together."""

    kind: str
    count: int
    macs: int
    most_macs: int  # causal: the whole square of scores
    dtype: str
    is_depthwise: bool = False
    query_rows: int = 0  # decode: queries of the heads that share a kv head


def graph_work(graph: Graph) -> dict[str, OpWork]:
    """Work by op name, in graph order."""
    values = graph.value_map()
    found = {}
    for node, times in graph.walk():
        ins = tuple(values[name].type for name in node.inputs)
        macs, most = node.op.macs(ins), node.op.most_macs(ins)
        found[node.name] = OpWork(
            kind=node.op.kind,
            count=times,
            macs=times * macs,
            most_macs=times * most,
            dtype=ins[0].dtype if ins else "",
            is_depthwise=isinstance(node.op, Conv2d) and node.op.is_depthwise(ins),
            query_rows=_query_rows(node),
        )
    return found


def _query_rows(node: Node) -> int:
    op = node.op
    return op.heads // op.kv_heads * op.queries if isinstance(op, DecodeAttention) else 0


def op_records(bound: BoundProgram, trace: Trace, graph: Graph) -> list[OpRecord]:
    """Per op of the program: model FLOPs, DRAM bytes, its own bounds, and time on each engine.

    `graph` is the one that was lowered, after the passes: its names are those of the instructions.
    """
    work = graph_work(graph)
    nbytes: dict[str, int] = defaultdict(int)
    busy: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for stream, result in zip(bound.streams, trace.streams, strict=True):
        for op, spent in result.busy_by_op.items():
            busy[op]["dma" if stream.is_queue else stream.name] += spent
        for item in stream.instrs:
            if item.transfer is not None:
                nbytes[item.instr.op] += item.fetches * item.transfer.dram_bytes
    order = {op: position for position, op in enumerate(work)}
    found: list[OpRecord] = []
    for op in sorted(busy, key=lambda name: (order.get(name, len(order)), name)):
        known = work.get(op, OpWork("", 1, 0, 0, ""))
        found.append(
            {
                "op": op,
                "kind": known.kind,
                "count": known.count,
                "flops": 2 * known.macs,
                "bytes": nbytes[op],
                "compute_ps": array_ps(known.macs, known.dtype, bound.arch),
                "memory_ps": transfer_ps(nbytes[op], bound.arch),
                "busy_ps": {name: spent for name, spent in busy[op].items() if spent},
            }
        )
    return found


def macs_conserved(program: Program, graph: Graph) -> bool:
    """Whether every op's matmuls do exactly its MACs; of a depthwise convolution, its vector products.

    Attention may compute scores that a mask throws away. The few query
    rows that share a kv head in a decode step are padded to a start partition: only they are counted.
    """
    issued: dict[str, int] = defaultdict(int)
    work = graph_work(graph)
    for _, nodes in program.streams:
        for instr, times in walk(nodes):
            if isinstance(instr, Matmul) and instr.model:
                rows = work[instr.op].query_rows if instr.op in work else 0
                parts = instr.dst.partitions
                macs = instr.macs * min(rows, parts) // parts if rows else instr.macs
                issued[instr.op] += times * macs
            elif isinstance(instr, TensorScalar) and instr.op in work and work[instr.op].is_depthwise:
                issued[instr.op] += times * _products(instr)
    return set(issued) <= set(work) and all(
        known.macs <= issued.get(op, 0) <= known.most_macs for op, known in work.items()
    )


def instructions_conserved(bound: BoundProgram, trace: Trace) -> bool:
    """Whether every stream ran as many instructions as its loops say; of a queue only transfers count."""
    return all(
        num_records(trace, i)
        == sum(item.times for item in stream.instrs if item.transfer is not None or not stream.is_queue)
        for i, stream in enumerate(bound.streams)
    )


def _products(instr: TensorScalar) -> int:
    """Elements multiplied by a filter value of their partition."""
    is_product = instr.op0 == "multiply" and isinstance(instr.a, Access)
    return instr.dst.elements if is_product else 0


def bound_op_records(bounds: GraphBounds) -> list[OpRecord]:
    """Per op of the graph, from the roofline alone."""
    return [
        {
            "op": op.op,
            "kind": op.kind,
            "count": op.count,
            "flops": 2 * op.macs,
            "bytes": op.nbytes,
            "compute_ps": op.compute_ps,
            "memory_ps": op.memory_ps,
            "busy_ps": {},
        }
        for op in bounds.ops
    ]


def path_records(bound: BoundProgram, trace: Trace) -> list[PathRecord]:
    """The critical path by engine, op and cause, largest first; it sums to the time.

    DMA queues count as one engine; rows past the largest few are one row; the launch gap is a row.
    """
    queues = {stream.name for stream in bound.streams if stream.is_queue}
    spent: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in critical_path(trace, bound):
        spent["dma" if row.stream in queues else row.stream, row.op, row.cause] += row.ps
    if bound.launch_ps:
        spent["host", "", LAUNCH] = bound.launch_ps
    ranked = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(ps for _, ps in ranked[PATH_ROWS:])
    if rest:
        ranked = [*ranked[:PATH_ROWS], (("all others", "", ""), rest)]
    return [{"engine": e, "op": op, "what": what, "time_ps": ps} for (e, op, what), ps in ranked]


def audit(
    bound: BoundProgram,
    trace: Trace,
    graph: Graph,
    *,
    fused: Graph,
    array: ArrayRecord,
    bounds: GraphBounds,
    serial: int,
) -> dict[str, bool]:
    """Checks that hold for every correct simulation; a False is a fault of ours, never of the user."""
    arch = bound.arch
    dram_bytes = trace.dram_read_bytes + trace.dram_write_bytes
    time_ps = trace.time_ps + bound.launch_ps
    peak_macs = arch.peak_flops(array["dtype"]) * time_ps // 2
    return {
        "time_adds_up": times_add_up(trace, bound),
        "engines_below_peak": all(s.busy_ps <= trace.time_ps for s in trace.streams)
        and (not peak_macs or graph.macs * 10**12 <= peak_macs),
        "dram_below_peak": dram_bytes * 10**12 <= arch.dram_bandwidth * trace.dma_active_ps,
        "bytes_conserved": trace.dram_moved_bytes == dram_bytes,
        "bytes_above_compulsory": dram_bytes >= bounds.read_bytes + bounds.write_bytes,
        "macs_conserved": macs_conserved(bound.program, fused),
        "instructions_conserved": instructions_conserved(bound, trace),
        "above_lower_bound": bounds.time_ps <= time_ps,
        "below_serial_bound": time_ps <= serial,
    }
