"""Logs as NCCL writes them, of made-up clusters, and how many of their connections take which route."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from railyard.workloads.cluster.rails import Route

BUS_IDS = ("101c0", "101d0", "201c0", "201d0", "901c0", "901d0", "a01c0", "a01d0")


@dataclass(frozen=True)
class LoggedCluster:
    """Hosts of `gpus` GPUs that share `nics` NICs, and one communicator: a ring for each NIC, logged by all ranks.

    `shift`: how many NICs further the receiver's is. `proxies`: sends go by the NIC's first GPU (PXN). `is_old`: the
    text of NCCL before 2.14, else that of 2.19 and later.
    """

    hosts: int = 2
    gpus: int = 4
    nics: int = 2
    shift: int = 0
    proxies: bool = False
    is_old: bool = False
    network: str = "IB"
    prefix: str = ""
    interleaved: bool = False
    settings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.hosts * self.gpus

    def host_of(self, rank: int) -> int:
        return rank % self.hosts if self.interleaved else rank // self.gpus

    def gpu_of(self, rank: int) -> int:
        return rank // self.hosts if self.interleaved else rank % self.gpus

    def rank_of(self, host: int, gpu: int) -> int:
        return gpu * self.hosts + host if self.interleaved else host * self.gpus + gpu

    def ring(self, nic: int) -> list[int]:
        """The ranks of a NIC's ring. A host is entered at the NIC's first GPU, and left at its last."""
        per_nic = self.gpus // self.nics
        own = range(nic * per_nic, (nic + 1) * per_nic)
        middle = [gpu for gpu in range(self.gpus) if gpu not in own]
        order = [own[0], *middle, *own[1:]]
        return [self.rank_of(host, gpu) for host in range(self.hosts) for gpu in order]

    def line(self, rank: int, text: str) -> str:
        host = self.host_of(rank)
        gpu = self.gpu_of(rank)
        return f"{self.prefix}node{host}:{100 + gpu}:{200 + gpu} [{gpu}] NCCL INFO {text}"

    def lines(self) -> Iterator[str]:
        """Yield the lines of all processes."""
        for rank in range(self.size):
            yield self.line(rank, "Bootstrap : Using eth0:10.0.0.1<0>")
            yield self.line(rank, self._nics())
            for setting in self.settings:
                yield self.line(rank, setting)
            if not self.is_old:
                yield self.line(rank, f"ncclCommInitRank {self._communicator(rank)} - Init START")
        for nic in range(self.nics):
            ranks = " ".join(f"{rank:3}" for rank in self.ring(nic))
            yield self.line(0, f"Channel {nic:02}/{self.nics:02} : {ranks}")
        for nic in range(self.nics):
            ring = self.ring(nic)
            for src, dst in pairwise([*ring, ring[0]]):
                yield from self._connection(nic, src, dst)
        for rank in range(self.size):
            yield self.line(rank, "Connected all rings")
            yield self.line(rank, f"{self._communicator(rank)} - Init COMPLETE")

    def text(self) -> str:
        return "\n".join(self.lines()) + "\n"

    def _nics(self) -> str:
        if self.network != "IB":
            return f"NET/OFI Selected Provider is efa (found {self.nics} nics)"
        nics = " ".join(f"[{nic}]mlx5_{nic}:1/IB" for nic in range(self.nics))
        return f"NET/IB : Using {nics} [RO]; OOB eth0:10.0.0.1<0>"

    def _communicator(self, rank: int) -> str:
        gpu = self.gpu_of(rank)
        text = f"comm 0x7f{rank:04x} rank {rank} nranks {self.size} cudaDev {gpu}"
        return (
            f"{text} busId {BUS_IDS[gpu]}" if self.is_old else f"{text} nvmlDev {gpu} busId {BUS_IDS[gpu]} commId 0xa1"
        )

    def _connection(self, nic: int, src: int, dst: int) -> Iterator[str]:
        devices = [BUS_IDS[self.gpu_of(rank)] if self.is_old else self.gpu_of(rank) for rank in (src, dst)]
        channel = f"{nic:02}" if self.is_old else f"{nic:02}/0"
        name = f"Channel {channel} : {src}[{devices[0]}] -> {dst}[{devices[1]}]"
        if self.host_of(src) == self.host_of(dst):
            yield self.line(src, f"{name} via P2P/{'IPC' if self.is_old else 'CUMEM'}/read")
            return
        proxy = self.rank_of(self.host_of(src), nic * self.gpus // self.nics)
        by_proxy = f"({proxy})" if self.proxies and proxy != src else ""
        far_nic = (nic + self.shift) % self.nics
        yield self.line(src, f"{name} [send] via NET/{self.network}/{nic}{by_proxy}/GDRDMA")
        yield self.line(dst, f"{name} [receive] via NET/{self.network}/{far_nic}/GDRDMA")

    def routes(self) -> Counter[Route]:
        """The routes that its connections take, counted without the code that is tested."""
        between_hosts = self.nics * self.hosts
        if self.hosts == 1:
            return Counter({Route.DOMAIN: self.nics * self.size})
        crosses = self.shift % self.nics != 0
        # a ring leaves a host at another GPU than the NIC's first, if there is one
        by_proxy = self.proxies and self.gpus > 1
        route = Route.CROSSING if crosses else Route.PXN if by_proxy else Route.RAIL
        return +Counter({Route.DOMAIN: self.nics * self.size - between_hosts, route: between_hosts})
