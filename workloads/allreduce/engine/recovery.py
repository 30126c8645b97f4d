"""Recovery from dead rails: which rails are dead, what has to be done again, and how all nodes agree on it.

A node that finds a rail dead sends rank 0 `suspect`; rank 0 sends `freeze` to all; every node closes the rail and
answers with its `state`; rank 0 sends a `decision`: jobs that replace those on the rail, and the latest operation that
any node has begun, after which all plan without the rail. docs/multirail.md, "Recovery", says why results are right.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from typing import Final, Literal, NamedTuple

import numpy as np

from railyard.workloads.allreduce.balancing.policy import PlannerSet, rail_seconds
from railyard.workloads.allreduce.engine.jobs import Collective, Layout, Timeouts
from railyard.workloads.allreduce.tasks import Span, merged, missing
from railyard.workloads.allreduce.transport.links import Message

Action = Collective | Literal["barrier"]
"""What a job does. One that was lost near its end is done again as a broadcast from a node that has the result."""
IDLE = 0
BARRIER = 1
DATA = 2
_FIRST_NUMBER: Final = 1 << 16  # jobs of a plan have lower numbers
_RECENT_S: Final = 1.0
_RECENT_HEARTBEATS: Final = 5


class Job(NamedTuple):
    """Task as all nodes know it: `length` elements from `start`, of operation `op`; `root` of a broadcast."""

    op: int
    number: int
    action: Action
    rail: int
    start: int
    length: int
    root: int = 0


class JobState(NamedTuple):
    """Progress of a job on one node: the elements that are `final`."""

    job: Job
    done: bool
    final: Sequence[Span]
    itemsize: int


def replacements(
    states: Mapping[int, Iterable[JobState]],
    begun: Mapping[int, int],
    best: Callable[[int], int],
    numbers: Iterable[int],
) -> list[Job]:
    """Return the jobs that replace all those reported.

    `states` by rank, every rank once; `begun`: the latest operation of each; `best(bytes)`: the rail to take.
    """
    by_job: dict[tuple[int, int], dict[int, JobState]] = {}
    for rank, reported in states.items():
        for state in reported:
            by_job.setdefault((state.job.op, state.job.number), {})[rank] = state
    new_numbers = iter(numbers)
    jobs = []
    for (op, _), states_by_rank in sorted(by_job.items()):
        some_not_begun = any(begun[rank] < op for rank in states.keys() - states_by_rank.keys())
        for job, itemsize in _redo(states_by_rank, len(states), some_not_begun):
            jobs.append(job._replace(rail=best(job.length * itemsize), number=next(new_numbers)))
    return jobs


def _redo(states_by_rank: Mapping[int, JobState], nodes: int, some_not_begun: bool) -> list[tuple[Job, int]]:
    """Return what is to be done again of one job, with its item size; `rail` and `number` are not set yet.

    `some_not_begun`: some nodes have not begun its operation.
    """
    first_state = next(iter(states_by_rank.values()))
    job = first_state.job
    itemsize = first_state.itemsize
    whole_job = [(job, itemsize)]
    complete_ranks = [rank for rank, state in states_by_rank.items() if state.done]
    if job.action == "barrier":
        # once one node has passed it, all data was there
        return [] if complete_ranks else whole_job
    if job.action in ("reduce_scatter", "all_gather"):
        # a node that does not report the job has left its operation
        is_complete = len(complete_ranks) == len(states_by_rank)
        return [] if is_complete else whole_job
    if job.length == 0 and not complete_ranks:
        return whole_job
    # a node that does not report the job has nothing of it; a broadcast's root has all of it before the others begin
    some_have_nothing = some_not_begun if complete_ranks else len(states_by_rank) < nodes
    if some_have_nothing:
        lacking = merged([(job.start, job.start + job.length)])
    else:
        lacking = _lacking(job, states_by_rank.values())
    if complete_ranks:
        job = job._replace(action="broadcast", root=min(complete_ranks))
    return [(job._replace(start=start, length=stop - start), itemsize) for start, stop in lacking]


def _lacking(job: Job, states: Iterable[JobState]) -> list[tuple[int, int]]:
    """Return the parts of a job that any node which reports it has not received in full."""
    end = job.start + job.length
    lacking: list[Span] = []
    for state in states:
        if not state.done:
            lacking += missing(job.start, end, state.final)
    return merged(lacking)


@dataclass
class _Round:
    """State of rank 0 between a freeze and its decision."""

    epoch: int
    dead: frozenset[int]
    restored: frozenset[int]
    answers: dict[int, Message] = field(default_factory=dict)


class Coordinator:
    """Rank 0's part of the protocol. Its own node's events come as messages too, so there is one path for all.

    `planners.current` chooses the rail that takes work over.
    """

    def __init__(self, layout: Layout, planners: PlannerSet, send_to_all: Callable[[Message], None]) -> None:
        self._nodes = layout.size
        self._rails = [rail.name for rail in layout.rails]
        self._planners = planners
        self._send_to_all = send_to_all
        self.alive = set(range(len(self._rails)))
        self._incarnations = dict.fromkeys(self.alive, 0)
        self._reasons: dict[int, str] = {}
        self._ready: dict[int, set[int]] = {}
        self._round: _Round | None = None
        self._epochs, self._numbers = count(1), count(_FIRST_NUMBER)
        self._times: dict[int, list[Message]] = {}
        self._aborted = False

    def received(self, message: Message) -> None:
        """Handle a message by its type. What is of an earlier round or incarnation is ignored."""
        match message["type"]:
            case "suspect":
                self._suspect(message["rail"], message["incarnation"], message["why"], message["certain"])
            case "state":
                self._on_state(message)
            case "ready":
                self._on_ready(message)
            case "times":
                self._on_times(message)
            case "give up":
                self.abort(message["why"])
        restored = {rail for rail, ranks in self._ready.items() if len(ranks) == self._nodes}
        if restored and self._round is None and not self._aborted:
            self._freeze(frozenset(), frozenset(restored))

    def _on_state(self, message: Message) -> None:
        """Keep a node's answer in this round, and decide once all nodes have answered."""
        if self._round is None or message["epoch"] != self._round.epoch:
            return
        self._round.answers[message["rank"]] = message
        if len(self._round.answers) == self._nodes:
            self._decide(self._round)

    def _on_ready(self, message: Message) -> None:
        """Note that a node has all its connections on a rail that was dead."""
        rail = message["rail"]
        if rail not in self.alive and message["incarnation"] == self._incarnations[rail]:
            self._ready.setdefault(rail, set()).add(message["rank"])

    def _on_times(self, message: Message) -> None:
        """Collect the times of a window, and send a table of medians once all nodes have sent theirs."""
        op = message["op"]
        window = self._times.setdefault(op, [])
        window.append(message)
        if len(window) < self._nodes:
            return
        del self._times[op]
        starts = [times["starts"] for times in window]
        ends = [times["ends"] for times in window]
        seconds = rail_seconds(starts, ends)
        # Nezha 3.5 and 4.2 take means, of which a moment without CPU would be the most
        medians = np.median(seconds, axis=0).tolist()
        self._send_to_all({"type": "table", "op": op, "size": message["size"], "seconds": medians})

    def abort(self, why: str) -> None:
        """End the group on all nodes."""
        if not self._aborted:
            self._aborted = True
            self._send_to_all({"type": "abort", "why": why})

    def _suspect(self, rail: int, incarnation: int, why: str, certain: bool) -> None:
        """Handle that a node has declared a rail dead, in that incarnation."""
        if self._aborted or rail not in self.alive or incarnation != self._incarnations[rail]:
            return
        dead = frozenset[int]()
        restored = frozenset[int]()
        if self._round:
            dead = self._round.dead
            restored = self._round.restored
        is_last = self.alive <= dead | {rail}
        # the last rail may recover, and without it the group ends
        if is_last and not certain:
            return
        self._reasons[rail] = why
        if is_last:
            reasons = "; ".join(f"{self._rails[rail]}: {why}" for rail, why in sorted(self._reasons.items()))
            self.abort(f"no rail is left: {reasons}")
        elif rail not in dead:
            self._freeze(dead | {rail}, restored)

    def _freeze(self, dead: frozenset[int], restored: frozenset[int]) -> None:
        """Begin a round, or begin it again with one more dead rail."""
        newly_dead = dead
        if self._round:
            newly_dead = dead - self._round.dead
        for rail in newly_dead:
            self._incarnations[rail] += 1
            self._ready.pop(rail, None)
        self._round = _Round(next(self._epochs), dead, restored)
        incarnations = [[rail, self._incarnations[rail]] for rail in sorted(dead)]
        self._send_to_all({"type": "freeze", "epoch": self._round.epoch, "dead": incarnations})

    def _decide(self, current_round: _Round) -> None:
        dead = current_round.dead
        restored = current_round.restored
        answers = current_round.answers
        self.alive = (self.alive - dead) | restored
        for rail in restored:
            self._ready.pop(rail)
        begun = {rank: answer["op"] for rank, answer in answers.items()}
        states: dict[int, list[JobState]] = {}
        for rank, answer in answers.items():
            states[rank] = [JobState(Job(*job), *progress) for job, *progress in answer["jobs"]]
        # a restored rail is in no plan up to `latest`
        usable = self.alive - restored
        best = self._planners.current.planner.best
        jobs = replacements(states, begun, lambda size: best(size, usable), self._numbers)
        self._round = None
        decision = {"type": "decision", "epoch": current_round.epoch, "latest": max(begun.values()), "jobs": jobs}
        self._send_to_all({**decision, "dead": sorted(dead), "restored": sorted(restored)})


class Heartbeat(NamedTuple):
    """State of a node: the operation that it is in; by rail, bytes `moved` and `busy`: IDLE, DATA or only BARRIER."""

    number: int
    op: int
    call: str
    moved: Sequence[int]
    busy: Sequence[int]


@dataclass
class LivenessMonitor:
    """Dead rails, from the nodes' heartbeats. Pure: the clock is an argument.

    Every node sends a numbered heartbeat over all its live rails at once: a rail without those that came on another is
    `silent`. A rail is `stalled` if all nodes are in the same operation or past it, some have work on the rail, and
    it has moved nothing on any node for a while.
    """

    rails: int
    timeouts: Timeouts
    _number: dict[tuple[int, int], int] = field(default_factory=dict)  # (peer, rail): latest heartbeat on it
    _heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    _received_at: dict[int, float] = field(default_factory=dict)
    _moved: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)  # (heartbeat, time) of the last move

    def received(self, peer: int, rail: int, heartbeat: Heartbeat, now: float) -> None:
        """Take a heartbeat that came on a rail. (A node's own is taken too, with any rail.)"""
        self._number[peer, rail] = max(heartbeat.number, self._number.get((peer, rail), 0))
        last = self._heartbeats.get(peer)
        if last is not None and last.number >= heartbeat.number:
            return
        for each in range(self.rails):
            if last is None or last.moved[each] != heartbeat.moved[each] or last.op != heartbeat.op:
                self._moved[peer, each] = heartbeat.number, now
        self._heartbeats[peer], self._received_at[peer] = heartbeat, now

    def restored(self, rail: int, now: float) -> None:
        """Forget what was missing on a rail: it is new, or new again."""
        for peer, heartbeat in self._heartbeats.items():
            self._number[peer, rail] = heartbeat.number
            self._moved[peer, rail] = heartbeat.number, now

    def absent(self, peers: Iterable[int], op: int, now: float) -> list[int]:
        """Return the peers that are not in operation `op`, by what they sent lately."""
        recent_s = max(_RECENT_S, _RECENT_HEARTBEATS * self.timeouts.heartbeat_s)
        absent = []
        for peer in peers:
            heartbeat = self._heartbeats.get(peer)
            if heartbeat is None or heartbeat.op < op or now - self._received_at[peer] > recent_s:
                absent.append(peer)
        return absent

    def silent(self, peers: Iterable[int], alive: Iterable[int]) -> dict[int, str]:
        """Return the rails on which a peer's heartbeats are missing, each with the reason."""
        live = sorted(alive)
        reasons = {}
        for peer in peers:
            numbers = {rail: self._number.get((peer, rail), 0) for rail in live}
            latest = max(numbers.values(), default=0)
            for rail, number in numbers.items():
                if latest - number >= self.timeouts.missed_heartbeats:
                    reasons[rail] = f"no heartbeats from rank {peer}"
        return reasons

    def stalled(self, ranks: Sequence[int], alive: Collection[int], now: float) -> dict[int, str]:
        """Return the rails that have work and move nothing on all nodes, each with the reason."""
        heartbeats = {rank: self._heartbeats[rank] for rank in ranks if rank in self._heartbeats}
        if len(heartbeats) < len(ranks):
            return {}
        idle = self._idle_ports(heartbeats, alive, now)
        reasons = {}
        for rail in alive:
            working = [heartbeat for heartbeat in heartbeats.values() if heartbeat.busy[rail]]
            first_op = min((heartbeat.op for heartbeat in working), default=math.inf)
            # a barrier on this rail waits for data of all rails: then none of them may have moved anything
            only_barriers = all(heartbeat.busy[rail] == BARRIER for heartbeat in working)
            required_rails = alive if only_barriers else (rail,)
            is_idle = idle.issuperset(product(heartbeats, required_rails))
            if is_idle and all(heartbeat.op >= first_op for heartbeat in heartbeats.values()):
                reasons[rail] = f"nothing moved for {self.timeouts.stall_s * 1000:.0f} ms"
        return reasons

    def _idle_ports(
        self, heartbeats: Mapping[int, Heartbeat], alive: Collection[int], now: float
    ) -> set[tuple[int, int]]:
        """Return each (rank, rail) on which nothing has moved for as long as a stall takes."""
        idle = set()
        for rank, heartbeat in heartbeats.items():
            for rail in alive:
                number, moved_at = self._moved[rank, rail]
                still_s = now - moved_at
                if heartbeat.busy[rail]:
                    # by a busy node's own heartbeats: it sends none while it can't run
                    still_s = (heartbeat.number - number) * self.timeouts.heartbeat_s
                if still_s >= self.timeouts.stall_s:
                    idle.add((rank, rail))
        return idle

    def mismatch(self) -> str | None:
        """Return the ranks that were called for unlike things in the same operation, None if there are none."""
        calls: dict[int, dict[str, list[int]]] = {}
        for rank, heartbeat in sorted(self._heartbeats.items()):
            if heartbeat.call:
                calls.setdefault(heartbeat.op, {}).setdefault(heartbeat.call, []).append(rank)
        for op, by_call in sorted(calls.items()):
            if len(by_call) > 1:
                parts = [f"rank {', '.join(map(str, ranks))}: {call}" for call, ranks in by_call.items()]
                return f"operation {op} isn't the same on all ranks: {'; '.join(parts)}"
        return None
