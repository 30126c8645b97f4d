"""What has to be done again when a rail dies, so that every node ends with the right result and none adds twice.

The protocol. Rank 0 coordinates; control messages go over every live rail, numbered, so they survive any one of them.

1. Somebody finds rail r dead (an error on a socket, beats missing on r alone, or no progress on r while all are in the
   operation: watch.py) and tells rank 0.
2. Rank 0 sends FREEZE(epoch, r). A node closes all that it has on r, so nothing more happens there, answers with
   STATE(epoch): its operation's number and, for each job it has on r, which elements are final, and begins no new
   operation. Its other rails go on.
3. With all answers rank 0 sends DECISION(epoch): jobs that replace those on r, on the best rail left, and m, the latest
   operation anybody has begun. Operations up to m were planned with r: who begins one of them later leaves out its jobs
   on r and takes the replacements. From m + 1 on all plan without r.

A second death before the decision begins again at 2, with a new epoch and both rails. A rail that is back goes the same
way: all its connections stand, FREEZE, STATE, DECISION, and from m + 1 on all plan with it.

Why the replacements are right. An operation's input is never written before the operation has ended here, and its
result is kept until the operation after the next begins. An allreduce can't end anywhere before every node has begun
it, so nodes are at most one operation apart, and whoever is in m has both m and m - 1 in memory. For one job on r:

- Some node has all of it. It may have left the operation, with its input gone; but what it has is the result. What
  others lack is sent to them from its result: nothing is added up again.
- No node has all of it. Then none has left the operation, and all inputs are as they were. What isn't final on every
  node is added up again, from the inputs; partial sums are thrown away with the job. A node that already had an element
  gets it again, the same for all.

Collectives in which a node could end before all have begun, or whose result differs by node (AllGather, ReduceScatter,
Broadcast), end with a barrier, so inputs stand until all are through, and a job on r is done again as a whole. A
barrier that somebody passed is no longer needed: all others' data was there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from railyard.workloads.allreduce.engine.segments import Span, common, merged, missing

Action = Literal["reduce", "scatter", "gather", "relay", "barrier"]


@dataclass(frozen=True, slots=True)
class Job:
    """A task as all nodes know it: `length` elements from `start`, of operation `op`; `root` of a relay."""

    op: int
    number: int
    action: Action
    rail: int
    start: int
    length: int
    root: int = 0


@dataclass(frozen=True, slots=True)
class JobState:
    """How far one node is."""

    job: Job
    done: bool
    final: tuple[Span, ...]
    itemsize: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "JobState":
        final = tuple((start, end) for start, end in data["final"])
        return cls(Job(**data["job"]), data["done"], final, data["itemsize"])


def replacements(
    states: Mapping[int, Iterable[JobState]],
    begun: Mapping[int, int],
    best: Callable[[int], int],
    numbers: Iterable[int],
) -> list[Job]:
    """The jobs that replace all those reported. `states` by rank, every rank once; `begun`: the latest operation of
    each; `best(bytes)`: the rail to take."""
    by_job: dict[tuple[int, int], dict[int, JobState]] = {}
    for rank, reported in states.items():
        for state in reported:
            by_job.setdefault((state.job.op, state.job.number), {})[rank] = state
    new_numbers = iter(numbers)
    jobs = []
    for _, states_by_rank in sorted(by_job.items()):
        op = next(iter(states_by_rank.values())).job.op
        some_not_begun = any(begun[rank] < op for rank in states.keys() - states_by_rank.keys())
        for job, itemsize in _redo(states_by_rank, len(states), some_not_begun):
            jobs.append(replace(job, rail=best(job.length * itemsize), number=next(new_numbers)))
    return jobs


def _redo(states_by_rank: Mapping[int, JobState], nodes: int, some_not_begun: bool) -> list[tuple[Job, int]]:
    """What is to be done again of one job; `rail` and `number` aren't set yet. `some_not_begun`: some haven't begun
    it."""
    first_state = next(iter(states_by_rank.values()))
    job, itemsize = first_state.job, first_state.itemsize
    complete_ranks = [rank for rank, state in states_by_rank.items() if state.done]
    if job.action == "barrier":
        return [] if complete_ranks else [(job, itemsize)]
    if job.action in ("scatter", "gather"):
        return (
            [] if len(complete_ranks) == len(states_by_rank) else [(job, itemsize)]
        )  # who doesn't know it has long left it
    end = job.start + job.length
    if complete_ranks:
        missing_spans = merged(
            span for state in states_by_rank.values() if not state.done for span in missing(job.start, end, state.final)
        )
        if some_not_begun:  # a broadcast's root has all of it before the others come
            missing_spans = merged([(job.start, end)])
        root = min(complete_ranks)
        return [(replace(job, action="relay", root=root, start=a, length=b - a), itemsize) for a, b in missing_spans]
    if job.length == 0:
        return [(job, itemsize)]
    final_everywhere: list[Span] = [(job.start, end)] if len(states_by_rank) == nodes else []
    for state in states_by_rank.values():
        final_everywhere = common(final_everywhere, state.final)
    return [(replace(job, start=a, length=b - a), itemsize) for a, b in missing(job.start, end, final_everywhere)]
