"""Why a point takes its time: what waits for what, and what each resource would give if relieved.

A what-if is a full evaluation of the changed architecture, compiled anew. So the gain it states is
the gain that a run with the same `--set` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arch_configs import ArchSpec
from dse.point import Point
from dse.result import Record
from dse.roles import by_name

WORTHWHILE = 0.01  # assumed: a gain below 1 % does not make a resource the binding one


@dataclass(frozen=True, slots=True)
class Relief:
    """One resource made better, as overrides."""

    resource: str
    change: str
    overrides: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a relief gives."""

    relief: Relief
    status: str  # of the changed point
    time_ps: int | None
    gain: float | None  # old time / new time - 1


@dataclass(frozen=True, slots=True)
class Explanation:
    """A record with its what-ifs, best first, and the resource that binds."""

    record: Record
    what_ifs: tuple[WhatIf, ...]
    binding: str
    reason: str


def reliefs(arch: ArchSpec) -> tuple[Relief, ...]:
    """Every resource of `arch` doubled (costs halved), each on its own, and DRAM with DMA together."""
    found = []
    for name, engine in arch.engines.items():
        found.append(Relief(name, "clock x2", ((f"engines.{name}.clock", f"{2 * engine.clock} Hz"),)))
    dram = arch.memories[arch.dram]
    dma = [("dma.engine_bandwidth", f"{2 * arch.dma.engine_bandwidth} B/s")]
    if arch.dma.queue_bandwidth:
        dma.append(("dma.queue_bandwidth", f"{2 * arch.dma.queue_bandwidth} B/s"))
    found.append(Relief("dma", "bandwidth x2", tuple(dma)))
    if dram.bandwidth:
        pins = (f"memories.{arch.dram}.bandwidth", f"{2 * dram.bandwidth} B/s")
        found.append(Relief(arch.dram, "bandwidth x2", (pins,)))
        found.append(Relief(f"{arch.dram} + dma", "bandwidth x2", (pins, *dma)))
    fixed = {"issue": arch.dma.issue, "latency": arch.dma.latency, "completion": arch.dma.completion}
    if any(fixed.values()):
        halves = tuple((f"dma.{key}", f"{cost // 2} ps") for key, cost in fixed.items() if cost)
        found.append(Relief("dma latency", "/2", halves))
    found.append(Relief("dma queues", "x2", (("dma.queues", str(2 * arch.dma.queues)),)))
    found.append(_capacity(arch, arch.scratchpad))
    found.append(_capacity(arch, arch.accumulator))
    if arch.launch_overhead:
        half = (("launch_overhead", f"{arch.launch_overhead // 2} ps"),)
        found.append(Relief("launch", "/2", half))
    return tuple(found)


def _capacity(arch: ArchSpec, name: str) -> Relief:
    """Twice the memory; an accumulator gets twice the banks with it, each as large as before."""
    spec = arch.memories[name]
    changes = [(f"memories.{name}.capacity", f"{2 * spec.capacity} B")]
    if spec.kind == "accumulator":
        changes.append((f"memories.{name}.banks", str(2 * spec.banks)))
        return Relief(name, "capacity and banks x2", tuple(changes))
    return Relief(name, "capacity x2", tuple(changes))


def explain(
    point: Point,
    arch: ArchSpec,
    evaluate_all: Callable[[Sequence[Point]], list[Record]],
) -> Explanation:
    """Evaluate `point` and all its reliefs; `evaluate_all` never raises for a single point."""
    options = reliefs(arch)
    # A relief names parts as the architecture does; it must replace what the point set by its role.
    named = replace(point, overrides=tuple(by_name(dict(point.overrides), arch).items()))
    points = [point, *(named.with_overrides(dict(option.overrides)) for option in options)]
    base, *relieved = evaluate_all(points)
    found = [_what_if(base, option, record) for option, record in zip(options, relieved, strict=True)]
    found.sort(key=lambda item: -(item.gain if item.gain is not None else -1.0))
    binding, reason = _verdict(base, found)
    return Explanation(base, tuple(found), binding, reason)


def _what_if(base: Record, relief: Relief, record: Record) -> WhatIf:
    before, after = base["time_ps"], record["time_ps"]
    gain = before / after - 1 if before and after else None
    return WhatIf(relief, record["status"], after, gain)


def _verdict(base: Record, found: Sequence[WhatIf]) -> tuple[str, str]:
    """Name the resource whose relief alone gives most; a pair only if it gives much more than its parts."""
    if base["status"] != "ok":
        reason = base["reason"]
        return (reason["resource"] if reason else "", reason["fix"] if reason else "")
    known = [item for item in found if item.gain is not None]
    alone = [item for item in known if "+" not in item.relief.resource]
    pairs = [item for item in known if "+" in item.relief.resource]
    best = max(alone, key=lambda item: item.gain or 0.0, default=None)
    best_gain = (best.gain or 0.0) if best else 0.0
    for pair in pairs:
        if (pair.gain or 0.0) > WORTHWHILE and (pair.gain or 0.0) > 2 * max(best_gain, 0.0):
            return pair.relief.resource, "both limit together: relieving one alone gives little"
    if best is None or best_gain < WORTHWHILE:
        return "dependencies", "no single resource gives 1 % or more: the order of the work binds"
    return best.relief.resource, f"{best.relief.change} alone makes it {best_gain:.1%} faster"
