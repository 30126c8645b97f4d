"""Communication groups of a schedule, and how long each one communicated: which groups got slower, and by which links.

A group that waits for a late GPU isn't slow itself: its time counts from when the last of its senders began.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from railyard.failure.diagnosis.definition import Part, Spans
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.traffic_matrix import nic_of_gpus, ways
from railyard.workloads.schedule import Schedule


class Group(NamedTuple):
    """GPUs, by number in order, that exchange data with one another in phases of one name."""

    phase: str
    members: tuple[int, ...]


class GpuLink(NamedTuple):
    """A link of a GPU, by the GPU's number; of GPUs that share a NIC, the first one's."""

    part: Part
    gpu: int


def transfers_of_groups(schedule: Schedule) -> dict[Group, list[list[int]]]:
    """Return the transfers of each group, by task number: a list for each time that it communicates."""
    by_phase = defaultdict[int, list[int]](list)
    for number, transfer in schedule.transfers:
        by_phase[transfer.phase].append(number)
    runs = defaultdict[Group, list[list[int]]](list)
    columns = schedule.columns
    for phase, numbers in by_phase.items():
        group_of_gpu = _joined((int(columns.src[n]), int(columns.dst[n])) for n in numbers)
        run_of_group = defaultdict[tuple[int, ...], list[int]](list)
        for number in numbers:
            run_of_group[group_of_gpu[int(columns.src[number])]].append(number)
        for members, run in run_of_group.items():
            runs[Group(schedule.phases[phase].name, members)].append(run)
    return dict(runs)


def _joined(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Return for each GPU all GPUs that pairs join it with, in order."""
    sets: dict[int, set[int]] = {}
    for src, dst in pairs:
        joined = sets.setdefault(src, {src})
        joined |= sets.get(dst, {dst})
        for gpu in joined:
            sets[gpu] = joined
    return {gpu: tuple(sorted(members)) for gpu, members in sets.items()}


def group_seconds(schedule: Schedule, runs: Iterable[Sequence[int]], spans: Spans) -> float:
    """Return how long a group communicated in an iteration, s, without waiting for its members."""
    total_s = 0.0
    for run in runs:
        first_s: dict[int, float] = {}
        last_s = 0.0
        for number in run:
            start_s, end_s = spans[number]
            src = int(schedule.columns.src[number])
            first_s[src] = min(start_s, first_s.get(src, start_s))
            last_s = max(last_s, end_s)
        total_s += last_s - max(first_s.values())
    return total_s


def slower_groups(
    schedule: Schedule, before: Sequence[Spans], after: Sequence[Spans], least: float
) -> dict[Group, float]:
    """Return the groups that communicate longer than before, with the ratio of both times.

    `before`, `after`: tasks of some iterations. `least`: the part of the time that it takes longer at least.
    """
    slower: dict[Group, float] = {}
    for group, runs in transfers_of_groups(schedule).items():
        healthy_s = median([group_seconds(schedule, runs, spans) for spans in before])
        now_s = median([group_seconds(schedule, runs, spans) for spans in after])
        if now_s > healthy_s * (1 + least):
            slower[group] = now_s / healthy_s
    return slower


def links_of_groups(schedule: Schedule, groups: Iterable[Group], plan: Plan) -> set[GpuLink]:
    """Return the links of GPUs that the transfers of these groups cross, by the policy's paths."""
    chosen = set(groups)
    pairs: dict[tuple[int, int], None] = {}
    for group, runs in transfers_of_groups(schedule).items():
        if group in chosen:
            for run in runs:
                ends = zip(schedule.columns.src[run].tolist(), schedule.columns.dst[run].tolist(), strict=True)
                pairs |= dict.fromkeys(ends)
    return links_of_pairs(schedule, pairs, plan)


def links_of_pairs(schedule: Schedule, pairs: Mapping[tuple[int, int], None], plan: Plan) -> set[GpuLink]:
    """Return the links of GPUs that pairs of GPU numbers send over."""
    ends = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    at_nic = nic_of_gpus(schedule, plan.spec)
    links: set[GpuLink] = set()
    for way in ways(ends[:, 0], ends[:, 1], schedule.rails, plan.spec):
        hops = ((ends[:, 0], way.enter, "hb"), (way.enter, way.leave, "rail"), (way.leave, ends[:, 1], "hb"))
        for near, far, part in hops:
            used = (near != far) & (way.share > 0)
            for gpu in np.concatenate([near[used], far[used]]).tolist():
                number = int(at_nic[gpu]) if part == "rail" else gpu
                links.add(GpuLink("rail" if part == "rail" else "hb", number))
    return links
