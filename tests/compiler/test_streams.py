"""From tiles to streams: lifetimes, addresses, derived synchronisation, software pipelining."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from arch_configs.spec import ArchSpec
from compiler.allocation import allocate
from compiler.builder import Builder, Tensor
from compiler.codegen import emit
from compiler.errors import Infeasible
from compiler.ir.verify_program import check_races, verify_program
from compiler.isa import Loop, Matmul, Program, walk
from compiler.sync import plan_sync


def arch(**overrides: str) -> ArchSpec:
    changes = {k.replace("__", "."): v for k, v in overrides.items()}
    return load_arch("trn2", {"memories.sbuf.reserved": "0 B", **changes})


def program(b: Builder) -> Program:
    placement = allocate(b.graph, b.arch)
    made = emit(b.graph, placement, plan_sync(b.graph, placement))
    verify_program(made, b.arch)
    check_races(made, b.arch)
    return made


def load_multiply_store(b: Builder, count: int, slots: int) -> None:
    x, y = b.dram("x", (count, 128, 512), "bf16"), b.dram("y", (count, 128, 512), "bf16")
    w = b.scratch((128, 128), "bf16", name="w")
    b.memset(w[:], 1.0)
    with b.loop(count) as i:
        tile = b.scratch((128, 512), "bf16", slots=slots, name="x")
        out = b.scratch((128, 512), "bf16", slots=slots, name="out")
        acc = b.accumulator((128, 512), slots=slots)
        b.dma(tile[:], x[i], "input")
        b.matmul(acc[:], w[:], tile[:])
        b.copy(out[:], acc[:])
        with b.stage(1):
            b.dma(y[i], out[:], "output")


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_derived_channels_order_every_conflict(count: int, slots: int) -> None:
    b = Builder(arch(), "test")
    load_multiply_store(b, count, slots)
    made = program(b)
    executed = sum(n for _, nodes in made.streams for i, n in walk(nodes) if isinstance(i, Matmul))
    assert executed == count


def test_a_channel_starts_with_as_many_tokens_as_there_are_slots() -> None:
    b = Builder(arch(), "test")
    load_multiply_store(b, 9, 4)
    made = program(b)
    back = [c for c in made.channels if c.producer == "tensor" and c.consumer.startswith("dma")]
    assert [c.initial for c in back] == [4]


def test_one_queue_loads_ahead_of_its_late_stores() -> None:
    b = Builder(arch(dma__queues="1"), "test")
    load_multiply_store(b, 9, 2)
    (nodes,) = (nodes for name, nodes in program(b).streams if name == "dma0")
    assert not isinstance(nodes[0], Loop), "the first load is the prologue"
    assert isinstance(nodes[1], Loop)
    assert nodes[1].count == 8
    assert [i.dst.buffer.split(".")[0] for i in nodes[1].body] == ["x", "y"]  # type: ignore[union-attr]


def chain(b: Builder, tiles: int) -> list[Tensor]:
    made = []
    for _ in range(tiles):
        tile = b.scratch((128, 1024), "fp32")
        b.memset(tile[:], 0.0)
        b.copy(tile[:, (0, 1)], tile[:, (1, 1)])
        made.append(tile)
    return made


def test_dead_tiles_share_bytes_only_when_memory_is_short() -> None:
    roomy, tight = Builder(arch(), "roomy"), Builder(arch(memories__sbuf__capacity="1 MiB"), "tight")
    for b in (roomy, tight):
        chain(b, 6)
    peaks = []
    for b in (roomy, tight):
        buffers = allocate(b.graph, b.arch).buffers.values()
        peaks.append(max(x.address + x.nbytes for x in buffers))
        program(b)
    assert peaks[0] == 6 * 4096
    assert peaks[1] <= 8192


def test_slots_are_given_up_before_the_design_is_called_infeasible() -> None:
    for capacity, slots in (("28 MiB", 4), ("1 MiB", 2), ("512 KiB", 1)):
        b = Builder(arch(memories__sbuf__capacity=capacity), "test")
        x = b.dram("x", (9, 128, 1024), "fp32")
        with b.loop(9) as i:
            tile = b.scratch((128, 1024), "fp32", slots=4)
            b.dma(tile[:], x[i])
        placed = allocate(b.graph, b.arch).buffers[tile.name]
        assert placed.slots == slots, capacity


def test_what_does_not_fit_is_infeasible_with_its_terms() -> None:
    b = Builder(arch(memories__sbuf__capacity="256 KiB"), "test")
    (tile,) = chain(b, 1)
    with pytest.raises(Infeasible) as caught:
        allocate(b.graph, b.arch)
    shortfall = caught.value.shortfall
    assert (shortfall.code, shortfall.needed, shortfall.available) == ("scratchpad-capacity", 4096, 2048)
    assert shortfall.terms[0][1] == 4096
    assert "memories.sbuf.capacity >= 524288 B" in shortfall.fix
    assert tile.name in b.graph.buffers
