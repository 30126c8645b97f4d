"""When whoever takes over is there: probes between peers and a replacement, and what they tell.

The replacement may get its address, or its light, only in the course of it. So it listens for the address before it has
it, and answers from there: an answer has gone both ways, to who bears the failed one's name from then on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import InstanceOf

from railyard.core.worker import Message, Ready, Worker
from railyard.failure.analysis.recovery_times import ProbeLog


@dataclass(frozen=True, slots=True)
class ProbePair:
    """A probed pair: the namespaces of who asks and of who answers, and the address that is asked for."""

    requester: str
    responder: str
    address: str


class StartProbing(Message):
    """Probe each pair every two milliseconds from now on: Ready."""

    kind: Literal["start"] = "start"
    pairs: tuple[InstanceOf[ProbePair], ...]


class HaveAnswered(Message):
    """Whether each pair has an answer to a probe sent since `since_ns`: Answered."""

    kind: Literal["have-answered"] = "have-answered"
    since_ns: int


class Answered(Message):
    """The reply to HaveAnswered."""

    kind: Literal["answered"] = "answered"
    by_all: bool


class StopProbing(Message):
    """Stop, without waiting for more answers: Logs."""

    kind: Literal["stop"] = "stop"


class Logs(Message):
    """A log for each pair."""

    kind: Literal["logs"] = "logs"
    logs: list[InstanceOf[ProbeLog]]


class Prober:
    """A process that probes each pair every two milliseconds from its start; `stop` returns a log for each pair.

    As a context manager it ends at the latest when the context does.
    """

    def __init__(self, pairs: Iterable[ProbePair]) -> None:
        self._worker = Worker("railyard.failure.probes.replacement_worker", "the prober", Ready, Answered, Logs)
        try:
            self._worker.ask(StartProbing(pairs=tuple(pairs)), Ready)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def reaches_all(self, since_ns: int) -> bool:
        """Return whether each pair has had an answer to a probe sent since then. RailyardError if the prober died."""
        return self._worker.ask(HaveAnswered(since_ns=since_ns), Answered).by_all

    def stop(self) -> list[ProbeLog]:
        """Stop probing, without waiting for more answers, and end the process."""
        try:
            return self._worker.ask(StopProbing(), Logs).logs
        finally:
            self.end()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._worker.end()


def taken_over_ns(logs: Iterable[ProbeLog], decided_ns: int) -> int | None:
    """When the last of the pairs had the first answer to what it asked since the decision; None if one never had."""
    first_answers = [
        min(
            (
                answer_ns
                for sent, answer_ns in zip(log.sent_ns, log.arrived_ns, strict=True)
                if sent >= decided_ns <= answer_ns
            ),
            default=-1,
        )
        for log in logs
    ]
    return None if not first_answers or min(first_answers) < 0 else max(first_answers)
