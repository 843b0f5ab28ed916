"""Run a Program in numpy on its real addresses, to hold it against the reference of its Graph."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from arch_configs.spec import ArchSpec
from compiler.errors import CompileError, VerifyError
from compiler.ir.dtype import numpy_dtype
from compiler.ir.execute import Effect, Machine
from compiler.ir.layout import Layout, has_copies
from compiler.ir.reference import FED_KINDS, run_graph
from compiler.ir.tokens import Env, program_order
from compiler.isa import Buffer, Instr, Node, Program, Sync, unroll

Array = npt.NDArray[Any]
Timed = tuple[int, int, str, Instr, Env]  # start, end (ps), stream, instruction, loop counters

__all__ = ["run_graph", "run_program"]


def _feed(feeds: Mapping[str, Array], name: str, shape: tuple[int, ...] | None) -> Array:
    if name not in feeds:
        raise CompileError(f"feeds: got no array for {name!r}, have {', '.join(sorted(feeds)) or 'none'}")
    array = np.asarray(feeds[name])
    if shape is not None and array.shape != shape:
        raise CompileError(f"feeds: {name!r}: got shape {array.shape}, want {shape}")
    return array


def _plain(array: Array) -> Array:
    """As float32, or int32 for integers."""
    return array.astype(np.int32 if array.dtype.kind in "iu" else np.float32)


def run_program(
    program: Program,
    arch: ArchSpec,
    feeds: Mapping[str, Array],
    order: Iterable[Timed] | None = None,
    *,
    strict: bool = False,
    inner: bool = False,
) -> dict[str, Array]:
    """Execute `program` on its real addresses; the logical arrays of its outputs and states.

    `feeds` is as in `run_graph`. Without `order` the streams run as the channels allow. With it (every
    dynamic instruction with its start and end) operands are read at the start and results written at
    the end, so a missing semaphore shows as a wrong result. On-chip memory starts as NaN; with
    `strict`, reading a byte that was never written raises VerifyError. With `inner`, also what every
    other DRAM buffer of a known value holds in the end: in a region, that is of its last iteration.
    Results are float32 (int32 for integer types).
    """
    machine = Machine(program, arch, strict)
    layouts, shapes = dict(program.layouts), dict(program.shapes)
    dram = [b for b in program.buffers if not b.partitions]
    for buffer in dram:
        if buffer.kind in FED_KINDS:
            name = buffer.tensor or buffer.name
            array = _feed(feeds, name, shapes.get(name))
            _store(machine, buffer, array, layouts.get(name, Layout()))
    with np.errstate(all="ignore"):
        if order is None:
            _run_in_program_order(machine, program)
        else:
            _run_in_time_order(machine, program, order)
    wanted = {**(_inner(dram, shapes) if inner else {}), **_results(program, dram)}
    return {
        name: _load(machine, buffer, layouts.get(name, Layout()), shapes) for name, buffer in wanted.items()
    }


def _run_in_program_order(machine: Machine, program: Program) -> None:
    step, apply = machine.step, machine.apply
    for stream, instr, env in program_order(program):
        try:
            apply(step(instr)(env))
        except (VerifyError, TypeError, ValueError) as error:
            error.add_note(f"in stream {stream!r}: {type(instr).__name__} of op {instr.op!r}, counters {env}")
            raise


def _run_in_time_order(machine: Machine, program: Program, order: Iterable[Timed]) -> None:
    timed = [(start, end, stream, instr, dict(env)) for start, end, stream, instr, env in order]
    timed.sort(key=lambda item: item[0])
    running: list[tuple[int, int, tuple[Effect, ...]]] = []  # heap by end; position breaks ties
    expected = {name: _moving(nodes) for name, nodes in program.streams}
    for position, (start, end, stream, instr, env) in enumerate(timed):
        _check_next(expected, stream, instr, env)
        while running and running[0][0] <= start:
            machine.apply(heapq.heappop(running)[2])
        effects = tuple((view, np.array(value), add) for view, value, add in machine.step(instr)(env))
        heapq.heappush(running, (end, position, effects))
    while running:
        machine.apply(heapq.heappop(running)[2])
    for stream, rest in expected.items():
        if next(rest, None) is not None:
            raise VerifyError(f"[time-order] stream {stream!r}: the order ends before the stream does")


def _moving(nodes: tuple[Node, ...]) -> Iterator[tuple[Instr, Env]]:
    """The dynamic instructions of a stream that do more than wait and signal."""
    return ((instr, env) for instr, env in unroll(nodes) if not isinstance(instr, Sync))


def _check_next(
    expected: Mapping[str, Iterator[tuple[Instr, Env]]], stream: str, instr: Instr, env: Env
) -> None:
    """A time order must list each stream's instructions in the stream's order."""
    step = next(expected[stream], None) if stream in expected else None
    if step is None or (step[0] is not instr and step[0] != instr) or step[1] != env:
        want = f"{type(step[0]).__name__} with counters {step[1]}" if step else "its end"
        raise VerifyError(
            f"[time-order] stream {stream!r}: got {type(instr).__name__} with counters {env}, want {want}"
        )


def _store(machine: Machine, buffer: Buffer, array: Array, layout: Layout) -> None:
    """Put the memory image of a logical array into its buffer."""
    dtype = numpy_dtype(buffer.dtype)
    pieces = list(array) if has_copies(buffer.slots, layout, array.shape) else [array]
    if len(pieces) != buffer.slots:
        raise CompileError(
            f"feeds: {buffer.tensor!r}: got {len(pieces)} copies, want {buffer.slots} "
            f"(the slots of buffer {buffer.name!r})"
        )
    memory = machine.memories[buffer.memory]
    for slot, piece in enumerate(pieces):
        image = layout.pack(np.asarray(piece)).astype(dtype).view(np.uint8)
        if image.size > buffer.slot_bytes:
            raise CompileError(
                f"feeds: {buffer.tensor!r}: its image has {image.size} B, but a slot of buffer "
                f"{buffer.name!r} has {buffer.slot_bytes} B"
            )
        start = buffer.address + slot * buffer.slot_bytes
        memory.data[start : start + image.size] = image
        if memory.written is not None:
            memory.written[start : start + image.size] = True


def _load(machine: Machine, buffer: Buffer, layout: Layout, shapes: Mapping[str, tuple[int, ...]]) -> Array:
    """The logical array in a buffer."""
    name = buffer.tensor or buffer.name
    if name not in shapes:
        raise CompileError(f"program.shapes: no shape for {name!r}, have {', '.join(shapes) or 'none'}")
    shape = shapes[name]
    stacked = has_copies(buffer.slots, layout, shape)
    piece = shape[1:] if stacked else shape
    dtype = numpy_dtype(buffer.dtype)
    data = machine.memories[buffer.memory].data
    size = layout.stored_elements(piece) * dtype.itemsize
    starts = [buffer.address + slot * buffer.slot_bytes for slot in range(buffer.slots if stacked else 1)]
    arrays = [_plain(layout.unpack(data[at : at + size].view(dtype), piece)) for at in starts]
    return np.stack(arrays) if stacked else arrays[0]


def _inner(dram: list[Buffer], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Buffer]:
    """The buffer of each value; of values that share one, that of the last."""
    return {b.tensor or b.name: b for b in dram if b.kind == "activation" and (b.tensor or b.name) in shapes}


def _results(program: Program, dram: list[Buffer]) -> dict[str, Buffer]:
    """The DRAM buffer of each output and state; an output's own buffer before others of its tensor."""
    found: dict[str, Buffer] = {}
    for buffer in sorted(dram, key=lambda b: b.kind not in ("output", "state")):
        found.setdefault(buffer.tensor or buffer.name, buffer)
    states = [b.tensor or b.name for b in dram if b.kind == "state"]
    names = dict.fromkeys((*program.outputs, *states))
    missing = [name for name in names if name not in found]
    if missing:
        raise CompileError(f"program {program.name!r}: no DRAM buffer holds output {', '.join(missing)}")
    return {name: found[name] for name in names}
