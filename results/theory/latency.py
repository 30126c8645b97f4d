"""Seconds that links add to or take from the time of phases, beside the bytes that they carry: latency and idle credit.

Latency prolongs each sequential step of a collective: alpha of the alpha-beta model. The credit of a shaper that was
idle lets the first bytes of a stage pass faster than the link's rate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from railyard.results.theory import equations
from railyard.results.theory.bottleneck import merged_sizes
from railyard.results.theory.path_seconds import PathSeconds
from railyard.topologies.nics import RailOfRank
from railyard.topologies.prediction import WHOLE
from railyard.workloads.collectives.algorithm import ALGORITHMS, Sizes
from railyard.workloads.schedule import Iteration, Phase, Program, Schedule


def idle_credit(schedule: Schedule, credit: PathSeconds, nics: RailOfRank = ()) -> dict[str, float]:
    """Return the most seconds that idle credit of shapers saves in a run of each phase, and in the whole iteration.

    `credit`: of a link of each path (`idle_credit_s`). `nics`: the rail of each rank, where GPUs share NICs.
    """
    # a stage ends with its slowest link, and every link may have been idle before it
    return _by_stage(schedule, lambda sizes, _: max(_of_paths(sizes, schedule.rails, credit, nics)))


def latency(schedule: Schedule, one_way: PathSeconds, nics: RailOfRank = ()) -> dict[str, float]:
    """Return the seconds by which latency prolongs a run of each phase, and the whole iteration: alpha of alpha-beta.

    `one_way`: of each path, all its hops together. `nics`: the rail of each rank, where GPUs share NICs.
    """
    # each sequential step of a stage waits for the message before it
    return _by_stage(schedule, lambda sizes, steps: steps * max(_of_paths(sizes, schedule.rails, one_way, nics)))


def _of_paths(sizes: Sizes, rails: int, seconds: PathSeconds, nics: RailOfRank) -> Iterator[float]:
    """Yield the seconds of each path that these pairs take; 0 without pairs."""
    crosses = sizes.src // rails != sizes.dst // rails
    rail_of = np.array(nics or range(rails))
    turns = rail_of[sizes.src % rails] != rail_of[sizes.dst % rails]
    if np.any(~crosses):
        yield seconds.hb
    if np.any(crosses & ~turns):
        yield seconds.rail
    if np.any(crosses & turns):
        yield seconds.cross_rail
    yield 0.0


def _by_stage(schedule: Schedule, stage_s: Callable[[Sizes, int], float]) -> dict[str, float]:
    """Return what the stages of each phase sum to; `stage_s` gets a stage's pairs and its sequential steps.

    A phase without an algorithm is one stage of one step.
    """
    pairs: defaultdict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    if not all(phase.collective for phase in schedule.phases):
        for _, transfer in schedule.transfers:
            phase = schedule.phases[transfer.phase]
            if not phase.collective:
                pairs[phase.name][transfer.src, transfer.dst] = transfer.bytes
    grid = Program(schedule.gpus // schedule.rails, schedule.rails).grid

    def run_s(phase: Phase) -> float:
        if not phase.collective:
            return stage_s(Sizes.of(pairs[phase.name]), 1)
        part = tuple(row[: phase.x] for row in grid[: phase.y])
        seconds = 0.0
        for stage in ALGORITHMS[phase.collective].stages(phase, part):
            if stage:
                steps = max(transport.sequential_steps() for transport in stage)
                seconds += stage_s(merged_sizes(stage), steps)
        return seconds

    seconds_of_phases = {phase.name: run_s(phase) for phase in dict.fromkeys(schedule.phases)}
    if schedule.iteration is not None:
        seconds_of_phases[WHOLE] = _whole_s(schedule.iteration, run_s)
    return seconds_of_phases


def _whole_s(iteration: Iteration, run_s: Callable[[Phase], float]) -> float:
    """Return the seconds of the whole iteration: as often as Eq. 6-11 count what the network does in each phase.

    `run_s`: seconds of one run of a phase.
    """

    def all_runs_s(phases: Sequence[Phase]) -> float:
        return sum(phase.repeats * run_s(phase) for phase in phases)

    m = iteration.micro_batches
    p = iteration.stages
    v = iteration.virtual_stages
    boundary_s = 0.0
    if iteration.boundary:
        boundary_s = run_s(iteration.boundary)
    # seconds take the place of bytes, so rates are 1
    collectives_s = all_runs_s(iteration.each_micro_batch)
    network_s = equations.last_stage_network_s(m, collectives_s, v, boundary_s, 1.0)
    bubble_s = equations.bubble_network_s(boundary_s, p, 1, 1.0, 1.0)
    if iteration.bubble_has_collectives:
        bubble_s += (p - 1) / v * collectives_s
    return bubble_s + network_s + all_runs_s(iteration.sync)
