"""Each instruction on random strided operands against plain Python loops over elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from programs import small_arch

from compiler.errors import VerifyError
from compiler.ir.dtype import numpy_dtype
from compiler.ir.execute import Machine
from compiler.isa import (
    Access,
    Activate,
    Affine,
    AffineSelect,
    Buffer,
    Copy,
    Dma,
    Gather,
    Instr,
    Matmul,
    Memset,
    Operand,
    Program,
    Reduce,
    TensorScalar,
    TensorTensor,
    Transpose,
    var,
)

ARCH = small_arch()
ROW = 1024  # bytes of a partition of each test buffer
ENV = {"i": 3, "j": 2}
BUFFERS = (
    Buffer("s", "sbuf", "fp32", 64, ROW, 2, partitions=8),
    Buffer("t", "sbuf", "fp32", 64 + 2 * ROW, ROW // 2, 2, partitions=8),
    Buffer("d", "hbm", "fp32", 128, 8 * ROW, 2),
)


def machine(seed: int) -> Machine:
    """All memories filled with small numbers that are exact in every float type."""
    made = Machine(Program("one", (), BUFFERS, ()), ARCH)
    rng = np.random.default_rng(seed)
    for memory in made.memories.values():
        memory.data[:] = rng.integers(-8, 8, memory.data.size // 4).astype(np.float32).view(np.uint8)
    return made


def fill(made: Machine, access: Access, seed: int) -> None:
    """Numbers of the operand's own type where it looks."""
    rng = np.random.default_rng(seed)
    for address in addresses(made, access):
        value = np.array([rng.integers(-8, 8) + 0.5 * (not access.dtype.startswith("int"))])
        raw = value.astype(numpy_dtype(access.dtype)).view(np.uint8)
        data = made.memories[made.buffers[access.buffer].memory].data
        data[address : address + raw.size] = raw


def addresses(made: Machine, access: Access) -> list[int]:
    """Byte address of every element, by the words of the ISA alone."""
    buffer = made.buffers[access.buffer]
    size = numpy_dtype(access.dtype).itemsize
    slot = access.slot.at(ENV) % buffer.slots
    found = []
    for p in range(max(1, access.partitions)):
        for index in itertools.product(*(range(count) for _, count in access.dims)):
            at = access.offset.at(ENV) + sum(
                i * stride for i, (stride, _) in zip(index, access.dims, strict=True)
            )
            row = (access.partition + p) * made.memories[buffer.memory].pitch if access.partitions else 0
            found.append(row + buffer.address + slot * buffer.slot_bytes + at * size)
    return found


def get(made: Machine, access: Access) -> np.ndarray:
    """The operand as a list of float64, partitions outermost."""
    data = made.memories[made.buffers[access.buffer].memory].data
    dtype = numpy_dtype(access.dtype)
    return np.array([float(data[a : a + dtype.itemsize].view(dtype)[0]) for a in addresses(made, access)])


def scalars(made: Machine, operand: Operand, partitions: int, free: int) -> np.ndarray:
    if isinstance(operand, Access):
        return np.repeat(get(made, operand), free)
    return np.full(partitions * free, operand)


def run(made: Machine, instr: Instr) -> None:
    with np.errstate(all="ignore"):
        made.apply(made.step(instr)(dict(ENV)))


def check(made: Machine, dst: Access, want: np.ndarray, instr: Instr) -> None:
    """`dst` becomes `want`; not a byte beside it changes."""
    before = {name: memory.data.copy() for name, memory in made.memories.items()}
    run(made, instr)
    got = get(made, dst)
    rounded = np.asarray(want, np.float32).astype(numpy_dtype(dst.dtype)).astype(np.float64)
    tolerance = {"fp32": 2e-6, "bf16": 2**-7}.get(dst.dtype, 2**-3)
    np.testing.assert_allclose(got, rounded, rtol=tolerance, atol=tolerance)
    size = numpy_dtype(dst.dtype).itemsize
    for name, memory in made.memories.items():
        changed = set(np.flatnonzero(memory.data != before[name]).tolist())
        if name == made.buffers[dst.buffer].memory:
            changed -= {a + i for a in addresses(made, dst) for i in range(size)}
        accumulate = getattr(instr, "accumulate", None)
        if accumulate is not None and name == "sbuf":
            changed -= {a + i for a in addresses(made, accumulate) for i in range(4)}
        assert not changed


def source(rng: np.random.Generator, sizes: tuple[int, ...], dtype: str = "fp32", parts: int = 4) -> Access:
    """A random strided operand in the lower half of `s`: axes in any order, gaps between them."""
    order = rng.permutation(len(sizes))
    strides = [0] * len(sizes)
    stride = int(rng.integers(1, 3))
    for axis in order:
        strides[axis] = stride
        stride = stride * sizes[axis] + int(rng.integers(0, 3))
    offset = Affine(int(rng.integers(0, 4))) + var("i") * int(rng.integers(0, 3)) + var("j")
    start = int(rng.integers(0, 8 - parts + 1))
    dims = tuple(zip(strides, sizes, strict=True))
    return Access("s", dtype, dims, offset, start, parts, var("i") + 1)


def target(rng: np.random.Generator, sizes: tuple[int, ...], dtype: str = "fp32", parts: int = 4) -> Access:
    found = source(rng, sizes, dtype, parts)
    return Access("t", dtype, found.dims, found.offset, found.partition, parts, var("j") * 3)


def column(parts: int = 4) -> Access:
    return Access("s", "fp32", ((1, 1),), Affine(200), 2, parts, var("i"))


SEEDS = range(6)
TYPES = ("fp32", "bf16")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_copy_and_dma(seed: int, dtype: str) -> None:
    rng, made = np.random.default_rng(seed), machine(seed)
    src, dst = source(rng, (2, 3, 5), dtype), target(rng, (5, 6), dtype)
    fill(made, src, seed)
    check(made, dst, get(made, src), Copy(dst=dst, src=src))
    dram = Access("d", dtype, ((64, 4), (32, 2), (2, 15)), var("i") * 5, slot=var("i"))
    fill(made, src, seed + 1)
    check(made, dram, get(made, src), Dma(dst=dram, src=src))
    check(made, dst, get(made, dram), Dma(dst=dst, src=dram))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kinds", [("bf16", "fp32"), ("fp32", "bf16"), ("fp32", "fp8e4"), ("int32", "fp32")])
def test_copy_converts(seed: int, kinds: tuple[str, str]) -> None:
    rng, made = np.random.default_rng(seed), machine(seed)
    src, dst = source(rng, (3, 4), kinds[0]), target(rng, (12,), kinds[1])
    fill(made, src, seed)
    check(made, dst, get(made, src), Copy(dst=dst, src=src))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("reset", [(), None, (var("i") - 3,), (var("i"), var("j") - 2)])
def test_matmul(seed: int, dtype: str, reset: tuple[Affine, ...] | None) -> None:
    rng, made = np.random.default_rng(seed), machine(seed)
    stationary, moving = source(rng, (3, 2), dtype, 5), source(rng, (2, 2), dtype, 5)
    dst = target(rng, (4,), "fp32", 6)
    fill(made, stationary, seed)
    fill(made, moving, seed + 1)
    a, b = get(made, stationary).reshape(5, 6), get(made, moving).reshape(5, 4)
    product = np.array([[sum(a[k, m] * b[k, n] for k in range(5)) for n in range(4)] for m in range(6)])
    adds = reset is None or any(r.at(ENV) != 0 for r in reset)
    want = product.reshape(-1) + (get(made, dst) if adds else 0)
    check(made, dst, want, Matmul(dst=dst, stationary=stationary, moving=moving, reset=reset))


def test_integer_matmul_is_exact() -> None:
    made = machine(0)
    stationary = Access("s", "int8", ((1, 4),), partitions=8)
    moving = Access("s", "int8", ((1, 4),), Affine(64), partitions=8)
    dst = Access("t", "int32", ((1, 4),), partitions=4)
    for access in (stationary, moving):
        for address in addresses(made, access):
            made.memories["sbuf"].data[address] = 0x81  # -127
    run(made, Matmul(dst=dst, stationary=stationary, moving=moving))
    for _ in range(999):
        run(made, Matmul(dst=dst, stationary=stationary, moving=moving, reset=None))
    assert (get(made, dst) == 1000 * 8 * 127 * 127).all()  # above 2**24: not exact in float32


@pytest.mark.parametrize("seed", SEEDS)
def test_transpose_passes_bits_through(seed: int) -> None:
    rng, made = np.random.default_rng(seed), machine(seed)
    src, dst = source(rng, (2, 3), "bf16", 5), target(rng, (5,), "bf16", 6)
    fill(made, src, seed)
    check(made, dst, get(made, src).reshape(5, 6).T.reshape(-1), Transpose(dst=dst, src=src))


FUNCS: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "copy": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "exp": math.exp,
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "square": lambda x: x * x,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "rsqrt": lambda x: x**-0.5 if x > 0 else math.inf if x == 0 else math.nan,
    "reciprocal": lambda x: 1 / x if x else math.copysign(math.inf, x),
    "log": lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan,
    "sin": math.sin,
    "cos": math.cos,
    "abs": abs,
    "erf": math.erf,
    "softplus": lambda x: math.log1p(math.exp(x)),
}


@pytest.mark.parametrize("func", FUNCS)
def test_activate(func: str) -> None:
    rng, made = np.random.default_rng(7), machine(7)
    src, dst = source(rng, (3, 4)), target(rng, (12,))
    total = Access("t", "fp32", ((1, 1),), Affine(120), 0, 4)
    fill(made, src, 7)
    scaled = get(made, src) * 0.25 + scalars(made, column(), 4, 12)
    want = np.array([FUNCS[func](x) for x in scaled])
    check(made, dst, want, Activate(dst=dst, src=src, func=func, scale=0.25, bias=column(), accumulate=total))
    np.testing.assert_allclose(get(made, total), want.reshape(4, 12).sum(1), rtol=1e-5, atol=1e-5)


OPS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "rsub": lambda a, b: b - a,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "max": max,
    "min": min,
    "pow": lambda a, b: a**b if b == int(b) else math.nan,
    "less": lambda a, b: float(a < b),
    "greater_equal": lambda a, b: float(a >= b),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_tensor_tensor_and_scalar(name: str, dtype: str) -> None:
    rng, made = np.random.default_rng(3), machine(3)
    lhs, rhs, dst = source(rng, (3, 4), dtype), source(rng, (12,), dtype), target(rng, (2, 6), dtype)
    fill(made, lhs, 3)
    fill(made, rhs, 4)
    want = np.array([OPS[name](x, y) for x, y in zip(get(made, lhs), get(made, rhs), strict=True)])
    if name != "pow":
        check(made, dst, want, TensorTensor(dst=dst, lhs=lhs, rhs=rhs, operation=name))
    want = np.array(
        [OPS[name](x, 2.0) * y for x, y in zip(get(made, lhs), scalars(made, column(), 4, 12), strict=True)]
    )
    check(made, dst, want, TensorScalar(dst=dst, src=lhs, op0=name, a=2.0, op1="multiply", b=column()))
    want = np.array([OPS[name](x, 2.0) for x in get(made, lhs)])
    check(made, dst, want, TensorScalar(dst=dst, src=lhs, op0=name, a=2.0))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "fold"), [("add", sum), ("max", max), ("min", min)])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_reduce(seed: int, name: str, fold: Callable[[list[float]], float], axes: int) -> None:
    rng, made = np.random.default_rng(seed), machine(seed)
    sizes = (2, 3, 4)
    src, dst = source(rng, sizes), target(rng, sizes[: 3 - axes] or (1,))
    fill(made, src, seed)
    rows = get(made, src).reshape(-1, math.prod(sizes[3 - axes :]))
    check(
        made,
        dst,
        np.array([fold(list(r)) for r in rows]),
        Reduce(dst=dst, src=src, operation=name, axes=axes),
    )


def test_memset_and_affine_select() -> None:
    rng, made = np.random.default_rng(1), machine(1)
    src, dst = source(rng, (3, 4)), target(rng, (3, 4))
    check(made, dst, np.full(48, 2.5), Memset(dst=dst, value=2.5))
    fill(made, src, 1)
    # a causal mask: row p (query j*2 + p) sees column f (key) up to itself
    instr = AffineSelect(dst=dst, src=src, base=var("j") * 2, partition_step=1, free_step=-1, fill=-9.0)
    rows = get(made, src).reshape(4, 12)
    want = [[rows[p, f] if 4 + p - f >= 0 else -9.0 for f in range(12)] for p in range(4)]
    check(made, dst, np.array(want).reshape(-1), instr)


def test_gather_and_its_bounds() -> None:
    made = machine(2)
    index = Access("s", "int32", ((1, 1),), partitions=4)
    row = Access("d", "fp32", ((2, 5),), Affine(3), slot=Affine(1))
    dst = Access("t", "fp32", ((1, 5),), partitions=4)
    rows = [7, 0, 199, 7]

    def put(values: list[int]) -> None:
        for address, value in zip(addresses(made, index), values, strict=True):
            made.memories["sbuf"].data[address : address + 4] = np.array([value], np.int32).view(np.uint8)

    put(rows)
    want = [get(made, Access("d", "fp32", row.dims, Affine(3 + r * 10), slot=Affine(1))) for r in rows]
    instr = Gather(dst=dst, src=row, index=index, row_stride=10)
    check(made, dst, np.concatenate(want), instr)
    for bad in (-1, 300):
        put([0, bad, 0, 0])
        with pytest.raises(VerifyError, match=r"gather-index.*'d'"):
            run(made, instr)


def test_results_round_and_integers_saturate() -> None:
    made = machine(0)
    src = Access("s", "fp32", ((1, 6),), partitions=1)
    values = np.array([1.00390625, 2.5, 3.5, -300.0, 1e9, np.nan], np.float32)
    made.memories["sbuf"].data[64 : 64 + 24] = values.view(np.uint8)
    for dtype, want in (("int8", [1, 2, 4, -128, 127, 0]), ("int32", [1, 2, 4, -300, 10**9, 0])):
        dst = Access("t", dtype, ((1, 6),), partitions=1)
        run(made, Copy(dst=dst, src=src))
        assert get(made, dst).tolist() == want
    dst = Access("t", "bf16", ((1, 5),), partitions=1)
    run(made, Copy(dst=dst, src=Access("s", "fp32", ((1, 5),), partitions=1)))
    assert get(made, dst)[0] == 1.0  # 1 + 2**-8 is a tie: to even
    assert get(made, dst)[4] == float(ml_dtypes.bfloat16(1e9))
