"""Communication groups of a schedule, and how long each one communicated: which groups got slower, and by which links.

A group that waits for a late GPU isn't slow itself: its time counts from when the last of its senders began.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from railyard.failure.diagnosis.definition import Part, Spans
from railyard.topologies.plan import Plan
from railyard.workloads.columns import Numbers
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


@dataclass(frozen=True, eq=False)
class GroupRuns:
    """The transfers of a schedule by the group that they belong to; a group communicates in one run or in several.

    `transfers`: task numbers. The others are numbers too: for each transfer its sender, for each sender the run in
    which it sends, and for each run its group. A GPU that sends in several runs is several senders.
    """

    groups: tuple[Group, ...]
    transfers: Numbers
    sender_of_transfer: Numbers
    run_of_sender: Numbers
    group_of_run: Numbers

    @classmethod
    def of(cls, schedule: Schedule) -> "GroupRuns":
        """Return the groups of a schedule."""
        columns = schedule.columns
        transfers = np.flatnonzero(~columns.is_compute)
        groups: dict[Group, int] = {}
        runs: dict[tuple[int, tuple[int, ...]], int] = {}
        senders: dict[tuple[int, int], int] = {}
        sender_of_transfer: list[int] = []
        group_of_run: list[int] = []
        joined: dict[int, dict[int, tuple[int, ...]]] = {}
        ends = zip(columns.phase[transfers].tolist(), columns.src[transfers].tolist(), strict=True)
        for phase, src in ends:
            if phase not in joined:
                in_phase = transfers[columns.phase[transfers] == phase]
                pairs = zip(columns.src[in_phase].tolist(), columns.dst[in_phase].tolist(), strict=True)
                joined[phase] = _joined(pairs)
            members = joined[phase][src]
            run = runs.setdefault((phase, members), len(runs))
            if run == len(group_of_run):
                group = Group(schedule.phases[phase].name, members)
                group_of_run.append(groups.setdefault(group, len(groups)))
            sender_of_transfer.append(senders.setdefault((run, src), len(senders)))
        return cls(
            groups=tuple(groups),
            transfers=transfers,
            sender_of_transfer=np.array(sender_of_transfer, dtype=np.int64),
            run_of_sender=np.array([run for run, _ in senders], dtype=np.int64),
            group_of_run=np.array(group_of_run, dtype=np.int64),
        )

    def seconds(self, spans: Spans) -> NDArray[np.float64]:
        """Return how long each group communicated in an iteration, s, without waiting for its members."""
        start_s, end_s = spans[self.transfers].T
        first_s = np.full(len(self.run_of_sender), np.inf)
        np.minimum.at(first_s, self.sender_of_transfer, start_s)
        # a member that waits for another one has begun, so the last to begin counts
        begun_s = np.full(len(self.group_of_run), -np.inf)
        np.maximum.at(begun_s, self.run_of_sender, first_s)
        last_s = np.full(len(self.group_of_run), -np.inf)
        np.maximum.at(last_s, self.run_of_sender[self.sender_of_transfer], end_s)
        total_s = np.zeros(len(self.groups))
        np.add.at(total_s, self.group_of_run, last_s - begun_s)
        return total_s

    def slower(self, before: Sequence[Spans], after: Sequence[Spans], least: float) -> dict[Group, float]:
        """Return the groups that communicate longer than before, with the ratio of both times.

        `before`, `after`: tasks of some iterations. `least`: the part of the time that it takes longer at least.
        """
        healthy_s = np.median([self.seconds(spans) for spans in before], axis=0)
        now_s = np.median([self.seconds(spans) for spans in after], axis=0)
        numbers = np.flatnonzero(now_s > healthy_s * (1 + least))
        return {self.groups[number]: float(now_s[number] / healthy_s[number]) for number in numbers}

    def pairs(self, schedule: Schedule, groups: Iterable[Group]) -> list[tuple[int, int]]:
        """Return the pairs of GPU numbers of these groups that send, each once."""
        chosen = [self.groups.index(group) for group in groups]
        group_of_transfer = self.group_of_run[self.run_of_sender[self.sender_of_transfer]]
        sent = self.transfers[np.isin(group_of_transfer, chosen)]
        ends = zip(schedule.columns.src[sent].tolist(), schedule.columns.dst[sent].tolist(), strict=True)
        return list(dict.fromkeys(ends))


def _joined(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Return for each GPU all GPUs that pairs join it with, in order."""
    sets: dict[int, set[int]] = {}
    for src, dst in pairs:
        joined = sets.setdefault(src, {src})
        joined |= sets.get(dst, {dst})
        for gpu in joined:
            sets[gpu] = joined
    return {gpu: tuple(sorted(members)) for gpu, members in sets.items()}


def links_of_pairs(pairs: Sequence[tuple[int, int]], plan: Plan) -> set[GpuLink]:
    """Return the links of GPUs that pairs of GPU numbers send over, by the policy's paths."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    # of GPUs that share a NIC, the first one's link counts
    at_nic = nic_of_gpus(len(plan.gpus), plan.spec)
    links: set[GpuLink] = set()
    for way in ways(ends[:, 0], ends[:, 1], plan.spec.rails, plan.spec):
        is_used = way.share > 0
        for near, far in ((ends[:, 0], way.enter), (way.leave, ends[:, 1])):
            used = (near != far) & is_used
            links.update(GpuLink("hb", gpu) for gpu in np.concatenate([near[used], far[used]]).tolist())
        used = (way.enter != way.leave) & is_used
        on_rail = at_nic[np.concatenate([way.enter[used], way.leave[used]])]
        links.update(GpuLink("rail", gpu) for gpu in on_rail.tolist())
    return links
