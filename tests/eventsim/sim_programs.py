"""Small architectures and random valid programs for the simulator's tests: no YAML, no compiler."""

from __future__ import annotations

import random
from copy import deepcopy as copy_of
from dataclasses import dataclass, field, replace

from arch_configs.spec import ArchSpec
from compiler.isa import (
    Access,
    Activate,
    Buffer,
    Channel,
    Copy,
    Dma,
    Instr,
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

P = 128


def make_arch(**changes: object) -> ArchSpec:
    """A Trainium-like core; `changes` are dotted paths with `__` for the dot."""
    memories = ("sbuf", "psum")
    vector = {
        "kind": "vector", "lanes": 128, "clock": "1000000000 Hz", "overhead": 1, "min_interval": 1,
        "ops": {"copy": 1, "scalar_op": 1, "tensor_op": {"base": 2, "narrow": 1}, "reduce": 1,
                "activate": 1, "memset": 1, "select": 1},
        "reads": memories, "writes": memories,
    }  # fmt: skip
    spec: dict[str, object] = {
        "name": "test",
        "engines": {
            "tensor": {
                "kind": "systolic", "rows": 128, "cols": 128, "clock": "1000000000 Hz", "moving_max": 512,
                "passes": {"bf16": 1, "fp32": 4}, "reads": ("sbuf",), "writes": ("psum",),
            },
            "vector": copy_of(vector),
            "scalar": copy_of(vector),
            "gpsimd": copy_of(vector),
        },
        "memories": {
            "hbm": {"kind": "dram", "capacity": "1 GiB", "bandwidth": "400 GB/s"},
            "sbuf": {"kind": "scratchpad", "capacity": "24 MiB"},
            "psum": {"kind": "accumulator", "capacity": "2 MiB", "banks": 8},
        },
        "dma": {"queues": 8, "engines": 16, "engine_bandwidth": "20 GB/s"},
    }  # fmt: skip
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        section = spec
        for parent in parents:
            section = section.setdefault(parent, {})  # type: ignore[assignment]
        section[leaf] = value
    return ArchSpec.model_validate(spec)


BUFFERS = tuple(
    Buffer(f"{memory}_{dtype}", memory, dtype, 0, 1 << 20, partitions=0 if memory == "hbm" else P)
    for memory in ("hbm", "sbuf", "psum")
    for dtype in ("bf16", "fp32")
)


def tile(memory: str, free: int, *, dtype: str = "bf16", partitions: int = P) -> Access:
    """A contiguous tile of [partitions, free]."""
    if memory == "hbm":
        return Access(f"hbm_{dtype}", dtype, ((free, partitions), (1, free)))
    return Access(f"{memory}_{dtype}", dtype, ((1, free),), partitions=partitions)


def rows(free: int, stride: int, *, dtype: str = "bf16", partitions: int = P) -> Access:
    """A DRAM tile whose rows of `free` elements lie `stride` apart."""
    return Access(f"hbm_{dtype}", dtype, ((stride, partitions), (1, free)))


def matmul(columns: int, *, m: int = P, load: bool = True, dtype: str = "bf16", **tokens: object) -> Matmul:
    return Matmul(
        dst=tile("psum", columns, dtype="fp32", partitions=m),
        stationary=tile("sbuf", m, dtype=dtype),
        moving=tile("sbuf", columns, dtype=dtype),
        load=load,
        **tokens,  # type: ignore[arg-type]
    )


def load(free: int, **tokens: object) -> Dma:
    return Dma(dst=tile("sbuf", free), src=tile("hbm", free), **tokens)  # type: ignore[arg-type]


def store(free: int, **tokens: object) -> Dma:
    return Dma(dst=tile("hbm", free), src=tile("sbuf", free), **tokens)  # type: ignore[arg-type]


def copy(free: int, memory: str = "sbuf", **tokens: object) -> Copy:
    return Copy(dst=tile("sbuf", free), src=tile(memory, free), **tokens)  # type: ignore[arg-type]


@dataclass
class Builder:
    """Collects streams and channels."""

    streams: dict[str, list[Node]] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)
    regions: int = 0

    def chan(self, producer: str, consumer: str, initial: int = 0) -> str:
        name = f"c{len(self.channels)}"
        self.channels.append(Channel(name, producer, consumer, initial))
        return name

    def region(self) -> int:
        self.regions += 1
        return self.regions

    def add(self, stream: str, *nodes: Node) -> None:
        self.streams.setdefault(stream, []).extend(nodes)

    def program(self, name: str = "test") -> Program:
        streams = tuple((s, tuple(n)) for s, n in self.streams.items())
        return Program(name, streams, BUFFERS, tuple(self.channels))


def random_arch(r: random.Random) -> ArchSpec:
    """An architecture with odd rates and latencies; ramp, tables, ports and limits now and then."""
    hertz = r.choice([1_000_000_000, 1_400_000_000, 2_800_000_000, 960_000_001, 700_000_000])
    changes: dict[str, object] = {
        "engines__tensor__clock": f"{hertz} Hz",
        "engines__tensor__min_interval": r.choice([1, 16, 64]),
        "engines__tensor__weight_load": r.choice([1, 32, 64, 128]),
        "engines__tensor__background_load": r.random() < 0.7,
        "engines__tensor__latency": r.choice([1, 64, 200]),
        "engines__tensor__units": r.choice([1, 1, 2, 3]),
        "memories__hbm__bandwidth": f"{r.choice([17, 50, 97, 150, 211, 400, 820])} GB/s",
        "dma__queues": r.randint(4, 8),
        "dma__engines": r.choice([1, 3, 16]),
        "dma__engine_bandwidth": f"{r.choice([7, 13, 24, 31, 60])} GB/s",
        "dma__issue": f"{r.choice([0, 1, 50_000, 333_333, 1_000_000])} ps",
        "dma__latency": f"{r.choice([0, 1, 1_300_000, 37_001])} ps",
        "dma__completion": f"{r.choice([0, 1, 300_000])} ps",
        "dma__descriptor_bytes": f"{r.choice([1, 64, 512, 2000])} B",
    }
    if r.random() < 0.4:
        changes["dma__queue_bandwidth"] = f"{r.choice([3, 11, 25])} GB/s"
    if r.random() < 0.4:
        start, time = r.choice([0.5, 0.25, "1/3"]), r.choice([1, 300_001, 3_000_000])
        changes["engines__tensor__ramp"] = {"start": start, "time": f"{time} ps"}
    for name in ("vector", "scalar", "gpsimd"):
        changes[f"engines__{name}__clock"] = f"{r.choice([960, 1120, 1400])}000000 Hz"
        changes[f"engines__{name}__overhead"] = r.choice([1, 60, 100])
        changes[f"engines__{name}__latency"] = r.choice([1, 2, 90])
        if r.random() < 0.5:
            changes[f"engines__{name}__table_load"] = f"{r.choice([1, 1_283_000])} ps"
    groups = []
    if r.random() < 0.4:
        groups.append({"engines": ("vector", "gpsimd"), "memory": "sbuf"})
    if r.random() < 0.2:
        groups.append({"engines": ("scalar", "vector", "tensor"), "memory": "psum"})
    changes["exclusions"] = tuple(groups)
    return make_arch(**changes)


def credits(r: random.Random) -> int:
    """Mostly tight, now and then so many that a stream runs far ahead."""
    return r.choice([1, 1, 2, 2, 3, 4, 7, 20])


def _head_start(r: random.Random, stream: str) -> Node:
    """Something that only the first iteration sees, so that the start is not yet the steady state."""
    if stream.startswith("dma"):
        return Loop("h", r.choice([1, 3, 90]), (load(r.choice([8, 100, 3000])),), -1)
    if stream == "tensor":
        return matmul(r.choice([200, 512]))
    if stream == "scalar" and r.random() < 0.5:
        return Activate(dst=tile("sbuf", 99), src=tile("sbuf", 99), func="gelu")
    if r.random() < 0.5:  # a loop of its own, next to the pipelines
        body = (copy(r.choice([7, 300])), copy(r.choice([20, 900]), "psum"))
        return Loop("h", r.choice([1, 3, 40]), body, -1)
    return copy(r.choice([50, 4000]))


class _Stage:
    """One pipeline: queues -> tensor -> scalar -> vector -> (gpsimd) -> store queue, all with credits."""

    def __init__(self, r: random.Random, b: Builder, arch: ArchSpec, op: str) -> None:
        self.r, self.b, self.op = r, b, op
        self.bodies: dict[str, list[Node]] = {}
        queues = list(arch.queue_names)
        r.shuffle(queues)
        self.store_queue = queues.pop()
        loaders = queues[: r.randint(1, min(3, len(queues)))]
        takes: list[tuple[str, int]] = []
        frees: list[tuple[str, int]] = []
        for q in loaders:
            self._loader(q, takes, frees)
        to_act, from_act = b.chan("tensor", "scalar"), b.chan("scalar", "tensor", credits(r))
        self._tensor(takes, frees, to_act, from_act)
        to_vec, from_vec = b.chan("scalar", "vector"), b.chan("vector", "scalar", credits(r))
        self._scalar(to_act, from_act, to_vec, from_vec)
        self._tail(to_vec, from_vec)

    def _loader(self, q: str, takes: list[tuple[str, int]], frees: list[tuple[str, int]]) -> None:
        r, k = self.r, self.r.choice([1, 1, 2, 3])
        data = self.b.chan(q, "tensor")
        free = self.b.chan("tensor", q, k * credits(r))
        src = r.choice(["tile", "tile", "rows", "rows", "chip", "twice"])
        body: list[Node] = []
        for _ in range(k):
            n = r.choice([8, 64, 200, 512, 1024])
            far = tile("hbm", n) if src == "tile" else rows(n, 2 * n)
            body.append(
                Dma(dst=tile("sbuf", n), src=far, waits=((free, 1),), signals=((data, 1),), op=self.op)
            )
        if r.random() < 0.2:  # one signal for all, after the last byte
            body = [replace(d, waits=((free, 1),), signals=()) for d in body]  # type: ignore[type-var]
            body.append(Sync(signals=((data, k),), op=self.op))
        takes.append((data, k))
        frees.append((free, k))
        self.bodies[q] = body

    def _tensor(
        self, takes: list[tuple[str, int]], frees: list[tuple[str, int]], out: str, credit: str
    ) -> None:
        r = self.r
        body: list[Node] = [matmul(r.choice([1, 64, 500]), waits=tuple(takes), op=self.op)]
        inner = [
            matmul(r.choice([16, 128, 512]), load=r.random() < 0.5, op=self.op)
            for _ in range(r.randint(1, 3))
        ]
        body.append(Loop("k", r.randint(0, 5), tuple(inner), self.b.region()))
        body.append(Sync(waits=((credit, 1),), op=self.op))
        if r.random() < 0.3:
            body.append(Transpose(dst=tile("psum", 128), src=tile("sbuf", 77), op=self.op))
        body.append(matmul(100, load=False, signals=(*frees, (out, 1)), op=self.op))
        self.bodies["tensor"] = body

    def _scalar(self, take: str, free: str, out: str, credit: str) -> None:
        r = self.r
        func = r.choice(["exp", "copy", "gelu"])
        acc = tile("sbuf", 1, dtype="fp32") if r.random() < 0.3 else None
        n = r.randint(1, 700)
        first = Activate(
            dst=tile("sbuf", n), src=tile("psum", n, dtype="fp32"), func=func, accumulate=acc,
            waits=((take, 1), (credit, 1)), signals=((free, 1),), op=self.op,
        )  # fmt: skip
        second = Activate(
            dst=tile("sbuf", 9),
            src=tile("sbuf", 9),
            func=r.choice(["exp", "relu"]),
            signals=((out, 1),),
            op=self.op,
        )
        self.bodies["scalar"] = [first, second]

    def _tail(self, take: str, free: str) -> None:
        r, b, q = self.r, self.b, self.store_queue
        n = r.randint(1, 600)
        last = "gpsimd" if r.random() < 0.6 else "vector"
        done, credit = b.chan(last, q), b.chan(q, last, credits(r))
        work = TensorTensor(dst=tile("sbuf", n), lhs=tile("sbuf", n), rhs=tile("sbuf", n), operation="add")
        if last == "vector":
            self.bodies["vector"] = [
                replace(work, waits=((take, 1),), signals=((free, 1),), op=self.op),
                copy(r.randint(1, 300), waits=((credit, 1),), signals=((done, 1),), op=self.op),
            ]
        else:
            mid, back = b.chan("vector", "gpsimd"), b.chan("gpsimd", "vector", credits(r))
            scale = TensorScalar(dst=tile("sbuf", n), src=tile("sbuf", n), op0="multiply", a=2.0)
            self.bodies["vector"] = [
                replace(work, waits=((take, 1),), signals=((free, 1),), op=self.op),
                replace(scale, waits=((back, 1),), signals=((mid, 1),), op=self.op),
            ]
            self.bodies["gpsimd"] = [
                Reduce(
                    dst=tile("sbuf", 1), src=tile("sbuf", n), operation="add", waits=((mid, 1),), op=self.op
                ),
                copy(r.randint(1, 900), waits=((credit, 1),), signals=((back, 1), (done, 1)), op=self.op),
            ]
        self.bodies[q] = [
            store(r.choice([16, 128, 512]), waits=((done, 1),), signals=((credit, 1),), op=self.op)
        ]

    def loops(self) -> dict[str, list[Node]]:
        """The bodies in loops; now and then a stream is pipelined, peeled or flattened on its own."""
        r = self.r
        n, m = r.randint(1, 30), r.choice([1, 1, 2, 4])
        outer, inner = self.b.region(), self.b.region()
        out: dict[str, list[Node]] = {}
        for name, body in self.bodies.items():
            shape = r.random()
            nested: list[Node] = [Loop("i", n, (Loop("j", m, tuple(body), inner),), outer)]
            if shape < 0.15:
                nested = [Loop("i", n * m, tuple(body), r.choice([-1, self.b.region()]))]
            elif shape < 0.3 and m == 1 and n > 1:
                nested = [*body, Loop("i", n - 1, tuple(body), outer)]
            elif shape < 0.45 and m == 1 and n > 1 and len(body) > 1:
                cut = r.randint(1, len(body) - 1)
                nested = [*body[:cut], Loop("i", n - 1, (*body[cut:], *body[:cut]), outer), *body[cut:]]
            elif shape < 0.6:
                extra = Sync(op=self.op)
                nested = [Loop("i", n, (Loop("j", m, tuple(body), inner), extra), outer)]
            out[name] = nested
        return out


def _barrier(b: Builder, bodies: dict[str, list[Node]]) -> None:
    """All streams that took part meet at the scalar engine."""
    others = [name for name in bodies if name != "scalar"]
    up = {name: b.chan(name, "scalar") for name in others}
    down = {name: b.chan("scalar", name) for name in others}
    for name in others:
        bodies[name] += [Sync(signals=((up[name], 1),)), Sync(waits=((down[name], 1),))]
    waits = tuple((c, 1) for c in up.values())
    bodies["scalar"].append(Sync(waits=waits, signals=tuple((c, 1) for c in down.values())))


def random_program(r: random.Random, arch: ArchSpec) -> Program:
    """One to three pipelines, perhaps with barriers, perhaps repeated."""
    b = Builder()
    bodies: dict[str, list[Node]] = {}
    for i in range(r.randint(1, 3)):
        for name, nodes in _Stage(r, b, arch, f"op{i}").loops().items():
            bodies.setdefault(name, []).extend(nodes)
        if r.random() < 0.4:
            _barrier(b, bodies)
    repeat, region = r.choice([1, 1, 2, 5, 12]), b.region()
    for name, nodes in bodies.items():
        if r.random() < 0.3:
            b.add(name, _head_start(r, name))
        b.add(name, Loop("layer", repeat, tuple(nodes), region))
        if r.random() < 0.1:
            b.add(name, _head_start(r, name))
    if "gpsimd" not in bodies and r.random() < 0.5:
        b.add("gpsimd", _head_start(r, "gpsimd"), copy(30, "psum"), copy(3))
    return b.program()


def dynamic_instructions(program: Program) -> int:
    """How many instructions run."""

    def count(nodes: tuple[Instr | Loop, ...]) -> int:
        return sum(n.count * count(n.body) if isinstance(n, Loop) else 1 for n in nodes)

    return sum(count(nodes) for _, nodes in program.streams)
