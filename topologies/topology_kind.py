"""Fabric kinds made of a Mininet topology (from_mininet.py): hosts are GPUs, each alone in its HB domain.

Host number n, in Mininet's order of names, is GPU d<n>g0. A kind of this sort has one size.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from railyard.topologies.fabric_kinds import FabricKind
from railyard.topologies.graph import Cable, Network, Size

SHOWN: Final = 3  # hosts at the beginning of a line that names them


class TopologyKind(FabricKind):
    """Base of the kinds. `cables` have the names of hosts and switches; a host's cable has the rate 1."""

    default_policy = "spine"
    min_rails = 1
    hosts: ClassVar[tuple[str, ...]] = ()
    switches: ClassVar[tuple[str, ...]] = ()
    cables: ClassVar[tuple[Cable, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.tried_sizes = (Size(len(cls.hosts), 1),)

    @property
    def joins_rails(self) -> bool:
        """Presence of paths between rails: there is one rail."""
        return True

    def network(self, size: Size) -> Network:
        """Return the graph with the names of GPUs. ValueError for any other size than that of the topology."""
        count = len(self.hosts)
        if (size.domains, size.rails) != (count, 1):
            raise ValueError(f"the topology has {count} hosts: domains must be {count}, and rails 1")
        return network_of(self.hosts, self.switches, self.cables)


def gpu_names(hosts: Sequence[str]) -> dict[str, str]:
    """Return the names of the GPUs by those of the hosts: {"h1": "d0g0", "h2": "d1g0"}."""
    gpus = Size(len(hosts), 1).gpus
    return {host: gpu.name for host, gpu in zip(hosts, gpus, strict=True)}


def hosts_of(kind: FabricKind) -> dict[str, str]:
    """Return the names of the GPUs by those of the hosts; none for a kind that no topology was made into."""
    return gpu_names(kind.hosts) if isinstance(kind, TopologyKind) else {}


def hosts_line(hosts: Mapping[str, str]) -> str:
    """Return in a line which GPU is which host: the first three, and the last."""
    pairs = [f"{host} is {gpu}" for host, gpu in hosts.items()]
    if len(pairs) > SHOWN + 1:
        pairs[SHOWN:-1] = ["..."]
    return ", ".join(pairs)


def network_of(hosts: Sequence[str], switches: Sequence[str], cables: Sequence[Cable]) -> Network:
    """Return the network of a topology, with the names of GPUs in place of those of hosts."""
    names = gpu_names(hosts)
    renamed = [Cable(names.get(a, a), names.get(b, b), rate) for a, b, rate in cables]
    return Network(tuple(switches), tuple(renamed))
