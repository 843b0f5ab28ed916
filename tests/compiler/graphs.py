"""Random graphs of general ops between the layers that models have: what an importer may hand over.

`random_graph(seed)` draws one; its magnitudes stay near 1, so results can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod

from compiler.ir.graph import Graph
from compiler.ops import (
    BatchMatmul,
    Binary,
    Concat,
    Conv2d,
    CumSum,
    Expand,
    Gather,
    Linear,
    Pad,
    Permute,
    Pool2d,
    Reduce,
    Reshape,
    RmsNorm,
    Scalar,
    Select,
    Slice,
    Softmax,
    Transpose2d,
    Unary,
    Update,
)
from workloads.blocks import GraphBuilder

SIZES = (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 33)
LARGEST = 12000  # elements of a value
FUNCTIONS = ("tanh", "relu", "silu", "gelu", "sigmoid", "abs", "negate", "sin")
Shape = tuple[int, ...]


def random_graph(seed: int, dtype: str = "fp32") -> Graph:
    """A graph of a few inputs, up to a dozen ops and perhaps a region."""
    return _Draw(random.Random(seed), dtype).graph(f"random{seed}")


class _Draw:
    def __init__(self, rng: random.Random, dtype: str) -> None:
        self.rng, self.b = rng, GraphBuilder("random", dtype)
        self.count = 0
        self.pool: list[str] = []
        self.read: set[str] = set()
        self.steps: tuple[Callable[[str], str], ...] = (
            self.unary, self.scalar, self.binary, self.binary, self.reshape, self.reshape, self.permute,
            self.slice, self.pad, self.expand, self.concat, self.reduce, self.softmax, self.linear,
            self.linear, self.norm, self.product, self.turn, self.cumsum, self.gather, self.update,
            self.select, self.conv, self.region,
        )  # fmt: skip

    def graph(self, name: str) -> Graph:
        rng, b = self.rng, self.b
        for _ in range(rng.randint(1, 3)):
            self.pool.append(b.input(self.name("x"), *self.shape_of_rank(rng.randint(1, 4))))
        for _ in range(rng.randint(3, 12)):
            made = rng.choice(self.steps)(rng.choice(self.pool))
            if made not in self.pool:
                self.pool.append(made)
        outputs = tuple(v for v in self.pool if v not in self.read and not v.startswith("x"))
        b.name = name
        return b.build(outputs or (self.unary(self.pool[0]),), {"unit": "ops", "work": 1})

    # ---- pieces --------------------------------------------------------------------------------------
    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def op(self, op: object, *inputs: str) -> str:
        self.read.update(inputs)
        return self.b.op(self.name(type(op).__name__.lower()), op, *inputs)  # type: ignore[arg-type]

    def shape(self, name: str) -> Shape:
        return self.b.type(name).shape

    def shape_of_rank(self, rank: int) -> Shape:
        while True:
            shape = tuple(self.rng.choice(SIZES) for _ in range(rank))
            if prod(shape) <= LARGEST:
                return shape

    def factors(self, total: int, rank: int) -> Shape:
        """`rank` sizes whose product is `total`."""
        sizes = []
        for _ in range(rank - 1):
            size = self.rng.choice([d for d in range(1, total + 1) if total % d == 0])
            sizes.append(size)
            total //= size
        sizes.append(total)
        self.rng.shuffle(sizes)
        return tuple(sizes)

    def matrix(self, x: str) -> str:
        """`x` as a matrix."""
        shape = self.shape(x)
        if len(shape) == 2:
            return x
        cut = self.rng.randint(0, len(shape))
        return self.op(Reshape((prod(shape[:cut]), prod(shape[cut:]))), x)

    # ---- one op each -----------------------------------------------------------------------------------
    def unary(self, x: str) -> str:
        return self.op(Unary(self.rng.choice(FUNCTIONS)), x)

    def scalar(self, x: str) -> str:
        func = self.rng.choice(("add", "sub", "mul", "max", "min"))
        return self.op(Scalar(func, self.rng.choice((0.5, -1.0, 0.0)), self.rng.random() < 0.5), x)

    def binary(self, x: str) -> str:
        alike = [v for v in self.pool if self.shape(v) == self.shape(x)]
        other = self.rng.choice(alike)
        if self.rng.random() < 0.6:
            shape = tuple(1 if self.rng.random() < 0.4 else size for size in self.shape(x))
            shape = shape[self.rng.choice((0, 0, 1)) :] or (1,)
            other = self.b.input(self.name("x"), *shape)
        func = self.rng.choice(("add", "sub", "max", "min"))
        pair = (
            (other, x)
            if self.rng.random() < 0.3 and len(self.shape(other)) == len(self.shape(x))
            else (x, other)
        )
        return self.op(Binary(func), *pair)

    def reshape(self, x: str) -> str:
        return self.op(Reshape(self.factors(prod(self.shape(x)), self.rng.randint(1, 4))), x)

    def permute(self, x: str) -> str:
        order = list(range(len(self.shape(x))))
        self.rng.shuffle(order)
        return self.op(Permute(tuple(order)), x)

    def slice(self, x: str) -> str:
        starts = tuple(self.rng.randrange(size) for size in self.shape(x))
        stops = tuple(self.rng.randint(a + 1, size) for a, size in zip(starts, self.shape(x), strict=True))
        steps = tuple(self.rng.choice((1, 1, 2)) for _ in starts)
        return self.op(Slice(starts, stops, steps), x)

    def pad(self, x: str) -> str:
        low, high = (tuple(self.rng.choice((0, 0, 1, 3)) for _ in self.shape(x)) for _ in range(2))
        if prod(a + s + z for a, s, z in zip(low, self.shape(x), high, strict=True)) > LARGEST:
            return x
        return self.op(Pad(low, high, 0.5), x)

    def expand(self, x: str) -> str:
        shape = tuple(3 if size == 1 else size for size in self.shape(x))
        return self.op(Expand(shape), x) if prod(shape) <= LARGEST else x

    def concat(self, x: str) -> str:
        axis = self.rng.randrange(len(self.shape(x)))
        alike = [v for v in self.pool if self.shape(v) == self.shape(x)]
        return self.op(Concat(axis), x, self.rng.choice(alike)) if 2 * prod(self.shape(x)) <= LARGEST else x

    def reduce(self, x: str) -> str:
        first = self.rng.randrange(len(self.shape(x)))
        last = self.rng.randint(first + 1, len(self.shape(x)))
        return self.op(Reduce(self.rng.choice(("mean", "max", "min")), tuple(range(first, last))), x)

    def softmax(self, x: str) -> str:
        return self.op(Softmax(), x)

    def linear(self, x: str) -> str:
        x = self.matrix(x)
        return self.op(Linear(), x, self.b.weight(self.name("w"), self.shape(x)[1], self.rng.choice(SIZES)))

    def norm(self, x: str) -> str:
        x = self.matrix(x)
        return self.op(RmsNorm(0.1), x, self.b.weight(self.name("gain"), self.shape(x)[1]))

    def product(self, x: str) -> str:
        """`x` by its own transpose, brought back to about 1."""
        *lead, m, k = (1, 1, *self.shape(x))[-max(2, len(self.shape(x))) :]
        if prod(lead) * m * m > LARGEST:
            return x
        x = self.op(Reshape((*lead, m, k)), x) if len(self.shape(x)) < 2 else x
        return self.op(Unary("tanh"), self.op(BatchMatmul(True), x, x))

    def turn(self, x: str) -> str:
        return self.op(Transpose2d(), self.matrix(x))

    def cumsum(self, x: str) -> str:
        return self.op(Scalar("mul", 0.1), self.op(CumSum(self.rng.randrange(len(self.shape(x)))), x))

    def gather(self, x: str) -> str:
        ids = self.b.input(self.name("x"), self.rng.choice(SIZES), dtype="int32")
        axis = self.rng.randrange(len(self.shape(x)))
        small = prod(self.shape(x)) // self.shape(x)[axis] * self.shape(ids)[0] <= LARGEST
        return self.op(Gather(axis), x, ids) if small else x

    def update(self, x: str) -> str:
        sizes = tuple(self.rng.randint(1, size) for size in self.shape(x))
        starts = tuple(self.rng.randint(0, s - n) for s, n in zip(self.shape(x), sizes, strict=True))
        return self.op(Update(starts), x, self.b.input(self.name("x"), *sizes))

    def select(self, x: str) -> str:
        cond = self.b.input(self.name("x"), *self.shape(x), dtype=self.b.dtype)
        mask = self.op(Scalar("greater", 0.0), cond)
        return self.op(Select(), mask, x, self.op(Scalar("mul", 0.5), x))

    def conv(self, x: str) -> str:
        if len(self.shape(x)) != 4:
            return x
        _, c, h, w = self.shape(x)
        if self.rng.random() < 0.3 and min(h, w) >= 2:
            return self.op(Pool2d("max", 2, 2), x)
        out = self.rng.choice(SIZES)
        if min(h, w) < 2 or prod(self.shape(x)) // c * out > LARGEST:
            return x
        return self.op(Conv2d(1, 1), x, self.b.weight(self.name("w"), out, c, 3, 3))

    def region(self, x: str) -> str:
        """Three layers of ops that keep the shape."""
        shape = self.shape(x)
        pool, self.pool = self.pool, []

        def layer(x: str) -> str:
            self.pool = [x]
            for _ in range(self.rng.randint(1, 4)):
                x = self.rng.choice((self.unary, self.mixed, self.residual, self.there_and_back))(x)
            if x == self.pool[0]:
                x = self.unary(x)
            return x if self.shape(x) == shape else self.op(Reshape(shape), x)

        self.read.add(x)
        made = self.b.repeat(self.name("region"), 3, x, layer)
        self.pool = pool
        return made

    def mixed(self, x: str) -> str:
        x = self.matrix(x)
        size = self.shape(x)[1]
        return (
            self.op(Linear(), x, self.b.weight(self.name("w"), size, size)) if size <= 200 else self.norm(x)
        )

    def residual(self, x: str) -> str:
        return self.op(Binary("add"), x, self.softmax(x))

    def there_and_back(self, x: str) -> str:
        """A permutation, something along its last axis, and the way back."""
        order = list(range(len(self.shape(x))))
        self.rng.shuffle(order)
        turned = self.op(Softmax(), self.op(Permute(tuple(order)), x))
        return self.op(Permute(tuple(order.index(i) for i in range(len(order)))), turned)
