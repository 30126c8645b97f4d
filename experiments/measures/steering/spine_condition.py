"""Latency of rail-only's path and of the spine's, by health scores and as measured: a cell for each scene of a grid.

Source: Outshift health routing, part 2. From G1 = G(d1, g1) to G2 = G(d2, g2) the H of a path is the product of the
scores of its links: H(d1) H(g2) for rail-only's path (dr), and H(g1) H(S) H(g2) over the spine layer S. "The greater
the H, the lower the latency": rail-only's is lower if and only if H(g1) / H(d1) < 1 / H(S). Beside the product stands
the prediction for a message of many frames: the path's slowest link, capacity x score. docs/results.md has the figures.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.analysis import MeasurementInterval, intervals_of
from railyard.experiments.measures.steering.recorded import recorded_grid
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Run, Verdict, worst_verdict
from railyard.topologies.addresses import gpu_of_name
from railyard.workloads.background.spec import Scene
from railyard.workloads.jobs.transfers import RECEIPT

Winner = Literal["rail-only", "spine", "even"]
Path = Literal["rail-only", "spine"]
Reason = Literal["", "lowest score", "HB rate", "hops", "not known"]
POLICY: Final[Mapping[Path, str]] = {"rail-only": "dr", "spine": "ecmp"}
TIE: Final = 0.05  # latencies that differ by less are even
SAMPLES_BEFORE_START: Final = 5
"""Samples of scores before the foreground's start that count: 250 ms at the default period."""
_STEPS: Final = np.array([-0.01, 0, 0.01])
"""Scores are whole percents: what a point more or less of one would turn is even."""


class Range(NamedTuple):
    """A value, and what it is with each score a point lower and a point higher."""

    low: float
    value: float
    high: float


class Scores(NamedTuple):
    """H, 0 to 1: of the source's HB domain and rail, the spine layer, and the destination's rail."""

    domain: float
    rail: float
    spine: float
    far_rail: float


class Rates(NamedTuple):
    """Bit/s of an empty link of each kind."""

    hb: float
    rail: float
    uplink: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Scores and latencies of one pair of GPUs (by name) in a scene.

    `latency`: s, by path, of a transfer (of one stripe of it) until its last byte was read, the median of all rounds.
    `scores`: of the last moments before the foreground begins, whose own load would count as background.
    """

    fabric: str
    workload: str
    scene: Scene
    src: str
    dst: str
    scores: Scores
    rates: Rates
    latency: Mapping[Path, float]
    verdict: Verdict = "ok"  # the worst of the intervals of both paths

    @property
    def predicted(self) -> Winner:
        """Winner by the papers' condition. H(g2) is in both products."""
        return _compare(_product(self.scores.domain), _product(self.scores.rail, self.scores.spine))

    @property
    def by_slowest_link(self) -> Winner:
        """Winner by the slowest link of each path."""
        return _compare(self.slowest("rail-only"), self.slowest("spine"))

    @property
    def measured(self) -> Winner:
        """Winner by the measured latencies."""
        a = self.latency["rail-only"]
        b = self.latency["spine"]
        if max(a, b) < min(a, b) * (1 + TIE):
            return "even"
        if a < b:
            return "rail-only"
        return "spine"

    @property
    def agrees(self) -> bool:
        """True if the papers' condition predicts the measured winner."""
        return self.predicted == self.measured

    def slowest(self, path: Path) -> Range:
        """Return the rate that the slowest link of a path leaves, bit/s."""
        h = self.scores
        r = self.rates
        if path == "rail-only":
            return _bottleneck((r.hb, h.domain), (r.rail, h.far_rail))
        return _bottleneck((r.rail, h.rail), (r.uplink, h.spine), (r.rail, h.far_rail))

    @property
    def reason(self) -> Reason:
        """Reason why the papers' condition differs from the measurement; empty if it doesn't."""
        if self.agrees:
            return ""
        if self.by_slowest_link != self.measured:
            # links that are equally slow leave the number of hops to decide
            return "hops" if self.by_slowest_link == "even" else "not known"
        h = self.scores
        rail_only = _bottleneck((1, h.domain), (1, h.far_rail))
        spine = _bottleneck((1, h.rail), (1, h.spine), (1, h.far_rail))
        if _compare(rail_only, spine) == self.measured:
            return "lowest score"
        return "HB rate"


def cells(
    run: Run, intervals: Sequence[MeasurementInterval], verdicts: Mapping[IntervalId, Verdict]
) -> tuple[Cell, ...]:
    """Return the cells in the order of the grid; none without a grid, or without both paths on one fabric.

    `verdicts`: of the intervals.
    """
    grid = recorded_grid(run)
    if grid is None:
        return ()
    scenes = {scene.name: scene for scene in grid.scenes}
    fabrics = {fabric.label: fabric for fabric in run.fabrics if fabric.spines}
    policies = set(POLICY.values())
    at_places: dict[IntervalId, list[MeasurementInterval]] = {}
    for steered in intervals:
        at_places.setdefault(_place(steered.interval), []).append(steered)
    cells_in_order: list[Cell] = []
    for (place, src, dst), by_policy in _latencies(run).items():
        fabric = fabrics.get(place.fabric)
        if fabric is None or place.scene not in scenes or not by_policy.keys() >= policies:
            continue
        compared = [steered for steered in at_places.get(place, ()) if steered.policy in policies]
        scores = _scores(compared, src, dst)
        if scores is None:
            continue
        cell = Cell(
            fabric=place.fabric,
            workload=place.workload,
            scene=scenes[place.scene],
            src=src,
            dst=dst,
            scores=scores,
            rates=Rates(fabric.hb_bps, fabric.rail_bps, fabric.uplink_bps),
            latency={path: median(by_policy[policy]) for path, policy in POLICY.items()},
            verdict=worst_verdict(verdicts.get(steered.interval, "ok") for steered in compared),
        )
        cells_in_order.append(cell)
    return tuple(cells_in_order)


def _latencies(run: Run) -> dict[tuple[IntervalId, str, str], dict[str, list[float]]]:
    """Return how long transfers that changed rails and arrived took, s, by (place, source, destination) and policy."""
    latencies: dict[tuple[IntervalId, str, str], dict[str, list[float]]] = {}
    for flow in run.flows:
        is_cross_rail = gpu_of_name(flow.src).rank != gpu_of_name(flow.dst).rank
        if flow.phase != RECEIPT and is_cross_rail and flow.delivered == flow.bytes:
            by_policy = latencies.setdefault((_place(flow.interval), flow.src, flow.dst), {})
            by_policy.setdefault(flow.policy, []).append((flow.end_ns - flow.start_ns) / 1e9)
    return latencies


def cells_of(analysis: Analysis) -> tuple[Cell, ...]:
    """Return the cells of a run."""
    return cells(analysis.run, analysis.derived(intervals_of), analysis.judgement.intervals)


def _place(interval: IntervalId) -> IntervalId:
    return replace(interval, policy="", repeat=0)


def _scores(matching_intervals: Iterable[MeasurementInterval], src: str, dst: str) -> Scores | None:
    """Return medians over the policies' intervals, which all had the same background; None if any are missing."""
    scores_by_element: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for interval in matching_intervals:
        samples: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for sample in interval.health:
            if sample.monotonic_ns < interval.started_ns:
                samples[sample.element, sample.index].append(sample.score)
        for element, scores in samples.items():
            scores_by_element[element] += scores[-SAMPLES_BEFORE_START:]
    near = gpu_of_name(src)
    far = gpu_of_name(dst)
    elements = (("domain", near.domain), ("rail", near.rank), ("spine", 0), ("rail", far.rank))
    shares: list[float] = []
    for element in elements:
        if not scores_by_element[element]:
            return None
        shares.append(median(scores_by_element[element]) / 100)
    return Scores(*shares)


def _product(*scores: float) -> Range:
    """Return the product of scores, each a step of rounding lower and higher."""
    ranges = [np.clip(score + _STEPS, 0, 1) for score in scores]
    return Range(*np.prod(ranges, axis=0).tolist())


def _bottleneck(*links: tuple[float, float]) -> Range:
    """Return the least capacity x score of links (capacity, score)."""
    ranges = [capacity * np.clip(score + _STEPS, 0, 1) for capacity, score in links]
    return Range(*np.min(ranges, axis=0).tolist())


def _compare(rail_only: Range, spine: Range) -> Winner:
    if rail_only.low > spine.high:
        return "rail-only"
    if spine.low > rail_only.high:
        return "spine"
    return "even"


def count_by_condition(cells: Sequence[Cell]) -> int:
    """Return the number of cells in which the papers' condition predicts the measured winner."""
    return sum(cell.agrees for cell in cells)


def count_by_slowest_link(cells: Sequence[Cell]) -> int:
    """Return the number of cells in which the slowest link of each path predicts the measured winner."""
    return sum(cell.by_slowest_link == cell.measured for cell in cells)


def as_dict(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return plain data for summary.json. Latencies in s, rates in bit/s."""
    return {
        "cells": len(cells),
        "condition_agrees": count_by_condition(cells),
        "slowest_link_agrees": count_by_slowest_link(cells),
        "tie": TIE,
        "cells_detail": list(map(_details, cells)),
    }


def _details(cell: Cell) -> dict[str, Any]:
    """Return a cell as plain data."""
    return {
        "fabric": cell.fabric,
        "workload": cell.workload,
        "src": cell.src,
        "dst": cell.dst,
        "loads": {"domain": cell.scene.domain, "rail": cell.scene.rail, "spine": cell.scene.spine},
        "scores": cell.scores._asdict(),
        "rail_only_s": cell.latency["rail-only"],
        "spine_s": cell.latency["spine"],
        "predicted": cell.predicted,
        "by_slowest_link": cell.by_slowest_link,
        "measured": cell.measured,
        "agrees": cell.agrees,
        "reason": cell.reason,
        "verdict": cell.verdict,
    }
