"""report.html: the whole run on one page that needs no other file and no network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import (
    Row,
    Slowdown,
    kind_bytes,
    labels,
    one_repeat,
    pairs,
)
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.plots import fabric as plot_fabric
from railyard.results.plots import sweep, traffic
from railyard.results.plots import times as plot_times
from railyard.results.plots.style import Plot
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Flow, Run
from railyard.results.theory.spine_condition import first_scene_only
from railyard.results.views import allreduce, report_failures, report_steering, report_tables, scale_tables
from railyard.results.views import format as fmt
from railyard.results.views.format import workload_label
from railyard.topologies.fabric_kinds import FABRIC_KINDS

_FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1])
_PAIRS_DRAWN: Final = 1024  # GPUs: beyond, a heatmap's cells are smaller than a screen's


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload's part of the page. One heatmap where all fabrics delivered alike, else one for each."""

    name: str
    heatmaps: tuple[tuple[str, Plot], ...]
    times: Plot | None
    table: report_tables.Table | None


def render(analysis: Analysis) -> str:
    """The page as HTML."""
    page = Environment(
        loader=FileSystemLoader(_FOLDERS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return page.get_template("report.html.j2").render(_context(analysis))


def _context(analysis: Analysis) -> dict[str, Any]:
    run, judgement, rows = analysis.run, analysis.judgement, analysis.rows
    fabrics, slow, timed = list(analysis.labels.values()), analysis.slowdowns, analysis.times
    built, steered = run.fabrics, run.is_steered
    first_scene_run = first_scene_only(run)
    side_by_side = (
        () if steered or run.rails else timed
    )  # fabrics side by side: policies are below each other, with figures of their own
    return {
        "run": run,
        "title": run.spec.get("title") or run.name,
        "description": run.spec.get("description") or "",
        "facts": _facts(run),
        "judgement": judgement,
        "checks": analysis.checks,
        "headline": report_tables.times_table(report_tables.headline_rows(side_by_side), fabrics, slow)
        if side_by_side
        else None,
        "said": [_slowdown_text(s) for s in slow if s.is_all_to_all and not steered] + list(_hashed_planes(run)),
        **report_steering.parts(analysis),
        "slowdowns": report_tables.slowdowns_table(slow) if len(pairs(run)) > 1 else None,
        "fabrics": [(f.label, plot_fabric.draw(f)) for f in built],
        "small_fabrics": all(plot_fabric.is_small(f) for f in built),
        "fabrics_table": report_tables.fabrics_table(run),
        "volumes": _volumes(first_scene_run),
        "workloads": _workloads(first_scene_run, side_by_side, fabrics, slow),
        "sweeps": _sweeps(run, timed),
        "ratios": plot_times.ratios(side_by_side, fabrics),
        "others": report_tables.others_table(rows),
        "bytes": report_tables.bytes_table(run),
        **report_failures.parts(analysis),
        "scale": scale_tables.scale_parts(run.scale),
        "projections": scale_tables.projections_table(rows, fabrics),
        **_evidence(run, judgement),
        "provenance": report_tables.provenance_table(run.provenance),
        "multirail": allreduce.parts(analysis),
    }


def _hashed_planes(run: Run) -> Iterator[str]:
    """Yield how times are predicted on fabrics whose rails have several planes."""
    for fabric in [fabric for fabric in run.fabrics if fabric.kind in FABRIC_KINDS]:
        kind = FABRIC_KINDS[fabric.kind]
        if (planes := len(kind.carrying(kind.all_planes))) > 1:
            yield (
                f"{fabric.label}: each connection is hashed to one of {planes} planes, at 1/{planes} of the rail's "
                "rate. Predicted times are means over random hashes; one run has one of them, and varies around these."
            )


def _slowdown_text(s: Slowdown) -> Markup:
    """Measured, exact and nominal in one sentence (Rail-only IV-B)."""
    longer = f"{fmt.percent(abs(s.measured - 1))} {'longer' if s.measured >= 1 else 'shorter'}"
    return Markup(
        "{} on {}: {} than on {} as measured, {} by the formula (Eq. 3 / Eq. 2, exact for this grid), "
        "{} by the nominal C<sub>S</sub>/C<sub>F</sub>."
    ).format(
        f"{s.workload} {s.phase}".strip(),
        s.rail_only,
        longer,
        s.rail_optimized,
        fmt.change(s.predicted),
        fmt.percent(s.nominal),
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """What stands below the title."""
    faults, workloads = run.spec.get("faults") or [], run.spec.get("workloads") or []
    return [
        ("run", run.name),
        ("started", run.started_utc),
        ("took", fmt.seconds(run.duration_s)),
        ("seed", str(run.spec.get("seed", fmt.NOTHING))),
        ("repeats", str(run.spec.get("repeats", fmt.NOTHING))),
        ("fabrics", str(len(run.fabrics))),
        *((("policies", str(len(run.policies))),) if run.is_steered else ()),
        ("workloads", str(len(workloads))),
        ("faults", str(len(faults))),
    ]


def _evidence(run: Run, judgement: Judgement) -> dict[str, Any]:
    return {
        "evidence": plot_times.evidence(judgement.evidence),
        "limits": report_tables.limits_table(),
        "links": report_tables.links_table(run.links),
        "loads": report_tables.loads_table(run, judgement),
    }


Place = tuple[str, str]
"""Fabric and policy."""


def _by_workload(flows: Iterable[Flow]) -> dict[str, dict[Place, list[Flow]]]:
    """Workload's label without its scene -> place -> flows."""
    intervals: dict[IntervalId, list[Flow]] = {}
    for flow in flows:
        intervals.setdefault(flow.interval, []).append(flow)
    found: dict[str, dict[Place, list[Flow]]] = {}
    for interval, rows in intervals.items():
        places = found.setdefault(workload_label(replace(interval, scene="")), {})
        places.setdefault((interval.fabric, interval.policy), []).extend(rows)
    return found


def _volumes(run: Run) -> Plot | None:
    """A bar a workload; one for each fabric too where they delivered different amounts."""
    bars, names = dict[str, Sequence[Flow]](), labels(run)
    for workload, fabrics in _by_workload(run.flows).items():
        alike = len({tuple(sorted(kind_bytes(one_repeat(f)).items())) for f in fabrics.values()}) == 1
        bars |= (
            {workload: next(iter(fabrics.values()))}
            if alike
            else {f"{workload}, {names.get(n, n[0])}": f for n, f in fabrics.items()}
        )
    return traffic.volumes(bars) if bars else None


def _workloads(run: Run, timed: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> list[Workload]:
    flows = _by_workload(run.flows)
    parts = []
    for name in dict.fromkeys([*(r.workload for r in timed), *flows]):
        workload_rows = [r for r in timed if r.workload == name]
        plot = plot_times.completion(workload_rows, fabrics, name) if workload_rows else None
        table = report_tables.times_table(workload_rows, fabrics, slow) if workload_rows else None
        parts.append(Workload(name, tuple(_heatmaps(run, name, flows.get(name, {}))), plot, table))
    return parts


def _sweeps(run: Run, timed: Sequence[Row]) -> list[Plot]:
    """Curves over what fabrics or workloads vary. Spec and records name them in the same order, as far as it came."""
    fabrics = report_steering.swept_fabrics(run)
    workload_names = dict.fromkeys(row.workload for row in timed)
    workloads = list(zip(workload_names, run.spec.get("workloads") or [], strict=False))
    spreads = {(f, row.workload, row.phase): s for row in timed for f, s in row.by_fabric.items()}
    found = sweep.curves(fabrics, workloads, spreads)
    return [sweep.plot(curve, f"sweep-{number}") for number, curve in enumerate(found)]


def _heatmaps(run: Run, workload: str, by_place: dict[Place, list[Flow]]) -> list[tuple[str, Plot]]:
    """Fabrics that delivered the same between every pair share one heatmap, which names them all."""
    grids = {f.label: traffic.Grid(f.domains, f.rails) for f in run.fabrics if f.domains * f.rails <= _PAIRS_DRAWN}
    alike: dict[bytes, list[Place]] = {}
    for place, flows in by_place.items():
        if place[0] in grids:
            alike.setdefault(traffic.matrix(flows, grids[place[0]]).tobytes(), []).append(place)
    return [
        (
            ", ".join(shown := report_steering.short_names(run, places)),
            traffic.heatmap(by_place[places[0]], grids[places[0][0]], f"{workload} on {' and '.join(shown)}"),
        )
        for places in alike.values()
    ]
