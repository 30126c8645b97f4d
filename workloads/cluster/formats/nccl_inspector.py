"""NCCL Inspector's records (NCCL 2.28 and later): a line of JSON for each collective of a rank."""

import json
from typing import Any, Final

from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import BITS_OF_GB, Bandwidth, Cluster, CommunicatorPart, Member, Source

_COLLECTIVES: Final = {
    "AllReduce": "all-reduce", "AllGather": "all-gather", "ReduceScatter": "reduce-scatter", "AllToAll": "all-to-all",
    "Broadcast": "broadcast", "Reduce": "reduce", "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip


@CLUSTER_FORMATS.register("nccl-inspector")
class NcclInspector(LineFormat):
    """Communicators with ranks and hosts, and the bus bandwidth of every collective."""

    title = "NCCL Inspector records"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of records."""
        return _Reader(cluster, source)


class _Reader(LineReader):
    def __init__(self, cluster: Cluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self._parts: dict[tuple[str, str], CommunicatorPart] = {}

    def read(self, line: str) -> bool:
        """Take a record; another program's JSON is none."""
        if not line.startswith("{") or '"header"' not in line or '"n_ranks"' not in line:
            return False
        try:
            record = json.loads(line)
            self._take(record["header"], record["metadata"], record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # the last line of a process that was killed is cut off
            self._source.note_unknown(line[:200])
        return True

    def _take(self, header: dict[str, Any], metadata: dict[str, Any], record: dict[str, Any]) -> None:
        host = str(metadata["hostname"])
        process = f"{host}:{int(metadata['pid'])}"
        identity = str(header["id"])
        key = (process, identity)
        if key not in self._parts:
            rank = int(header["rank"])
            part = CommunicatorPart(process, identity, size=int(header["n_ranks"]), rank=rank, member=Member(host))
            # a collective is recorded when it is complete, so the communicator was
            part.is_initialized = True
            self._parts[key] = part
            self._cluster.parts.append(part)
            self._cluster.host(host)
        call = record.get("coll_perf")
        if call is None:
            return
        name = str(call["coll"])
        self._parts[key].calls[name] += 1
        bus_bps = float(call["coll_busbw_gbs"]) * BITS_OF_GB
        bandwidth = Bandwidth(_COLLECTIVES.get(name, name), int(call["coll_msg_size_bytes"]), bus_bps)
        self._cluster.bandwidths.append(bandwidth)
