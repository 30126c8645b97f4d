"""Which rails are dead, from what the nodes say of themselves: pure, the clock is an argument.

Every node sends a numbered beat over all its live rails at once; a tenth as often while operations end before one is
due, since that they end says as much, and beats would cost them. A node that the machine doesn't run beats on no rail
at all, which says nothing against any; a rail on which beats are missing that came on another is dead. That needs two
rails: one alone dies by an error, or by the operation's timeout.

A beat tells how many bytes each rail has moved and whether it has work. When all nodes are in the same operation or
past it, some have work on a rail, and it has moved nothing on any node for a while, it is dead as well. (With nothing
but a barrier to do a rail may be waiting for the others: then none of them may have moved.)
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

IDLE: Final = 0
BARRIER: Final = 1
DATA: Final = 2
_RECENT_S: Final = 1.0
_RECENT_HEARTBEATS: Final = 5
_IDLE_HEARTBEAT_FACTOR: Final = 10


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, and beats that may be missing. `missed_heartbeats` * `heartbeat_s` is what finding a cut NIC takes in
    an operation that lasts; ten times that, if operations are short and leave its rail idle."""

    heartbeat_s: float = 0.01
    missed_heartbeats: int = 3
    stall_s: float = 0.25
    join_s: float = 20.0
    operation_s: float = 60.0

    def next_heartbeat(self, begins: float, scheduled: float, latest: float) -> float:
        """When to beat next, as an operation begins: `scheduled` is when it would have been, `latest` the last beat."""
        return min(max(scheduled, begins + self.heartbeat_s), latest + _IDLE_HEARTBEAT_FACTOR * self.heartbeat_s)

    def dilated(self, factor: float) -> "Timeouts":
        """Where time passes so many times slower: rails too carry so many times fewer beats."""
        return replace(
            self,
            heartbeat_s=self.heartbeat_s * factor,
            stall_s=self.stall_s * factor,
            operation_s=self.operation_s * factor,
        )


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
