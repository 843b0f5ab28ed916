"""Our compiler's time for each kernel in `published_kernels.yaml`, against the time published for silicon.

Run: python benchmarks/bench_kernels.py [--only TEXT] [--write docs/published-kernels.md]. A simulated
time, so the load of the machine does not matter. Times are without the launch, as profilers give them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import yaml

from arch_configs import load_arch
from dse import Point, evaluate

ROWS = Path(__file__).parent / "published_kernels.yaml"
LIMIT_MARGIN = 1.05  # nki-samples: a limit is 5 % above what was measured, unless the row says otherwise
PS_PER_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Compared:
    """One kernel: published and simulated microseconds."""

    id: str
    what: str
    arch: str
    run: str
    kind: str
    source: str
    published_us: float
    simulated_us: float
    bound_us: float

    @property
    def ratio(self) -> float:
        """Simulated over published; below 1 our program is faster."""
        return self.simulated_us / self.published_us


def compare(row: dict[str, str | float]) -> Compared:
    """Compile and simulate one row."""
    arch, run = str(row["arch"]), str(row["run"])
    record = evaluate(Point(arch=arch, workload=run))
    if record["status"] != "ok":
        raise SystemExit(f"{row['id']}: {run} on {arch}: {record['status']}: {record['reason']}")
    margin = float(row.get("margin", LIMIT_MARGIN)) if row["kind"] == "limit" else 1.0
    launch = load_arch(arch).launch_overhead
    bounds = record["bounds"]
    return Compared(
        id=str(row["id"]),
        what=str(row["what"]),
        arch=arch,
        run=run,
        kind=str(row["kind"]),
        source=str(row["source"]),
        published_us=float(row["us"]) / margin,
        simulated_us=(record["time_ps"] - launch) / PS_PER_US,
        bound_us=max(bounds["compute_ps"], bounds["memory_ps"]) / PS_PER_US,
    )


def table(rows: list[Compared]) -> str:
    """A Markdown table, worst ratio first within each architecture."""
    lines = [
        "| kernel | on | published | simulated | ratio | lower bound | source |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in sorted(rows, key=lambda r: (r.arch, -r.ratio))]
    return "\n".join(lines)


def _line(row: Compared) -> str:
    times = f"{_us(row.published_us)} | {_us(row.simulated_us)} | {row.ratio:.2f} | {_us(row.bound_us)}"
    return f"| {row.what} | {row.arch} | {times} | {row.source} {row.id}, {row.kind} |"


def summary(rows: list[Compared]) -> str:
    """Geometric mean and worst, over all and slower ones."""
    ratios = [row.ratio for row in rows]
    slower = sum(ratio > 1.15 for ratio in ratios)
    return (
        f"{len(rows)} kernels: geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.2f}, "
        f"{slower} slower than 1.15 times the published time."
    )


def _us(value: float) -> str:
    return f"{value / 1000:.2f} ms" if value >= 1000 else f"{value:.1f} us"


def main() -> None:
    """Print, and with --write put the table into a page between its two marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--write", type=Path, help="page whose table to replace")
    args = parser.parse_args()
    rows = [row for row in yaml.safe_load(ROWS.read_text(encoding="utf-8")) if args.only in str(row)]
    found = [compare(row) for row in rows]
    text = f"{table(found)}\n\n{summary(found)}\n"
    sys.stdout.write(text)
    if args.write:
        page = args.write.read_text(encoding="utf-8")
        head, _, rest = page.partition("<!-- table -->\n")
        tail = rest.partition("<!-- end -->")[2]
        args.write.write_text(f"{head}<!-- table -->\n{text}<!-- end -->{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
