"""Rank 0's part of recovery.py: who is to freeze, who has answered, and what is decided. It sends through
`send_to_all`.

Everything comes in as messages, from rank 0 itself too, so there is one way for all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count

from railyard.workloads.allreduce.balancing.timer import Window, median_rail_seconds
from railyard.workloads.allreduce.recovery.plan import JobState, replacements
from railyard.workloads.allreduce.transport.reliable_channel import Message

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
