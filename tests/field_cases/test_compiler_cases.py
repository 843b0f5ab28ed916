"""What users of such tools ran into, restated for the compiler: each test carries its case id."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest

from arch_configs import ArchSpec, load_arch
from compiler import CompileError, CompileOptions, Infeasible, Program, compile_graph
from compiler.ir.graph import Graph
from compiler.ir.text import print_program
from compiler.isa import Dma, walk
from compiler.ops import Linear, Op, Transpose2d, Unary
from dse import Point, evaluate
from dse.summary import array_record, engine_records, macs_conserved, memory_records
from eventsim import bind, simulate, simulate_bound
from tests.compiler.designs import check_program
from workloads import build
from workloads.blocks import GraphBuilder


def trn2(sbuf: str = "24 MiB", **overrides: str) -> ArchSpec:
    """The architecture with a scratchpad of exactly `sbuf`, nothing of it reserved."""
    paths = {"memories.sbuf.capacity": sbuf, "memories.sbuf.reserved": "0 B"}
    return load_arch("trn2", paths | {name.replace("__", "."): text for name, text in overrides.items()})


def moved(graph: Graph, arch: ArchSpec, options: CompileOptions) -> int:
    trace = simulate(compile_graph(graph, arch, options), arch)
    return trace.dram_read_bytes + trace.dram_write_bytes


def chain(*ops: Op, rows: int = 128, cols: int = 512) -> Graph:
    """x [rows, cols] through `ops`; a linear layer brings a weight [cols, cols]."""
    b = GraphBuilder("chain", "bf16")
    x = b.input("x", rows, cols)
    for i, op in enumerate(ops):
        weights = (b.weight(f"w{i}", cols, cols),) if isinstance(op, Linear) else ()
        x = b.op(f"v{i}", op, x, *weights)
    return b.build((x,), {"unit": "ops", "work": 1})


# ---- traffic ---------------------------------------------------------------------------------------------
SBUF_SIZES = ("256 KiB", "512 KiB", "1 MiB", "2 MiB", "4 MiB", "8 MiB", "24 MiB")


def test_U005_more_scratchpad_never_moves_more_bytes_and_reaches_the_compulsory() -> None:
    """Asked to save traffic at any price; 3 x 2 MiB is what a GEMM of 1024 cubed cannot do without."""
    graph, options = build("gemm:m=1024,n=1024,k=1024"), CompileOptions(traffic_slack=10.0)
    bytes_by_size = [moved(graph, trn2(size), options) for size in SBUF_SIZES]
    assert bytes_by_size == sorted(bytes_by_size, reverse=True)
    assert bytes_by_size[0] > 4 * bytes_by_size[-1]
    assert bytes_by_size[-3:] == [3 * 2 * 1024 * 1024] * 3
    assert min(bytes_by_size) == 6_291_456


@pytest.mark.parametrize("size", SBUF_SIZES)
def test_U005_time_may_buy_traffic_but_never_below_the_compulsory(size: str) -> None:
    graph = build("gemm:m=1024,n=1024,k=1024")
    cheap, fast = (moved(graph, trn2(size), CompileOptions(traffic_slack=s)) for s in (10.0, 0.0))
    assert 6_291_456 <= cheap <= fast


@pytest.mark.parametrize(("dtype", "operand", "result"), [("fp8e4", 1, 2), ("bf16", 2, 2), ("fp32", 4, 4)])
def test_U007_compulsory_bytes_scale_with_the_element(dtype: str, operand: int, result: int) -> None:
    """1 : 2 : 4 for the operands, from the graph and as moved; 8-bit operands give a bf16 result."""
    for fidelity in ("roofline", "event"):
        point = Point("trn2", f"gemm:m=512,n=512,k=512,dtype={dtype}", options=(("traffic_slack", 10.0),))
        record = evaluate(Point(point.arch, point.workload, (), point.options, fidelity))  # type: ignore[arg-type]
        assert record["hbm_read_bytes"] == 2 * 512 * 512 * operand
        assert record["hbm_write_bytes"] == 512 * 512 * result


@pytest.mark.parametrize(("dtype", "operand"), [("fp8e4", 1), ("bf16", 2), ("fp32", 4)])
def test_U007_the_scratchpad_holds_elements_not_words(dtype: str, operand: int) -> None:
    arch = trn2()
    program = compile_graph(build(f"gemm:m=128,n=128,k=128,dtype={dtype}"), arch)
    held = {buffer.tensor: buffer for buffer in program.buffers if buffer.memory == "sbuf"}
    for tensor in ("y:x", "y:w"):
        assert held[tensor].nbytes // held[tensor].slots == 128 * operand
        assert held[tensor].partitions == 128


@pytest.mark.parametrize("dtype", ["fp8e4", "bf16", "fp32"])
def test_U079_the_memory_bound_follows_the_element(dtype: str) -> None:
    """Bytes over bytes/s: the time of a stream is exactly its bytes over the rate of DRAM and DMA."""
    record = evaluate(Point("trn2", f"gemv:k=4096,n=4096,dtype={dtype}", fidelity="roofline"))
    nbytes = record["hbm_read_bytes"] + record["hbm_write_bytes"]  # type: ignore[operator]
    arch = load_arch("trn2")
    rate = min(arch.dram_bandwidth, arch.dma.engines * arch.dma.engine_bandwidth)
    assert record["bounds"] is not None
    assert record["bounds"]["memory_ps"] == -(-nbytes * 10**12 // rate)


def test_U017_a_fused_intermediate_never_reaches_dram() -> None:
    """gelu(x w): unfused, the 128 KiB between both go out and come back, and nothing else changes."""
    graph, arch = chain(Linear(), Unary("gelu")), trn2()
    fused = moved(graph, arch, CompileOptions())
    apart = moved(graph, arch, CompileOptions(passes=("canonicalize", "dce")))
    assert fused == 2 * (128 * 512 + 512 * 512 + 128 * 512)
    assert apart - fused == 2 * 131_072


def test_U017_what_is_not_fused_is_counted_once_each_way() -> None:
    """Two products: no pass keeps the result of one on chip for the next, and the report does not say so."""
    one, two = (moved(chain(*[Linear()] * n), trn2(), CompileOptions()) for n in (1, 2))
    assert two - one == 2 * 131_072 + 2 * 512 * 512


# ---- the whole of the work -------------------------------------------------------------------------------
MODELS = (
    "llama-tiny:prefill,batch=2,seq=33",
    "llama-tiny:decode,batch=3,context=70",
    "vit-tiny:batch=2",
    "bert-tiny",
    "resnet-tiny",
    "attention:heads=4,kv_heads=2,seq=200,head_dim=64",
    "attention:decode,heads=8,kv_heads=2,context=300,head_dim=64",
    "conv:c=13,k=7,h=9,w=17,stride=2",
    "conv:c=32,k=32,h=14,w=14,groups=32",
    "conv:c=32,k=64,h=14,w=14,groups=4",
    "gemm:m=131,k=257,n=67",
)


@pytest.mark.parametrize("arch", ["trn1", "trn2", "tpu-v5e", "edge-npu"])
@pytest.mark.parametrize("workload", MODELS)
def test_U011_U044_executed_macs_are_the_macs_of_the_graph(workload: str, arch: str) -> None:
    record = evaluate(Point(arch, workload))
    assert record["status"] == "ok"
    assert record["audit"]["macs_conserved"], workload
    assert all(record["audit"].values()), record["audit"]
    attention = [op for op in record["ops"] if "attention" in op["kind"]]
    assert bool(attention) == any(name in workload for name in ("attention", "llama", "vit", "bert"))
    tensor = load_arch(arch).tensor
    assert all(op["busy_ps"][tensor] > 0 for op in attention)


def test_U011_dropped_work_is_noticed() -> None:
    """The audit itself can fail: without the array's instructions nothing is conserved."""
    graph, arch = build("conv:c=13,k=7,h=9,w=17"), trn2()
    program = compile_graph(graph, arch)
    assert macs_conserved(program, graph)
    streams = tuple((name, () if name == arch.tensor else nodes) for name, nodes in program.streams)
    assert not macs_conserved(replace(program, streams=streams), graph)


def test_U053_transposes_keep_the_array_busy_and_are_not_model_work() -> None:
    graph, arch = chain(Transpose2d(), rows=512), trn2()
    program = compile_graph(graph, arch)
    bound = bind(program, arch)
    trace = simulate_bound(bound)
    array = array_record(program, arch, "bf16", graph.macs)
    assert graph.macs == array["model_macs"] == 0
    assert (
        array["other_macs"] == 512 * 512 * 128
    )  # a product by an identity of 128 for each block of 128 rows
    assert engine_records(trace, bound)["tensor"]["busy_ps"] > 0
    assert trace.dram_read_bytes == trace.dram_write_bytes == 2 * 512 * 512


def test_U053_model_and_hardware_utilization_are_told_apart() -> None:
    """Attention transposes its probabilities on the array: busy beyond what the model asks for."""
    record = evaluate(Point("trn2", "attention:heads=4,kv_heads=4,seq=512,head_dim=64"))
    array, mfu, hfu = record["array"], record["mfu"], record["hfu"]
    assert array is not None
    assert mfu is not None
    assert hfu is not None
    assert array["other_macs"] > 0  # type: ignore[operator]
    assert array["masked_macs"] > 0  # type: ignore[operator]
    assert array["model_macs"] == record["macs"]
    assert 0 < mfu < hfu < 1


# ---- shapes ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arch", ["trn2", "tpu-v5e", "edge-npu"])
@pytest.mark.parametrize("mkn", [(127, 1, 513), (131, 257, 67), (1, 1, 1), (7, 33, 7), (513, 127, 1)])
def test_U070_U073_any_extent_runs_with_short_last_tiles(arch: str, mkn: tuple[int, int, int]) -> None:
    """Every extent, multiples of nothing; right in value, and MACs counted by true extents."""
    m, k, n = mkn
    spec = load_arch(arch)
    graph = build(f"gemm:m={m},k={k},n={n}")
    program = compile_graph(graph, spec)
    check_program(graph, program, spec)
    assert array_record(program, spec, "bf16", graph.macs)["model_macs"] == m * k * n


@pytest.mark.parametrize("size", ["100 KiB", "128 KiB", "192 KiB", "400 KiB"])
@pytest.mark.parametrize("shape", ["m=200,k=257,n=200", "m=130,k=300,n=64", "m=1,k=300,n=300"])
def test_U005_a_small_scratchpad_has_narrow_tiles_and_right_values(shape: str, size: str) -> None:
    arch, graph = trn2(size), build(f"gemm:{shape}")
    check_program(graph, compile_graph(graph, arch), arch)


@pytest.mark.parametrize("n", [6144, 14_336, 53_248])
def test_U074_tiling_a_large_extent_takes_little_memory(n: int) -> None:
    graph, arch = build(f"gemm:m=2048,k={n},n=6144"), trn2()
    tracemalloc.start()
    compile_graph(graph, arch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_U106_programs_and_dependences_do_not_grow_with_the_size() -> None:
    """From 1024 to 8192 cubed the dynamic work grows 512 times, the program by next to nothing."""
    arch = trn2()
    for double_buffer in (True, False):
        static, dynamic, channels = [], [], []
        for n in (1024, 2048, 4096, 8192):
            program = compile_graph(
                build(f"gemm:m={n},n={n},k={n}"), arch, CompileOptions(double_buffer=double_buffer)
            )
            instrs = [item for _, nodes in program.streams for item in walk(nodes)]
            static.append(len(instrs))
            dynamic.append(sum(times for _, times in instrs))
            channels.append(len(program.channels))
            # A slot's user depends on the slot's last user in each other stream, and on no older one.
            assert all(len(instr.waits) <= len(program.streams) for instr, _ in instrs)
        assert max(static) <= 32
        assert max(channels) <= 32
        assert dynamic[-1] > 100 * dynamic[0]


# ---- room ------------------------------------------------------------------------------------------------
def test_U041_larger_scratchpads_are_used_or_said_to_be_unused() -> None:
    """Tiling on its own: traffic falls. A program fixed: its use of the memory is the report's."""
    graph = build("llama3-8b:prefill,seq=1024,layers=1")
    small, large = trn2("8 MiB"), trn2("24 MiB")
    assert moved(graph, large, CompileOptions()) < moved(graph, small, CompileOptions())
    program = compile_graph(graph, small)
    before, after = memory_records(program, small)["sbuf"], memory_records(program, large)["sbuf"]
    assert before["peak_bytes"] == after["peak_bytes"] <= before["capacity_bytes"]
    assert after["peak_bytes"] / after["capacity_bytes"] < 0.34


def transfers(program: Program) -> int:
    return sum(
        times for _, nodes in program.streams for instr, times in walk(nodes) if isinstance(instr, Dma)
    )


def test_U043_without_double_buffering_tiles_may_use_the_whole_scratchpad() -> None:
    """512 cubed in 256 KiB: one slot a tile moves fewer bytes in fewer transfers, and overlaps nothing."""
    graph, arch = build("gemm:m=512,n=512,k=512"), trn2("256 KiB")
    both = {on: compile_graph(graph, arch, CompileOptions(double_buffer=on)) for on in (True, False)}
    runs = {on: simulate(program, arch) for on, program in both.items()}
    assert runs[False].dram_read_bytes < runs[True].dram_read_bytes
    assert transfers(both[False]) < transfers(both[True])
    slots = {on: {b.slots for b in p.buffers if b.memory == "sbuf"} for on, p in both.items()}
    assert slots[False] == {1}
    assert max(slots[True]) >= 2


def test_U043_with_room_for_both_double_buffering_is_faster() -> None:
    graph, arch = build("gemm:m=1024,n=1024,k=1024"), trn2()
    on, off = (
        simulate(compile_graph(graph, arch, CompileOptions(double_buffer=x)), arch) for x in (True, False)
    )
    assert on.time_ps < off.time_ps


@pytest.mark.parametrize(
    ("workload", "size"),
    [
        ("attention:seq=512,heads=2,kv_heads=1", "256 KiB"),
        ("gemm:m=64,n=64,k=300,dtype=fp32", "24 KiB"),
        ("conv:c=256,k=256,h=28,w=28", "48 KiB"),
    ],
)
def test_U052_a_shortfall_lists_what_takes_the_room_and_its_fix_fits(workload: str, size: str) -> None:
    graph = build(workload)
    with pytest.raises(Infeasible) as caught:
        compile_graph(graph, trn2(size))
    shortfall = caught.value.shortfall
    assert shortfall.code == "scratchpad-capacity"
    assert shortfall.needed > shortfall.available == trn2(size).partition_bytes("sbuf")
    assert shortfall.terms
    assert all(nbytes > 0 for _, nbytes in shortfall.terms)
    path, _, capacity = shortfall.fix.partition(" >= ")
    assert path == "memories.sbuf.capacity"
    compile_graph(graph, trn2(capacity))


# ---- what cannot be done ---------------------------------------------------------------------------------
def test_U107_operands_the_array_has_no_rate_for_are_told_by_op() -> None:
    with pytest.raises(CompileError, match=r"y: got operands of fp16, want one of bf16.*engines.mxu.passes"):
        compile_graph(build("gemm:dtype=fp16"), load_arch("tpu-v5e"))


# ---- determinism -----------------------------------------------------------------------------------------
def test_U016_one_of_equal_mappings_is_always_the_same() -> None:
    """8 x 8 x 8 has many equal tilings: ties go to fewer bytes, less memory, then the first listed."""
    arch, graph = load_arch("trn2"), build("gemm:m=8,n=8,k=8")
    assert len({print_program(compile_graph(graph, arch)) for _ in range(20)}) == 1


def test_U098_U103_live_buffers_share_no_byte_and_lie_alike_on_every_partition() -> None:
    """From the text of addresses alone: what the same matmul reads and writes never overlaps."""
    arch = trn2()
    program = compile_graph(build("gemm:m=128,n=512,k=128"), arch)
    held = {b.tensor: b for b in program.buffers if b.memory == "sbuf"}
    spans = sorted((b.address, b.address + b.nbytes) for b in held.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert {b.partitions for b in held.values()} == {128}
    assert held["y:out"].nbytes // held["y:out"].slots % 64 == 0


@pytest.mark.parametrize("size", ["48 KiB", "96 KiB", "256 KiB", "1 MiB"])
@pytest.mark.parametrize("workload", ["llama3-8b:prefill,seq=512,layers=1", "vit-tiny", "gemm:m=512"])
def test_U052_what_is_said_to_be_available_is_the_memory(workload: str, size: str) -> None:
    arch = trn2(size)
    try:
        compile_graph(build(workload), arch)
    except Infeasible as error:
        shortfall = error.shortfall
        assert shortfall.available == arch.partition_bytes(shortfall.resource)
        if shortfall.resource == "sbuf":
            assert int(shortfall.fix.split()[2]) > arch.memories["sbuf"].capacity


def test_U043_where_two_slots_do_not_fit_one_does() -> None:
    graph, arch = build("gemm:m=512,n=512,k=512"), trn2("64 KiB")
    program = compile_graph(graph, arch)
    assert {b.slots for b in program.buffers if b.memory == "sbuf"} == {1}
    assert simulate(program, arch).dram_read_bytes == moved(
        graph, arch, CompileOptions(double_buffer=False)
    ) - (2 * 512 * 512)
