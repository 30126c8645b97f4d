"""Commands of a run to its part on another machine, and the replies."""

from typing import Final, Literal

from pydantic import InstanceOf

from railyard.core.host_load import PAUSE_S, MachineLoad
from railyard.core.worker import Message
from railyard.failure.faults import Fault
from railyard.topologies.build.machine_part import Underlay
from railyard.topologies.measure.counters import Counters
from railyard.topologies.placement import Placement


class ToPart(Message):
    """A command to a part. Prepare is the first. The reply is Ready where nothing else is said."""


class Prepare(ToPart):
    """Guard the tunnels, and echo datagrams of any size on the machine's address: Port."""

    underlay: InstanceOf[Underlay]


class Port(Message):
    """A UDP port."""

    number: int


class Build(ToPart):
    """Build this machine's part of a fabric: Built, perhaps before its switches have their flows."""

    placement: InstanceOf[Placement]
    backups: bool


class Built(Message):
    """The part is there. `switch_buffers`: see network.EmulatedNet."""

    datapath: str
    switch_buffers: bool


class TakeDown(ToPart):
    """Take the fabric down."""


class RelaxTimers(ToPart):
    """Relax TCP's loss detection at the GPUs, or restore it. `longest_queue_s`: see `namespaces.relaxed_tcp_timers`."""

    on: bool
    longest_queue_s: float = 0.0


class ReadCounters(ToPart):
    """Read what TCP and queues lost: Counted."""


class Counted(Message):
    """Sums over the part; and what the underlay's interface has sent, in bytes."""

    counters: InstanceOf[Counters]
    underlay_bytes: int


class Meter(ToPart):
    """Begin to measure the machine's load, or end it: Metered. `late_s`: how late a thread may be."""

    on: bool
    late_s: float = PAUSE_S


class Metered(Message):
    """Load of the machine. `own`: (monotonic s, CPU seconds of the part so far) now and then; `own_s`: in all."""

    load: InstanceOf[MachineLoad]
    own: list[tuple[float, float]]
    own_s: float


Module = Literal[
    "railyard.workloads.replay.worker",
    "railyard.topologies.build.carrier",
    "railyard.controller.processes.routes_main",
    "railyard.failure.probes.traffic",
    "railyard.failure.connectivity.worker",
]
"""The programs of processes that a part starts."""


class StartWorker(ToPart):
    """Start a process of the run, called `name`, which connects to it with this number: Started."""

    number: int
    module: Module
    name: str


class Started(Message):
    """The process id of a process, on its machine."""

    pid: int


Operation = Literal["prepare", "inject", "repair", "symptoms"]


class ActOnFault(ToPart):
    """Carry out what an operation of a fault does on the machine: Acted."""

    operation: Operation
    fault: InstanceOf[Fault]


class Acted(Message):
    """Time at which it began, monotonic ns; and symptoms, of the operation that has some."""

    at_ns: int = 0
    symptoms: tuple[bool, ...] = ()


class TakeSnapshot(ToPart):
    """Read the kernel state of all nodes of the part: Snapshot."""


class Snapshot(Message):
    """Kernel state by node."""

    state: InstanceOf[dict]  # type: ignore[type-arg]


class ReadClock(ToPart):
    """Read the monotonic clock: Clock."""


class Clock(Message):
    """The monotonic clock, ns."""

    ns: int


class ServeIperf(ToPart):
    """Start iperf3's server at a GPU, for one client: Ready when it listens."""

    gpu: str
    ip: str


class ServeEcho(ToPart):
    """Echo datagrams at a GPU from now on: Port."""

    gpu: str
    ip: str


REPLIES: Final = (Port, Built, Counted, Metered, Started, Clock, Acted, Snapshot)
"""All replies but Ready."""

INTERRUPTION: Final = "interruption"
"""Event of a part: a process there was missing (watch.Interruption)."""
PRESENCE: Final = "presence"
"""Event of a part: the state of the process `pid` there has changed (watch.Presence)."""
