"""MSCCL's algorithms as XML: of each GPU, the thread blocks with the GPU that each sends to, and that it receives from.

An algorithm's connections are written down in it, so each is classed by the places of its two GPUs. A rank of the
algorithm is the rank of the job with the same number.
"""

from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, MAX_RANKS, DocumentFormat
from railyard.workloads.cluster.formats.nccl_topology import parse_xml
from railyard.workloads.cluster.records import Cluster, CommunicatorPart, ConnectionId, End, Source

_SENDING: Final = ("s", "rcs", "rrcs", "rrs")
"""Types of steps that send: send; receive, (reduce,) copy and send; receive, reduce and send."""


@CLUSTER_FORMATS.register("msccl-algorithm")
class MscclAlgorithm(DocumentFormat):
    """The connections of an algorithm."""

    title = "MSCCL algorithm XML"

    def recognizes(self, head: bytes) -> bool:
        """Return whether the root element is `algo`."""
        return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<") and b"<algo" in head

    def read(self, content: bytes, cluster: Cluster, source: Source) -> None:
        """Take the GPUs and whom each sends to. BadInput for a GPU that isn't there."""
        root = parse_xml(content, source.file)
        count = _number(source, root.tag, "ngpus", root.get("ngpus", ""))
        if count > MAX_RANKS:
            raise BadInput(f"{source.file}: {root.tag} ngpus", count, f"must be {MAX_RANKS:,} or fewer")
        title = f"{root.get('name', source.file)}, {root.get('coll', 'no collective')}"
        for gpu in root.iter("gpu"):
            rank = _number(source, "gpu", "id", gpu.get("id", ""), count)
            part = CommunicatorPart(f"rank {rank}", f"{source.file} {title}", size=count, rank=rank)
            part.title = title
            part.global_rank = rank
            cluster.traced_ranks.add(rank)
            part.group = tuple(range(count))
            part.is_traced = True
            for block in gpu.iter("tb"):
                peer = block.get("send", "-1")
                steps = [step for step in block.iter("step") if step.get("type") in _SENDING]
                if peer == "-1" or not steps:
                    continue
                channel = _number(source, f"gpu {rank}", "chan", block.get("chan", "0"))
                dst = _number(source, f"gpu {rank}", "send", peer, count)
                part.sent[ConnectionId(channel, rank, dst)] = End("by place")
            cluster.parts.append(part)


def _number(source: Source, place: str, name: str, text: str, count: int | None = None) -> int:
    """Return a whole number, which is below `count` if that is given."""
    if not text.isdecimal():
        raise BadInput(f"{source.file}: {place} {name}", text, "must be a whole number")
    number = int(text)
    if count is not None and number >= count:
        raise BadInput(f"{source.file}: {place} {name}", number, f"is no GPU of the algorithm's {count}")
    return number
