"""The rules of the program level, one line each: how many things it was held against, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from arch_configs.spec import ArchSpec
from compiler.errors import VerifyError
from compiler.ir.rules import RULES, RuleError
from compiler.ir.verify_program import check_run, verify_program
from compiler.isa import (
    Access,
    Dma,
    Gather,
    Instr,
    Loop,
    Matmul,
    Node,
    Program,
    Reduce,
    Transpose,
    walk,
    writes,
)
from compiler.isa import operands as operands_of

STEPS = 200_000  # instructions of a program that is also gone through one by one; assumed: some seconds
DEADLOCK = "deadlock"  # of the run; not a rule of the verifier
DEADLOCK_TEXT = "every stream comes to its end"

# What a rule is held against; those of the run look at every dynamic instruction.
SUBJECTS: dict[str, str] = {
    "accumulate-dtype": "matmuls",
    "accumulator-bank": "array instructions",
    "alignment": "buffers and operands",
    "array-dtype": "array instructions",
    "buffer-bounds": "operands",
    "buffer-overlap": "DRAM buffers",
    "buffer-size": "buffers",
    "channel-consumer": "waits",
    "channel-producer": "signals",
    "credits": "outermost loops",
    "dma-dtype": "transfers",
    "dma-size": "transfers",
    "duplicate-name": "buffers, channels and streams",
    "empty-operand": "operands",
    "engine-instruction": "instructions",
    "engine-memory": "operands",
    "engine-op": "instructions",
    "gather-index": "gathers",
    "gather-table": "gathers",
    "loop-count": "loops",
    "loop-share": "loops",
    "loop-variable": "loops",
    "matmul-limit": "array instructions",
    "matmul-memory": "array instructions",
    "memory-capacity": "buffers",
    "partition-limit": "buffers and operands",
    "reduce-axes": "reductions",
    "repeated-write": "destinations",
    "scalar-operand": "scalar operands",
    "shape-mismatch": "instructions",
    "start-partition": "operands",
    "tensor-image": "DRAM buffers",
    "token-balance": "channels",
    "token-count": "waits, signals and channels",
    "unbound-variable": "operands",
    "undefined-buffer": "operands",
    "undefined-channel": "waits and signals",
    "undefined-memory": "buffers",
    "undefined-stream": "streams and ends of channels",
    "unknown-dtype": "buffers and operands",
    "unknown-function": "instructions",
}
OF_THE_RUN: dict[str, str] = {
    "array-chain": "matmuls that run",
    "array-held": "matmuls that run",
    DEADLOCK: "instructions that run",
    "race": "accesses that run",
    "uninitialised-read": "accesses that run",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was looked at, and what was found. `passed` is None where it was left out.

    `rule` says what holds, where the name is the code of a rule.
    """

    name: str
    looked_at: str
    passed: bool | None
    found: str = ""
    rule: str = ""


def rule_checks(program: Program, arch: ArchSpec) -> Iterator[Check]:
    """A check for each rule, by name, those of the run last. A rule behind a broken one is left out."""
    counts = count(program)
    rules = list(_stage(SUBJECTS, counts, lambda: verify_program(program, arch)))
    yield from rules
    steps = counts["instructions that run"]
    left_out = f"{steps} instructions, more than {STEPS}: left out" if steps > STEPS else ""
    if any(check.passed is False for check in rules):
        left_out = "left out, as the program is not legal"
    if left_out:
        yield from (Check(rule, left_out, None, rule=_text(rule)) for rule in OF_THE_RUN)
    else:
        yield from _stage(OF_THE_RUN, counts, lambda: check_run(program, arch))


def _stage(subjects: dict[str, str], counts: Counter[str], check: Callable[[], None]) -> Iterator[Check]:
    """The checks of one function, which stops at the first broken rule."""
    broken, found = "", ""
    try:
        check()
    except VerifyError as error:
        broken = error.rule if isinstance(error, RuleError) else DEADLOCK
        found = str(error)
    for rule, subject in subjects.items():
        looked_at = f"{counts[subject]} {subject}"
        if rule == broken:
            yield Check(rule, looked_at, passed=False, found=found, rule=_text(rule))
        elif broken:
            left_out = f"{looked_at}: left out, as {broken} is broken"
            yield Check(rule, left_out, None, rule=_text(rule))
        else:
            yield Check(rule, looked_at, passed=True, rule=_text(rule))
    assert not broken or broken in subjects, found


def _text(rule: str) -> str:
    return DEADLOCK_TEXT if rule == DEADLOCK else RULES[rule]


def count(program: Program) -> Counter[str]:
    """How many there are in a program of each thing that a rule is held against."""
    found: Counter[str] = Counter()
    found["buffers"] = len(program.buffers)
    found["DRAM buffers"] = sum(not buffer.partitions for buffer in program.buffers)
    found["channels"] = len(program.channels)
    found["buffers, channels and streams"] = (
        len(program.buffers) + len(program.channels) + len(program.streams)
    )
    found["streams and ends of channels"] = len(program.streams) + 2 * len(program.channels)
    for _, nodes in program.streams:
        found["outermost loops"] += sum(isinstance(node, Loop) for node in nodes)
        found["loops"] += _loops(nodes)
        for instr, times in walk(nodes):
            _count_instr(instr, times, found)
    found["waits and signals"] = found["waits"] + found["signals"]
    found["waits, signals and channels"] = found["waits and signals"] + len(program.channels)
    found["buffers and operands"] = found["buffers"] + found["operands"]
    return found


def _loops(nodes: tuple[Node, ...]) -> int:
    return sum(1 + _loops(node.body) for node in nodes if isinstance(node, Loop))


def _count_instr(instr: Instr, times: int, found: Counter[str]) -> None:
    accesses = sum(1 for _ in operands_of(instr))
    found["instructions"] += 1
    found["operands"] += accesses
    found["destinations"] += len(writes(instr))
    found["waits"] += len(instr.waits)
    found["signals"] += len(instr.signals)
    found["matmuls"] += isinstance(instr, Matmul)
    found["array instructions"] += isinstance(instr, Matmul | Transpose)
    found["transfers"] += isinstance(instr, Dma | Gather)
    found["gathers"] += isinstance(instr, Gather)
    found["reductions"] += isinstance(instr, Reduce)
    scalars = ("scale", "bias", "a", "b", "accumulate")
    found["scalar operands"] += sum(isinstance(getattr(instr, name, None), Access) for name in scalars)
    found["instructions that run"] += times
    found["accesses that run"] += times * accesses
    found["matmuls that run"] += times * isinstance(instr, Matmul)
