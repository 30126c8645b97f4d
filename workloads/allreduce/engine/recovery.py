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

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any, Final, Literal

from railyard.workloads.allreduce.balancing.policy import Window, median_rail_seconds
from railyard.workloads.allreduce.engine.jobs import Timeouts
from railyard.workloads.allreduce.engine.tasks import Span, common, merged, missing
from railyard.workloads.allreduce.transport.links import Message

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


_FIRST_NUMBER = 1 << 16  # jobs of a plan have lower ones


@dataclass
class _Round:
    """Between FREEZE and DECISION."""

    epoch: int
    dead: dict[int, str] = field(default_factory=dict)
    restored: set[int] = field(default_factory=set)
    answers: dict[int, Message] = field(default_factory=dict)


class Coordinator:
    """`best(bytes, rails)`: the rail among those that is to take work over."""

    def __init__(
        self,
        nodes: int,
        rails: Sequence[str],
        send_to_all: Callable[[Message], None],
        best: Callable[[int, Collection[int]], int],
    ) -> None:
        self._nodes, self._rails = nodes, list(rails)
        self._send_to_all, self._best = send_to_all, best
        self.alive = set(range(len(rails)))
        self._incarnations = dict.fromkeys(self.alive, 0)
        self._reasons: dict[int, str] = {}
        self._ready: dict[int, set[int]] = {}
        self._round: _Round | None = None
        self._epochs = count(1)
        self._numbers = count(_FIRST_NUMBER)
        self._times: dict[int, list[Message]] = {}
        self._aborted = False

    def received(self, message: Message) -> None:
        """A message to rank 0, by what it is."""
        match message["type"]:
            case "suspect":
                self.suspect(message["rail"], message["incarnation"], message["why"], message["certain"])
            case "state":
                self.on_state(message["rank"], message)
            case "ready":
                self.ready(message["rank"], message["rail"], message["incarnation"])
            case "times":
                self.on_times(message)
            case "give up":
                self.abort(message["why"])

    def suspect(self, rail: int, incarnation: int, why: str, certain: bool) -> None:
        """Somebody found a rail dead, in that life of it. The last rail stays unless that's `certain`: it may
        recover."""
        if self._aborted or rail not in self.alive or incarnation != self._incarnations[rail]:
            return
        last = self.alive <= {rail} | (set(self._round.dead) if self._round else set())
        if last and not certain:
            return
        self._reasons[rail] = why
        if last:
            self.abort(
                "no rail is left: " + "; ".join(f"{self._rails[r]}: {w}" for r, w in sorted(self._reasons.items()))
            )
        elif self._round is None:
            self._freeze({rail: why}, set())
        elif rail not in self._round.dead:
            self._freeze({**self._round.dead, rail: why}, self._round.restored)

    def ready(self, rank: int, rail: int, incarnation: int) -> None:
        """A node has all its connections on a rail that was dead."""
        if rail in self.alive or incarnation != self._incarnations[rail]:
            return
        self._ready.setdefault(rail, set()).add(rank)
        self._restore_ready_rails()

    def on_state(self, rank: int, message: Message) -> None:
        """A node's STATE."""
        if self._round is None or message["epoch"] != self._round.epoch:
            return
        self._round.answers[rank] = message
        if len(self._round.answers) == self._nodes:
            self._decide(self._round)
            self._restore_ready_rails()

    def on_times(self, message: Message) -> None:
        """What a node saw of a window."""
        table = self._times.setdefault(message["op"], [])
        table.append(message)
        if len(table) == self._nodes:
            seconds = median_rail_seconds([Window(each["size"], each["starts"], each["ends"]) for each in table])
            del self._times[message["op"]]
            self._send_to_all({"type": "table", "op": message["op"], "size": message["size"], "seconds": seconds})

    def abort(self, why: str) -> None:
        """End it, for everybody."""
        if not self._aborted:
            self._aborted = True
            self._send_to_all({"type": "abort", "why": why})

    def _restore_ready_rails(self) -> None:
        restored = {rail for rail, ranks in self._ready.items() if len(ranks) == self._nodes}
        if restored and self._round is None and not self._aborted:
            self._freeze({}, restored)

    def _freeze(self, dead: Mapping[int, str], restored: set[int]) -> None:
        earlier = self._round.dead if self._round else {}
        for rail in dead.keys() - earlier.keys():
            self._incarnations[rail] += 1
            self._ready.pop(rail, None)
        self._round = _Round(next(self._epochs), dict(dead), set(restored))
        self._send_to_all(
            {
                "type": "freeze",
                "epoch": self._round.epoch,
                "dead": [[rail, self._incarnations[rail]] for rail in sorted(dead)],
            }
        )

    def _decide(self, current_round: _Round) -> None:
        self.alive = (self.alive - current_round.dead.keys()) | current_round.restored
        for rail in current_round.restored:
            self._ready.pop(rail)
        latest_op_by_rank = {rank: message["op"] for rank, message in current_round.answers.items()}
        latest = max(latest_op_by_rank.values())
        states = {
            rank: [JobState.from_json(job) for job in message["jobs"]]
            for rank, message in current_round.answers.items()
        }
        # a rail that has only just been raised isn't in any plan up to `latest`; work moves to one that is
        usable = self.alive - current_round.restored
        jobs = replacements(states, latest_op_by_rank, lambda size: self._best(size, usable), self._numbers)
        self._round = None
        self._send_to_all(
            {
                "type": "decision",
                "epoch": current_round.epoch,
                "latest": latest,
                "dead": sorted(current_round.dead),
                "restored": sorted(current_round.restored),
                "jobs": [asdict(job) for job in jobs],
            }
        )


IDLE: Final = 0
BARRIER: Final = 1
DATA: Final = 2
_RECENT_S: Final = 1.0
_RECENT_HEARTBEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`op`: the operation that the node is in; by rail `moved` bytes, and `busy`: IDLE, DATA, or a BARRIER alone."""

    number: int
    op: int
    call: str
    moved: tuple[int, ...]
    busy: tuple[int, ...]


@dataclass
class LivenessMonitor:
    """`rails`, and what was heard of each peer."""

    rails: int
    timeouts: Timeouts
    _number: dict[tuple[int, int], int] = field(default_factory=dict)  # (peer, rail): last beat heard on it
    _heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    _received_at: dict[int, float] = field(default_factory=dict)
    _moved: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)  # (beat, time) of the last move

    def received(self, peer: int, rail: int, heartbeat: Heartbeat, now: float) -> None:
        """A beat came on a rail. (The peer itself is told as well, with any rail.)"""
        self._number[peer, rail] = max(heartbeat.number, self._number.get((peer, rail), 0))
        last = self._heartbeats.get(peer)
        if last is not None and last.number >= heartbeat.number:
            return
        for each in range(self.rails):
            if last is None or last.moved[each] != heartbeat.moved[each] or last.op != heartbeat.op:
                self._moved[peer, each] = heartbeat.number, now
        self._heartbeats[peer], self._received_at[peer] = heartbeat, now

    def restored(self, rail: int, now: float) -> None:
        """A rail is new, or new again: nothing can be missing on it yet."""
        for peer, heartbeat in self._heartbeats.items():
            self._number[peer, rail] = heartbeat.number
            self._moved[peer, rail] = heartbeat.number, now

    def absent(self, peers: Iterable[int], op: int, now: float) -> list[int]:
        """Who isn't in operation `op`, as far as was heard lately: where beats are seldom, lately is longer."""
        recent_s = max(_RECENT_S, _RECENT_HEARTBEATS * self.timeouts.heartbeat_s)
        return [
            peer
            for peer in peers
            if (heartbeat := self._heartbeats.get(peer)) is None
            or heartbeat.op < op
            or now - self._received_at[peer] > recent_s
        ]

    def silent(self, peers: Iterable[int], alive: Iterable[int]) -> dict[int, str]:
        """Rails on which a peer's beats are missing, and why we say so."""
        live = sorted(alive)
        found = {}
        for peer in peers:
            numbers = {rail: self._number.get((peer, rail), 0) for rail in live}
            for rail, number in numbers.items():
                if max(numbers.values()) - number >= self.timeouts.missed_heartbeats:
                    found[rail] = f"rank {peer} isn't heard"
        return found

    def stalled(self, ranks: Sequence[int], alive: Collection[int], now: float) -> dict[int, str]:
        """Rails that have work and move nothing, on all nodes."""
        heartbeats = {rank: heartbeat for rank in ranks if (heartbeat := self._heartbeats.get(rank)) is not None}
        if len(heartbeats) < len(ranks):
            return {}
        stalled_rails = {
            (rank, rail)
            for rank, heartbeat in heartbeats.items()
            for rail in alive
            if self._has_stalled(heartbeat, self._moved[rank, rail], bool(heartbeat.busy[rail]), now)
        }
        found = {}
        for rail in alive:
            working = [heartbeat for heartbeat in heartbeats.values() if heartbeat.busy[rail]]
            first = min((heartbeat.op for heartbeat in working), default=math.inf)
            only_barriers = all(heartbeat.busy[rail] == BARRIER for heartbeat in working)
            checked_rails = alive if only_barriers else (rail,)
            if all(heartbeat.op >= first for heartbeat in heartbeats.values()) and all(
                (rank, each) in stalled_rails for rank in heartbeats for each in checked_rails
            ):
                found[rail] = f"nothing moved for {self.timeouts.stall_s * 1000:.0f} ms"
        return found

    def _has_stalled(self, heartbeat: Heartbeat, moved: tuple[int, float], busy: bool, now: float) -> bool:
        """Nothing moved for long enough. A node at work counts by beats: none come while it can't run."""
        if busy:
            return (heartbeat.number - moved[0]) * self.timeouts.heartbeat_s >= self.timeouts.stall_s
        return now - moved[1] >= self.timeouts.stall_s

    def mismatch(self) -> str | None:
        """Nodes that were called for unlike things in the same operation."""
        calls: dict[int, dict[str, list[int]]] = {}
        for rank, heartbeat in sorted(self._heartbeats.items()):
            if heartbeat.call:
                calls.setdefault(heartbeat.op, {}).setdefault(heartbeat.call, []).append(rank)
        for op, by_call in sorted(calls.items()):
            if len(by_call) > 1:
                description = "; ".join(f"rank {', '.join(map(str, ranks))}: {call}" for call, ranks in by_call.items())
                return f"operation {op} isn't the same on all ranks: {description}"
        return None
