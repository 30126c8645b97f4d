"""A recorded script run for real in the GPUs of a fabric, and the bytes that their NICs then carry."""

import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from railyard.core.errors import BadInput
from railyard.core.terminal import FittingTable
from railyard.experiments import options
from railyard.experiments.api import specs
from railyard.experiments.api.fabric import Fabric, fabric
from railyard.experiments.api.processes import Process
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.spec import FabricSpec
from railyard.workloads.matrix.traffic_matrix import port_bytes
from railyard.workloads.recording.command_line import TrainingCommand, interpreter
from railyard.workloads.recording.gloo_bytes import pair_bytes
from railyard.workloads.recording.launcher import Recording
from railyard.workloads.schedule import Schedule
from railyard.workloads.tasks import Transfer

SHAPE: Final = re.compile(r"(?:([a-z-]+):)?(\d+)x(\d+)")
NICS: Final = ("hb0", "rail0")
SHOWN_PART: Final = 0.01
"""Of the bytes of the busiest NIC: below it, connections and the store of the ranks are most of what a NIC sends."""


class NicBytes(NamedTuple):
    """Bytes that a NIC of a GPU sent: payload as computed, and what it counted, with headers and acknowledgements."""

    gpu: str
    nic: str
    expected: int
    sent: int


def parse_shape(text: str, ranks: int) -> FabricSpec:
    """Return the fabric of `--fabric`. BadInput unless it has a GPU for each of the ranks."""
    match = SHAPE.fullmatch(text)
    if match is None:
        raise BadInput("--fabric", text, "must be domains x GPUs of a domain: 2x4, or rail-optimized:2x4")
    kind, domains, rails = match.groups()
    if int(domains) * int(rails) != ranks:
        raise BadInput("--fabric", text, f"must have as many GPUs as --real has ranks, {ranks}")
    return specs.FabricSpec(kind=kind or "rail-only", domains=int(domains), rails=int(rails))


class FabricGpus:
    """The GPUs of a built fabric, in the order of the ranks."""

    def __init__(self, built: Fabric) -> None:
        self._fabric = built
        self.addresses: Mapping[str, str] = built.addresses

    def start(self, argv: Sequence[str], environment: Mapping[str, str], control: socket.socket) -> Process:
        """Start the process that runs ranks, at the first GPU, with `control` as its standard input."""
        processes = self._fabric.processes(next(iter(self.addresses)))
        return processes.popen(
            argv,
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def sent_bytes(self) -> dict[tuple[str, str], int]:
        """Return what each NIC has sent so far, by GPU and NIC."""
        counts: dict[tuple[str, str], int] = {}
        for gpu in self.addresses:
            text = self._fabric.exec(gpu, ["cat", "/proc/net/dev"], check=True).stdout
            for line in text.splitlines()[2:]:
                nic, _, columns = line.partition(":")
                if nic.strip() in NICS:
                    counts[gpu, nic.strip()] = int(columns.split()[8])
        return counts


@contextmanager
def gpus_of(spec: FabricSpec, training: TrainingCommand) -> Iterator[FabricGpus]:
    """Build a fabric for a script, and return its GPUs."""
    visible: list[Path] = []
    environment = Path(interpreter(training.python)).parents[1]
    if (environment / "pyvenv.cfg").exists():
        visible.append(environment)
    if not training.is_module:
        visible.append(Path(training.script).resolve().parent)
    with fabric(spec, visible=visible) as built:
        yield FabricGpus(built)


def carried(spec: FabricSpec, real: Recording, sent: Mapping[tuple[str, str], int]) -> list[NicBytes]:
    """Return for each NIC what the operations of a real run make it send, and what it sent.

    `sent`: by GPU and NIC, while the script ran.
    """
    transfers: list[Transfer] = []
    for (source, target), size in pair_bytes(real.whole, real.families).items():
        if size:
            transfers.append(Transfer(source, target, size, 0))
    schedule = Schedule("real run", spec.domains * spec.rails, spec.rails, (), transfers)
    ports = port_bytes(schedule, spec)
    rows: list[NicBytes] = []
    for number, gpu in enumerate(dict.fromkeys(gpu for gpu, _ in sent)):
        for nic, expected in zip(NICS, (ports.hb_out, ports.rail_out), strict=True):
            rows.append(NicBytes(gpu, nic, int(expected[number]), sent[gpu, nic]))
    return rows


def carried_table(rows: Sequence[NicBytes], mtu: int) -> FittingTable:
    """Return a row for each NIC. The ratio is of payload, and left out where little is expected."""
    most = max(row.expected for row in rows)
    table = options.plain_table("GPU", "NIC", "expected", "sent", "ratio", right=("expected", "sent", "ratio"))
    for row in rows:
        payload = row.sent * payload_fraction(mtu)
        ratio = f"{payload / row.expected:.2f}" if row.expected > most * SHOWN_PART else "-"
        table.add_row(row.gpu, row.nic, f"{row.expected:,}", f"{row.sent:,}", ratio)
    return table
