"""Rank 0's part of recovery.py: who is to freeze, who has answered, and what is decided. It sends through `tell_all`.

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
    raised: set[int] = field(default_factory=set)
    answers: dict[int, Message] = field(default_factory=dict)


class Coordinator:
    """`best(bytes, rails)`: the rail among those that is to take work over."""

    def __init__(
        self,
        nodes: int,
        rails: Sequence[str],
        tell_all: Callable[[Message], None],
        best: Callable[[int, Collection[int]], int],
    ) -> None:
        self._nodes, self._rails = nodes, list(rails)
        self._tell_all, self._best = tell_all, best
        self.alive = set(range(len(rails)))
        self._lives = dict.fromkeys(self.alive, 0)
        self._why: dict[int, str] = {}
        self._ready: dict[int, set[int]] = {}
        self._round: _Round | None = None
        self._epochs = count(1)
        self._numbers = count(_FIRST_NUMBER)
        self._times: dict[int, list[Message]] = {}
        self._over = False

    def heard(self, message: Message) -> None:
        """A message to rank 0, by what it is."""
        match message["is"]:
            case "suspect":
                self.suspect(message["rail"], message["life"], message["why"], message["sure"])
            case "state":
                self.answered(message["rank"], message)
            case "ready":
                self.ready(message["rank"], message["rail"], message["life"])
            case "times":
                self.times(message)
            case "give up":
                self.abort(message["why"])

    def suspect(self, rail: int, life: int, why: str, sure: bool) -> None:
        """Somebody found a rail dead, in that life of it. The last rail stays unless that's `sure`: it may recover."""
        if self._over or rail not in self.alive or life != self._lives[rail]:
            return
        last = self.alive <= {rail} | (set(self._round.dead) if self._round else set())
        if last and not sure:
            return
        self._why[rail] = why
        if last:
            self.abort("no rail is left: " + "; ".join(f"{self._rails[r]}: {w}" for r, w in sorted(self._why.items())))
        elif self._round is None:
            self._freeze({rail: why}, set())
        elif rail not in self._round.dead:
            self._freeze({**self._round.dead, rail: why}, self._round.raised)

    def ready(self, rank: int, rail: int, life: int) -> None:
        """A node has all its connections on a rail that was dead."""
        if rail in self.alive or life != self._lives[rail]:
            return
        self._ready.setdefault(rail, set()).add(rank)
        self._raise_who_is_ready()

    def answered(self, rank: int, said: Message) -> None:
        """A node's STATE."""
        if self._round is None or said["epoch"] != self._round.epoch:
            return
        self._round.answers[rank] = said
        if len(self._round.answers) == self._nodes:
            self._decide(self._round)
            self._raise_who_is_ready()

    def times(self, said: Message) -> None:
        """What a node saw of a window."""
        table = self._times.setdefault(said["op"], [])
        table.append(said)
        if len(table) == self._nodes:
            seconds = median_rail_seconds([Window(each["size"], each["starts"], each["ends"]) for each in table])
            del self._times[said["op"]]
            self._tell_all({"is": "table", "op": said["op"], "size": said["size"], "seconds": seconds})

    def abort(self, why: str) -> None:
        """End it, for everybody."""
        if not self._over:
            self._over = True
            self._tell_all({"is": "abort", "why": why})

    def _raise_who_is_ready(self) -> None:
        raised = {rail for rail, ranks in self._ready.items() if len(ranks) == self._nodes}
        if raised and self._round is None and not self._over:
            self._freeze({}, raised)

    def _freeze(self, dead: Mapping[int, str], raised: set[int]) -> None:
        known = self._round.dead if self._round else {}
        for rail in dead.keys() - known.keys():
            self._lives[rail] += 1
            self._ready.pop(rail, None)
        self._round = _Round(next(self._epochs), dict(dead), set(raised))
        self._tell_all(
            {"is": "freeze", "epoch": self._round.epoch, "dead": [[rail, self._lives[rail]] for rail in sorted(dead)]}
        )

    def _decide(self, now: _Round) -> None:
        self.alive = (self.alive - now.dead.keys()) | now.raised
        for rail in now.raised:
            self._ready.pop(rail)
        begun = {rank: said["op"] for rank, said in now.answers.items()}
        latest = max(begun.values())
        states = {rank: [JobState.from_json(job) for job in said["jobs"]] for rank, said in now.answers.items()}
        # a rail that has only just been raised isn't in any plan up to `latest`; work moves to one that is
        carrying = self.alive - now.raised
        jobs = replacements(states, begun, lambda size: self._best(size, carrying), self._numbers)
        self._round = None
        self._tell_all(
            {
                "is": "decision",
                "epoch": now.epoch,
                "latest": latest,
                "dead": sorted(now.dead),
                "raised": sorted(now.raised),
                "jobs": [asdict(job) for job in jobs],
            }
        )
