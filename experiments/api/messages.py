"""Messages between a script's process and the process that serves its fabric in a sandbox.

The script sends a request with a number; the answer is an Answer or a Refused with that number, in any order. Both ends
use `core.worker.Pipe`, which makes objects of classes that hold data and calls nothing.
"""

import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, StrictBool

from railyard.core import crash
from railyard.core.crash import known_error
from railyard.core.errors import BadInput, CheckFailed, MissingRequirement, RailyardError
from railyard.core.worker import Message

MODULE: Final = "railyard.experiments.api.server"
# The number of the request that files belong to.
NUMBER: Final = struct.Struct("!q")
# The number of the answer that says that the sandbox serves requests, or why it can't.
STARTED: Final = 0

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def start_command(*descriptors: int) -> list[str]:
    """Return the command line of a serving process; the working folder must not hide modules of Python's."""
    return [sys.executable, "-P", "-m", MODULE, *map(str, descriptors)]


def path_text(field: str, value: object) -> str:
    """Return a path that a script gave. BadInput for what is none."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fsdecode(value):
        raise BadInput(field, value, "must be a path")
    return os.fsdecode(value)


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """A built fabric: addresses of its GPUs, its switches, its rates in bit/s, and how long it took to build, s.

    `capacity`: what the machine was measured to carry, None if it was not measured. `live_url`: of its live page.
    """

    title: str
    addresses: Mapping[str, str]
    switches: tuple[str, ...]
    rail_bps: int
    hb_bps: int
    datapath: str
    build_s: float
    capacity: tuple[float, ...] | None
    live_url: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Datagrams sent there and back: round-trip times of those that returned, ms."""

    sent: int
    rtt_ms: tuple[float, ...]

    @property
    def received(self) -> int:
        """Number of datagrams that returned."""
        return len(self.rtt_ms)

    def __bool__(self) -> bool:
        return self.received == self.sent


class Build(Message):
    """Build a fabric in a sandbox and serve requests on it. `spec`: an experiment's plain data, with one fabric.

    `caller`: the process whose end ends the sandbox. `visible`: folders of /tmp and /var/tmp that the sandbox needs.
    `live`: the value of --live, None without a live page.
    """

    spec: dict[str, Any]
    caller: int
    name: str
    reroute: StrictBool = True
    capacity: tuple[float, ...] | None = None
    visible: tuple[str, ...] = ()
    live: str | None = None


class RunExperiment(Message):
    """Run an experiment as `run` does: Answer with its folder and exit status."""

    name: str
    caller: int
    overrides: tuple[str, ...] = ()
    out: str | None = None
    seed: int | None = None
    quiet: bool = True
    no_queue: StrictBool = False


class Request(Message):
    """Base of the requests on a built fabric. `number`: chosen by the script."""

    number: int


class RunWorkload(Request):
    """Replay a workload, given by its keys: the records of a run."""

    workload: dict[str, Any]
    repeats: Count
    seed: int


class Probe(Request):
    """Send datagrams from one GPU to another and back: Ping."""

    src: str
    dst: str
    count: Count
    timeout: Seconds


class Iperf(Request):
    """Measure TCP throughput for whole seconds: bit/s of payload."""

    src: str
    dst: str
    seconds: Count


class InjectFault(Request):
    """Inject a fault, given by its keys, and probe the pairs that it affects: the request's number, its identity."""

    fault: dict[str, Any]


class ObserveFault(Request):
    """Wait until packets flow again, within a deadline, and evaluate the recovery so far: the records of a run."""

    fault: int


class RepairFault(Request):
    """Repair a fault and evaluate its whole recovery: the records of a run."""

    fault: int


class Draw(Request):
    """Draw the fabric: SVG."""


class StartProcess(Request):
    """Start a program at a GPU or switch: its process id in the sandbox.

    Its stdin, stdout and stderr, and the pipe for its exit status, are sent as files before.
    """

    node: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str


class SignalProcess(Request):
    """Send a signal to a program that was started here; to all processes of its session with `group`."""

    pid: int
    signal: int
    group: bool = False


class Cancel(Message):
    """Interrupt a request, if it is still being served."""

    number: int


REQUESTS: Final[tuple[type[Message], ...]] = (
    RunWorkload, Probe, Iperf, InjectFault, ObserveFault, RepairFault, Draw, StartProcess, SignalProcess, Cancel,
)  # fmt: skip


class Answer(Message):
    """The result of a request."""

    number: int
    value: Any = None


class Queued(Message):
    """A line on the place of a run in the machine's queue."""

    line: str


class Refused(Message):
    """An error in place of an answer. `field`, `value`, `allowed`: of a BadInput; `what`, `remedy`: of the machine."""

    number: int
    text: str
    exit_status: int
    field: str = ""
    value: Any = None
    allowed: str = ""
    what: str = ""
    remedy: str = ""
    is_check: bool = False
    interrupted: bool = False

    @classmethod
    def of(cls, number: int, error: BaseException) -> "Refused":
        """Return the message for an exception; a defect is described in one line."""
        if isinstance(error, KeyboardInterrupt):
            return cls(number=number, text="interrupted", exit_status=130, interrupted=True)
        cause = known_error(error)
        text = str(cause or f"{crash.describe(error)} (unexpected, in the fabric's sandbox)")
        status = cause.exit_status if cause else crash.STATUS
        if isinstance(cause, BadInput):
            value = cause.value
            # other values may not be of types that the script's process knows
            if not isinstance(value, str | int | float | list | None):
                value = repr(value)
            field = cause.field
            # a script gives a single item of each section
            for section in ("fabrics", "workloads", "faults"):
                field = field.removeprefix(f"{section}.0.")
            return cls(number=number, text=text, exit_status=status, field=field, value=value, allowed=cause.allowed)
        if isinstance(cause, MissingRequirement):
            return cls(number=number, text=text, exit_status=status, what=cause.what, remedy=cause.remedy)
        return cls(number=number, text=text, exit_status=status, is_check=isinstance(cause, CheckFailed))

    @property
    def error(self) -> BaseException:
        """The exception to raise in the script."""
        if self.interrupted:
            return KeyboardInterrupt()
        if self.field:
            return BadInput(self.field, self.value, self.allowed)
        if self.what:
            return MissingRequirement(self.what, self.remedy)
        error = CheckFailed(self.text) if self.is_check else RailyardError(self.text)
        error.exit_status = self.exit_status
        return error
