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
_LATELY_S: Final = 1.0
_LATELY_BEATS: Final = 5
_SELDOM: Final = 10


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, and beats that may be missing. `silent_beats` * `beat_s` is what finding a cut NIC takes in an operation
    that lasts; ten times that, if operations are short and leave its rail idle."""

    beat_s: float = 0.01
    silent_beats: int = 3
    stall_s: float = 0.25
    join_s: float = 20.0
    operation_s: float = 60.0

    def next_beat(self, begins: float, due: float, latest: float) -> float:
        """When to beat next, as an operation begins: `due` is when it would have been, `latest` the last beat."""
        return min(max(due, begins + self.beat_s), latest + _SELDOM * self.beat_s)

    def dilated(self, times: float) -> "Patience":
        """Where time passes so many times slower: rails too carry so many times fewer beats."""
        return replace(
            self, beat_s=self.beat_s * times, stall_s=self.stall_s * times, operation_s=self.operation_s * times
        )


@dataclass(frozen=True, slots=True)
class Beat:
    """`op`: the operation that the node is in; by rail `moved` bytes, and `busy`: IDLE, DATA, or a BARRIER alone."""

    number: int
    op: int
    call: str
    moved: tuple[int, ...]
    busy: tuple[int, ...]


@dataclass
class Watch:
    """`rails`, and what was heard of each peer."""

    rails: int
    patience: Patience
    _number: dict[tuple[int, int], int] = field(default_factory=dict)  # (peer, rail): last beat heard on it
    _beats: dict[int, Beat] = field(default_factory=dict)
    _heard_at: dict[int, float] = field(default_factory=dict)
    _moved: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)  # (beat, time) of the last move

    def heard(self, peer: int, rail: int, beat: Beat, now: float) -> None:
        """A beat came on a rail. (The peer itself is told as well, with any rail.)"""
        self._number[peer, rail] = max(beat.number, self._number.get((peer, rail), 0))
        last = self._beats.get(peer)
        if last is not None and last.number >= beat.number:
            return
        for each in range(self.rails):
            if last is None or last.moved[each] != beat.moved[each] or last.op != beat.op:
                self._moved[peer, each] = beat.number, now
        self._beats[peer], self._heard_at[peer] = beat, now

    def raised(self, rail: int, now: float) -> None:
        """A rail is new, or new again: nothing can be missing on it yet."""
        for peer, beat in self._beats.items():
            self._number[peer, rail] = beat.number
            self._moved[peer, rail] = beat.number, now

    def absent(self, peers: Iterable[int], op: int, now: float) -> list[int]:
        """Who isn't in operation `op`, as far as was heard lately: where beats are seldom, lately is longer."""
        lately = max(_LATELY_S, _LATELY_BEATS * self.patience.beat_s)
        return [
            peer
            for peer in peers
            if (beat := self._beats.get(peer)) is None or beat.op < op or now - self._heard_at[peer] > lately
        ]

    def silent(self, peers: Iterable[int], alive: Iterable[int]) -> dict[int, str]:
        """Rails on which a peer's beats are missing, and why we say so."""
        live = sorted(alive)
        found = {}
        for peer in peers:
            numbers = {rail: self._number.get((peer, rail), 0) for rail in live}
            for rail, number in numbers.items():
                if max(numbers.values()) - number >= self.patience.silent_beats:
                    found[rail] = f"rank {peer} isn't heard"
        return found

    def stalled(self, ranks: Sequence[int], alive: Collection[int], now: float) -> dict[int, str]:
        """Rails that have work and move nothing, on all nodes."""
        beats = {rank: beat for rank in ranks if (beat := self._beats.get(rank)) is not None}
        if len(beats) < len(ranks):
            return {}
        still = {
            (rank, rail)
            for rank, beat in beats.items()
            for rail in alive
            if self._still(beat, self._moved[rank, rail], bool(beat.busy[rail]), now)
        }
        found = {}
        for rail in alive:
            working = [beat for beat in beats.values() if beat.busy[rail]]
            first = min((beat.op for beat in working), default=math.inf)
            waits_for_others = all(beat.busy[rail] == BARRIER for beat in working)
            looked_at = alive if waits_for_others else (rail,)
            if all(beat.op >= first for beat in beats.values()) and all(
                (rank, each) in still for rank in beats for each in looked_at
            ):
                found[rail] = f"nothing moved for {self.patience.stall_s * 1000:.0f} ms"
        return found

    def _still(self, beat: Beat, moved: tuple[int, float], busy: bool, now: float) -> bool:
        """Nothing moved for long enough. A node at work counts by beats: none come while it can't run."""
        if busy:
            return (beat.number - moved[0]) * self.patience.beat_s >= self.patience.stall_s
        return now - moved[1] >= self.patience.stall_s

    def mismatch(self) -> str | None:
        """Nodes that were called for unlike things in the same operation."""
        calls: dict[int, dict[str, list[int]]] = {}
        for rank, beat in sorted(self._beats.items()):
            if beat.call:
                calls.setdefault(beat.op, {}).setdefault(beat.call, []).append(rank)
        for op, by_call in sorted(calls.items()):
            if len(by_call) > 1:
                said = "; ".join(f"rank {', '.join(map(str, ranks))}: {call}" for call, ranks in by_call.items())
                return f"operation {op} isn't the same on all ranks: {said}"
        return None
