"""The report's part on policies: their times, and what some of them saw and chose over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.steering import MeasurementInterval
from railyard.results.plots import steering, times
from railyard.results.plots import times as plot_policies
from railyard.results.plots.style import Plot
from railyard.results.runs.records import Run
from railyard.results.theory import spine_condition as rail_only_wins
from railyard.results.views import report_tables, spine_condition_tables, steering_tables
from railyard.results.views.format import workload_label
from railyard.results.views.table import Table

_MAX_DRAWN: Final = 6


@dataclass(frozen=True, slots=True)
class Policies:
    """A fabric and workload's part of the page."""

    title: str
    table: Table
    plot: Plot
    phases: Table | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Part 2's, of rail-only's way with the spine's, scene by scene. `plots`: by pair."""

    finding: str
    plots: tuple[tuple[str, Plot], ...]
    differences: tuple[str, ...]
    table: report_tables.Table


def parts(analysis: Analysis) -> dict[str, Any]:
    """Return the values of the template; empty unless policies steered."""
    drawn, undrawn = _drawn(analysis.intervals)
    comparison = _comparison(analysis.cells)
    return {
        "comparison": comparison,
        "policies": [] if comparison else _policies(analysis),
        "over_time": [(f"{s.policy}: {s.workload} on {s.fabric}", steering.over_time(s)) for s in drawn],
        "not_drawn": _undrawn_text(undrawn),
    }


def _comparison(found: Sequence[rail_only_wins.Cell]) -> Comparison | None:
    if not found:
        return None
    by_pair: dict[str, list[rail_only_wins.Cell]] = {}
    for cell in found:
        by_pair.setdefault(f"{cell.src} to {cell.dst}, {cell.workload} on {cell.fabric}", []).append(cell)
    drawn = tuple((name, times.draw(pair_cells, name)) for name, pair_cells in by_pair.items())
    tables = spine_condition_tables.differences(found), spine_condition_tables.report_table(found)
    return Comparison(spine_condition_tables.finding(found), drawn, *tables)


def _policies(analysis: Analysis) -> list[Policies]:
    found, names = [], analysis.labels
    for fabric_workload, rows in analysis.policy_rows.items():
        shown = {names[fabric_workload[0], row.policy]: row.policy for row in rows}
        phases = steering_tables.phases_table(analysis.times, fabric_workload, shown)
        title = f"{workload_label(fabric_workload[1])} on {fabric_workload[0]}"
        found.append(
            Policies(title, steering_tables.policies_table(rows), plot_policies.policies(rows, fabric_workload), phases)
        )
    return found


def _drawn(all_intervals: Sequence[MeasurementInterval]) -> tuple[list[MeasurementInterval], list[MeasurementInterval]]:
    """The first repeat of each policy that goes by scores: on the first fabric and workload, and all others."""
    first_intervals: dict[tuple[str, str, str], MeasurementInterval] = {}
    for interval in all_intervals:
        if _uses_scores(interval.policy) and interval.health:
            first_intervals.setdefault((interval.fabric, interval.workload, interval.policy), interval)
    scored_intervals = list(first_intervals.values())
    drawn = [
        s
        for s in scored_intervals
        if (s.fabric, s.workload) == (scored_intervals[0].fabric, scored_intervals[0].workload)
    ][:_MAX_DRAWN]
    return drawn, [s for s in scored_intervals if s not in drawn]


def _uses_scores(policy: str) -> bool:
    """Whether to plot scores: True for a policy of a plugin that isn't loaded now."""
    return policy not in HEALTH_POLICIES or HEALTH_POLICIES[policy].uses_scores


def _undrawn_text(undrawn: Sequence[MeasurementInterval]) -> str:
    """What isn't drawn, and where it is."""
    if not undrawn:
        return ""
    policies: dict[str, list[str]] = {}
    for interval in undrawn:
        policies.setdefault(f"{interval.workload} on {interval.fabric}", []).append(interval.policy)
    undrawn_names = "; ".join(
        f"{fabric_workload} under {', '.join(names)}" for fabric_workload, names in policies.items()
    )
    return f"Not drawn: {undrawn_names}. Their scores and choices are in health.parquet and choices.parquet."


def short_names(run: Run, places: Sequence[tuple[str, str]]) -> list[str]:
    """Return the labels of (fabric, policy) places: of a fabric all of whose policies are among them, its own name."""
    names = labels(run)
    return list(
        dict.fromkeys(
            fabric
            if run.is_steered and all(place in places for place in names if place[0] == fabric)
            else names.get((fabric, policy), fabric)
            for fabric, policy in places
        )
    )


def swept_fabrics(run: Run) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each fabric's label with its part of the spec, which names fabrics in the same order, as far as it ran.

    Under a policy it is of another kind, so that a curve is one policy's.
    """
    names = labels(run)
    specs: Sequence[Mapping[str, Any]] = run.spec.get("fabrics") or []
    traits = {fabric.label: part for fabric, part in zip(run.fabrics, specs, strict=False)}
    if not run.is_steered:
        return [(names[f.label, f.policy], traits[f.label]) for f in run.fabrics if f.label in traits]
    return [
        (label, {**traits[fabric], "kind": f"{traits[fabric].get('kind', '')} {policy}"})
        for (fabric, policy), label in names.items()
        if fabric in traits
    ]
