"""nccl-tests' output: which rank is on which GPU, and a row for each size with its algorithm and bus bandwidth."""

import re
from typing import Final

from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import BITS_OF_GB, Bandwidth, Cluster, CommunicatorPart, Member, Source

_RANK: Final = re.compile(
    r"#\s+Rank\s+(?P<rank>\d+) (?:Group\s+\d+ )?Pid\s+(?P<pid>\d+) on\s+(?P<host>\S+) device\s+(?P<gpu>\d+)"
    r"(?: \[(?P<bus_id>[0-9a-fx:.]+)\])?"
)
_ROW: Final = re.compile(
    r"^\s*(?P<bytes>\d+)\s+\d+\s+\w+\s+\w+\s+(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+(?P<bus>[\d.]+)\s+"
    r"(?:(?P<wrong>\d+)|N/A|\d[\d.]*e[+-]\d+)(?:\s|$)"
)
_NAMES: Final = re.compile(r"\b(?P<program>\w+)_perf\b")
_COLLECTIVES: Final = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all", "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send and receive",
    "gather": "gather", "scatter": "scatter", "hypercube": "hypercube",
}  # fmt: skip
_HEADINGS: Final = ("# nThread", "# Using devices", "# Avg bus", "# Out of bounds", "#       size", "# nccl-tests")


@CLUSTER_FORMATS.register("nccl-tests")
class NcclTests(LineFormat):
    """Ranks and measured bandwidths."""

    title = "nccl-tests output"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of an output."""
        return _Reader(cluster)


class _Reader(LineReader):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # its output doesn't name the program: the command line that started it may
        self._collective = ""
        self._members: dict[int, Member] = {}

    def read(self, line: str) -> bool:
        """Take a rank's place, or a row of bandwidths."""
        if row := _ROW.match(line):
            # older versions have the largest error in its place
            wrong = int(row["wrong"] or 0)
            bus_bps = float(row["bus"]) * BITS_OF_GB
            self._cluster.bandwidths.append(Bandwidth(self._collective, int(row["bytes"]), bus_bps, wrong))
            return True
        if "# " in line and (rank := _RANK.search(line)):
            self._members[int(rank["rank"])] = Member(rank["host"], int(rank["gpu"]))
            return True
        if "_perf" in line and (program := _NAMES.search(line)) and program["program"] in _COLLECTIVES:
            self._collective = _COLLECTIVES[program["program"]]
            return True
        return line.startswith(_HEADINGS)

    def end(self) -> None:
        """Add the ranks as a communicator, unless NCCL's log in the same output has them already."""
        if not self._members or any(part.size == len(self._members) for part in self._cluster.parts):
            return
        for rank, member in self._members.items():
            part = CommunicatorPart(f"{member.host}:{rank}", "nccl-tests", size=len(self._members), rank=rank)
            part.member = member
            self._cluster.host(member.host)
            self._cluster.parts.append(part)
