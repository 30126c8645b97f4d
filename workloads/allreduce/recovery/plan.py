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

What = Literal["reduce", "scatter", "gather", "relay", "barrier"]


@dataclass(frozen=True, slots=True)
class Job:
    """A task as all nodes know it: `length` elements from `start`, of operation `op`; `root` of a relay."""

    op: int
    number: int
    what: What
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
    def from_json(cls, said: Mapping[str, Any]) -> "JobState":
        final = tuple((start, end) for start, end in said["final"])
        return cls(Job(**said["job"]), said["done"], final, said["itemsize"])


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
    fresh = iter(numbers)
    jobs = []
    for _, seen in sorted(by_job.items()):
        op = next(iter(seen.values())).job.op
        waiting = any(begun[rank] < op for rank in states.keys() - seen.keys())
        for job, itemsize in _again(seen, len(states), waiting):
            jobs.append(replace(job, rail=best(job.length * itemsize), number=next(fresh)))
    return jobs


def _again(seen: Mapping[int, JobState], nodes: int, waiting: bool) -> list[tuple[Job, int]]:
    """What is to be done again of one job; `rail` and `number` aren't set yet. `waiting`: some haven't begun it."""
    some = next(iter(seen.values()))
    job, itemsize = some.job, some.itemsize
    having = [rank for rank, state in seen.items() if state.done]
    if job.what == "barrier":
        return [] if having else [(job, itemsize)]
    if job.what in ("scatter", "gather"):
        return [] if len(having) == len(seen) else [(job, itemsize)]  # who doesn't know it has long left it
    end = job.start + job.length
    if having:
        lacking = merged(
            span for state in seen.values() if not state.done for span in missing(job.start, end, state.final)
        )
        if waiting:  # a broadcast's root has all of it before the others come
            lacking = merged([(job.start, end)])
        root = min(having)
        return [(replace(job, what="relay", root=root, start=a, length=b - a), itemsize) for a, b in lacking]
    if job.length == 0:
        return [(job, itemsize)]
    everywhere: list[Span] = [(job.start, end)] if len(seen) == nodes else []
    for state in seen.values():
        everywhere = common(everywhere, state.final)
    return [(replace(job, start=a, length=b - a), itemsize) for a, b in missing(job.start, end, everywhere)]
