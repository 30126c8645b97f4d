"""When whoever takes over is there: probes between peers and a replacement, and what they tell.

The replacement may get its address, or its light, only in the course of it. So it listens for the address before it has
it, and answers from there: an answer has gone both ways, to who bears the failed one's name from then on.
"""

import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from railyard.core.errors import RailyardError
from railyard.core.project import PROJECT
from railyard.failure.analysis.recovery_times import ProbeLog


@dataclass(frozen=True, slots=True)
class ProbePair:
    """A probed pair: the namespaces of who asks and of who answers, and the address that is asked for."""

    requester: str
    responder: str
    address: str


class Prober:
    """A process that asks each pair every two milliseconds from its making on; `stop` gives a log for each pair. As a
    context manager it ends at the latest then.
    """

    def __init__(self, pairs: Iterable[ProbePair]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "railyard.failure.probes.replacement_worker"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self._request(pickle.dumps(tuple(pairs))) != "probing":
            self.end()
            raise RailyardError("the prober did not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def reaches_all(self, since_ns: int) -> bool:
        """Whether each pair has had an answer to something that it asked since then."""
        return self._request(f"{since_ns}\n".encode()) == "yes"

    def stop(self) -> list[ProbeLog]:
        """Ask no more, wait for no more answers, and end the process: what comes next has the fabric for itself."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.close()
            logs: list[ProbeLog] = pickle.load(self._process.stdout)
            return logs
        except EOFError:
            raise RailyardError("the prober died") from None
        finally:
            self.end()

    def _request(self, message: bytes) -> str:
        """Its line in answer; empty if it died."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline().decode().strip()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


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
