"""NCCL's rings as XML (NCCL_GRAPH_DUMP_FILE): by which NIC a channel enters a host, and by which it leaves."""

from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat
from railyard.workloads.cluster.formats.nccl_topology import parse_xml
from railyard.workloads.cluster.records import Cluster, RingChannel, Source

RING_PATTERN: Final = "4"  # NCCL_TOPO_PATTERN_RING


@CLUSTER_FORMATS.register("nccl-graph")
class NcclGraph(DocumentFormat):
    """The NICs of each channel's ring."""

    title = "NCCL graph XML"

    def recognizes(self, head: bytes) -> bool:
        """Return whether the root element is `graphs`."""
        return b"<graphs" in head

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the first and the last NIC of each ring. A graph of one host has none."""
        for graph in parse_xml(content, source.file).iter("graph"):
            if graph.get("pattern") != RING_PATTERN:
                continue
            for number, channel in enumerate(graph.iter("channel")):
                nics = [net.get("dev", "") for net in channel.iter("net")]
                if not all(nic.isdigit() for nic in nics):
                    raise BadInput(f"{source.file}: channel {number}", ", ".join(nics), "has a NIC without number")
                if nics:
                    cluster.ring_channels.append(RingChannel(source.file, number, int(nics[0]), int(nics[-1])))
