"""Hostfiles and rankfiles of MPI: which rank is on which host.

A hostfile (`node1 slots=8`) is read as Open MPI fills it by default: one host after the other. A rankfile
(`rank 3=node2 slot=1`) says it rank by rank, and so does a list of Slurm's (`3: node2`, of `srun --label hostname`).
"""

import re
from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import Cluster, CommunicatorPart, Member, Source

_HOST: Final = re.compile(r"^(?P<host>[\w.-]+)\s+slots=(?P<slots>\d+)\b")
_RANK: Final = re.compile(r"^rank\s+(?P<rank>\d+)\s*=\s*(?P<host>[\w.-]+)\s+slots?=\S+")
_LABEL: Final = re.compile(r"^\s*(?P<rank>\d+): (?P<host>[A-Za-z][\w.-]*)$")
MAX_RANKS: Final = 2**20


@CLUSTER_FORMATS.register("rank-files")
class RankFiles(LineFormat):
    """The host of each rank."""

    title = "MPI hostfile or rankfile"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a file."""
        return _Reader(cluster, source)


class _Reader(LineReader):
    def __init__(self, cluster: Cluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self._host_of_rank: dict[int, str] = {}

    def read(self, line: str) -> bool:
        """Take a host with its slots, or a rank with its host."""
        if host := _HOST.match(line):
            first = len(self._host_of_rank)
            slots = int(host["slots"])
            if first + slots > MAX_RANKS:
                allowed = f"makes {first + slots:,} ranks: {MAX_RANKS:,} or fewer can be read"
                raise BadInput(f"{self._source.file}: slots", slots, allowed)
            for rank in range(first, first + slots):
                self._host_of_rank[rank] = host["host"]
            return True
        placed = _RANK.match(line) or _LABEL.match(line)
        if placed:
            self._host_of_rank[int(placed["rank"])] = placed["host"]
            return True
        return False

    def end(self) -> None:
        """Add the ranks as a communicator; a GPU's number is its rank's place among those of its host."""
        ranks_on_host: dict[str, int] = {}
        for rank, host in sorted(self._host_of_rank.items()):
            gpu = ranks_on_host.get(host, 0)
            ranks_on_host[host] = gpu + 1
            part = CommunicatorPart(f"{host}:{rank}", self._source.file, size=len(self._host_of_rank), rank=rank)
            part.member = Member(host, gpu)
            part.title = self._source.file
            self._cluster.host(host)
            self._cluster.parts.append(part)
