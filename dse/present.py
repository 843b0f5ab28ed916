"""Records and their comparisons as rich tables; nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dse.diff import Change, OpChange
from dse.explain import WORTHWHILE, Explanation
from dse.result import (
    DEFINITIONS,
    AccuracyRecord,
    EngineRecord,
    PathRecord,
    Record,
    busiest_engine,
    op_cost_ps,
)
from dse.store import Cell

if TYPE_CHECKING:
    from dse.numerics import OutputError

TOP_OPS = 12
MOST_KINDS, LEAST_SHARE = 4, 0.02  # of the line about expected errors
_TIMES = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3))
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_RATES = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))


def show_time(ps: int | None) -> str:
    """Four digits and a unit."""
    return _scaled(ps, _TIMES, "ps")


def show_bytes(size: int | None) -> str:
    """Four digits and a binary unit."""
    return _scaled(size, _SIZES, "B")


def show_number(value: float | None) -> str:
    """Four digits and a decimal prefix."""
    return _scaled(value, _RATES, "").rstrip()


def show_share(value: float | None) -> str:
    """A percentage; a dash for unknown."""
    return "-" if value is None else f"{value:.2%}"


def _scaled(value: float | None, units: Sequence[tuple[str, int]], base: str) -> str:
    if value is None:
        return "-"
    for unit, scale in units:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value:.4g} {base}"


def words_table(title: str, *columns: str) -> Table:
    """House style, all columns left."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _table(title: str, *columns: str) -> Table:
    """House style: names left, numbers right."""
    table = words_table(title, *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def record_view(record: Record) -> RenderableType:
    """Everything `dse run` shows."""
    parts: list[RenderableType] = [_headline(record)]
    if record["status"] != "ok":
        return Group(*parts, reason_view(record))
    parts.append(_summary(record))
    if record["engines"]:
        parts += [engine_table(record), _memory_table(record)]
    parts.append(_op_table(record))
    if record["critical_path"]:
        parts.append(path_table(record["critical_path"]))
    failed = [name for name, passed in record["audit"].items() if not passed]
    verdict = "all pass" if not failed else f"FAILED: {', '.join(failed)}"
    parts.append(Text(f"audit: {len(record['audit'])} checks, {verdict}", style="red" if failed else "green"))
    parts.append(Text(accuracy_line(record)))
    parts += [Text(f"warning: {line}", style="yellow") for line in record["warnings"]]
    return Group(*parts)


def accuracy_line(record: Record) -> str:
    """What error to expect: of the whole run if such runs were measured, and of the dearest kinds of op."""
    shown = [entry for entry in record["accuracy"] if entry["share"] >= LEAST_SHARE][:MOST_KINDS]
    return f"expected error: {'; '.join(map(_expected, shown)) or 'not known'}"


def _expected(entry: AccuracyRecord) -> str:
    if entry["error"] is None:
        return f"{entry['op']}: no measured rows, constants {entry['constants']}"
    where = f"{entry['rows']} rows on {entry['on']}"
    return f"{entry['op']} ±{entry['error']:.0%} ({where}, constants {entry['constants']})"


def _headline(record: Record) -> Text:
    point = record["point"]
    text = Text(f"{point['workload']} on {point['arch']}", style="bold")
    for path, value in point["overrides"].items():
        text.append(f"\n  {path} = {value}", style="not bold")
    for name, option in point["options"].items():
        text.append(f"\n  options.{name} = {option}", style="not bold")
    text.append(f"\nstatus {record['status']}, fidelity {point['fidelity']}", style="not bold")
    if record["provenance"].get("cached"):
        text.append(" (from the cache)", style="dim")
    return text


def reason_view(record: Record) -> RenderableType:
    """Why a point has no result: what is needed, by what, and what would help."""
    reason = record["reason"]
    if reason is None:
        return Text("")
    if reason["needed"] is None:
        return Text(f"{reason['code']}: {reason['fix']}", style="red")
    table = _table(f"does not fit: {reason['code']}", f"in {reason['resource']}", reason["unit"])
    for name, amount in reason["terms"]:
        table.add_row(name, f"{amount:,}")
    table.add_row("needed", f"{reason['needed']:,}", style="red")
    table.add_row("available", f"{reason['available']:,}")
    return Group(table, Text(f"fix: {reason['fix']}"))


def _summary(record: Record) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("time", show_time(record["time_ps"]))
    for name, value in record["throughput"].items():
        table.add_row("throughput", f"{show_number(value)} {name.removesuffix('_per_s')}/s")
    for name, meaning in DEFINITIONS.items():
        table.add_row(name, show_share(record[name]), meaning)  # type: ignore[literal-required]
    flops, macs = show_number(record["flops_model"]), show_number(record["macs"])
    table.add_row("work", f"{flops}FLOP", f"{macs}MAC; 1 MAC = 2 FLOPs; elementwise work is not counted")
    told = record["workload"]
    if "experts" in told:
        busiest = f"the busiest gets {told['busiest_expert_tokens']} tokens"
        uneven = f"{told['expert_load_max_over_mean']} times the mean of those"
        table.add_row(
            "experts", f"{told['experts_touched']} of {told['experts']} used", f"{busiest}, {uneven}"
        )
    read, write = show_bytes(record["hbm_read_bytes"]), show_bytes(record["hbm_write_bytes"])
    table.add_row("DRAM", f"{read} read", f"{write} written")
    bounds = record["bounds"]
    if bounds:
        low = f"compute {show_time(bounds['compute_ps'])}, memory {show_time(bounds['memory_ps'])}"
        table.add_row("bounds", f"<= {show_time(bounds['serial_ps'])}", f"at least {low}")
    array = record["array"]
    if array and array["padded_macs"] is not None:
        shape = f"{array['rows']} x {array['cols']}" + (f" x {array['units']}" if array["units"] > 1 else "")
        other = f"{show_number(array['other_macs'])}MAC not of the model, "
        if array["masked_macs"]:
            other += f"{show_number(array['masked_macs'])}MAC of scores thrown away, "
        padded = f"{show_number(array['padded_macs'])}MAC padding"
        table.add_row("array", shape, other + padded)
    return table


def causes(engine: EngineRecord) -> dict[str, int]:
    """Wait causes with the DMA queues, which are alike, as one."""
    found: dict[str, int] = {}
    for cause, spent in engine["wait_ps"].items():
        name = "dma" if cause.startswith("dma") and cause[3:].isdigit() else cause
        found[name] = found.get(name, 0) + spent
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def engine_table(record: Record) -> Table:
    """Busy, wait by cause and idle of each engine; the DMA queues are averaged."""
    time_ps = record["time_ps"] or 1
    table = _table("engines", "engine", "busy", "waits", "idle", "instructions", "waits for")
    queues = [engine for engine in record["engines"].values() if engine["kind"] == "dma"]
    for name, engine in record["engines"].items():
        if engine["kind"] != "dma":
            _engine_row(table, name, engine, time_ps)
    if queues:
        waits: dict[str, int] = {}
        for queue in queues:
            for cause, spent in causes(queue).items():
                waits[cause] = waits.get(cause, 0) + spent // len(queues)
        mean: EngineRecord = {
            "kind": "dma",
            "busy_ps": sum(q["busy_ps"] for q in queues) // len(queues),
            "wait_ps": waits,
            "idle_ps": sum(q["idle_ps"] for q in queues) // len(queues),
            "instructions": sum(q["instructions"] for q in queues),
            "utilization": 0.0,
        }
        _engine_row(table, f"dma, mean of {len(queues)} queues", mean, time_ps)
    return table


def _engine_row(table: Table, name: str, engine: EngineRecord, time_ps: int) -> None:
    waits = causes(engine)
    shown = ", ".join(f"{cause} {spent / time_ps:.0%}" for cause, spent in list(waits.items())[:4])
    table.add_row(
        name,
        show_share(engine["busy_ps"] / time_ps),
        show_share(sum(waits.values()) / time_ps),
        show_share(engine["idle_ps"] / time_ps),
        f"{engine['instructions']:,}",
        shown,
    )


def _memory_table(record: Record) -> Table:
    table = _table("memories", "memory", "peak", "capacity", "used", "largest")
    for name, memory in record["memory"].items():
        largest = ", ".join(f"{label} {show_bytes(size)}" for label, size in memory["by_tensor"][:3])
        share = memory["peak_bytes"] / memory["capacity_bytes"]
        table.add_row(
            name,
            show_bytes(memory["peak_bytes"]),
            show_bytes(memory["capacity_bytes"]),
            show_share(share),
            largest,
        )
    return table


def _op_table(record: Record) -> Table:
    """Ops by what they cost most of: the busiest engine, or their own bound."""
    table = _table("ops, dearest first", "op", "kind", "x", "FLOP", "DRAM", "own bound", "busiest engine")
    ranked = sorted(record["ops"], key=lambda op: (-op_cost_ps(op), op["op"]))
    for op in ranked[:TOP_OPS]:
        is_compute = op["compute_ps"] >= op["memory_ps"]
        bound = f"{show_time(max(op['compute_ps'], op['memory_ps']))} {'compute' if is_compute else 'memory'}"
        engine, spent = busiest_engine(op)
        table.add_row(
            op["op"],
            op["kind"],
            f"{op['count']}",
            show_number(op["flops"]),
            show_bytes(op["bytes"]),
            bound,
            f"{engine} {show_time(spent)}" if engine else "-",
        )
    if len(ranked) > TOP_OPS:
        table.add_row(f"... {len(ranked) - TOP_OPS} more")
    return table


def path_table(path: Sequence[PathRecord]) -> Table:
    """The critical path by engine and op."""
    table = _table("critical path", "on", "op", "what", "time")
    for step in path[:TOP_OPS]:
        table.add_row(step["engine"], step["op"], step["what"], show_time(step["time_ps"]))
    return table


def explanation_view(found: Explanation) -> RenderableType:
    """Everything `dse explain` adds to the record."""
    table = _table("what if", "resource", "change", "time", "gain", "as")
    for item in found.what_ifs:
        overrides = " ".join(f"--set {path}='{text}'" for path, text in item.relief.overrides)
        gain = f"{item.gain:+.2%}" if item.gain is not None else item.status
        table.add_row(item.relief.resource, item.relief.change, show_time(item.time_ps), gain, overrides)
    verdict = (
        f"binding resource: {found.binding} ({found.reason})" if found.binding else "no result to explain"
    )
    lines = [Text(verdict, style="bold")]
    worse = [item.relief.resource for item in found.what_ifs if (item.gain or 0.0) < -WORTHWHILE]
    if worse:
        text = f"warning: more of {', '.join(worse)} makes it slower: the compiler's choices do not suit it"
        lines.append(Text(text, style="yellow"))
    return Group(table, *lines)


def diff_view(inputs: Sequence[Change], results: Sequence[Change], ops: Sequence[OpChange]) -> RenderableType:
    """Everything `dse diff` shows."""
    parts: list[RenderableType] = []
    for title, found in (("inputs that differ", inputs), ("results that differ", results)):
        table = _table(title, "field", "A", "B", "B / A")
        for change in found:
            ratio = f"{change.ratio:.4g}" if change.ratio is not None else ""
            table.add_row(change.field, _cell(change.a), _cell(change.b), ratio)
        parts.append(table)
    table = _table("busy time by op (busy times overlap)", "op", "engine", "A", "B", "B - A")
    for op in ops[:TOP_OPS]:
        sign = "+" if op.delta_ps > 0 else "-"
        delta = f"{sign}{show_time(abs(op.delta_ps))}"
        table.add_row(op.op, op.engine, show_time(op.a_ps), show_time(op.b_ps), delta)
    return Group(*parts, table)


def _cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "-" if value is None else str(value)


def numerics_table(found: Sequence[OutputError]) -> Table:
    """Errors of the outputs of a program that was executed."""
    title = "program against reference"
    table = _table(title, "output", "instructions in order of", "max abs", "relative", "tolerance", "")
    for item in found:
        verdict = Text("pass", style="green") if item.passed else Text("FAIL", style="red")
        error, share = f"{item.max_abs:.3g}", f"{item.relative:.3g}"
        table.add_row(item.output, item.order, error, share, f"{item.tolerance:g}", verdict)
    return table


def sweep_table(rows: Sequence[dict[str, Cell]], limit: int = 40) -> Table:
    """The points of a sweep: coordinates, time, throughput and utilization, or why there is none."""
    axes = _axes(rows)
    table = _table("points", "arch", "workload", *axes, "time", "throughput", "mfu", "mbu", "status")
    for row in rows[:limit]:
        rates = [
            f"{show_number(value)} {name.removesuffix('_per_s')}/s"
            for name, value in row.items()
            if name.endswith("_per_s") and name != "peak_flops_per_s" and isinstance(value, (int, float))
        ]
        time_ps = row.get("time_ps")
        status = str(row["status"]) if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        table.add_row(
            str(row["arch"]),
            str(row["workload"]),
            *(str(row.get(axis, "")) for axis in axes),
            show_time(time_ps if isinstance(time_ps, int) else None),
            ", ".join(rates),
            _share_cell(row.get("mfu")),
            _share_cell(row.get("mbu")),
            Text(status, style="green" if row["status"] == "ok" else "red"),
        )
    if len(rows) > limit:
        table.add_row(f"... {len(rows) - limit} more in points.csv")
    return table


def _share_cell(value: Cell | None) -> str:
    return show_share(value if isinstance(value, float) else None)


def _axes(rows: Sequence[dict[str, Cell]]) -> list[str]:
    """Columns between the fixed head of a row and its status."""
    names = list(rows[0]) if rows else []
    return names[names.index("seed") + 1 : names.index("status")] if names else []
