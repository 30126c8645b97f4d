"""Latency of rail-only's path and of the spine's, by health scores and as measured: a cell for each scene of a grid.

Both paths are of one fabric with spines, or rail-only's is of a fabric without any that ran beside it.

Source: Outshift health routing, part 2. From G1 = G(d1, g1) to G2 = G(d2, g2) the H of a path is the product of the
scores of its links: H(d1) H(g2) for rail-only's path (dr), and H(g1) H(S) H(g2) over the spine layer S. "The lower
the h-score, the greater the latency": rail-only's is lower if and only if H(g1) / H(d1) < 1 / H(S). Beside the product
stands the prediction for a message of many frames: the path's slowest link, capacity x score. docs/results.md has the
figures.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.analysis import MeasurementInterval, intervals_of
from railyard.experiments.measures.steering.recorded import recorded_grid
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import FabricRun, Run, Verdict, worst_verdict
from railyard.topologies.addresses import gpu_of_name
from railyard.workloads.background.spec import Scene
from railyard.workloads.jobs.transfers import RECEIPT

Winner = Literal["rail-only", "spine", "even"]
Path = Literal["rail-only", "spine"]
Reason = Literal["", "lowest score", "HB rate", "hops", "not known"]
POLICIES: Final = frozenset({"dr", "ecmp", "base"})
"""Policies under which a pair has one of the two paths alone."""
TIE: Final = 0.05  # latencies that differ by less are even
SAMPLES_BEFORE_START: Final = 5
"""Samples of scores before the foreground's start that count: 250 ms at the default period."""
P99_ROUNDS: Final = 100
"""Rounds of a repeat from which on its 99th percentile is more than its slowest round."""
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


class Spread(NamedTuple):
    """The median of some repeats, the least and the most, s."""

    median: float
    least: float
    most: float

    def text(self, show: Callable[[float], str]) -> str:
        """Return the median, and the range where repeats differ."""
        if self.least == self.most:
            return show(self.median)
        return f"{show(self.median)} ({show(self.least)} to {show(self.most)})"


Repeats = tuple[tuple[float, ...], ...]
"""Latencies of the rounds of each repeat, s."""


def percentile(repeats: Repeats, percent: float) -> Spread:
    """Return a percentile of the rounds of each repeat, as a spread over the repeats."""
    values = [float(np.percentile(rounds, percent)) for rounds in repeats]
    return Spread(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Cell:
    """Scores and latencies of one pair of GPUs (by name) in a scene.

    `latency`: s, by path, of a transfer (of one stripe of it) until its last byte was read, the median of all rounds.
    `repeats`: the same of each round of each repeat.
    `scores`: of the last moments before the foreground begins, whose own load would count as background.
    `rail_only_far_rail`: H of the destination's rail on the fabric of rail-only's path, if that is another one.
    """

    fabric: str
    workload: str
    scene: Scene
    src: str
    dst: str
    scores: Scores
    rates: Rates
    latency: Mapping[Path, float]
    repeats: Mapping[Path, Repeats] = field(default_factory=dict)
    rail_only_far_rail: float | None = None
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

    def p50(self, path: Path) -> Spread:
        """Return the median latency of a path."""
        return percentile(self.repeats[path], 50)

    @property
    def has_p99(self) -> bool:
        """True if each repeat has rounds enough for a 99th percentile."""
        rounds = [len(repeat) for repeats in self.repeats.values() for repeat in repeats]
        return min(rounds, default=0) >= P99_ROUNDS

    def p99(self, path: Path) -> Spread | None:
        """Return the 99th percentile of the latency of a path; None of too few rounds."""
        if not self.has_p99:
            return None
        return percentile(self.repeats[path], 99)

    @property
    def measured_p99(self) -> Winner | None:
        """Winner by the 99th percentiles: even where their ranges over the repeats meet; None of too few rounds."""
        near = self.p99("rail-only")
        far = self.p99("spine")
        if near is None or far is None:
            return None
        is_tie = max(near.median, far.median) < min(near.median, far.median) * (1 + TIE)
        if is_tie or (near.least <= far.most and far.least <= near.most):
            return "even"
        if near.median < far.median:
            return "rail-only"
        return "spine"

    def slowest(self, path: Path) -> Range:
        """Return the rate that the slowest link of a path leaves, bit/s."""
        h = self.scores
        r = self.rates
        if path == "rail-only":
            far_rail = h.far_rail
            if self.rail_only_far_rail is not None:
                far_rail = self.rail_only_far_rail
            return _bottleneck((r.hb, h.domain), (r.rail, far_rail))
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


class Place(NamedTuple):
    """Place at which latencies of a pair by one path were measured. `interval`: without policy and repeat."""

    interval: IntervalId
    src: str
    dst: str
    path: Path


def cells(
    run: Run, intervals: Sequence[MeasurementInterval], verdicts: Mapping[IntervalId, Verdict]
) -> tuple[Cell, ...]:
    """Return the cells in the order of the grid; none without a grid, or without both paths.

    `verdicts`: of the intervals.
    """
    grid = recorded_grid(run)
    if grid is None:
        return ()
    scenes = {scene.name: scene for scene in grid.scenes}
    at_places: defaultdict[IntervalId, list[MeasurementInterval]] = defaultdict(list)
    for steered in intervals:
        if steered.policy in POLICIES:
            at_places[_place(steered.interval)].append(steered)
    latencies = _latencies(run)
    cells_in_order: list[Cell] = []
    for place in latencies:
        if place.path != "spine" or place.interval.scene not in scenes:
            continue
        scene = scenes[place.interval.scene]
        near = _rail_only_place(place, scene, run.fabrics, latencies)
        intervals_of_spine = at_places[place.interval]
        scores = _scores(intervals_of_spine, place.src, place.dst)
        if near is None or scores is None:
            continue
        cell = _cell(run, scene, {"rail-only": near, "spine": place}, latencies, scores)
        compared = [*intervals_of_spine]
        if near.interval != place.interval:
            compared += at_places[near.interval]
            far_rail = _score(at_places[near.interval], ("rail", gpu_of_name(place.dst).rank))
            cell = replace(cell, rail_only_far_rail=far_rail)
        verdict = worst_verdict(verdicts.get(steered.interval, "ok") for steered in compared)
        cells_in_order.append(replace(cell, verdict=verdict))
    return tuple(cells_in_order)


def _cell(
    run: Run, scene: Scene, places: Mapping[Path, Place], latencies: Mapping[Place, Repeats], scores: Scores
) -> Cell:
    """Return the cell of a scene, from where each path was measured."""
    spine = places["spine"]
    fabric = next(fabric for fabric in run.fabrics if fabric.label == spine.interval.fabric)
    repeats = {path: latencies[place] for path, place in places.items()}
    return Cell(
        fabric=fabric.label,
        workload=spine.interval.workload,
        scene=scene,
        src=spine.src,
        dst=spine.dst,
        scores=scores,
        rates=Rates(fabric.hb_bps, fabric.rail_bps, fabric.uplink_bps),
        latency={path: median(chain.from_iterable(rounds)) for path, rounds in repeats.items()},
        repeats=repeats,
    )


def _latencies(run: Run) -> dict[Place, Repeats]:
    """Return how long transfers that changed rails and arrived took, s, of each round of each repeat."""
    has_spines = {fabric.label: bool(fabric.spines) for fabric in run.fabrics}
    by_repeat: dict[Place, dict[int, list[float]]] = {}
    for flow in run.flows:
        is_cross_rail = gpu_of_name(flow.src).rank != gpu_of_name(flow.dst).rank
        path = _path_of(flow.policy, has_spines.get(flow.fabric, False))
        if path and flow.phase != RECEIPT and is_cross_rail and flow.delivered == flow.bytes:
            place = Place(_place(flow.interval), flow.src, flow.dst, path)
            rounds = by_repeat.setdefault(place, {}).setdefault(flow.repeat, [])
            rounds.append((flow.end_ns - flow.start_ns) / 1e9)
    latencies: dict[Place, Repeats] = {}
    for place, repeats in by_repeat.items():
        latencies[place] = tuple(map(tuple, repeats.values()))
    return latencies


def _path_of(policy: str, has_spines: bool) -> Path | None:
    """Return which of the two paths a policy takes on a fabric; None for neither, or for several."""
    if policy == "dr" or (policy == "base" and not has_spines):
        return "rail-only"
    if has_spines and policy in POLICIES:
        return "spine"
    return None


def _rail_only_place(
    spine: Place, scene: Scene, fabrics: Sequence[FabricRun], places: Collection[Place]
) -> Place | None:
    """Return where rail-only's path was measured beside the spine's; None if it was not.

    On a fabric without spines, of the same size and rates, or else on the same fabric.
    """
    sizes = {fabric.label: (fabric.domains, fabric.rails, fabric.rail_bps, fabric.hb_bps) for fabric in fabrics}
    without_spines = replace(scene, grid=scene.grid.model_copy(update={"spine": False})).name
    for fabric in fabrics:
        interval = replace(spine.interval, fabric=fabric.label, scene=without_spines)
        place = Place(interval, spine.src, spine.dst, "rail-only")
        is_same_size = sizes[fabric.label] == sizes[spine.interval.fabric]
        if not fabric.spines and is_same_size and place in places:
            return place
    place = spine._replace(path="rail-only")
    if place in places:
        return place
    return None


def cells_of(analysis: Analysis) -> tuple[Cell, ...]:
    """Return the cells of a run."""
    return cells(analysis.run, analysis.derived(intervals_of), analysis.judgement.intervals)


def _place(interval: IntervalId) -> IntervalId:
    return replace(interval, policy="", repeat=0)


def _scores(matching_intervals: Collection[MeasurementInterval], src: str, dst: str) -> Scores | None:
    """Return medians over the policies' intervals, which all had the same background; None if any are missing."""
    near = gpu_of_name(src)
    far = gpu_of_name(dst)
    elements = (("domain", near.domain), ("rail", near.rank), ("spine", 0), ("rail", far.rank))
    shares: list[float] = []
    for element in elements:
        score = _score(matching_intervals, element)
        if score is None:
            return None
        shares.append(score)
    return Scores(*shares)


def _score(matching_intervals: Iterable[MeasurementInterval], element: tuple[str, int]) -> float | None:
    """Return the median score of an element, 0 to 1, just before the workload begins; None if there is none."""
    scores: list[int] = []
    for interval in matching_intervals:
        samples: list[int] = []
        for sample in interval.health:
            if sample.monotonic_ns < interval.started_ns and (sample.element, sample.index) == element:
                samples.append(sample.score)
        scores += samples[-SAMPLES_BEFORE_START:]
    if not scores:
        return None
    return median(scores) / 100


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


def count_by_p99(cells: Sequence[Cell]) -> int:
    """Return the number of cells in which the papers' condition names the winner by 99th percentiles."""
    return sum(cell.predicted == cell.measured_p99 for cell in cells)


def _percent(cells: Sequence[Cell], count: int) -> float | None:
    if not cells:
        return None
    return 100 * count / len(cells)


def latency_ratios(cells: Sequence[Cell]) -> dict[str, dict[str, list[float]]]:
    """Return latencies on rail-only over those over the spines, one ratio for each repeat.

    By percentile and load of the spines, as `p50` and `spines_90`: of the cells whose HB domain and rail are idle.
    """
    ratios: dict[str, dict[str, list[float]]] = {"p50": {}, "p99": {}}
    for cell in cells:
        if cell.scene.domain or cell.scene.rail:
            continue
        load = f"spines_{100 * cell.scene.spine:.0f}"
        # a repeat of one path is compared with the same repeat of the other: between them the machine may change
        repeats = zip(cell.repeats["rail-only"], cell.repeats["spine"], strict=False)
        for near_rounds, far_rounds in repeats:
            median_ratio = median(near_rounds) / median(far_rounds)
            ratios["p50"].setdefault(load, []).append(median_ratio)
            if cell.has_p99:
                tail_ratio = float(np.percentile(near_rounds, 99) / np.percentile(far_rounds, 99))
                ratios["p99"].setdefault(load, []).append(tail_ratio)
    return ratios


def as_dict(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return plain data for summary.json. Latencies in s, rates in bit/s."""
    valid = [cell for cell in cells if cell.verdict != "invalid"]
    tails = [cell for cell in valid if cell.has_p99]
    return {
        "cells": len(cells),
        "condition_agrees": count_by_condition(cells),
        "slowest_link_agrees": count_by_slowest_link(cells),
        "condition_agrees_pct": _percent(valid, count_by_condition(valid)),
        "condition_agrees_p99_pct": _percent(tails, count_by_p99(tails)),
        "rail_only_lower_pct": _percent(valid, sum(cell.measured == "rail-only" for cell in valid)),
        "rail_only_lower_p99_pct": _percent(tails, sum(cell.measured_p99 == "rail-only" for cell in tails)),
        "spine_lower_pct": _percent(valid, sum(cell.measured == "spine" for cell in valid)),
        "spine_lower_p99_pct": _percent(tails, sum(cell.measured_p99 == "spine" for cell in tails)),
        "rail_only_over_spine": latency_ratios(valid),
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
        "rail_only_p50_s": cell.p50("rail-only"),
        "spine_p50_s": cell.p50("spine"),
        "rail_only_p99_s": cell.p99("rail-only"),
        "spine_p99_s": cell.p99("spine"),
        "measured_p99": cell.measured_p99,
        "predicted": cell.predicted,
        "by_slowest_link": cell.by_slowest_link,
        "measured": cell.measured,
        "agrees": cell.agrees,
        "reason": cell.reason,
        "verdict": cell.verdict,
    }
