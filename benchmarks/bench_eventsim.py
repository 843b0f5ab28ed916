"""Speed of the simulator alone: a hand-built Llama-3-8B-like prefill of 2048 tokens on one core.

Run: `python benchmarks/bench_eventsim.py`. Counts of kernel events do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import time

from arch_configs.spec import ArchSpec
from compiler.isa import (
    Access,
    Activate,
    Buffer,
    Channel,
    Copy,
    Dma,
    Loop,
    Matmul,
    Node,
    Program,
    Reduce,
    Sync,
    TensorScalar,
    TensorTensor,
    Transpose,
)
from eventsim import Trace, bind, simulate_bound

P = 128  # partitions


def bench_arch(*, ramp: bool = False) -> ArchSpec:
    """A Trainium-2-like core; the values are only typical."""
    both = ("sbuf", "psum")
    ops = {
        "copy": 1, "scalar_op": 1, "tensor_op": {"base": 2, "narrow": 1}, "reduce": 1, "activate": 1,
        "memset": 1, "select": 1,
    }  # fmt: skip
    vector = {
        "kind": "vector",
        "lanes": 128,
        "overhead": 60,
        "min_interval": 64,
        "ops": ops,
        "reads": both,
        "writes": both,
    }
    limiter = {"ramp": {"start": 0.5, "time": "3 us"}} if ramp else {}
    tensor = {
        "kind": "systolic", "rows": 128, "cols": 128, "clock": "2.4 GHz", "min_interval": 64,
        "weight_load": 32, "passes": {"bf16": 1, "fp32": 4}, "latency": 64, "reads": ("sbuf",),
        "writes": ("psum",), **limiter,
    }  # fmt: skip
    return ArchSpec.model_validate(
        {
            "name": "bench",
            "engines": {
                "tensor": tensor,
                "vector": {**vector, "clock": "0.96 GHz"},
                "scalar": {**vector, "clock": "1.2 GHz", "table_load": "1283 ns"},
            },
            "memories": {
                "hbm": {"kind": "dram", "capacity": "24 GiB", "bandwidth": "368 GB/s"},
                "sbuf": {"kind": "scratchpad", "capacity": "24 MiB"},
                "psum": {"kind": "accumulator", "capacity": "2 MiB", "banks": 8},
            },
            "dma": {
                "queues": 6, "engines": 16, "engine_bandwidth": "23 GB/s", "issue": "100 ns",
                "latency": "1.3 us", "completion": "0.3 us", "descriptor_bytes": "512 B",
            },
        }
    )  # fmt: skip


BUFFERS = (
    Buffer("x", "hbm", "bf16", 0, 1 << 30),
    Buffer("s", "sbuf", "bf16", 0, 1 << 17, partitions=P),
    Buffer("p", "psum", "fp32", 0, 1 << 14, partitions=P),
)


def _sb(free: int) -> Access:
    return Access("s", "bf16", ((1, free),), partitions=P)


def _ps(free: int) -> Access:
    return Access("p", "fp32", ((1, free),), partitions=P)


def _hbm(free: int) -> Access:
    return Access("x", "bf16", ((free, P), (1, free)))


class Model:
    """Builds the streams of one layer."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[Node]] = {}
        self.channels: list[Channel] = []
        self.regions = 0

    def chan(self, producer: str, consumer: str, initial: int = 0) -> str:
        """A new channel."""
        self.channels.append(Channel(f"c{len(self.channels)}", producer, consumer, initial))
        return self.channels[-1].name

    def region(self) -> int:
        """A new loop region."""
        self.regions += 1
        return self.regions

    def add(self, stream: str, *nodes: Node) -> None:
        """Append to a stream."""
        self.bodies.setdefault(stream, []).extend(nodes)

    def barrier(self) -> None:
        """All streams meet at the scalar engine."""
        others = [s for s in self.bodies if s != "scalar"]
        waits, signals = [], []
        for name in others:
            up, down = self.chan(name, "scalar"), self.chan("scalar", name)
            self.add(name, Sync(signals=((up, 1),)), Sync(waits=((down, 1),)))
            waits.append((up, 1))
            signals.append((down, 1))
        self.add("scalar", Sync(waits=tuple(waits), signals=tuple(signals)))

    def gemm(self, op: str, m: int, k: int, n: int, block: int = 4) -> None:
        """[m, k] x [k, n]: a block of row tiles is stationary, the other side streams."""
        mt, kt, nt = m // P, k // P, -(-n // 512)
        w_ready = [self.chan(q, "tensor") for q in ("dma0", "dma1")]
        w_free = [self.chan("tensor", q, 16) for q in ("dma0", "dma1")]
        x_ready, x_free = self.chan("dma2", "tensor"), self.chan("tensor", "dma2", 2 * kt)
        full, empty = self.chan("tensor", "vector"), self.chan("vector", "tensor", 2)
        out, out_free = self.chan("vector", "dma3"), self.chan("dma3", "vector", 8)
        outer, cols, inner = self.region(), self.region(), self.region()
        blocks = max(1, mt // block)

        def column(with_x: bool) -> tuple[Node, ...]:
            takes = tuple((c, 1) for c in w_ready)
            body: list[Node] = []
            for pair in range(2):
                for i in range(block):
                    first, last = pair == 0 and i == 0, pair == 1 and i == block - 1
                    waits = (takes + (((x_ready, 2),) if with_x else ())) if first else ()
                    signals = tuple((c, 1) for c in w_free) if last else ()
                    body.append(
                        Matmul(
                            dst=_ps(512),
                            stationary=_sb(P),
                            moving=_sb(512),
                            waits=waits,
                            signals=signals,
                            op=op,
                        )
                    )
            return (
                Sync(waits=((empty, 1),), op=op),
                Loop("k", kt // 2, tuple(body), inner),
                Sync(signals=((full, 1),), op=op),
            )

        self.add(
            "tensor",
            Loop(
                "b",
                blocks,
                (*column(True), Loop("n", nt - 1, column(False), cols), Sync(signals=((x_free, kt),), op=op)),
                outer,
            ),
        )
        for q in range(2):
            one = Dma(dst=_sb(512), src=_hbm(512), waits=((w_free[q], 1),), signals=((w_ready[q], 1),), op=op)
            k_loop = Loop("k", kt // 2, (one,), inner)
            self.add(f"dma{q}", Loop("b", blocks, (k_loop, Loop("n", nt - 1, (k_loop,), cols)), outer))
        x = Dma(dst=_sb(P * block), src=_hbm(P * block), waits=((x_free, 1),), signals=((x_ready, 1),), op=op)
        self.add("dma2", Loop("b", blocks, (Loop("k", kt, (x,), self.region()),), outer))
        tiles: list[Node] = [
            Copy(
                dst=_sb(512), src=_ps(512), op=op, waits=((out_free, 1), *(((full, 1),) if i == 0 else ())),
                signals=((out, 1), *(((empty, 1),) if i == block - 1 else ())),
            )
            for i in range(block)
        ]  # fmt: skip
        stores = tuple(
            Dma(dst=_hbm(512), src=_sb(512), waits=((out, 1),), signals=((out_free, 1),), op=op)
            for _ in range(block)
        )
        self.add("vector", Loop("b", blocks, (*tiles, Loop("n", nt - 1, tuple(tiles), cols)), outer))
        self.add("dma3", Loop("b", blocks, (*stores, Loop("n", nt - 1, stores, cols)), outer))

    def attention(self, op: str, heads: int, seq: int) -> None:
        """Causal flash attention: query tiles of 128, key chunks of 512."""
        kv, kv_free = self.chan("dma4", "tensor"), self.chan("tensor", "dma4", 6)
        scores, scores_free = self.chan("tensor", "vector"), self.chan("scalar", "tensor", 2)
        peak, peak_free = self.chan("vector", "scalar"), self.chan("scalar", "vector", 2)
        prob, prob_free = self.chan("scalar", "tensor"), self.chan("tensor", "scalar", 2)
        flip, flip_free = self.chan("tensor", "vector"), self.chan("vector", "tensor", 2)
        flipped = self.chan("vector", "tensor")
        out, out_free = self.chan("tensor", "vector"), self.chan("vector", "tensor", 2)
        done, done_free = self.chan("vector", "dma5"), self.chan("dma5", "vector", 4)
        head = self.region()
        tensor: list[Node] = [Sync(waits=((kv, 3),), op=op)]
        vector: list[Node] = []
        scalar: list[Node] = []
        queue: list[Node] = []
        groups: dict[int, int] = {}
        for tile in range(seq // P):
            chunks = tile * P // 512 + 1
            groups[chunks] = groups.get(chunks, 0) + 1
        for chunks, times in groups.items():
            rq, rc = self.region(), self.region()
            t: list[Node] = [
                Matmul(
                    dst=_ps(512),
                    stationary=_sb(P),
                    moving=_sb(512),
                    waits=((scores_free, 1),),
                    signals=((scores, 1),),
                    op=op,
                )
            ]
            for i in range(4):
                waits = ((prob, 1), (flip_free, 1)) if i == 0 else ()
                signals = ((flip, 1), (prob_free, 1)) if i == 3 else ()
                t.append(Transpose(dst=_ps(P), src=_sb(P), waits=waits, signals=signals, op=op))
            for i in range(4):
                waits = ((flipped, 1), (out_free, 1)) if i == 0 else ()
                signals = ((out, 1),) if i == 3 else ()
                t.append(
                    Matmul(dst=_ps(P), stationary=_sb(P), moving=_sb(P), waits=waits, signals=signals, op=op)
                )
            v: list[Node] = [
                Reduce(
                    dst=_sb(1),
                    src=_ps(512),
                    operation="max",
                    waits=((scores, 1), (peak_free, 1)),
                    signals=((peak, 1),),
                    op=op,
                ),
                Copy(
                    dst=_sb(512),
                    src=_ps(512),
                    waits=((flip, 1),),
                    signals=((flip_free, 1), (flipped, 1)),
                    op=op,
                ),
                TensorScalar(
                    dst=_sb(P),
                    src=_ps(P),
                    op0="multiply",
                    a=1.0,
                    waits=((out, 1),),
                    signals=((out_free, 1),),
                    op=op,
                ),
            ]
            s: list[Node] = [
                Activate(
                    dst=_sb(512), src=_ps(512), func="exp", waits=((peak, 1), (prob_free, 1)),
                    signals=((prob, 1), (scores_free, 1), (peak_free, 1)), op=op,
                ),
                Activate(dst=_sb(1), src=_sb(1), func="exp", op=op),
            ]  # fmt: skip
            tensor.append(Loop("q", times, (Loop("c", chunks, tuple(t), rc),), rq))
            final = TensorScalar(
                dst=_sb(P),
                src=_sb(P),
                op0="divide",
                a=1.0,
                waits=((done_free, 1),),
                signals=((done, 1),),
                op=op,
            )
            vector.append(Loop("q", times, (Loop("c", chunks, tuple(v), rc), final), rq))
            scalar.append(Loop("q", times, (Loop("c", chunks, tuple(s), rc),), rq))
            store = Dma(dst=_hbm(P), src=_sb(P), waits=((done, 1),), signals=((done_free, 1),), op=op)
            queue.append(Loop("q", times, (store,), rq))
        tensor.append(Sync(signals=((kv_free, 3),), op=op))
        loads = tuple(
            Dma(dst=_sb(seq), src=_hbm(seq), waits=((kv_free, 1),), signals=((kv, 1),), op=op)
            for _ in range(3)
        )
        for name, body in (
            ("tensor", tensor),
            ("vector", vector),
            ("scalar", scalar),
            ("dma5", queue),
            ("dma4", loads),
        ):
            self.add(name, Loop("h", heads, tuple(body), head))

    def elementwise(self, op: str, tiles: int, free: int) -> None:
        """Load, two vector instructions, one activation, store."""
        data, free_in = self.chan("dma0", "vector"), self.chan("scalar", "dma0", 4)
        mid, out, back = (
            self.chan("vector", "scalar"),
            self.chan("scalar", "dma1"),
            self.chan("dma1", "scalar", 4),
        )
        region = self.region()
        body = (
            TensorTensor(
                dst=_sb(free), lhs=_sb(free), rhs=_sb(free), operation="multiply", waits=((data, 1),), op=op
            ),
            TensorScalar(dst=_sb(free), src=_sb(free), op0="multiply", a=1.0, signals=((mid, 1),), op=op),
        )
        act = Activate(
            dst=_sb(free),
            src=_sb(free),
            func="silu",
            waits=((mid, 1), (back, 1)),
            signals=((free_in, 1), (out, 1)),
            op=op,
        )
        self.add("vector", Loop("t", tiles, body, region))
        self.add("scalar", Loop("t", tiles, (act,), region))
        load = Dma(dst=_sb(free), src=_hbm(free), waits=((free_in, 1),), signals=((data, 1),), op=op)
        self.add("dma0", Loop("t", tiles, (load,), region))
        store = Dma(dst=_hbm(free), src=_sb(free), waits=((out, 1),), signals=((back, 1),), op=op)
        self.add("dma1", Loop("t", tiles, (store,), region))

    def program(self, layers: int) -> Program:
        """Everything so far, `layers` times."""
        region = self.region()
        streams = tuple(
            (name, (Loop("layer", layers, tuple(nodes), region),)) for name, nodes in self.bodies.items()
        )
        return Program("prefill", streams, BUFFERS, tuple(self.channels))


def prefill(layers: int, seq: int = 2048, d: int = 4096, ffn: int = 14336, heads: int = 32) -> Program:
    """A Llama-3-8B-like prefill of `seq` tokens."""
    model, tiles = Model(), seq // P
    model.elementwise("norm1", tiles, d)
    model.barrier()
    model.gemm("qkv", seq, d, 6144)
    model.barrier()
    model.elementwise("rope", tiles, 5120)
    model.barrier()
    model.attention("attention", heads, seq)
    model.barrier()
    model.gemm("out", seq, d, d)
    model.barrier()
    model.elementwise("norm2", tiles, d)
    model.barrier()
    model.gemm("up", seq, d, 2 * ffn)
    model.barrier()
    model.elementwise("silu", tiles, ffn)
    model.barrier()
    model.gemm("down", seq, ffn, d)
    model.barrier()
    return model.program(layers)


def measure(
    program: Program, arch: ArchSpec, *, fold: bool, repeat: int = 3, record: bool = False
) -> tuple[Trace, float]:
    """The trace and the best CPU time of `repeat` runs, the program bound before."""
    bound = bind(program, arch)
    best = float("inf")
    for _ in range(repeat):
        began = time.process_time()
        trace = simulate_bound(bound, fold=fold, record=record)
        best = min(best, time.process_time() - began)
    return trace, best


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unfolded-layers", type=int, default=2)
    args = parser.parse_args()
    for ramp in (False, True):
        arch = bench_arch(ramp=ramp)
        for layers, fold in ((args.unfolded_layers, False), (args.unfolded_layers, True), (32, True)):
            program = prefill(layers)
            began = time.process_time()
            count = bind(program, arch).instructions
            bind_s = time.process_time() - began
            trace, seconds = measure(program, arch, fold=fold)
            print(
                f"{layers:3d} layers  ramp={ramp!s:5} folded={fold!s:5}  bind {bind_s * 1e3:5.1f} ms  "
                f"run {seconds:7.3f} s  {count:9d} instructions  {count / seconds / 1e6:8.2f} M/s  "
                f"kernel events {trace.kernel_events:8d}  jumps {trace.jumps:4d}  "
                f"time {trace.time_ps / 1e9:.3f} ms"
            )


if __name__ == "__main__":
    main()
