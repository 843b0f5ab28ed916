"""What users met in other tools: illegal programs that passed in silence or died without a reason."""

from __future__ import annotations

import random

import numpy as np
import pytest

from arch_configs.spec import ArchSpec
from compiler.ir.execute import Machine
from compiler.ir.rules import RULES
from compiler.ir.tokens import program_order
from compiler.ir.verify_program import RuleError, check_races, verify_program
from compiler.isa import Access, Buffer, Channel, Copy, Dma, Instr, Matmul, Memset, Program

MIB = 1 << 20


def core() -> ArchSpec:
    """128 x 128, 24 MiB scratchpad, 2 MiB accumulator in 8 banks: the shape of a NeuronCore-v2."""
    both = ("sbuf", "psum")
    return ArchSpec.model_validate(
        {
            "name": "core",
            "engines": {
                "tensor": {
                    "kind": "systolic", "rows": 128, "cols": 128, "clock": "1 GHz",
                    "passes": {"bf16": 1}, "reads": ("sbuf",), "writes": ("psum",),
                },
                "vector": {
                    "kind": "vector", "lanes": 128, "clock": "1 GHz", "ops": {"copy": 1, "memset": 1},
                    "reads": both, "writes": both,
                },
            },
            "memories": {
                "hbm": {"kind": "dram", "capacity": "1 GiB", "bandwidth": "100 GB/s"},
                "sbuf": {"kind": "scratchpad", "capacity": "24 MiB", "partitions": 128},
                "psum": {"kind": "accumulator", "capacity": "2 MiB", "partitions": 128, "banks": 8},
            },
            "dma": {"queues": 4, "engines": 4, "engine_bandwidth": "10 GB/s"},
        }
    )  # fmt: skip


ARCH = core()


def tile(buffer: str, partitions: int, free: int, dtype: str = "bf16") -> Access:
    return Access(buffer, dtype, ((1, free),), partitions=partitions)


def two_loads_and_a_store(bases: tuple[int, int, int]) -> Program:
    """Two small transposed tiles are loaded on two queues, a third is made and stored on another."""

    def image(name: str) -> Access:
        return Access(name, "bf16", ((1, 8), (8, 16)))  # [16, 8] read transposed

    buffers = (
        *(Buffer(n, "hbm", "bf16", i * 256, 256, kind="input") for i, n in enumerate("abc")),
        *(
            Buffer(f"{n}_t", "sbuf", "bf16", base, 32, partitions=8)
            for n, base in zip("abc", bases, strict=True)
        ),
    )
    streams = (
        ("dma0", (Dma(dst=tile("a_t", 8, 16), src=image("a"), op="load a"),)),
        ("dma1", (Dma(dst=tile("b_t", 8, 16), src=image("b"), op="load b"),)),
        ("vector", (Memset(dst=tile("c_t", 8, 16), value=1.0, signals=(("made", 1),), op="make c"),)),
        ("dma2", (Dma(dst=image("c"), src=tile("c_t", 8, 16), waits=(("made", 1),), op="store c"),)),
    )
    return Program("small-tiles", streams, buffers, (Channel("made", "vector", "dma2"),))


def test_U098_live_tiles_that_share_an_address_are_found() -> None:
    """Any two of the three tiles at one base is an error that names both and the bytes."""
    check_races(two_loads_and_a_store((0, 32, 64)), ARCH)
    for bases in ((0, 0, 64), (0, 32, 0), (64, 0, 0), (0, 0, 0), (0, 30, 64)):
        with pytest.raises(RuleError, match=r"\[race\].*sbuf bytes \d+ to \d+.*sbuf bytes") as caught:
            check_races(two_loads_and_a_store(bases), ARCH)
        assert caught.value.rule == "race"


def test_U098_random_placements_against_brute_force() -> None:
    """The detector agrees with a comparison of address ranges; nothing orders the three tiles' uses."""
    rng = random.Random(98)
    outcomes = set()
    for _ in range(200):
        bases = tuple(rng.randrange(0, 128, 2) for _ in range(3))
        overlap = any(abs(bases[i] - bases[j]) < 32 for i in range(3) for j in range(i))
        try:
            check_races(two_loads_and_a_store(bases), ARCH)  # type: ignore[arg-type]
            found = False
        except RuleError:
            found = True
        assert found == overlap, bases
        outcomes.add(found)
    assert outcomes == {True, False}


def test_U103_a_uniform_tile_uses_every_partition_alike() -> None:
    """128 x 512 bf16 over 128 partitions: 1,024 B in each, no more in partition 0."""
    instr = Memset(dst=tile("t", 128, 512), value=1.0)
    buffers = (Buffer("t", "sbuf", "bf16", 0, 1024, partitions=128),)
    program = Program("uniform", (("vector", (instr,)),), buffers, ())
    verify_program(program, ARCH)
    machine = Machine(program, ARCH, strict=True)
    for _, step, env in program_order(program):
        machine.apply(machine.step(step)(env))
    memory = machine.memories["sbuf"]
    assert memory.written is not None
    assert memory.written.reshape(128, memory.pitch).sum(axis=1).tolist() == [1024] * 128
    assert np.unique(memory.data).size == 2  # the two bytes of bf16 1.0, everywhere


def test_U103_capacity_is_per_partition() -> None:
    """24 MiB over 128 partitions are 196,608 B in each: exactly full fits, one element more does not."""
    limit = 24 * MIB // 128

    def filled(nbytes: int) -> Program:
        buffers = (Buffer("t", "sbuf", "bf16", 0, nbytes, partitions=1),)
        return Program("full", (), buffers, ())

    verify_program(filled(limit), ARCH)
    with pytest.raises(RuleError, match=r"ends at byte 196610 per partition, 'sbuf' has 196608"):
        verify_program(filled(limit + 2), ARCH)


def kernel(instr: Instr, stream: str) -> Program:
    buffers = (
        Buffer("s", "sbuf", "bf16", 0, 4096, partitions=128),
        Buffer("acc", "psum", "fp32", 0, 4096, partitions=128),
    )
    return Program("user-kernel", ((stream, (instr,)),), buffers, ())


INVALID = [
    (
        Copy(dst=tile("s", 129, 16), src=tile("s", 129, 16), op="scores"),
        "vector", "partition-limit", "partitions 0 to 129 of buffer 's', it has 128",
    ),
    (
        Matmul(dst=tile("acc", 128, 512, "fp32"), stationary=tile("s", 128, 128), moving=tile("s", 128, 512),
               reset=None, op="scores"),
        "tensor", None, "",
    ),
    (
        Matmul(dst=tile("acc", 128, 513, "fp32"), stationary=tile("s", 128, 128), moving=tile("s", 128, 513),
               op="scores"),
        "tensor", "matmul-limit", "n is 513, the array takes at most 512",
    ),
    (
        Matmul(dst=Access("acc", "fp32", ((2, 512),), partitions=128), stationary=tile("s", 128, 128),
               moving=tile("s", 128, 512), op="scores"),
        "tensor", "accumulator-bank", "takes 4092 B from byte 0 of a bank, it has 2048 B",
    ),
    (
        Copy(dst=tile("s", 128, 16), src=tile("scratch", 128, 16), op="scores"),
        "vector", "undefined-buffer", "src: no buffer 'scratch', have acc, s",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("instr", "stream", "rule", "text"), INVALID)
def test_U107_an_invalid_kernel_names_place_rule_value_and_limit(
    instr: Instr, stream: str, rule: str | None, text: str
) -> None:
    if rule is None:
        verify_program(kernel(instr, stream), ARCH)  # exactly one bank: legal
        return
    with pytest.raises(RuleError) as caught:
        verify_program(kernel(instr, stream), ARCH)
    message = str(caught.value)
    assert message.startswith(f"[{rule}] program 'user-kernel', stream '{stream}', instruction 0 (")
    assert "op 'scores'" in message
    assert text in message
    assert RULES[rule]  # the code is documented
