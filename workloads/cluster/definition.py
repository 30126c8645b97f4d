"""The formats of what a cluster's tools write, as a registry: a file in formats/ each.

A log has lines of several programs, so each line goes to every `LineFormat`. A document, as an XML file, is of one
`DocumentFormat`, which is chosen by its first bytes.
"""

import re
from abc import ABC, abstractmethod
from typing import Final

from railyard.core.errors import BadInput
from railyard.core.registry import Registry
from railyard.workloads.cluster.records import Cluster, Source

MAX_RANKS: Final = 2**20
_RANK_IN_NAME: Final = re.compile(
    r"(?:^|[^A-Za-z])rank[_.-]?(?P<named>\d+)(?!\d)|(?P<last>\d+)(?:\.(?:pt|trace|et|json|pkl|pickle|gz))*$"
)


def rank_in_name(file: str) -> int:
    """Return the rank in a file's name: after `rank`, or its last number. BadInput if it has none."""
    match = _RANK_IN_NAME.search(file)
    # a larger number is a process or a time
    if not match or int(match["named"] or match["last"]) >= MAX_RANKS:
        raise BadInput(file, "its name", "must have the rank, as nccl_trace_rank_3 or trace.3.json")
    return int(match["named"] or match["last"])


def ranks_of_job(size: object) -> range:
    """Return the ranks of a job of a size; none if no job can have it."""
    if type(size) is not int or not 0 < size <= MAX_RANKS:
        return range(0)
    return range(size)


class LineReader(ABC):
    """Reads the lines of one file in one format."""

    @abstractmethod
    def read(self, line: str) -> bool:
        """Take what a line says; return whether it is a line of this format."""

    def end(self) -> None:  # noqa: B027 - most formats need none
        """Take what only the end of the file makes certain."""


class ClusterFormat:
    """A format: a `LineFormat` or a `DocumentFormat`."""

    title: str = ""
    """What it is, for tables and messages."""


class LineFormat(ClusterFormat, ABC):
    """A format of lines, which may be mixed with others in a file of any size."""

    @abstractmethod
    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a file, which fills the cluster and the source."""


class DocumentFormat(ClusterFormat, ABC):
    """A format of whole files."""

    @abstractmethod
    def recognizes(self, head: bytes) -> bool:
        """Return whether a file is of this format, by its first 64 KiB."""

    @abstractmethod
    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take what a file says. BadInput where it can't be read."""


def _problems(_: str, definition: ClusterFormat) -> list[str]:
    return [] if definition.title else ["title is missing"]


CLUSTER_FORMATS: Final = Registry[ClusterFormat](
    "cluster file format", "railyard.workloads.cluster.formats", ClusterFormat, check=_problems
)
"""Every format of a cluster's logs and files by name."""
