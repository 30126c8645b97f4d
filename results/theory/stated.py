"""Predictions that workloads, algorithms and policies state themselves, and the times to which no bound applies.

The bound of the busiest link counts bytes alone. So a phase that computes between its transfers is not compared with
it, unless its definition states what it takes. Where GPUs don't compute alike, phases begin apart, and the whole is
simulated with max-min fair shares of links.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from railyard.results.theory.bottleneck import is_multipath
from railyard.results.theory.ecmp import has_choice
from railyard.results.theory.fluid.simulation import simulate
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import FORWARDING_POLICIES, ForwardingPolicy
from railyard.topologies.prediction import WHOLE, NotCompared, Stated, StatedTime
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, Numbers, Sizes
from railyard.workloads.matrix.traffic_matrix import rail_of_gpus, ways
from railyard.workloads.matrix.waiting import waiting_phases
from railyard.workloads.schedule import Iteration, Phase, Program, Rates, Schedule

POINT_TO_POINT: Final = "point-to-point"
COMPUTES: Final = "computes between its transfers, which no bound of bytes counts"
HASHED: Final = "takes paths that a hash chooses, on which other transfers may be"
SEVERAL_STEPS: Final = "has several steps, of which no formula gives the whole"
UNEVEN: Final = "begins at different times on GPUs that don't compute alike"
SIMULATED: Final = "max-min fair shares"


def stated(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> dict[str, Stated]:
    """Return what takes the place of the bound, by phase name, and for the whole under WHOLE; most schedules: nothing.

    A phase that waits for ever has no time. The workload's own word comes first, then the collective algorithm's, then
    the forwarding policy's.
    """
    if schedule.is_uneven:
        return _of_uneven(schedule, rates, fabric)
    by_phase: dict[str, Stated] = {}
    computing = _computing_phases(schedule)
    waiting = waiting_phases(schedule, fabric)
    for phase in dict.fromkeys(schedule.phases):
        prediction: Stated | None = None
        if phase.name in waiting:
            prediction = NotCompared(waiting[phase.name])
        else:
            prediction = schedule.stated.get(phase.name) or _of_definitions(phase, schedule, rates, fabric)
        if prediction is None and phase.name in computing:
            prediction = NotCompared(COMPUTES)
        if prediction is None and phase.name in _hashed_phases(schedule, fabric):
            prediction = NotCompared(HASHED)
        if prediction is not None:
            by_phase[phase.name] = prediction
    whole = schedule.stated.get(WHOLE) or _of_whole(schedule, by_phase)
    if waiting:
        whole = NotCompared(next(iter(waiting.values())))
    if whole is not None:
        by_phase[WHOLE] = whole
    return by_phase


def _of_uneven(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> dict[str, Stated]:
    """Return the predictions of a schedule whose GPUs don't compute alike: a time of the whole, and none of phases."""
    waiting = waiting_phases(schedule, fabric)
    by_phase: dict[str, Stated] = {}
    for phase in dict.fromkeys(schedule.phases):
        by_phase[phase.name] = NotCompared(waiting.get(phase.name, UNEVEN))
    if waiting:
        by_phase[WHOLE] = NotCompared(next(iter(waiting.values())))
    else:
        by_phase[WHOLE] = _simulated(schedule, rates, fabric)
    return by_phase


@lru_cache(maxsize=8)  # repeats have the same schedule
def _simulated(schedule: Schedule, rates: Rates, fabric: FabricSpec) -> StatedTime:
    """Return what a schedule takes with max-min fair shares of links: a lower bound where a hash chooses paths."""
    planes = fabric.definition.carrying(fabric.definition.all_planes)
    src, dst = np.array(list(schedule.matrix), dtype=np.int64).reshape(-1, 2).T
    is_spread = len(planes) > 1 or fabric.definition.is_graph or _are_hashed(src, dst, schedule.rails, fabric)
    return StatedTime(simulate(schedule, rates, fabric).seconds, SIMULATED, is_exact=not is_spread)


def _of_definitions(phase: Phase, schedule: Schedule, rates: Rates, fabric: FabricSpec) -> Stated | None:
    """Return what the phase's algorithm states, else what the fabric's policy does; None if neither does."""
    if phase.collective:
        of_algorithm = ALGORITHMS[phase.collective].stated(phase, rates.hb, rates.rail, fabric)
        if of_algorithm is not None:
            return of_algorithm
    policy = FORWARDING_POLICIES[fabric.chosen_policy]
    # checked first, since a phase may have a million pairs
    if type(policy).stated is ForwardingPolicy.stated:
        return None
    pair_bytes: dict[tuple[Gpu, Gpu], float] = {}
    for sizes in phase_pairs(phase, schedule):
        for src, dst, size in zip(*(column.tolist() for column in sizes), strict=True):
            pair = (Gpu(*divmod(src, schedule.rails)), Gpu(*divmod(dst, schedule.rails)))
            pair_bytes[pair] = pair_bytes.get(pair, 0.0) + size
    return policy.stated(pair_bytes, rates.hb, rates.rail, fabric.shape)


def phase_pairs(phase: Phase, schedule: Schedule) -> Iterator[Sizes]:
    """Yield the bytes of each pair in one run of a phase, stage by stage.

    Of a group these are the first GPUs of the fabric; of two GPUs, or without an algorithm, those of its first run.
    """
    if phase.collective and phase.collective != POINT_TO_POINT:
        grid = Program(schedule.gpus // schedule.rails, schedule.rails).grid
        part = tuple(row[: phase.x] for row in grid[: phase.y])
        for stage in ALGORITHMS[phase.collective].stages(phase, part):
            for transport in stage:
                yield transport.sizes()
        return
    columns = schedule.columns
    first_run = _runs_of(phase.name, schedule)[0]
    sent = np.flatnonzero(~columns.is_compute & (columns.phase == first_run))
    yield Sizes(columns.src[sent], columns.dst[sent], columns.bytes[sent].astype(np.float64))


def _runs_of(name: str, schedule: Schedule) -> list[int]:
    """Return the numbers of the phases of this name, of which each is a run."""
    return [number for number, phase in enumerate(schedule.phases) if phase.name == name]


@lru_cache(maxsize=8)  # repeats have the same schedule
def _hashed_phases(schedule: Schedule, fabric: FabricSpec) -> frozenset[str]:
    """Return the names of phases whose transfers have several paths, which their formula doesn't count.

    The formula of a group counts what a hash does in the group. That of two GPUs counts no other transfer.
    """
    columns = schedule.columns
    names = set[str]()
    for name in dict.fromkeys(phase.name for phase in schedule.phases):
        numbers = _runs_of(name, schedule)
        phase = schedule.phases[numbers[0]]
        # cables of a graph are counted in whole groups
        if not phase.collective or fabric.definition.is_graph:
            continue
        sent = ~columns.is_compute & np.isin(columns.phase, numbers)
        pairs = np.unique(columns.src[sent] * schedule.gpus + columns.dst[sent])
        if not _are_hashed(*np.divmod(pairs, schedule.gpus), schedule.rails, fabric):
            continue
        group = phase_pairs(phase, schedule)
        is_counted = any(_are_hashed(sizes.src, sizes.dst, schedule.rails, fabric) for sizes in group)
        if phase.collective == POINT_TO_POINT or not is_counted:
            names.add(name)
    return frozenset(names)


def _are_hashed(src: Numbers, dst: Numbers, rails: int, fabric: FabricSpec) -> bool:
    """Return whether any of these pairs has several paths, or crosses spines of which it has a choice."""
    routes = ways(src, dst, rails, fabric)
    if is_multipath(routes):
        return True
    if not has_choice(fabric):
        return False
    for way in routes:
        two_rails = rail_of_gpus(way.enter, rails, fabric) != rail_of_gpus(way.leave, rails, fabric)
        crosses_spines = (way.share > 0) & two_rails
        if crosses_spines.any():
            return True
    return False


def _of_whole(schedule: Schedule, by_phase: dict[str, Stated]) -> Stated | None:
    """Return why a whole is not compared; None if it has a formula, or is a single step with that of its phase."""
    if schedule.iteration is not None:
        return _of_iteration(schedule.iteration, by_phase)
    if _has_several_steps(schedule):
        if schedule.columns.is_compute.any():
            return NotCompared(COMPUTES)
        return NotCompared(SEVERAL_STEPS)
    if not schedule.phases:
        return None
    return by_phase.get(schedule.phases[0].name)


def _of_iteration(iteration: Iteration, by_phase: dict[str, Stated]) -> Stated | None:
    """Return why an iteration is not compared: for the reason of its first phase that isn't; None if all are."""
    parts = [*iteration.each_micro_batch, *iteration.sync]
    if iteration.boundary:
        parts.append(iteration.boundary)
    for part in parts:
        prediction = by_phase.get(part.name)
        if isinstance(prediction, NotCompared):
            return NotCompared(f"{part.name} {prediction.reason}")
    return None


def _has_several_steps(schedule: Schedule) -> bool:
    """Return whether phases differ in name, or any task of a run waits for a transfer of another run."""
    if len({phase.name for phase in schedule.phases}) > 1:
        return True
    columns = schedule.columns
    waiting = np.repeat(np.arange(len(columns)), np.diff(columns.after_end, prepend=0))
    is_other_run = columns.phase[waiting] != columns.phase[columns.after]
    return bool((is_other_run & ~columns.is_compute[columns.after]).any())


@lru_cache(maxsize=8)  # repeats have the same schedule
def _computing_phases(schedule: Schedule) -> frozenset[str]:
    """Return the names of phases in which a transfer waits for computing that waits for a transfer of the same run."""
    columns = schedule.columns
    waiting = np.repeat(np.arange(len(columns)), np.diff(columns.after_end, prepend=0))
    same_run = columns.phase[waiting] == columns.phase[columns.after]
    follows_transfer = same_run & columns.is_compute[waiting] & ~columns.is_compute[columns.after]
    # tasks of computing that follow a transfer of their own run
    after_transfer = np.zeros(len(columns), dtype=bool)
    after_transfer[waiting[follows_transfer]] = True
    names = set[str]()
    if not after_transfer.any():
        return frozenset()
    for task, before in zip(waiting[same_run].tolist(), columns.after[same_run].tolist(), strict=True):
        if not after_transfer[before]:
            continue
        if columns.is_compute[task]:
            after_transfer[task] = True
        else:
            names.add(schedule.phases[int(columns.phase[task])].name)
    return frozenset(names)
