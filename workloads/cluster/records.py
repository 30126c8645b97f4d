"""Contents of a cluster's logs: hosts with GPUs and NICs, communicators with connections, settings, bandwidths.

Nothing here depends on a format. A reader fills a `Cluster`; `communicators.py` joins what several processes wrote, and
`rails.py` judges it. Whatever a file doesn't say is None or empty, never a guess.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal

BITS_OF_GB: Final = 8e9  # a GB/s of nccl-tests and of Inspector is 10^9 byte/s
MAX_SAMPLES: Final = 5  # lines of a sort that are kept to be shown

Transport = Literal["P2P", "SHM", "NET", "COLLNET", "NVLS", "other", "by place"]
"""`by place`: not logged, so it follows from the places of the two ranks."""
Side = Literal["send", "receive"]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device of a host. `number`: as NCCL counts them, in NET/IB/3. `rate_bps`: None if not known."""

    number: int
    name: str = ""
    kind: str = ""
    rate_bps: float | None = None


@dataclass(slots=True)
class Host:
    """A machine. `nics` by number; `gpus`: PCI bus ids by local number; `nics_of_gpu`: the nearest NICs of each.

    `leaf`: the switch that Slurm's topology has it at; empty if none was read.
    """

    name: str
    nics: dict[int, Nic] = field(default_factory=dict)
    gpus: dict[int, str] = field(default_factory=dict)
    nics_of_gpu: dict[int, tuple[int, ...]] = field(default_factory=dict)
    leaf: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's place. `gpu`: its number on the host; -1 if not known."""

    host: str
    gpu: int = -1


@dataclass(frozen=True, slots=True)
class End:
    """One side of a connection, as its process logged it. `nic`: None if it takes no NIC.

    `proxy`: the rank whose NIC sends in place of this one's (PXN); None if there is none.
    """

    transport: Transport
    nic: int | None = None
    network: str = ""
    proxy: int | None = None
    is_gpu_direct: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionId:
    """A connection of a communicator: its channel, and its ranks. `is_p2p`: of sends and receives, not of a ring."""

    channel: int
    src: int
    dst: int
    is_p2p: bool = False


@dataclass(slots=True)
class Connection:
    """The two sides of a connection, as their processes logged them; None if a log isn't there."""

    sender: End | None = None
    receiver: End | None = None


@dataclass(frozen=True, slots=True)
class RingChannel:
    """A channel of NCCL's graph: the NIC by which its ring enters each host, and the one by which it leaves."""

    file: str
    channel: int
    entered_by: int
    left_by: int


@dataclass(frozen=True, slots=True)
class LastCall:
    """The last collective that a rank called on a communicator. `number`: counted by all of its ranks alike."""

    number: int
    collective: str
    is_complete: bool


@dataclass(slots=True)
class Communicator:
    """A group of ranks.

    `has_begun`: whether a process logged its initialization; `initialized`: the ranks whose process logged its end.
    `calls`: of each collective, how often its ranks called it, all together, and `call_bytes` of those calls. `sends`:
    how often a rank sent to another. `last_calls`: of each rank, where a dump has it. `global_ranks`: ranks of the job,
    by rank of the communicator, where they are known. `is_traced`: a trace has its calls, and no file can have its
    connections. `has_unclassed_sends`: it may send across rails, between pairs that no file has.
    """

    name: str
    size: int
    members: dict[int, Member] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    connections: dict[ConnectionId, Connection] = field(default_factory=lambda: defaultdict(Connection))
    has_begun: bool = False
    initialized: set[int] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    call_bytes: Counter[str] = field(default_factory=Counter)
    sends: Counter[tuple[int, int]] = field(default_factory=Counter)
    is_traced: bool = False
    has_unclassed_sends: bool = False
    last_calls: dict[int, LastCall] = field(default_factory=dict)
    global_ranks: dict[int, int] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its members, in the order of ranks."""
        in_order = [member.host for _, member in sorted(self.members.items())]
        return tuple(dict.fromkeys(in_order))


@dataclass(slots=True)
class CommunicatorPart:
    """The lines of one process on a communicator.

    `process`: host and process id. `identity`: NCCL's id of the communicator, the same in all processes; empty if it
    was not logged. `bus_id`: of the process's GPU. `calls`: of each collective, how often it was called, and
    `call_bytes` of these calls: of what goes in or of what comes out, whichever is more. `sends`: how often a rank of
    the communicator sends to another. `group`: all of its ranks of the job, in its order. `is_traced`: as of a trace.
    `heads`: its NIC in each channel's tree of CollNet, if it is one of those that join the tree.
    """

    process: str
    identity: str = ""
    pointer: str = ""
    size: int = 0
    rank: int = -1
    member: Member | None = None
    bus_id: str = ""
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    sent: dict[ConnectionId, End] = field(default_factory=dict)
    received: dict[ConnectionId, End] = field(default_factory=dict)
    heads: dict[int, End] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    call_bytes: Counter[str] = field(default_factory=Counter)
    sends: Counter[tuple[int, int]] = field(default_factory=Counter)
    is_initialized: bool = False
    is_traced: bool = False
    title: str = ""
    last_call: LastCall | None = None
    global_rank: int = -1
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A row of nccl-tests. `bus_bps`: the bus bandwidth out of place, bit/s; `wrong`: results that were wrong."""

    collective: str
    bytes: int
    bus_bps: float
    wrong: int = 0


@dataclass(slots=True)
class Source:
    """A file that was read: its formats, the number of lines, of understood ones, and of unknown ones with samples."""

    file: str
    formats: tuple[str, ...] = ()
    lines: int = 0
    understood: int = 0
    unknown: int = 0
    unknown_samples: list[str] = field(default_factory=list)

    def note_unknown(self, text: str) -> None:
        """Count a line that a format should know and doesn't."""
        self.unknown += 1
        if len(self.unknown_samples) < MAX_SAMPLES:
            self.unknown_samples.append(text)


@dataclass(slots=True)
class Cluster:
    """All that was read. `settings`: of each variable, its values with the number of processes that logged them."""

    hosts: dict[str, Host] = field(default_factory=dict)
    parts: list[CommunicatorPart] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)
    ring_channels: list[RingChannel] = field(default_factory=list)
    settings: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bandwidths: list[Bandwidth] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    sources: list[Source] = field(default_factory=list)
    traced_ranks: set[int] = field(default_factory=set)
    """Ranks of the job whose calls a file has."""
    ranks_per_host: int | None = None
    """Ranks of the job on each host, one host after the other, as a trace says it; None if none does."""
    reports: dict[str, None] = field(default_factory=dict)
    """What a file itself reports as wrong, a sentence each."""
    gaps: dict[str, None] = field(default_factory=dict)
    """What the files could not say, a sentence each."""

    def host(self, name: str) -> Host:
        """Return a host by name; it is added if it is new."""
        if name not in self.hosts:
            self.hosts[name] = Host(name)
        return self.hosts[name]
