"""Messages between a replay and its worker processes."""

from typing import Literal

from pydantic import InstanceOf

from railyard.core.worker import Message
from railyard.workloads.replay.job import Job, Outcome
from railyard.workloads.replay.phases import PhaseEnd


class Listen(Message):
    """Open the listening sockets of a job: Ready, or Failed."""

    kind: Literal["listen"] = "listen"
    job: InstanceOf[Job]


class Connect(Message):
    """Connect to the other workers, which all listen: Ready, or Failed."""

    kind: Literal["connect"] = "connect"


class Go(Message):
    """Play the job from `start_ns` to `deadline_ns` (monotonic) at the latest: Delivered, PhaseOver, and Finished."""

    kind: Literal["go"] = "go"
    start_ns: int
    deadline_ns: int


class Delivered(Message):
    """Verified bytes so far."""

    kind: Literal["delivered"] = "delivered"
    size: int


class PhaseOver(Message):
    """The end of a watched phase in this worker."""

    kind: Literal["phase-over"] = "phase-over"
    end: InstanceOf[PhaseEnd]


class Finished(Message):
    """The outcome of the job."""

    kind: Literal["finished"] = "finished"
    outcome: InstanceOf[Outcome]
