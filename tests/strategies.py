"""Random valid architectures: small and odd arrays, tiny memories, one queue, one bank.

`random_arch(rng)` for seeded loops, `archs()` for hypothesis. Every architecture is valid by the schema
and has all vector operations somewhere; whether a workload fits it is another question.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import yaml
from hypothesis import strategies as st

from arch_configs import ArchSpec, load_arch_text

SIDES = (8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 512)
OPS = ("copy", "scalar_op", "tensor_op", "reduce", "activate", "memset", "select")
RATIOS = (1, 1, 1, 2, "1/2", "1/4", "3/2", "1/8")
CLOCKS = ("500 MHz", "700 MHz", "1 GHz", "1.12 GHz", "1.4 GHz", "2.8 GHz", "933 MHz")
Tree = dict[str, object]


def random_arch(rng: random.Random) -> ArchSpec:
    """A valid architecture drawn with `rng`; equal seeds give equal architectures."""
    return load_arch_text(random_arch_yaml(rng), label="random.yaml")


def random_arch_yaml(rng: random.Random) -> str:
    """The YAML text of a valid architecture."""
    return yaml.safe_dump(_arch(rng), sort_keys=False)


def archs() -> st.SearchStrategy[ArchSpec]:
    """Valid architectures for hypothesis."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_arch(random.Random(seed)))


def _arch(rng: random.Random) -> Tree:
    rows, cols = (rng.choice(SIDES) for _ in range(2))
    if rng.random() < 0.4:
        cols = rows
    partitions = max(rows, cols) if rng.random() < 0.9 else 2 * max(rows, cols)
    vectors = _vectors(rng, partitions)
    tree: Tree = {
        "name": "random",
        "engines": {"pe": _array(rng, rows, cols), **vectors},
        "memories": _memories(rng, partitions, explicit=partitions != max(rows, cols)),
        "dma": _dma(rng),
    }
    if len(vectors) > 1 and rng.random() < 0.5:
        tree["exclusions"] = _exclusions(rng, vectors)
    if rng.random() < 0.2:
        tree["launch_overhead"] = "5 us"
    return tree


def _array(rng: random.Random, rows: int, cols: int) -> Tree:
    passes: Tree = {"bf16": 1, "fp32": rng.choice((1, 2, 4))}
    for dtype in ("fp16", "int8", "fp8e4", "fp8e5"):
        if rng.random() < 0.7:
            passes[dtype] = 1
    array: Tree = {
        "kind": "systolic",
        "rows": rows,
        "cols": cols,
        "units": rng.choice((1, 1, 1, 2, 4)),
        "clock": rng.choice(CLOCKS),
        "moving_max": rng.choice((32, 128, 512, 1024)),
        "min_interval": rng.choice((1, 16, 64)),
        "weight_load": rng.choice((1, max(1, cols // 4), cols)),
        "background_load": rng.random() < 0.7,
        "passes": passes,
        "latency": rng.choice((1, 64, rows + cols)),
        "reads": ["pad"],
        "writes": ["acc"],
    }
    if rng.random() < 0.3:
        array["ramp"] = {"start": rng.choice(("1/2", "0.25", 1)), "time": "3 us"}
    return array


def _vectors(rng: random.Random, partitions: int) -> dict[str, Tree]:
    """One engine that does all, or several that share the work; the first reaches everything."""
    count = rng.choice((1, 1, 2, 3))
    names = rng.sample(("simd", "act", "pool", "vec"), count)
    duties: list[set[str]] = [{"copy"} for _ in names]
    for op in OPS:
        for owner in rng.sample(range(count), rng.randint(1, count)):
            duties[owner].add(op)
    engines: dict[str, Tree] = {}
    for index, name in enumerate(names):
        reach = ["pad", "acc"] if index == 0 or rng.random() < 0.6 else ["pad"]
        engines[name] = {
            "kind": "vector",
            "lanes": rng.choice((partitions, partitions, max(1, partitions // 2), 4)),
            "clock": rng.choice(CLOCKS),
            "overhead": rng.choice((1, 20, 100)),
            "min_interval": rng.choice((1, 16, 64)),
            "ops": {op: _cost(rng) for op in OPS if op in duties[index]},
            "latency": rng.choice((1, 60)),
            "reads": [*reach],
            "writes": [*reach] if rng.random() < 0.7 else ["pad"],
        }
        if rng.random() < 0.3:
            engines[name]["table_load"] = "1.28 us"
    return engines


def _cost(rng: random.Random) -> object:
    if rng.random() < 0.6:
        return rng.choice(RATIOS)
    cost: Tree = {"base": rng.choice(RATIOS)}
    for mode in ("narrow", "narrow_mixed", "accumulator"):
        if rng.random() < 0.4:
            cost[mode] = rng.choice(RATIOS)
    return cost


def _memories(rng: random.Random, partitions: int, *, explicit: bool) -> dict[str, Tree]:
    banks = rng.choice((1, 1, 2, 4, 8))
    bank_bytes = rng.choice((64, 128, 512, 1024, 2048))
    pad_kib = rng.choice((32, 32, 64, 96, 256, 1024, 4096))
    memories: dict[str, Tree] = {
        "dram": {
            "kind": "dram",
            "capacity": rng.choice(("64 MiB", "1 GiB", "16 GiB")),
            "bandwidth": rng.choice(("1 GB/s", "25.6 GB/s", "410 GB/s", "1.2 TB/s")),
        },
        "pad": {"kind": "scratchpad", "capacity": f"{pad_kib} KiB"},
        "acc": {"kind": "accumulator", "capacity": f"{partitions * banks * bank_bytes} B", "banks": banks},
    }
    if rng.random() < 0.2:
        del memories["dram"]["bandwidth"]
    if rng.random() < 0.3:
        memories["pad"]["reserved"] = f"{pad_kib // 8} KiB"
    if explicit:
        for name in ("pad", "acc"):
            memories[name]["partitions"] = partitions
    return memories


def _dma(rng: random.Random) -> Tree:
    engines = rng.choice((1, 2, 4, 16))
    dma: Tree = {
        "queues": rng.choice((1, 1, 2, 3, 8, 16)),
        "engines": engines,
        "engine_bandwidth": rng.choice(("2 GB/s", "12.8 GB/s", "17 GB/s", "33 GB/s")),
        "issue": rng.choice(("0 ns", "100 ns", "780 ns")),
        "latency": rng.choice(("0 ns", "200 ns", "1 us")),
        "completion": rng.choice(("0 ns", "50 ns", "300 ns")),
        "descriptor_bytes": rng.choice(("1 B", "64 B", "512 B")),
        "gather": rng.random() < 0.9,
    }
    if rng.random() < 0.3:
        dma["queue_bandwidth"] = "9 GB/s"
    return dma


def _exclusions(rng: random.Random, vectors: Mapping[str, Tree]) -> Sequence[Tree]:
    rules: list[Tree] = []
    for memory in ("pad", "acc"):
        users = [name for name, engine in vectors.items() if memory in str(engine["reads"])]
        if len(users) > 1 and rng.random() < 0.7:
            rules.append({"engines": rng.sample(users, 2), "memory": memory})
    return rules
