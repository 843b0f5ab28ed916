"""Mixture of experts as a block of a decoder, and which expert gets how many tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.ops import Binary, ClampedGlu, Combine, Dispatch, GroupedLinear, Route, Unary
from compiler.routing import padded
from workloads.blocks import GraphBuilder, gated_mlp, linear
from workloads.errors import WorkloadError

ROUTINGS = ("uniform", "skewed")
ROUTING_KEY = "load of the experts: uniform, skewed, or a file with a number for each expert"
SKEW = 0.5  # expert i of `skewed` gets tokens as i ** -SKEW: the busiest of 64 has 4 times the mean; assumed


@dataclass(frozen=True, slots=True)
class Experts:
    """Hyper-parameters of the experts of a layer; see `compiler.ops.moe.Route` for how gates are made."""

    count: int
    top: int
    hidden: int
    shared: int = 0  # hidden size of an expert that every token uses
    score: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    shared_gate: bool = False  # the shared expert's result is scaled by a sigmoid of its own
    bias: bool = False  # of router and experts
    limit: float = (
        0.0  # above 0: the gate of gpt-oss (`compiler.ops.moe.ClampedGlu`) in place of the activation
    )


def expert_loads(routing: str, experts: Experts, tokens: int) -> tuple[int, ...]:
    """Tokens of each expert: `uniform`, `skewed`, or as in a file with a number for each expert.

    Uniform loads differ by one at most, and experts that get none lie evenly between those that do. Skewed
    loads fall from the first expert to the last; those of a file are sorted so, because it makes no
    difference which expert it is, and scaled to `tokens`. Raises WorkloadError if the file is none.
    """
    rows = tokens * experts.top
    if routing == "uniform":
        if rows < experts.count:
            step = experts.count // rows
            return tuple(int(i % step == 0 and i // step < rows) for i in range(experts.count))
        each, more = divmod(rows, experts.count)
        return tuple(each + (i < more) for i in range(experts.count))
    if routing == "skewed":
        weights = [float((i + 1) ** -SKEW) for i in range(experts.count)]
    else:
        weights = sorted(read_loads(routing, experts.count), reverse=True)
    return _scaled(weights, rows, tokens)


def _scaled(weights: Sequence[float], rows: int, most: int) -> tuple[int, ...]:
    """`rows` shared out by falling weights, none over `most`."""
    counts = [0] * len(weights)
    left = rows
    while left:
        open_ones = [i for i, count in enumerate(counts) if count < most and weights[i] > 0]
        open_ones = open_ones or [i for i, count in enumerate(counts) if count < most]
        total = sum(weights[i] for i in open_ones)
        shares = [int(left * weights[i] / total) if total else 0 for i in open_ones]
        if not any(shares):  # fewer than experts: one each, the busiest first
            for i in open_ones[:left]:
                counts[i] += 1
            left -= min(left, len(open_ones))
            continue
        for i, share in zip(open_ones, shares, strict=True):
            given = min(share, most - counts[i])
            counts[i] += given
            left -= given
    return tuple(sorted(counts, reverse=True))


def read_loads(path: str, experts: int) -> list[float]:
    """The numbers in a file: a JSON list, or text with spaces, commas or lines between."""
    where = f"routing: {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        want = f"want {', '.join(ROUTINGS)}, or a file with the load of each expert"
        raise WorkloadError(f"{where}: cannot be read: {error.strerror}; {want}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{where}: not UTF-8 text") from error
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else text.replace(",", " ").split()
        loads = [float(item) for item in found]
    except (ValueError, TypeError, RecursionError) as error:
        raise WorkloadError(f"{where}: got something else, want a list of numbers") from error
    if len(loads) != experts:
        raise WorkloadError(f"{where}: got {len(loads)} numbers, want one for each of {experts} experts")
    if not all(0 <= load < float("inf") for load in loads) or not sum(loads):
        raise WorkloadError(f"{where}: got a load below 0 or without end, or none at all")
    return loads


def routing_problems(routing: str, experts: Experts, tokens: int) -> list[str]:
    """What is wrong with the key `routing`."""
    try:
        expert_loads(routing, experts, tokens)
    except WorkloadError as error:
        return [str(error)]
    return []


class MoeBlock:
    """The experts of a model's layers, all with the same loads; the tables are made once."""

    def __init__(self, b: GraphBuilder, experts: Experts, tokens: int, routing: str) -> None:
        """Make the tables of indices outside any region."""
        self.b, self.experts = b, experts
        self.counts = expert_loads(routing, experts, tokens)
        self.rows = padded(self.counts)
        self.chosen = b.table("route.chosen", tokens, experts.top, dtype="int32")
        self.index = b.table("route.index", experts.count, dtype="fp32")
        self.source = b.table("route.source", sum(self.rows), dtype="int32")
        self.slot = b.table("route.slot", tokens, experts.top, dtype="int32")

    def __call__(self, x: str, activation: str) -> str:
        """Router, experts, and the shared expert beside them."""
        b, experts = self.b, self.experts
        logits = linear(b, "router", x, experts.count, bias=experts.bias)
        route = Route(self.counts, experts.top, experts.score, experts.normalise, experts.scale)
        gates = b.op("gates", route, logits, self.chosen, self.index)
        mine = b.op("dispatch", Dispatch(self.counts, experts.top), x, self.source)
        made = self._linear("down", self._gated(mine, activation), b.type(x).shape[1])
        y = b.op("combine", Combine(self.counts, experts.top), made, gates, self.slot)
        if not experts.shared:
            return y
        shared = gated_mlp(b, x, experts.shared, activation, prefix="shared.")
        if experts.shared_gate:
            gate = b.op("shared.sigmoid", Unary("sigmoid"), linear(b, "shared.scale", x, 1))
            shared = b.op("shared.scaled", Binary("mul"), shared, gate)
        return b.op("shared_add", Binary("add"), shared, y)

    def _gated(self, x: str, activation: str) -> str:
        b, experts = self.b, self.experts
        gate, up = (self._linear(name, x, experts.hidden) for name in ("gate", "up"))
        if experts.limit:
            return b.op("experts.gated", ClampedGlu(experts.limit), gate, up)
        return b.op("experts.gated", Binary("mul"), b.op("experts.act", Unary(activation), gate), up)

    def _linear(self, name: str, x: str, features: int) -> str:
        shape = (self.experts.count, self.b.type(x).shape[1], features)
        weight = self.b.weight(f"experts.{name}.weight", *shape)
        bias = (self.b.weight(f"experts.{name}.bias", shape[0], features),) if self.experts.bias else ()
        layer = GroupedLinear(self.rows, sum(self.rows) - sum(self.counts), bias=bool(bias))
        return self.b.op(f"experts.{name}", layer, x, weight, *bias)

    def meta(self) -> dict[str, int | float | str]:
        """Loads, as the record shows them; the mean is over experts that got tokens."""
        touched = sum(1 for count in self.counts if count)
        return {
            "experts": self.experts.count,
            "experts_touched": touched,
            "busiest_expert_tokens": max(self.counts),
            "expert_load_max_over_mean": round(max(self.counts) * touched / sum(self.counts), 3),
            "expert_padding_rows": sum(self.rows) - sum(self.counts),
        }
