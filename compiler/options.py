"""What a user can ask of the compiler: frozen, part of the point's identity, sweepable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from compiler.errors import CompileError

EASED = (  # (pipeline, double buffer, share of the scratchpad), from what is best to what is smallest
    (True, True, 1.0),
    (True, True, 0.5),
    (True, True, 0.25),
    (False, True, 1.0),
    (False, True, 0.5),
    (False, True, 0.25),
    (False, False, 1.0),
)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`passes` are spelled as on the command line, in order."""

    passes: tuple[str, ...] = (
        "canonicalize",
        "dce",
        "absorb-latent",
        "fuse-norm",
        "fuse-gate",
        "fuse-epilogue",
        "fuse-elementwise",
        "split-contraction",
    )
    double_buffer: bool = True  # False: one slot for every tile, no overlap of transfer and compute
    pipeline: bool = True  # software pipelining; given up where its buffers do not fit
    scratch_share: float = 1.0  # of the scratchpad that tiling plans with; less where estimates were short
    traffic_slack: float = 0.01  # share of a linear layer's estimated time given up to move fewer DRAM bytes
    kernels: tuple[str, ...] = ()  # OP=FILE.py:NAME, kernels of the user in place of ours (dse/custom.py)
    verify: bool = True

    def __post_init__(self) -> None:
        """Refuse shares that mean nothing; NaN fails every comparison."""
        problems = []
        if not 0 < self.scratch_share <= 1:
            problems.append(f"options.scratch_share: got {self.scratch_share}, want over 0 and at most 1")
        if not 0 <= self.traffic_slack < inf:
            problems.append(f"options.traffic_slack: got {self.traffic_slack}, want a number from 0 on")
        if problems:
            raise CompileError("\n".join(problems))

    def eased(self, level: int) -> CompileOptions:
        """These options for an op that did not fit: no more than entry `level` of EASED allows."""
        pipeline, double_buffer, share = EASED[level]
        return replace(
            self,
            pipeline=self.pipeline and pipeline,
            double_buffer=self.double_buffer and double_buffer,
            scratch_share=self.scratch_share * share,
        )
