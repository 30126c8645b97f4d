"""NCCL RAS as JSON (`ncclras -f json`, NCCL 2.28.7 and later): each communicator with its ranks, and what they called.

The text of RAS has groups of communicators instead. Source: "RAS" in NCCL's documentation.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.calls import operation_of
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, ranks_of_job
from railyard.workloads.cluster.formats.nccl_ras import MAX_NAMED
from railyard.workloads.cluster.records import Cluster, CommunicatorPart, Member, Source
from railyard.workloads.traces.common import parse_json

_KEY: Final = b'"communicators_count"'
_IN_PROGRESS: Final = 7  # ncclInProgress


@CLUSTER_FORMATS.register("nccl-ras-json")
class NcclRasJson(DocumentFormat):
    """Communicators with the places and calls of their ranks, and ranks that are missing, failed or behind."""

    title = "NCCL RAS report as JSON"

    def recognizes(self, head: bytes) -> bool:
        """Return whether it is JSON with the number of communicators."""
        return head.lstrip().startswith(b"{") and _KEY in head

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the communicators. BadInput for a report without them, or one that is cut off."""
        data = parse_json(content, source.file)
        try:
            for communicator in data["communicators"]:
                _take(communicator, cluster)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise BadInput(source.file, "communicators", "is no list of communicators with hash and ranks") from error


def _take(communicator: Mapping[str, Any], cluster: Cluster) -> None:
    """Add each rank of a communicator, and report those that RAS has not reached, or that are not as others."""
    identity = str(communicator["hash"])
    ranks: Sequence[Mapping[str, Any]] = communicator["ranks"]
    missing: Sequence[Mapping[str, Any]] = communicator.get("missing_ranks") or []
    size = len(ranks_of_job(communicator["size"]))
    for rank in (*ranks, *missing):
        host = str(rank["host"])
        part = CommunicatorPart(f"{host}:{rank['pid']}", identity, size=size)
        part.rank = range(size).index(rank["rank"])
        part.member = Member(host, int(rank["nvml_dev"]))
        part.is_initialized = rank["status"].get("init_state") == 0
        # no connection is in the report: it follows from the places
        part.is_traced = True
        for name, count in rank.get("collective_counts", {}).items():
            if count:
                part.calls[operation_of(name) or name] += int(count)
        cluster.parts.append(part)
        cluster.host(host)
    named: defaultdict[str, list[str]] = defaultdict(list)
    for rank in missing:
        is_dead = rank["status"].get("considered_dead")
        state = "missing: its process is considered dead" if is_dead else "missing: RAS doesn't reach its process"
        named[state].append(_name(rank))
    for rank in ranks:
        for state in _failures(rank["status"]):
            named[state].append(_name(rank))
    for state, names in (*named.items(), *_behind(ranks)):
        cluster.reports[f"RAS: communicator {identity}: {_listed(names)}: {state}"] = None


def _failures(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a rank that answered. Numbers are those of ncclResult_t."""
    if status.get("init_state") == _IN_PROGRESS:
        yield "initialization has not ended"
    elif status.get("init_state"):
        yield f"initialization failed with error {status['init_state']}"
    if status.get("async_error") not in (0, None, _IN_PROGRESS):
        yield f"error {status['async_error']}"
    if status.get("abort_flag"):
        yield "aborted"


def _behind(ranks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the ranks that have called a collective less often than others, which wait for them or soon will."""
    names_of: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for collective, count in rank["collective_counts"].items():
            names_of[collective][int(count)].append(_name(rank))
    for collective, names_by_count in names_of.items():
        most = max(names_by_count)
        for count in sorted(names_by_count):
            if count < most:
                yield f"called {collective} {count:,} times, others {most:,} times", names_by_count[count]


def _name(rank: Mapping[str, Any]) -> str:
    return f"rank {rank['rank']} (GPU {rank['nvml_dev']} of {rank['host']})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    text = ", ".join(names[:MAX_NAMED])
    return f"{text} and {more} more" if more > 0 else text
