"""State of an exchange: parts that ranks posted, ranks that wait, and whether any can go on. No process, no socket."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from railyard.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits for the parts of `ranks` in an operation; `name` is the operation's, for messages."""

    key: str
    ranks: tuple[int, ...]
    name: str
    is_required: bool


@dataclass
class Coordinator:
    """The state of an exchange between the ranks that are run.

    `started`: ranks that are run or were. `ended`: how many operations each that has ended had.
    """

    script: str
    started: set[int] = field(default_factory=set)
    ended: dict[int, int] = field(default_factory=dict)
    _posted: dict[str, dict[int, list[bytes]]] = field(default_factory=dict)
    _signatures: dict[str, tuple[int, str]] = field(default_factory=dict)
    _waits: dict[int, Wait] = field(default_factory=dict)

    def post(self, rank: int, key: str, signature: str, parts: list[bytes]) -> None:
        """Keep a rank's part. BadInput if another rank has called something else in its place."""
        first_rank, first_signature = self._signatures.setdefault(key, (rank, signature))
        if signature != first_signature:
            number = int(key.rpartition("/")[2])
            calls = f"rank {first_rank} calls {first_signature} and rank {rank} calls {signature}"
            raise BadInput(
                self.script, f"operation {number}", f"of one communicator differs: {calls}; on GPUs both wait for ever"
            )
        self._posted.setdefault(key, {})[rank] = parts

    def wait(self, rank: int, wait: Wait) -> None:
        """Note that a rank waits."""
        self._waits[rank] = wait

    def ranks_to_start(self) -> set[int]:
        """Return ranks that aren't run, and whose parts cannot be replaced."""
        ranks: set[int] = set()
        for wait in self._waits.values():
            if wait.is_required:
                ranks.update(rank for rank in wait.ranks if rank not in self.started)
        return ranks

    def answers(self) -> list[tuple[int, dict[int, list[bytes]]]]:
        """Return the ranks that can go on, with the parts they waited for; they no longer wait."""
        ready: list[tuple[int, dict[int, list[bytes]]]] = []
        for rank, wait in self._waits.items():
            if not self._missing(wait):
                posted = self._posted.get(wait.key, {})
                parts = {peer: posted[peer] for peer in wait.ranks if peer in posted}
                ready.append((rank, parts))
        for rank, _ in ready:
            del self._waits[rank]
        return ready

    def _missing(self, wait: Wait) -> list[int]:
        """Return the ranks whose parts are still missing."""
        posted = self._posted.get(wait.key, {})
        return [rank for rank in wait.ranks if rank in self.started and rank not in posted]

    def check_progress(self) -> None:
        """Raise BadInput if no rank can ever go on, with two of them and what each waits for."""
        for rank, wait in self._waits.items():
            for peer in self._missing(wait):
                if peer in self.ended:
                    waits = f"while rank {rank} waits for it in {wait.name}"
                    raise BadInput(self.script, f"rank {peer}", f"ended after {self.ended[peer]} operations, {waits}")
        running = self.started - self.ended.keys()
        if not running or running - self._waits.keys():
            return
        descriptions = [self.description(rank) for rank in self._two_that_wait()]
        raise BadInput(self.script, "ranks", f"wait for each other for ever: {'; '.join(descriptions)}")

    def _two_that_wait(self) -> Iterable[int]:
        """Return a rank that waits, and one that it waits for."""
        first = min(self._waits)
        peer = self._missing(self._waits[first])[0]
        return dict.fromkeys((first, peer))

    def description(self, rank: int) -> str:
        """Return for which ranks a rank waits, in which operation; "" if it doesn't wait."""
        wait = self._waits.get(rank)
        if wait is None:
            return ""
        missing = self._missing(wait)
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"rank {rank} waits in {wait.name} for rank {missing[0]}{others}"
