"""The matrix engine: cycles of a matmul and a transpose, and the power ramp after idling."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt
from typing import cast

from arch_configs.spec import DTypeName, RampSpec, SystolicSpec
from compiler.isa import Access, Matmul, Transpose
from compiler.rows import ONE, share_of_passes
from eventsim.clock import PS_PER_S, ceil_div
from eventsim.errors import SimError


def _passes(spec: SystolicSpec, dtype: str) -> Fraction:
    passes = spec.passes.get(cast("DTypeName", dtype))
    if passes is None:
        raise SimError(f"matrix engine: got an operand of {dtype}, want one of {', '.join(spec.passes)}")
    return passes


def _cycles(
    spec: SystolicSpec, passes: Fraction, columns: int, stationary_columns: int, issued: Fraction = ONE
) -> int:
    """Cycles of streaming `columns` past a tile; `stationary_columns` 0 means it is already loaded."""
    load = ceil_div(spec.weight_load * stationary_columns, spec.cols)
    stream = max(columns, spec.min_interval)
    overhead = issued * spec.overhead
    if spec.background_load:
        return ceil((passes * max(stream, load) + overhead) / spec.units)
    return ceil((passes * stream + load + overhead) / spec.units)


def matmul_cycles(instr: Matmul, spec: SystolicSpec) -> int:
    """Cycles from one matmul's issue to the next.

    Model: `(overhead + passes * max(moving columns, min_interval, load)) / units`, rounded up; a load in
    the background hides behind the stream, else it adds. Successive matmuls are dealt over the units, each
    of which holds a stationary tile of its own; that all find work is assumed.
    `load = ceil(weight_load * stationary columns / cols)`; `passes` of the slower operand, shared as
    `share_of_passes` says. Contraction rows cost nothing: they are parallel. Left out: the pipeline's fill
    and drain, which only delay the signal (`latency`).
    Source: nki.isa.nc_matmul, "4 * max(min(64, N_stationary), N_moving) TensorE cycles" for fp32, and
    the trainium_inferentia2_arch guide, initiation interval max(N, 64).
    """
    slower = max(_passes(spec, instr.stationary.dtype), _passes(spec, instr.moving.dtype))
    passes, issued = share_of_passes(slower, instr.chain)
    loaded = instr.stationary.free_elements if instr.load else 0
    return _cycles(spec, passes, instr.moving.free_elements, loaded, issued)


def transpose_cycles(instr: Transpose, spec: SystolicSpec) -> int:
    """Cycles of a transpose: a matmul of the source, held stationary, with the identity streamed.

    Model: moving columns = source partitions, stationary columns = source free elements; a type of less
    than one pass gains nothing, for only products of two rows are added on the way.
    Source: nki.isa.nc_transpose, "max(P, min(64, F)) TensorE cycles"; below `min_interval` in both
    P and F this law keeps the issue interval of a matmul and is slower.
    """
    src: Access = instr.src
    return _cycles(
        spec, max(_passes(spec, src.dtype), Fraction(1)), max(1, src.partitions), src.free_elements
    )


def systolic_ps(instr: Matmul | Transpose, spec: SystolicSpec) -> int:
    """Occupancy of the warm array in ps at its sustained rate, rounded up once.

    Left out: that a short burst may be faster than what is sustained.
    """
    cycles = matmul_cycles(instr, spec) if isinstance(instr, Matmul) else transpose_cycles(instr, spec)
    share = spec.sustained
    return ceil_div(cycles * PS_PER_S * share.denominator, spec.clock * share.numerator)


@dataclass(frozen=True, slots=True)
class Ramp:
    """The current limiter: the rate rises linearly from `start` to 1 over `time_ps` of busy time.

    Work is counted in ps of the warm array. The array is cold at time 0 and again after an idle gap
    of `time_ps`; shorter gaps keep the progress made.
    Source: Neuron explorer glossary: a burst after idling begins near 50 % and ramps to full in about
    3 us, re-armed when use over a ~3 us window falls low. The linear shape is assumed.
    """

    time_ps: int
    numerator: int  # start = numerator / denominator < 1
    denominator: int

    @classmethod
    def of(cls, spec: RampSpec | None) -> Ramp | None:
        """The ramp of an engine, or None if it has none that matters."""
        if spec is None or spec.start >= 1 or spec.time == 0:
            return None
        return cls(spec.time, spec.start.numerator, spec.start.denominator)

    @property
    def full_work(self) -> int:
        """Work after which the array is warm (rounded up)."""
        return ceil_div(self.time_ps * (self.numerator + self.denominator), 2 * self.denominator)

    def elapsed(self, work: int) -> int:
        """Time that `work` takes from cold: the integral of the rate, inverted; monotone, rounded up.

        `rate(b) = s + (1 - s) b / T` gives `work = s b + (1 - s) b^2 / (2 T)`. As durations are
        differences of this function, splitting work into instructions does not change the sum.
        """
        if work >= self.full_work:
            return self.time_ps + work - self.full_work
        p, q, t = self.numerator, self.denominator, self.time_ps
        square = t * t * p * p + 2 * q * (q - p) * work * t
        root = isqrt(square)
        root += root * root < square
        return min(ceil_div(root - p * t, q - p), self.time_ps)
