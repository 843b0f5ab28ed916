"""What one DMA transfer asks of the machine: descriptors, effective bytes, DRAM bytes, rate limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_configs.spec import DmaSpec
from compiler.ir.dtype import dtype_bytes
from compiler.isa import Access, Dma, Gather
from eventsim.clock import ceil_div


@dataclass(frozen=True, slots=True)
class Transfer:
    """The demand of one transfer."""

    nbytes: int  # payload
    effective_bytes: int  # what the DMA engines are occupied with
    dram_read_bytes: int
    dram_write_bytes: int
    descriptors: int
    cap: int  # effective bytes/s it can reach at most

    @property
    def dram_bytes(self) -> int:
        """Bytes that cross the DRAM pins."""
        return self.dram_read_bytes + self.dram_write_bytes


def contiguous_bytes(dst: Access, src: Access) -> int:
    """Length of the contiguous runs that a transfer splits into: the shorter side's.

    On chip a run ends with the partition. The DRAM side pairs with partitions first, so its run may
    be longer than one partition's share and is then cut by the other side.
    """
    run = min(dst.run_elements(), src.run_elements())
    return run * dtype_bytes(dst.dtype)


def transfer_of(instr: Dma | Gather, spec: DmaSpec, kinds: Mapping[str, str]) -> Transfer:
    """Demand of `instr`; `kinds`: buffer name -> kind of its memory.

    Model: `n = bytes / run` descriptors, each costing at least `descriptor_bytes`; one engine serves one
    descriptor, so a transfer of few descriptors cannot use all engines. Gathered rows are at least one
    descriptor each. Left out: reading the descriptors and the index list; the smallest burst of the DRAM; a
    largest descriptor, so a copy of one long run from DRAM to DRAM uses one engine.
    Source: nki-dma-bandwidth-guide (element efficiency, 16 engines).
    """
    nbytes = instr.dst.nbytes
    run = min(contiguous_bytes(instr.dst, instr.src), max(1, nbytes))
    descriptors = max(1, ceil_div(nbytes, run))
    all_engines = spec.engines * spec.engine_bandwidth
    cap = min(spec.queue_bandwidth or all_engines, min(spec.engines, descriptors) * spec.engine_bandwidth)
    return Transfer(
        nbytes=nbytes,
        effective_bytes=max(1, descriptors * max(run, spec.descriptor_bytes)),
        dram_read_bytes=nbytes if kinds[instr.src.buffer] == "dram" else 0,
        dram_write_bytes=nbytes if kinds[instr.dst.buffer] == "dram" else 0,
        descriptors=descriptors,
        cap=max(1, cap),
    )
