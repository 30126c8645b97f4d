"""Measured times of the phases of a replay, from the start and end of each of its transfers."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from railyard.workloads.schedule import Schedule

# of the most bytes that a GPU of a phase has: parts are rounded to whole bytes, so equal GPUs differ slightly
BUSIEST: Final = 0.99


@dataclass(slots=True)
class _Part:
    """A GPU's part in a run of a phase: when its first transfer and the first that it sends begin, when its last ends.

    `peer`: a GPU of the same group, through which all of the group lead to one.
    """

    peer: int
    began: float = inf
    sends: float = inf
    ended: float = 0.0
    sent: int = 0
    received: int = 0


def phase_times(schedule: Schedule, spans: Mapping[int, tuple[float, float]]) -> dict[str, list[float]]:
    """Return the measured seconds of every run of each phase, by name and in order.

    `spans`: start and end of each transfer by task number. A run's time is the median over the GPUs that send or
    receive most; computing doesn't count. Runs of which a transfer is missing are left out.
    """
    runs: defaultdict[int, dict[int, _Part]] = defaultdict(dict)
    broken = set[int]()
    for number, transfer in schedule.transfers:
        if number not in spans:
            broken.add(transfer.phase)
            continue
        start, end = spans[number]
        parts = runs[transfer.phase]
        source = parts.setdefault(transfer.src, _Part(transfer.src))
        destination = parts.setdefault(transfer.dst, _Part(transfer.dst))
        source.sends = min(source.sends, start)
        source.sent += transfer.bytes
        destination.received += transfer.bytes
        for part in (source, destination):
            part.began = min(part.began, start)
            part.ended = max(part.ended, end)
        parts[_group(parts, transfer.src)].peer = _group(parts, transfer.dst)
    times: defaultdict[str, list[float]] = defaultdict(list)
    for phase, parts in sorted(runs.items()):
        if phase not in broken:
            # groups start one by one, and go on so to the next phase, which no formula has: each counts for itself
            times[schedule.phases[phase].name].append(median(_durations(parts)))
    return dict(times)


def _group(parts: Mapping[int, _Part], gpu: int) -> int:
    """Return the GPU that stands for the group of this one."""
    while (peer := parts[gpu].peer) != gpu:
        parts[gpu].peer = gpu = parts[peer].peer
    return gpu


def _durations(parts: Mapping[int, _Part]) -> list[float]:
    """Return the seconds of a run at each GPU that sends or receives most: its group's, if it sends most."""
    most = BUSIEST * max(max(part.sent, part.received) for part in parts.values())
    senders: defaultdict[int, list[_Part]] = defaultdict(list)
    for gpu, part in parts.items():
        if part.sent >= most:
            senders[_group(parts, gpu)].append(part)
    durations: list[float] = []
    for gpu, part in parts.items():
        # in a group where none sends as much, as when many send to one
        if part.received >= most and _group(parts, gpu) not in senders:
            durations.append(part.ended - part.began)
    for group in senders.values():
        # no formula has the time in which some of a group wait for others: the run begins with the last of them
        ended = max(part.ended for part in group)
        last_begin = max(part.sends for part in group)
        durations += [ended - last_begin] * len(group)
    return durations
