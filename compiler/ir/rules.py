"""The rules of the program level by their stable codes, and the error that names a broken one."""

from __future__ import annotations

from typing_extensions import override

from compiler.errors import VerifyError

RULES: dict[str, str] = {
    "accumulate-dtype": "a matmul that adds to its destination does so in fp32 or int32",
    "accumulator-bank": "what one matmul or transpose writes lies in one bank of a partition",
    "alignment": "slots start at multiples of the element size of their buffer and of the operands in it",
    "array-chain": "as many matmuls in a row add to the same sums as share passes by what they say",
    "array-dtype": "the array has a rate for the operand types, and both are equally wide",
    "array-held": "a matmul that loads nothing finds its stationary tile in the array, as it is in memory",
    "buffer-bounds": "an operand stays inside one slot of its buffer for all loop counters",
    "buffer-overlap": "DRAM tensors that last for the whole program do not overlap",
    "buffer-size": "a buffer has at least one slot, and no negative size or address",
    "channel-consumer": "only the consumer of a channel waits for it (R1)",
    "channel-producer": "only the producer of a channel signals it (R2)",
    "credits": "an outermost loop that never waits posts a bounded number of tokens (R5)",
    "dma-dtype": "a transfer does not convert: both sides have one type",
    "dma-size": "both sides of a transfer have as many elements",
    "duplicate-name": "buffers, channels and streams have names of their own",
    "empty-operand": "every axis of an operand has at least one element",
    "engine-instruction": "a stream holds only instructions its engine or queue can run",
    "engine-memory": "an engine reads and writes only the memories it reaches",
    "engine-op": "an engine runs only the classes of operation its specification lists",
    "gather-index": "a gather has one int32 index for each partition of its destination",
    "gather-table": "a gather reads rows of a DRAM table at a positive stride",
    "loop-count": "a loop runs at least 0 times",
    "loop-share": "of a loop that cores deal out, a core runs none to all iterations",
    "loop-variable": "a loop has a variable that no enclosing loop uses",
    "matmul-limit": "one matmul fits the array: k rows, m columns, n moving columns",
    "matmul-memory": "the array writes the accumulator memory",
    "memory-capacity": "a buffer ends inside its memory",
    "partition-limit": "on chip, partitions start at 0 or later and end inside the buffer and memory",
    "race": "two accesses to one byte, one of them a write, are ordered by streams and channels",
    "reduce-axes": "a reduction covers at least one and at most all free axes of its source",
    "repeated-write": "a destination has no axis of stride 0",
    "scalar-operand": "a scalar operand has one value on each partition of the source",
    "shape-mismatch": "the operands of an instruction agree in partitions and elements",
    "start-partition": "an engine's operand starts at 0, or at halves or quarters of the partitions if small",
    "tensor-image": "a DRAM buffer holds all elements and copies of its tensor, and every output has one",
    "token-balance": "every token waited for is there at the start or produced",
    "token-count": "waits and signals name at least one token, channels start with at least 0",
    "unbound-variable": "an expression names only variables of enclosing loops",
    "undefined-buffer": "the buffer of an operand exists",
    "undefined-channel": "a channel that is waited for or signalled exists",
    "undefined-memory": "the memory of a buffer exists in the architecture",
    "undefined-stream": "streams, and the ends of channels, are engines or queues of the architecture",
    "uninitialised-read": "every byte that is read was written before, or is of an input, weight or state",
    "unknown-dtype": "element types are those of `compiler.ir.dtype`",
    "unknown-function": "functions and operations are those of `compiler.ir.functions`",
}


class RuleError(VerifyError):
    """A broken rule; `rule` is its stable code, a key of RULES."""

    def __init__(self, rule: str, text: str) -> None:
        """Keep the code beside the message."""
        assert rule in RULES, rule
        self.rule = rule
        self.text = text
        super().__init__(f"[{rule}] {text}")

    @override
    def __reduce__(self) -> tuple[type[RuleError], tuple[str, str]]:
        """Survive the trip through a process pool."""
        return (type(self), (self.rule, self.text))
