"""NCCL RAS (`ncclras`, NCCL 2.24 and later): a text with the job's communicators, and what is wrong with them.

Groups of communicators that are alike have a row, without ranks. A communicator with an error or a warning has a
section, such as ranks that have launched fewer operations than others: these are waited for. Source: src/ras/
client_support.cc of NCCL.
"""

import re
from typing import Final

from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import Cluster, Source

_GROUP: Final = re.compile(
    r"^ *\d+ +(?P<count>\d+) +(?P<hosts>\d+) +(?P<per_host>\d+(?:-\d+)?) +(?P<ranks>\d+) +\d+ +"
    r"(?P<status>NOCOMM|INIT|RUNNING|FINALIZE|ABORT) +(?P<errors>[A-Z,]+) *$"
)
_SECTION: Final = re.compile(r"^#\d+-\d+ \((?P<communicator>[0-9a-f]{8,16})\) (?P<error>INCOMPLETE|ERROR|MISMATCH)$")
_JOB_SECTION: Final = re.compile(r"^(INCOMPLETE|DEAD|TIMEOUT)$")
_RANK: Final = re.compile(
    r"^  Rank (?P<rank>\d+)(?P<state> .*?)? -- GPU (?P<gpu>\d+)(?: \(NVML (?P<nvml>\d+)\))? managed by process \d+ on "
    r"node (?P<host>\S+)$"
)
_BEGINNINGS: Final = (
    "Job summary", "Communicators...", "Gathering data about", "Group     Comms", "    #  in group", "Errors",
    "  Nodes  Processes", "(total)   per node", "CUDA runtime version", "======", "Warnings",
)  # fmt: skip
MAX_NAMED: Final = 4  # ranks that a report names


@CLUSTER_FORMATS.register("nccl-ras")
class NcclRas(LineFormat):
    """The job's communicators, and ranks that are missing, failed or behind."""

    title = "NCCL RAS report"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a report."""
        return _Reader(cluster)


class _Reader(LineReader):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_report = False
        self._heading = ""
        self._statements: list[str] = []
        self._ranks: list[str] = []

    def read(self, line: str) -> bool:
        """Take a group's row, or a line of a section; lines before the report are another program's."""
        if line.startswith(("Job summary", "Group     Comms")):
            self._is_report = True
        if not self._is_report:
            return False
        if group := _GROUP.match(line):
            hosts = f"{group['hosts']} hosts with {group['per_host']} each"
            state = f"{group['status']}, {group['errors']}"
            text = f"RAS: {group['count']} communicators of {group['ranks']} ranks on {hosts}: {state}"
            self._cluster.gaps[text] = None
            return True
        if section := _SECTION.match(line):
            self._start(f"communicator {section['communicator']}: {section['error']}")
            return True
        if _JOB_SECTION.match(line):
            self._start(line)
            return True
        if self._heading and line.startswith("  "):
            self._statement(line)
            return True
        return not line.strip() or line.startswith(_BEGINNINGS) or line.replace(" ", "").isdecimal()

    def _start(self, heading: str) -> None:
        self.end()
        self._heading = heading

    def _statement(self, line: str) -> None:
        """Take a line of a section: a rank with its place, or a sentence about ranks."""
        rank = _RANK.match(line)
        if rank is None:
            self._add_ranks()
            self._statements.append(line.strip())
            return
        gpu = rank["nvml"] or rank["gpu"]
        state = rank["state"] or ""
        self._ranks.append(f"rank {rank['rank']} (GPU {gpu} of {rank['host']}){state}")

    def _add_ranks(self) -> None:
        """Add the ranks that were listed since the last sentence."""
        if self._ranks:
            text = ", ".join(self._ranks[:MAX_NAMED])
            more = len(self._ranks) - MAX_NAMED
            self._statements.append(f"{text} and {more} more" if more > 0 else text)
            self._ranks = []

    def end(self) -> None:
        """Report the section."""
        self._add_ranks()
        if self._heading:
            self._cluster.reports[f"RAS: {self._heading}: {'; '.join(self._statements)}"] = None
        self._heading = ""
        self._statements = []
