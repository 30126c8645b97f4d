"""Predicted times of a schedule, for comparison with measured ones. No prediction is ever tuned to a measurement.

Every collective is predicted by a lower bound on its completion time, from the bytes that each link has to carry. Rates
are of payload, in bytes a second: `payload_rates` computes them from a fabric's link rates and MTU.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, isclose, isfinite
from typing import Final

import numpy as np

from railyard.results.theory import equations
from railyard.results.theory.bottleneck import bottleneck_s, is_multipath, merged_sizes
from railyard.results.theory.ecmp import Spread, has_choice, is_hashed
from railyard.results.theory.stated import phase_pairs, stated
from railyard.topologies.nics import most_per_nic
from railyard.topologies.prediction import WHOLE, NotCompared, Stated, StatedTime
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Sizes
from railyard.workloads.matrix.traffic_matrix import at_line_rate, rail_of_gpus, ways
from railyard.workloads.scale import Scale
from railyard.workloads.schedule import Iteration, Phase, Program, Rates, Schedule

BOTTLENECK: Final = "bottleneck link"


def predict_phase(phase: Phase, rates: Rates, fabric: FabricSpec, spread: Spread = "even") -> float:
    """Return the seconds of `phase.repeats` runs: the bottleneck-link bound of its algorithm's stages."""
    spread = spread if has_choice(fabric) else "even"
    return phase.repeats * _run_s(replace(phase, name="", kind="", repeats=1), rates, fabric, spread)


@lru_cache(maxsize=1024)
def _run_s(phase: Phase, rates: Rates, fabric: FabricSpec, spread: Spread) -> float:
    """Return the seconds of one run on a grid of its own, of `phase.y` domains with `phase.x` GPUs."""
    grid = Program(phase.y, phase.x).grid
    stages = ALGORITHMS[phase.collective].stages(phase, grid)
    merged = [merged_sizes(stage) for stage in stages if stage]
    return bottleneck_s(merged, phase.x, phase.y, rates, fabric, spread)


def hash_choices(phase: Phase, schedule: Schedule, fabric: FabricSpec) -> str:
    """Return over what a hash spreads the flows of a phase, such as `2 planes` or `3 paths`; "" for nothing."""
    planes = fabric.definition.carrying(fabric.definition.all_planes)
    if len(planes) > 1 and phase.y > 1:
        return f"{len(planes)} planes"
    most = 1
    for sizes in phase_pairs(phase, schedule):
        routes = ways(sizes.src, sizes.dst, schedule.rails, fabric)
        if is_multipath(routes):
            most = max(most, len(routes))
    if most == 1:
        return ""
    return f"{most} paths"


def equation(phase: Phase, rates: Rates, fabric: FabricSpec, choices: str = "") -> str:
    """Name the equation that the prediction of a phase equals; `bottleneck link` where none of the papers' does.

    Forwarding and thin spines are in no equation, so a direct all-to-all may take longer than Eq. 2. Nor are the
    `choices` over which flows are hashed (`hash_choices`).
    """
    if choices:
        return f"{BOTTLENECK}, mean over hashes to {choices}"
    if fabric.definition.is_graph and phase.y > 1:
        return BOTTLENECK
    if not phase.collective:
        return BOTTLENECK
    algorithm = ALGORITHMS[phase.collective]
    closed = algorithm.closed_form_s(phase, rates.hb, _gpu_rail_rate(rates, fabric))
    if closed is None:
        return BOTTLENECK
    if isclose(phase.repeats * closed, predict_phase(phase, rates, fabric), rel_tol=1e-9):
        gpus_per_nic = most_per_nic(fabric.rail_of_rank)
        if gpus_per_nic > 1 and phase.y > 1:
            # in the equation each GPU has its part of the NIC's rate
            return f"{algorithm.equation}, {gpus_per_nic} GPUs a NIC"
        return algorithm.equation
    return f"{BOTTLENECK}, not {algorithm.equation}"


def _gpu_rail_rate(rates: Rates, fabric: FabricSpec) -> float:
    """Return the rate of a GPU's rail link; where GPUs share NICs, its part while all of them send."""
    return rates.rail / most_per_nic(fabric.rail_of_rank)


def predict_iteration(
    iteration: Iteration,
    rates: Rates,
    fabric: FabricSpec,
    own_s: Mapping[str, float] | None = None,
    spread: Spread = "even",
) -> float:
    """Return the seconds of Rail-only Eq. 6, the sum of `iteration_terms`."""
    return sum(iteration_terms(iteration, rates, fabric, own_s, spread))


def iteration_terms(
    iteration: Iteration,
    rates: Rates,
    fabric: FabricSpec,
    own_s: Mapping[str, float] | None = None,
    spread: Spread = "even",
) -> tuple[float, float, float]:
    """Return the seconds of the bubble (Rail-only Eq. 7, 8), the last stage (9, 10) and the synchronisation (11).

    Stages are in HB domains of their own (p_h = 1).

    Eq. 7-8 count computing and pipeline traffic of the bubble, but not the collectives that a micro-batch waits for at
    every other stage as well: (p - 1)/v micro-batches' worth, which vanishes with many micro-batches. They are counted
    where the iteration says so (`bubble_has_collectives`).
    `own_s`: seconds of one run of phases, by name, in place of their bound.
    """

    def phases_s(phases: Sequence[Phase]) -> float:
        total_s = 0.0
        for phase in phases:
            if own_s and phase.name in own_s:
                total_s += phase.repeats * own_s[phase.name]
            else:
                total_s += predict_phase(phase, rates, fabric, spread)
        return total_s

    rail_rate = _gpu_rail_rate(rates, fabric)
    collectives_s = phases_s(iteration.each_micro_batch)
    boundary = iteration.boundary.data_bytes if iteration.boundary else 0.0
    m = iteration.micro_batches
    p = iteration.stages
    v = iteration.virtual_stages
    bubble_s = equations.bubble_compute_s(p, v, iteration.compute_s)
    bubble_s += equations.bubble_network_s(boundary, p, 1, rates.hb, rail_rate)
    if iteration.bubble_has_collectives:
        bubble_s += (p - 1) / v * collectives_s
    compute_s = equations.last_stage_compute_s(m, iteration.compute_s)
    network_s = equations.last_stage_network_s(m, collectives_s, v, boundary, rail_rate)
    return bubble_s, compute_s + network_s, phases_s(iteration.sync)


def predict_schedule(schedule: Schedule, rates: Rates, fabric: FabricSpec, spread: Spread = "even") -> dict[str, float]:
    """Return the seconds of a run of each phase, by name, and of the whole iteration under `WHOLE` (Eq. 6 as printed).

    A phase without an algorithm is bounded by the bytes of its own transfers, on the whole fabric. What is stated takes
    the place of a bound, and what is not compared has no time.
    """
    own_s = _own_times_s(schedule, rates, fabric, spread)
    times: dict[str, float] = {}
    for phase in dict.fromkeys(schedule.phases):
        if phase.name in own_s:
            times[phase.name] = own_s[phase.name]
        else:
            times[phase.name] = predict_phase(phase, rates, fabric, spread)
    if schedule.iteration is not None:
        times[WHOLE] = predict_iteration(schedule.iteration, rates, fabric, own_s, spread)
    for name, prediction in stated(schedule, rates, fabric).items():
        if isinstance(prediction, StatedTime):
            times[name] = prediction.seconds
        elif isinstance(prediction, NotCompared):
            times.pop(name, None)
    return times


def _own_times_s(schedule: Schedule, rates: Rates, fabric: FabricSpec, spread: Spread) -> dict[str, float]:
    """Return the seconds of a run of each phase that is stated, or that has no algorithm, by name."""
    # bytes of each pair in the first run of every phase that has no algorithm, by phase number
    first: dict[str, int] = {}
    for number, phase in enumerate(schedule.phases):
        if not phase.collective:
            first.setdefault(phase.name, number)
    pair_bytes = {number: Counter[tuple[int, int]]() for number in first.values()}
    if pair_bytes:
        for _, transfer in schedule.transfers:
            if transfer.phase in pair_bytes:
                pair_bytes[transfer.phase][transfer.src, transfer.dst] += transfer.bytes
    own_s: dict[str, float] = {}
    for number, sizes in pair_bytes.items():
        bound_s = bottleneck_s([Sizes.of(sizes)], schedule.rails, fabric.domains, rates, fabric, spread)
        own_s[schedule.phases[number].name] = bound_s
    for name, prediction in stated(schedule, rates, fabric).items():
        if isinstance(prediction, StatedTime) and name != WHOLE:
            own_s[name] = prediction.seconds
    return own_s


def explained_ratios(
    schedule: Schedule, rates: Rates, fabric: FabricSpec, measured: float | None = None
) -> dict[str, tuple[float, float]]:
    """Return the least and most of measured over predicted that the theory explains, for each phase and the whole.

    Both are 1 for an equation of the papers. A bound explains 1 and more, a mean over hashes anything. `measured`:
    `imbalance` of uplinks while it ran.
    """
    # the expectation is exact where the policy assigns uplinks
    spread: Spread = "expected"
    if measured and is_hashed(fabric):
        spread = measured
    predictions = stated(schedule, rates, fabric)
    ratios: dict[str, tuple[float, float]] = {}
    for phase in dict.fromkeys(schedule.phases):
        if phase.name in predictions:
            ratios[phase.name] = _stated_ratios(predictions[phase.name])
        else:
            ratios[phase.name] = _phase_ratios(phase, schedule, rates, fabric, spread)
    if WHOLE in predictions:
        ratios[WHOLE] = _stated_ratios(predictions[WHOLE])
    elif schedule.iteration is not None and fabric.definition.is_graph:
        ratios[WHOLE] = 0.0, inf
    elif schedule.iteration is not None:
        lows, highs = zip(*ratios.values(), strict=True)
        least = min(lows)
        most = max(highs)
        ratios[WHOLE] = least, most
        if isfinite(most):
            ratios[WHOLE] = _iteration_ratios(schedule, schedule.iteration, rates, fabric, spread, least)
    return ratios


def _phase_ratios(
    phase: Phase, schedule: Schedule, rates: Rates, fabric: FabricSpec, spread: Spread
) -> tuple[float, float]:
    """Return the least and most of measured over predicted that the theory explains for a phase."""
    is_hash_mean = bool(hash_choices(phase, schedule, fabric))
    is_whole = not phase.collective or (phase.x, phase.y) == (fabric.rails, fabric.domains)
    if fabric.rail_of_rank and phase.y > 1 and not (is_whole or _fills_fabric(phase, schedule)):
        # which groups send by a NIC at the same time depends on their places
        return 0.0, inf
    if fabric.definition.is_graph and phase.y > 1:
        # the bound of a graph is one of the whole fabric: of a smaller group it depends on the group's place
        least = 1.0 if is_whole and not is_hash_mean else 0.0
        return least, inf
    if is_hash_mean:
        return 0.0, inf
    if not _is_exact(phase, rates, fabric):
        return 1.0, inf
    # where flows are hashed over uplinks, a phase takes what the busiest of them needs: no less, and no more
    loaded = predict_phase(phase, rates, fabric, spread) / predict_phase(phase, rates, fabric)
    return loaded, loaded


def _fills_fabric(phase: Phase, schedule: Schedule) -> bool:
    """Return whether all GPUs send in the first run of a phase, in groups of their own."""
    number = next(number for number, run in enumerate(schedule.phases) if run.name == phase.name)
    columns = schedule.columns
    senders = columns.src[~columns.is_compute & (columns.phase == number)]
    return len(np.unique(senders)) == schedule.gpus


def _is_exact(phase: Phase, rates: Rates, fabric: FabricSpec) -> bool:
    """Return True if the prediction of a phase is an equation of the papers, and no bound."""
    if not phase.collective:
        return False
    closed = ALGORITHMS[phase.collective].closed_form_s(phase, rates.hb, _gpu_rail_rate(rates, fabric))
    if not closed:
        return False
    return isclose(phase.repeats * closed, predict_phase(phase, rates, fabric), rel_tol=1e-9)


def _iteration_ratios(
    schedule: Schedule, iteration: Iteration, rates: Rates, fabric: FabricSpec, spread: Spread, least: float
) -> tuple[float, float]:
    """Return the least and most of an iteration's measured time over Eq. 6.

    `least`: of its phases.
    """
    # Eq. 6 leaves out a term and adds up what overlaps: the most is what the tasks take at line rate, with uplinks as
    # loaded as `spread` says, be it more or less than Eq. 6
    phases_s = _own_times_s(schedule, rates, fabric, "even")
    predicted_s = predict_iteration(iteration, rates, fabric, phases_s)
    line_rate = at_line_rate(schedule, rates, fabric).seconds / predicted_s
    loaded_s = _own_times_s(schedule, rates, fabric, spread)
    loaded = predict_iteration(iteration, rates, fabric, loaded_s, spread) / predicted_s
    return min(least, line_rate), line_rate * loaded


def _stated_ratios(prediction: Stated) -> tuple[float, float]:
    """Return the least and most of measured over predicted that a definition's own prediction explains."""
    if isinstance(prediction, NotCompared):
        return 0.0, inf
    return 1.0, 1.0 if prediction.is_exact else inf


def share_uplinks(schedule: Schedule, fabric: FabricSpec) -> dict[str, str]:
    """Return, by phase, the other phases whose flows are hashed over the uplinks that it uses; none if all are alike.

    The bytes of an uplink are counted for all phases together. Where these send in other proportions, the load that was
    measured is that of no single one. `WHOLE` has all of them.
    """
    if not is_hashed(fabric):
        return {}
    columns = schedule.columns
    rails = schedule.rails
    sent = np.flatnonzero(~columns.is_compute)
    pairs, place = np.unique(columns.src[sent] * schedule.gpus + columns.dst[sent], return_inverse=True)
    crosses = np.zeros(len(pairs), dtype=bool)
    for way in ways(*np.divmod(pairs, schedule.gpus), rails, fabric):
        two_rails = rail_of_gpus(way.enter, rails, fabric) != rail_of_gpus(way.leave, rails, fabric)
        crosses |= (way.share > 0) & two_rails
    numbers = np.unique(columns.phase[sent[crosses[place]]])
    used = [schedule.phases[number] for number in numbers.tolist()]
    if len({(phase.collective or phase.name, phase.x, phase.y, phase.shares) for phase in used}) < 2:
        return {}
    names = list(dict.fromkeys(phase.name for phase in used))
    other_phases: dict[str, str] = {}
    for name in names:
        other_phases[name] = ", ".join(other for other in names if other != name)
    other_phases[WHOLE] = ", ".join(names)
    return other_phases


def full_step_s(scale: Scale, fabric: FabricSpec) -> float | None:
    """Return the seconds of the published job at its full size with all of its computing, by Eq. 6; None without one.

    Also None for a job that waits for ever, at a pair without a path. On fabrics of two kinds its ratio is what the
    paper states (Rail-only IV-B): the share of the whole step.
    """
    if scale.real is None or scale.full_compute_s is None:
        return None
    seconds = predict_iteration(replace(scale.real, compute_s=scale.full_compute_s), scale.real_rates, fabric)
    return seconds if isfinite(seconds) else None


def project_to_full_size(
    scale: Scale, schedule: Schedule, seconds: Mapping[str, float], fabric: FabricSpec
) -> dict[str, float]:
    """Return emulated seconds by phase (and `WHOLE`) as seconds of the published job at its full size.

    Measured over predicted, times the same equation at full size and real rates: so what the emulation took longer than
    its equation, the real cluster is taken to take longer too. Nothing for a workload that has no published job.
    """
    if scale.real is None:
        return {}
    if stated(schedule, scale.emulated_rates, fabric):
        # what a definition states is of this schedule, and not of the published job
        return {}
    emulated = predict_schedule(schedule, scale.emulated_rates, fabric)
    parts = [*scale.real.each_micro_batch, *scale.real.sync]
    if scale.real.boundary:
        parts.append(scale.real.boundary)
    real = {part.name: predict_phase(part, scale.real_rates, fabric) / part.repeats for part in parts}
    real[WHOLE] = predict_iteration(scale.real, scale.real_rates, fabric)
    projected: dict[str, float] = {}
    for name, value in seconds.items():
        if emulated.get(name) and name in real:
            projected[name] = value / emulated[name] * real[name]
    return projected
