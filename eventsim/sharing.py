"""How concurrent transfers share the DMA engines and the DRAM: max-min fair, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class FlowClass:
    """Transfers that are served alike: DRAM bytes per effective byte, and the most one can reach."""

    dram_share: Fraction
    cap: int  # effective bytes/s


def max_min_rates(flows: Sequence[tuple[FlowClass, int]], dma: int, dram: int) -> list[int]:
    """Effective bytes/s of one flow of each (class, how many), capacities in bytes/s.

    Progressive filling: all rates rise together; a flow stops at its cap, or when a resource that it
    uses is full. So the result is work conserving: a resource is idle only if nobody could use more.
    The exact rates are rounded down to whole bytes/s (a loss under 1e-9 of any real link), so no
    resource is ever above 100 %.
    """
    rates = [Fraction(0)] * len(flows)
    open_flows = list(range(len(flows)))
    dma_left, dram_left = Fraction(dma), Fraction(dram)

    def freeze(chosen: list[int], level: Fraction | None) -> None:
        nonlocal dma_left, dram_left
        for i in chosen:
            flow, count = flows[i]
            rates[i] = Fraction(flow.cap) if level is None else level
            dma_left -= rates[i] * count
            dram_left -= rates[i] * count * flow.dram_share
            open_flows.remove(i)

    while open_flows:
        count = sum(flows[i][1] for i in open_flows)
        weight = sum((flows[i][1] * flows[i][0].dram_share for i in open_flows), Fraction(0))
        dma_level = dma_left / count
        level = min(dma_level, dram_left / weight) if weight else dma_level
        capped = [i for i in open_flows if flows[i][0].cap <= level]
        if capped:
            freeze(capped, None)
        elif level == dma_level:
            freeze(list(open_flows), level)
        else:
            freeze([i for i in open_flows if flows[i][0].dram_share], level)
    # NOTE: a rate below 1 byte/s would never finish; no real machine comes near it.
    return [max(1, int(rate)) for rate in rates]
