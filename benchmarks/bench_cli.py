"""CPU seconds of whole `dse` commands, cold cache, against the limits of the project.

Run: python benchmarks/bench_cli.py [--repeat N]. Each command runs in processes of its own, children
included; the best of N counts, for the machine is shared.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

STUDY = """\
name: twenty
arch: trn1
workload: "gemm:m=4096,n=4096,k=4096"
space:
  memories.sbuf.capacity: [4 MiB, 8 MiB, 12 MiB, 24 MiB, 48 MiB]
  memories.hbm.bandwidth: [205 GB/s, 410 GB/s, 820 GB/s, 1640 GB/s]
"""
LLAMA = "llama3-8b:prefill,batch=1,seq=2048"
DECODE = "llama3-8b:decode,batch=8,context=2048"
RUN = ("run", "trn1")
CASES: dict[str, tuple[tuple[str, ...], float]] = {
    "dse --help": (("--help",), 0.3),
    "GEMM 4096^3": ((*RUN, "gemm:m=4096,n=4096,k=4096", "--no-cache"), 0.8),
    "Llama-3-8B prefill 2048": ((*RUN, LLAMA, "--no-cache"), 3.0),
    "Llama-3-8B prefill 2048, 8 layers": ((*RUN, f"{LLAMA},layers=8", "--no-cache"), 3.0),
    "Llama-3-8B decode batch 8 context 2048": ((*RUN, DECODE, "--no-cache"), 3.0),
    "ViT-B/16 batch 8": ((*RUN, "vit-b16:batch=8", "--no-cache"), 2.5),
    "20-point GEMM sweep": (("sweep", "study.yaml", "--no-cache", "-j", "2"), 4.0),
}


PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def _wait_for_orphans() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def cpu_seconds(arguments: tuple[str, ...]) -> tuple[float, int]:
    """User and system time of one command with all its workers, and its exit code."""
    # Workers are children of the fork server, which outlives the command: become the one who waits for it.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.yaml").write_text(STUDY, encoding="utf-8")
        command = [sys.executable, "-c", "from dse.cli import main; main()", *arguments]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, env={**os.environ})
        _wait_for_orphans()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, done.returncode


def main() -> int:
    """Print a row a case; the exit code is the number of limits missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    missed = 0
    print(f"{'case':<42} {'CPU s':>7} {'limit':>7}")
    for name, (arguments, limit) in CASES.items():
        found = [cpu_seconds(arguments) for _ in range(repeat)]
        best = min(spent for spent, _ in found)
        code = max(code for _, code in found)
        is_missed = best > limit or code != 0
        missed += is_missed
        verdict = f"exit {code}" if code else ("missed" if is_missed else "")
        print(f"{name:<42} {best:>7.2f} {limit:>7.2f} {verdict}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
