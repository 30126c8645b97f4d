"""The run in short: summary.json, and one screen in the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results import format as fmt
from results.aggregate import (
    STEPS,
    RecoveryRow,
    Row,
    Slowdown,
    Spread,
    labels,
    recovery_rows,
    rows_of,
    slowdowns,
    times,
)
from results.checks import Check, checks
from results.fidelity import judge
from results.records import ByteCheck, Run

_COLOUR: Final = {"ok": "green", "degraded": "yellow", "invalid": "red"}
_TIME_ROWS: Final = 10  # as many as leave room for the rest on a screen of 40 lines
_SLOW_LINES: Final = 2
_FABRICS_WITH_RATIOS: Final = 2  # with more, 100 columns are too few
_RECOVERY_ROWS: Final = 6
_REASONS: Final = 3


def summarise(run: Run) -> dict[str, Any]:
    """The content of summary.json: verdict, reasons, checks and headline figures. Times in s, rates in bit/s."""
    judgement, rows = judge(run), rows_of(run)
    done = checks(run, judgement)
    return {
        "name": run.name,
        "title": run.spec.get("title", run.name),
        "started_utc": run.started_utc,
        "duration_s": run.duration_s,
        "seed": run.spec.get("seed"),
        "interrupted": run.interrupted,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "stretches": [
            {"fabric": f, "workload": w, "repeat": r, "verdict": verdict}
            for (f, w, r), verdict in judgement.stretches.items()
        ],
        "passed": all(c.passed for c in done),
        "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in done],
        "headline": {
            "fabrics": list(labels(run).values()),
            "times": [_time(row) for row in times(rows)],
            "slowdown": [_slowdown(s) for s in slowdowns(run, rows)],
            "recovery": [_recovery(r) for r in recovery_rows(run)],
            "bytes": _bytes(run.bytes),
        },
    }


def _time(row: Row) -> dict[str, Any]:
    fabrics = {name: _spread(spread) for name, spread in row.by_fabric.items()}
    what = {"workload": row.workload, "phase": row.phase, "metric": row.metric, "unit": row.unit}
    return {**what, "kinds": list(row.kinds), "fabrics": fabrics}


def _spread(spread: Spread) -> dict[str, Any]:
    ends = {"min": min(spread.values), "max": max(spread.values), "repeats": len(spread.values)}
    return {"median": spread.median, **ends, "predicted": spread.predicted, "ratio": spread.ratio}


def _slowdown(s: Slowdown) -> dict[str, Any]:
    return {
        "workload": s.workload,
        "phase": s.phase,
        "metric": s.metric,
        "kinds": list(s.kinds),
        "of": s.rail_only,
        "over": s.rail_optimized,
        "measured": s.measured,
        "predicted": s.predicted,
        "nominal_cs_over_cf": s.nominal,
    }


def _recovery(row: RecoveryRow) -> dict[str, Any]:
    return {
        "fabric": row.fabric,
        "fault": row.fault,
        "reroute": row.reroute,
        "repeats": len(row.repeats),
        "recovered": row.recovered,
        **{f"{step}_median": row.medians[step] for step in STEPS},
        "lost_bytes_median": row.lost_bytes,
        "probes_lost_median": row.probes_lost,
        "connections_lost": row.connections_lost,
    }


def _bytes(rows: Iterable[ByteCheck]) -> dict[str, Any]:
    every = list(rows)
    names = ("asked_bytes", "delivered_bytes", "pairs_wrong", "rail_port_bytes", "rail_expected_bytes")
    crossed: dict[str, dict[str, int]] = {}
    for row in every:
        crossed.setdefault(row.fabric, {})[row.workload] = row.cross_rail_bytes
    return {**{n: sum(getattr(r, n) for r in every) for n in names}, "cross_rail_bytes": crossed}


def print_summary(run: Run, console: Console) -> None:
    """The same on one screen of 100 columns by 40 lines; what doesn't fit is in report.html."""
    judgement, rows = judge(run), rows_of(run)
    state = " [bold red]interrupted[/]" if run.interrupted else ""
    verdict = f"[bold {_COLOUR[judgement.verdict]}]{judgement.verdict}[/]"
    console.print(f"[bold]{run.name}[/]{state}  fidelity {verdict}  {fmt.seconds(run.duration_s)}", highlight=False)
    for reason in judgement.reasons[:_REASONS]:
        console.print(Text(f"  {reason}"), no_wrap=True, overflow="ellipsis", highlight=False)
    if len(judgement.reasons) > _REASONS:
        console.print(f"  … {len(judgement.reasons) - _REASONS} more reasons", highlight=False)
    if measured := times(rows):
        console.print(_times_table(measured, list(labels(run).values()), slowdowns(run, rows)))
    for slow in [s for s in slowdowns(run, rows) if s.is_all_to_all][:_SLOW_LINES]:
        console.print(_slow_line(slow), no_wrap=True, overflow="ellipsis", highlight=False)
    if faults := recovery_rows(run):
        console.print(_recovery_table(faults))
    for check in checks(run, judgement):
        console.print(_check_line(check), no_wrap=True, overflow="ellipsis", highlight=False)


def _slow_line(s: Slowdown) -> Text:
    what = f"{s.workload} {s.phase}".strip()
    formula = f"formula {fmt.change(s.predicted)}, nominal C_S/C_F {fmt.percent(s.nominal)}"
    return Text.assemble(
        f"{what}: {s.rail_only} over {s.rail_optimized} ", (fmt.change(s.measured), "bold"), (f" ({formula})", "dim")
    )


def _check_line(check: Check) -> Text:
    mark = Text("✓ ", style="green") if check.passed else Text("✗ ", style="bold red")
    return Text.assemble(mark, check.name, (f": {check.detail}", "dim"))


def _table(*, title: str, caption: str | None = None) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        pad_edge=False,
        padding=(0, 1),
        show_edge=False,
    )


def _times_table(rows: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> Table:
    more = len(rows) - _TIME_ROWS
    table = _table(
        title="Time (m/p: measured over predicted)", caption=f"… {more} more in report.html" if more > 0 else None
    )
    table.add_column("workload", no_wrap=True, overflow="ellipsis", max_width=34)
    with_ratios = len(fabrics) <= _FABRICS_WITH_RATIOS
    for fabric in fabrics:
        table.add_column(fabric, justify="right", no_wrap=True, overflow="ellipsis")
        if with_ratios:
            table.add_column("m/p", justify="right", style="dim")
    first = {(s.workload, s.phase, s.metric): s for s in slow} if with_ratios else {}
    if first:
        table.add_column("slower by", justify="right")
        table.add_column("formula", justify="right", style="dim")
    for row in rows[:_TIME_ROWS]:
        cells = [f"{row.workload} {row.phase}".strip()]
        for fabric in fabrics:
            spread = row.by_fabric.get(fabric)
            both = [fmt.seconds(spread.median), fmt.ratio(spread.ratio)] if spread else [fmt.NOTHING] * 2
            cells += both if with_ratios else both[:1]
        if first:
            cells += _slower(first.get((row.workload, row.phase, row.metric)))
        table.add_row(*cells)
    return table


def _slower(slow: Slowdown | None) -> list[str]:
    if slow is None:
        return [fmt.NOTHING, fmt.NOTHING]
    return [fmt.change(slow.measured), fmt.change(slow.predicted)]


def _recovery_table(rows: Sequence[RecoveryRow]) -> Table:
    """A line a fault and fabric: rerouting on in steps, off by its goodput alone. Medians."""
    by_place: dict[tuple[str, str], dict[str, RecoveryRow]] = {}
    for row in rows:
        by_place.setdefault((row.fault, row.fabric), {})[row.reroute] = row
    more = len(by_place) - _RECOVERY_ROWS
    caption = f"… {more} more in report.html" if more > 0 else None
    table = _table(title="Recovery, median from the fault", caption=caption)
    for name in ("fault", "fabric"):
        table.add_column(name, no_wrap=True)
    for name in ("detected", "rerouted", "1st packet", "goodput", "conns lost", "reroute off"):
        table.add_column(name, justify="right")
    for (fault, fabric), sides in list(by_place.items())[:_RECOVERY_ROWS]:
        on, off = sides.get("on"), sides.get("off")
        steps = [fmt.milliseconds(on.medians[s]) if on else fmt.NOTHING for s in STEPS[:4]]
        lost = str(on.connections_lost) if on else fmt.NOTHING
        table.add_row(fault, fabric, *steps, lost, fmt.milliseconds(off.medians["goodput_ms"]) if off else fmt.NOTHING)
    return table
