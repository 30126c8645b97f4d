"""Figures of workloads in the report: bytes by kind and by pair of GPUs, curves over what an experiment varies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from railyard.experiments.measures.workloads.report import traffic_plots
from railyard.experiments.measures.workloads.report.traffic import Grid, kind_bytes, matrix, one_repeat
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import workload_label
from railyard.results.measured import policies_in_turn
from railyard.results.plots import sweep
from railyard.results.plots.style import Plot
from railyard.results.plots.traffic import byte_limits
from railyard.results.runs.records import Flow, Run

Place = tuple[str, str]
"""A fabric and a policy."""
FlowsByWork = Mapping[str, Mapping[Place, Sequence[Flow]]]
"""Flows by the workload's label without its scene, and by place."""
# GPUs: with more, the cells of a heatmap are smaller than the pixels of a screen
_PAIRS_DRAWN: Final = 1024


def flows_by_work(run: Run) -> FlowsByWork:
    """Return the flows of each workload's first scene: the others sent the same."""
    first_scenes: dict[str, str] = {}
    flows: dict[str, dict[Place, list[Flow]]] = {}
    for interval, of_interval in groupby(run.flows, key=attrgetter("interval")):
        first_scene = first_scenes.setdefault(interval.workload, interval.scene)
        if interval.scene == first_scene:
            places = flows.setdefault(workload_label(replace(interval, scene="")), {})
            places.setdefault((interval.fabric, interval.policy), []).extend(of_interval)
    return flows


def volumes(flows: FlowsByWork, labels: Mapping[Place, str]) -> Plot | None:
    """Return a bar a workload; one for each fabric too where they delivered different amounts."""
    bars: dict[str, Sequence[Flow]] = {}
    for workload, places in flows.items():
        if _deliver_same_bytes(places.values()):
            bars[workload] = next(iter(places.values()))
            continue
        for place, of_place in places.items():
            bars[f"{workload}, {labels.get(place, place[0])}"] = of_place
    if not bars:
        return None
    return traffic_plots.volumes(bars)


def _deliver_same_bytes(flows_of_places: Iterable[Sequence[Flow]]) -> bool:
    """Return whether as many bytes of each kind were delivered in all places."""
    totals = [kind_bytes(one_repeat(flows)) for flows in flows_of_places]
    return all(total == totals[0] for total in totals)


def heatmaps(analysis: Analysis, workload: str, flows: Mapping[Place, Sequence[Flow]]) -> list[tuple[str, Plot]]:
    """Return a heatmap for all places that delivered the same between every pair, with a title that names them."""
    grids: dict[str, Grid] = {}
    for fabric in analysis.run.fabrics:
        if fabric.domains * fabric.rails <= _PAIRS_DRAWN:
            grids[fabric.label] = Grid(fabric.domains, fabric.rails, fabric.nics)
    alike: dict[bytes, list[Place]] = {}
    for place, of_place in flows.items():
        if place[0] in grids:
            content = matrix(of_place, grids[place[0]]).tobytes()
            alike.setdefault(content, []).append(place)
    firsts = [places[0] for places in alike.values()]
    matrices = [matrix(flows[place], grids[place[0]]) for place in firsts]
    # one scale for all, so that equal colours are equal bytes
    limits = None
    if any(total.any() for total in matrices):
        limits = byte_limits(*matrices)
    figures: list[tuple[str, Plot]] = []
    for places in alike.values():
        shown = _place_names(analysis, places)
        name = f"{workload} on {' and '.join(shown)}"
        first = places[0]
        plot = traffic_plots.heatmap(flows[first], grids[first[0]], name, limits)
        figures.append((", ".join(shown), plot))
    return figures


def _place_names(analysis: Analysis, places: Sequence[Place]) -> list[str]:
    """Return the labels of places, each once; the fabric's own name where all its policies in turn are among them."""
    whole: set[str] = set()
    if policies_in_turn(analysis.run):
        for fabric, _ in places:
            fabric_places = {place for place in analysis.labels if place[0] == fabric}
            if fabric_places <= set(places):
                whole.add(fabric)
    names: dict[str, None] = {}
    for place in places:
        fabric = place[0]
        name = analysis.labels.get(place, fabric)
        if fabric in whole:
            name = fabric
        names[name] = None
    return list(names)


def sweeps(analysis: Analysis) -> list[Plot]:
    """Return curves over what fabrics or workloads vary.

    Spec and records name both in the same order, as far as the run came. A fabric under another policy counts as one of
    another kind, so that a curve is one policy's.
    """
    run = analysis.run
    fabrics: list[tuple[str, dict[str, Any]]] = []
    traits: dict[str, dict[str, Any]] = {}
    for fabric, fabric_traits in zip(run.fabrics, run.experiment.fabrics, strict=False):
        traits[fabric.label] = {**fabric_traits}
        if not policies_in_turn(run):
            fabrics.append((analysis.labels[fabric.label, fabric.policy], traits[fabric.label]))
    if policies_in_turn(run):
        for (fabric_label, policy), label in analysis.labels.items():
            if fabric_label in traits:
                kind = f"{traits[fabric_label].get('kind', '')} {policy}"
                fabrics.append((label, {**traits[fabric_label], "kind": kind}))
    names = dict.fromkeys(row.workload for row in analysis.times)
    workloads = list(zip(names, run.experiment.workloads, strict=False))
    spreads = {}
    for row in analysis.times:
        for label, spread in row.by_fabric.items():
            spreads[label, row.workload, row.phase] = spread
    curves = sweep.curves(fabrics, workloads, spreads)
    return [sweep.plot(curve, f"sweep-{number}") for number, curve in enumerate(curves)]
