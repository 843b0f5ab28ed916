"""The kernel API: operands, loops, engines and queues."""

from __future__ import annotations

import pytest

from arch_configs import load_arch
from compiler.builder import Builder, Tensor
from compiler.errors import CompileError, Infeasible
from compiler.ir.tiles import TileLoop
from compiler.isa import Affine, var


def tensor(*shape: int, on_chip: bool = False) -> Tensor:
    b = Builder(load_arch("trn1"), "test")
    return b.scratch(shape, "bf16", name="t") if on_chip else b.dram("t", shape, "bf16")


def test_an_index_is_a_strided_view() -> None:
    access = tensor(4, 6, 8)[var("i"), (2, 3), (1, 4, 2)]
    assert access.dims == ((8, 3), (2, 4))
    assert access.offset == var("i") * 48 + 17
    assert access.partitions == 0


def test_on_chip_the_first_axis_is_partitions() -> None:
    access = tensor(128, 4, 8, on_chip=True)[(32, 64), 1]
    assert (access.partition, access.partitions) == (32, 64)
    assert access.dims == ((1, 8),)
    assert access.offset == Affine(8)


def test_partitions_must_be_a_range_of_numbers() -> None:
    with pytest.raises(CompileError, match=r"want partitions as \(start, size\)"):
        tensor(128, 4, on_chip=True)[var("i"), 0]


def test_permute_split_and_repeat_only_change_the_view() -> None:
    t = tensor(6, 8)
    assert t.permute(1, 0)[:].dims == ((1, 8), (8, 6))
    assert t.split(0, 2)[1, 1].offset == Affine(24)
    assert t.repeat(0, 5)[:].dims == ((0, 5), (8, 6), (1, 8))


def test_tiles_cut_an_extent_into_a_loop_and_a_rest() -> None:
    b = Builder(load_arch("trn1"), "test")
    pieces = [(p.size, len(b.root.body)) for p in b.tiles(10, 4)]
    assert [size for size, _ in pieces] == [4, 2]
    assert [n.count for n in b.root.body if isinstance(n, TileLoop)] == [2]
    assert [p.size for p in b.tiles(3, 4)] == [3]
    assert [p.size for p in b.tiles(4, 4)] == [4]


def test_more_partitions_than_the_memory_has() -> None:
    b = Builder(load_arch("trn1"), "test")
    with pytest.raises(CompileError, match="129 partitions, sbuf has 128"):
        b.scratch((129, 4), "bf16")


def test_engines_are_balanced_and_reach_is_respected() -> None:
    b = Builder(load_arch("trn1"), "test")
    acc, out = b.accumulator((128, 512)), b.scratch((128, 512), "bf16")
    for _ in range(8):
        b.copy(out[:], acc[:])
    streams = {node.stream for node in b.root.instructions()}
    assert streams == {"vector", "scalar"}, "gpsimd cannot reach psum; the others share the work"


def test_what_no_engine_can_run_is_infeasible() -> None:
    b = Builder(load_arch("trn1", {"engines.scalar.ops": "{copy: 1}"}), "test")
    tile = b.scratch((128, 4), "fp32")
    with pytest.raises(Infeasible, match=r"ops\.activate"):
        b.activate(tile[:], tile[:], "exp")


def test_a_transfer_is_split_over_queues_where_one_is_too_slow() -> None:
    b = Builder(load_arch("trn1"), "test")
    tile, source = b.scratch((128, 4096), "bf16"), b.dram("x", (128, 4096), "bf16")
    b.dma(tile[:], source[:])
    parts = [node.instr for node in b.root.instructions()]
    assert len(parts) == 3  # 272 GB/s of engines over 104 GB/s a queue
    assert sum(part.dst.partitions for part in parts) == 128  # type: ignore[attr-defined]
    b = Builder(load_arch("trn2"), "test")
    b.dma(b.scratch((128, 4096), "bf16")[:], b.dram("x", (128, 4096), "bf16")[:])
    assert len(list(b.root.instructions())) == 1


def test_a_stage_that_feeds_a_lower_one_is_refused() -> None:
    b = Builder(load_arch("trn1"), "test")
    b.begin("op")
    message = r"op: t\.0 is written at stage 1 of loop i1 and read at stage 0"

    def feed_backwards() -> None:
        tile = b.scratch((128, 8), "fp32", slots=2)
        with b.loop(4):
            with b.stage(1):
                b.memset(tile[:], 0.0)
            b.copy(tile[:, (0, 4)], tile[:, (4, 4)])

    with pytest.raises(CompileError, match=message):
        feed_backwards()


def test_a_copy_within_dram_keeps_every_dma_engine_busy() -> None:
    b = Builder(load_arch("trn2"), "test")
    b.dma(b.dram("y", (64, 100), "bf16")[:], b.dram("x", (6400,), "bf16")[:])
    (node,) = b.root.instructions()
    assert [access.dims for access in (node.instr.dst, node.instr.src)] == [((400, 16), (1, 400))] * 2  # type: ignore[attr-defined]
