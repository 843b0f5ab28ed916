"""Hand-made programs and a small machine for the tests of the program level."""

from __future__ import annotations

from dataclasses import replace

from arch_configs.spec import ArchSpec
from compiler.isa import (
    Access,
    Affine,
    Buffer,
    Channel,
    Copy,
    Dma,
    Instr,
    Loop,
    Matmul,
    Node,
    Program,
    var,
)


def small_arch(*, partitions: int = 8, rows: int = 8, cols: int = 8, banks: int = 4) -> ArchSpec:
    """8 x 8 array, 8 partitions of 4 KiB scratchpad and 256 B accumulator, two queues."""
    both = ("sbuf", "psum")
    ops = {"copy": 1, "scalar_op": 1, "tensor_op": 1, "reduce": 1, "activate": 1, "memset": 1, "select": 1}
    return ArchSpec.model_validate(
        {
            "name": "small",
            "engines": {
                "tensor": {
                    "kind": "systolic", "rows": rows, "cols": cols, "clock": "1 GHz", "moving_max": 16,
                    "passes": {"bf16": 1, "fp32": 4, "fp8e4": 1, "int8": 1},
                    "reads": ("sbuf",), "writes": ("psum",),
                },
                "vector": {
                    "kind": "vector", "lanes": partitions, "clock": "1 GHz", "ops": ops,
                    "reads": both, "writes": both,
                },
                "pool": {
                    "kind": "vector", "lanes": partitions, "clock": "1 GHz", "ops": {"copy": 1},
                    "reads": ("sbuf",), "writes": ("sbuf",),
                },
            },
            "memories": {
                "hbm": {"kind": "dram", "capacity": "1 MiB", "bandwidth": "1 GB/s"},
                "sbuf": {"kind": "scratchpad", "capacity": f"{4 * partitions} KiB", "partitions": partitions},
                "psum": {
                    "kind": "accumulator", "capacity": f"{256 * partitions} B",
                    "partitions": partitions, "banks": banks,
                },
            },
            "dma": {"queues": 2, "engines": 2, "engine_bandwidth": "1 GB/s"},
        }
    )  # fmt: skip


def tile_matmul(tiles: int = 6, slots: int = 2, dtype: str = "bf16") -> Program:
    """`y[i] = w^T x[i]` over `tiles` tiles: load, matmul, evict, store, double buffered.

    x is [tiles, 8, 16], w [8, 8], y [tiles, 8, 16], row-major.
    """
    i = var("i")
    size = {"bf16": 2, "fp32": 4}[dtype]
    tile = 16 * size  # bytes per partition
    buffers = (
        Buffer("x", "hbm", dtype, 0, tiles * 8 * tile, tensor="x", kind="input"),
        Buffer("w", "hbm", dtype, 16384, 8 * 8 * size, tensor="w", kind="weight"),
        Buffer("y", "hbm", dtype, 32768, tiles * 8 * tile, tensor="y", kind="output"),
        Buffer("w_tile", "sbuf", dtype, 0, 8 * size, partitions=8),
        Buffer("x_tile", "sbuf", dtype, 64, tile, slots, partitions=8),
        Buffer("y_tile", "sbuf", dtype, 64 + slots * tile, tile, slots, partitions=8),
        Buffer("acc", "psum", "fp32", 0, 64, slots, partitions=8),
    )

    def on_chip(name: str, free: int, kind: str = dtype) -> Access:
        slot = Affine() if name == "w_tile" else i
        return Access(name, kind, ((1, free),), partitions=8, slot=slot)

    def in_dram(name: str, free: int, offset: Affine | None = None) -> Access:
        return Access(name, dtype, ((free, 8), (1, free)), offset or Affine())

    load = Dma(
        dst=on_chip("x_tile", 16), src=in_dram("x", 16, i * 128),
        waits=(("x_free", 1),), signals=(("x_ready", 1),), op="load",
    )  # fmt: skip
    weight = Dma(dst=on_chip("w_tile", 8), src=in_dram("w", 8), signals=(("w_ready", 1),), op="weight")
    matmul = Matmul(
        dst=on_chip("acc", 16, "fp32"), stationary=on_chip("w_tile", 8), moving=on_chip("x_tile", 16),
        waits=(("x_ready", 1), ("acc_free", 1)), signals=(("x_free", 1), ("acc_ready", 1)), op="matmul",
    )  # fmt: skip
    first = replace(matmul, waits=(*matmul.waits, ("w_ready", 1)))
    evict = Copy(
        dst=on_chip("y_tile", 16), src=on_chip("acc", 16, "fp32"),
        waits=(("acc_ready", 1), ("y_free", 1)), signals=(("acc_free", 1), ("y_ready", 1)), op="evict",
    )  # fmt: skip
    store = Dma(
        dst=in_dram("y", 16, i * 128), src=on_chip("y_tile", 16),
        waits=(("y_ready", 1),), signals=(("y_free", 1),), op="store",
    )  # fmt: skip

    def loop(body: Instr, count: int = tiles) -> Node:
        return Loop("i", count, (body,), 1)

    rest = shift_loop(matmul, tiles - 1)
    return Program(
        name="tile-matmul",
        streams=(
            ("dma0", (weight, loop(load))),
            ("dma1", (loop(store),)),
            ("tensor", (Loop("i", 1, (first,), 2), *rest)),
            ("vector", (loop(evict),)),
        ),
        buffers=buffers,
        channels=(
            Channel("x_free", "tensor", "dma0", slots),
            Channel("x_ready", "dma0", "tensor"),
            Channel("w_ready", "dma0", "tensor"),
            Channel("acc_free", "vector", "tensor", slots),
            Channel("acc_ready", "tensor", "vector"),
            Channel("y_free", "dma1", "vector", slots),
            Channel("y_ready", "vector", "dma1"),
        ),
        outputs=("y",),
        shapes=(("x", (tiles, 8, 16)), ("w", (8, 8)), ("y", (tiles, 8, 16))),
    )


def shift_loop(matmul: Matmul, count: int) -> tuple[Node, ...]:
    """The iterations 1.. of the matmul loop."""
    if not count:
        return ()
    shifted = replace(
        matmul,
        dst=replace(matmul.dst, slot=matmul.dst.slot.shifted("i", 1)),
        moving=replace(matmul.moving, slot=matmul.moving.slot.shifted("i", 1)),
    )
    return (Loop("i", count, (shifted,), 3),)


def edit(program: Program, stream: str, op: str, **changes: object) -> Program:
    """`program` with fields of the instructions of `op` in `stream` changed."""

    def rewrite(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, body=rewrite(node.body))
            if isinstance(node, Loop)
            else replace(node, **changes)  # type: ignore[arg-type]
            if node.op == op
            else node
            for node in nodes
        )

    streams = tuple((name, rewrite(nodes) if name == stream else nodes) for name, nodes in program.streams)
    return replace(program, streams=streams)


def move(program: Program, buffer: str, **changes: object) -> Program:
    """`program` with fields of one buffer changed."""
    buffers = tuple(
        replace(b, **changes) if b.name == buffer else b  # type: ignore[arg-type]
        for b in program.buffers
    )
    return replace(program, buffers=buffers)


def first(program: Program, stream: str, op: str) -> Instr:
    """The first instruction of `op` in `stream`."""

    def find(nodes: tuple[Node, ...]) -> Instr | None:
        for node in nodes:
            found = find(node.body) if isinstance(node, Loop) else node if node.op == op else None
            if found is not None:
                return found
        return None

    found = find(dict(program.streams)[stream])
    assert found is not None
    return found
