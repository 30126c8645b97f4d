"""Transfers of a schedule that wait for ever, since the fabric's policy leaves their GPUs without a path.

On isolated rails a communicator whose members send between rails never ends: NCCL waits, and names nothing. Source:
NVIDIA/nccl 2345 (rings that cross rails hang), 836 (communicators of GPUs on rails that differ).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from railyard.topologies.addresses import Gpu
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import ways, without_path
from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Transfer

REMEDY: Final = (
    "remedy: policy dr, which forwards over HB domains as NCCL's PXN does (NCCL_PXN_DISABLE=0), or a rank order in "
    "which neighbours share a rail"
)
PLAIN: Final = "collective"
"""Kind of traffic that says nothing of what it is for."""
MAX_MEMBERS: Final = 8  # that a line names
MAX_LINES: Final = 5
Pairs = frozenset[tuple[int, int]]
"""(source, destination) by GPU number."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A communicator that waits for ever in an operation, by GPU number.

    `communicator`: its own name, else the kind of its traffic, such as DP; "" for a plain collective. `operation`: the
    name of the phase.
    `members`: its GPUs, in the order in which they first send. `pairs`: those of its transfers that have no path.
    """

    communicator: str
    operation: str
    members: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


@lru_cache(maxsize=16)  # repeats have the same schedule
def unreachable_pairs(schedule: Schedule, fabric: FabricSpec) -> Pairs:
    """Return the pairs that a schedule sends between, and that have no path by the fabric's policy."""
    if fabric.forwards_in_domains:
        return frozenset()
    ends = np.array(list(schedule.matrix), dtype=np.int64).reshape(-1, 2)
    missing = without_path(ways(ends[:, 0], ends[:, 1], schedule.rails, fabric))
    return frozenset((src, dst) for src, dst in ends[missing].tolist())


@lru_cache(maxsize=16)
def waiting_transfers(schedule: Schedule, fabric: FabricSpec) -> frozenset[int]:
    """Return the numbers of the transfers that never arrive: without a path, or after a task that never ends."""
    unreachable = unreachable_pairs(schedule, fabric)
    if not unreachable:
        return frozenset()
    never_ends = [False] * len(schedule.tasks)
    waiting: set[int] = set()
    for number, task in enumerate(schedule.tasks):
        is_transfer = isinstance(task, Transfer)
        has_no_path = isinstance(task, Transfer) and (task.src, task.dst) in unreachable
        never_ends[number] = has_no_path or any(never_ends[before] for before in task.after)
        if is_transfer and never_ends[number]:
            waiting.add(number)
    return frozenset(waiting)


def without_transfers(schedule: Schedule, numbers: frozenset[int]) -> Schedule:
    """Return a schedule whose transfers of these numbers are left out, for counting bytes: its tasks wait for nothing.

    The schedule itself if there are none to leave out.
    """
    if not numbers:
        return schedule
    tasks = [replace(transfer, after=()) for number, transfer in schedule.transfers if number not in numbers]
    return replace(schedule, tasks=tuple(tasks))


def waits(schedule: Schedule, fabric: FabricSpec) -> tuple[Wait, ...]:
    """Return the communicators that wait for ever at transfers without a path, each once for an operation."""
    unreachable = unreachable_pairs(schedule, fabric)
    if not unreachable:
        return ()
    columns = schedule.columns
    sent = np.flatnonzero(~columns.is_compute)
    sent = sent[np.argsort(columns.phase[sent], kind="stable")]
    phases, first = np.unique(columns.phase[sent], return_index=True)
    result: dict[Wait, None] = {}
    for number, run in zip(phases.tolist(), np.split(sent, first[1:]), strict=True):
        ends = list(zip(columns.src[run].tolist(), columns.dst[run].tolist(), strict=True))
        pairs = dict.fromkeys(pair for pair in ends if pair in unreachable)
        if pairs:
            members = _members(columns.src[run], columns.dst[run])
            phase = schedule.phases[number]
            result[Wait(_communicator(phase), phase.name, members, tuple(pairs))] = None
    return tuple(result)


def _members(src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return the GPUs of a phase in the order in which they first send; those that only receive are last."""
    return tuple(dict.fromkeys([*src.tolist(), *dst.tolist()]))


def _communicator(phase: Phase) -> str:
    if phase.communicator:
        return phase.communicator
    return "" if phase.kind == PLAIN else phase.kind


def waiting_phases(schedule: Schedule, fabric: FabricSpec) -> dict[str, str]:
    """Return why phases never end, by name: `waits for ever: d0g1 -> d1g0 has no path`."""
    reasons: dict[str, str] = {}
    for wait in waits(schedule, fabric):
        reasons.setdefault(wait.operation, f"waits for ever: {pair_name(wait.pairs[0], schedule.rails)} has no path")
    return reasons


def pair_name(pair: Sequence[int], rails: int) -> str:
    """Return `d0g1 -> d1g0`."""
    src, dst = (Gpu(*divmod(number, rails)).name for number in pair)
    return f"{src} -> {dst}"


def member_names(members: Iterable[int], rails: int) -> str:
    """Return `rank 0 on d0g0, 1 on d0g1 and 14 more`."""
    numbers = list(members)
    names = [f"{number} on {Gpu(*divmod(number, rails)).name}" for number in numbers[:MAX_MEMBERS]]
    more = f" and {len(numbers) - MAX_MEMBERS:,} more" if len(numbers) > MAX_MEMBERS else ""
    return f"ranks {', '.join(names)}{more}"


def wait_line(wait: Wait, rails: int, policy: str) -> str:
    """Return a line that names a communicator, its ranks, its operation, and the first pair without a path."""
    communicator = f"{wait.communicator} communicator".strip()
    where = f"{communicator} ({member_names(wait.members, rails)}) waits for ever in {wait.operation}"
    return f"{where}: {pair_name(wait.pairs[0], rails)} has no path by policy {policy}"


def wait_lines(schedule: Schedule, fabric: FabricSpec) -> list[str]:
    """Return a line for each of the first communicators that wait for ever, how many more there are, and the remedy."""
    all_waits = waits(schedule, fabric)
    lines = [wait_line(wait, schedule.rails, fabric.chosen_policy) for wait in all_waits[:MAX_LINES]]
    if len(all_waits) > MAX_LINES:
        lines.append(f"… {len(all_waits) - MAX_LINES:,} more communicators wait for ever")
    if lines:
        lines.append(REMEDY)
    return lines
