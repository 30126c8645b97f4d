"""Places of a trace's ranks, and the connections that follow: a trace has ranks and calls, but neither hosts nor NICs.

Hosts come from another file that has all ranks of the job (a hostfile, a log), else one host is filled after the other.
Which ranks NCCL will connect follows from the calls: a ring of all for a reduction or a gathering, pairs for an
all-to-all and for sends.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Final

from railyard.workloads.cluster.rails import has_pxn
from railyard.workloads.cluster.records import Cluster, Communicator, Connection, ConnectionId, End, Member

MAX_PAIRS: Final = 2**16
"""Of an all-to-all that are classed: those of 256 ranks."""
_SENDS: Final = ("send", "recv")
_WITHOUT_RING: Final = (*_SENDS, "all-to-all", "all-to-allv", "gather", "scatter")
_WITH_PAIRS: Final = ("all-to-all", "all-to-allv")


def place(cluster: Cluster, ranks_per_host: int | None = None) -> None:
    """Give the ranks of traces their hosts, and their communicators the connections that NCCL will make.

    `ranks_per_host`: of a job whose hosts no file has; None: as a trace says it.
    """
    traced = [communicator for communicator in cluster.communicators if communicator.is_traced]
    if not traced:
        return
    ranks: set[int] = set()
    for communicator in traced:
        ranks.update(communicator.global_ranks.values())
    # a report of RAS has the hosts, and no ranks of the job
    members = _members(cluster, max(ranks) + 1, ranks_per_host or cluster.ranks_per_host) if ranks else {}
    if ranks and not members:
        cluster.gaps["the hosts of the ranks aren't known: add a hostfile or a log, or give --ranks-per-host"] = None
    for communicator in traced:
        for position, rank in communicator.global_ranks.items():
            if rank in members:
                communicator.members.setdefault(position, members[rank])
        for connection in _connections(cluster, communicator):
            communicator.connections[connection] = Connection(End("by place"), End("by place"))
    for member in members.values():
        cluster.host(member.host)


def _members(cluster: Cluster, world: int, ranks_per_host: int | None) -> Mapping[int, Member]:
    """Return the places of the job's ranks: as the smallest communicator with all of them has them."""
    candidates: list[Communicator] = []
    for communicator in cluster.communicators:
        is_whole = len(communicator.members) == communicator.size
        if not communicator.is_traced and is_whole and communicator.size >= world:
            candidates.append(communicator)
    if candidates:
        smallest = min(candidates, key=lambda communicator: communicator.size)
        cluster.gaps[f"the hosts of the job's ranks are those of {smallest.name}"] = None
        return smallest.members
    if not ranks_per_host:
        return {}
    cluster.gaps[f"ranks are taken to fill one host after the other, {ranks_per_host} on each"] = None
    members: dict[int, Member] = {}
    for rank in range(world):
        host, gpu = divmod(rank, ranks_per_host)
        members[rank] = Member(f"host{host}", gpu)
    return members


def _connections(cluster: Cluster, communicator: Communicator) -> Iterator[ConnectionId]:
    """Yield the connections that a communicator's calls need, each once."""
    if communicator.size < 2:
        return
    calls = communicator.calls
    if any(call not in _WITHOUT_RING for call in calls):
        yield from ring(communicator)
    pairs: dict[tuple[int, int], None] = {}
    if any(call in _WITH_PAIRS for call in calls):
        pairs = dict.fromkeys(_pairs(cluster, communicator))
    pairs |= dict.fromkeys(communicator.sends)
    for call in ("gather", "scatter"):
        if call in calls:
            text = f"{communicator.name}: a {call} has a root that isn't known, so its pairs aren't classed"
            cluster.gaps[text] = None
            # by PXN they stay on their rails, whatever the root is
            communicator.has_unclassed_sends = not has_pxn(cluster)
    for src, dst in pairs:
        yield ConnectionId(0, src, dst, is_p2p=True)


def _pairs(cluster: Cluster, communicator: Communicator) -> Iterator[tuple[int, int]]:
    """Yield the pairs of an all-to-all; if they are too many, those of the first ranks."""
    size = communicator.size
    if size * (size - 1) <= MAX_PAIRS:
        yield from permutations(range(size), 2)
        return
    # any rank crosses to the far GPUs that are on other rails, so that some ranks show whether any cross
    senders = max(1, MAX_PAIRS // size)
    text = f"{communicator.name}: of its all-to-alls, the sends of {senders} of {size} ranks are classed"
    cluster.gaps[text] = None
    for src in range(senders):
        for dst in range(size):
            if dst != src:
                yield src, dst


def ring(communicator: Communicator) -> Iterator[ConnectionId]:
    """Yield the connections of a communicator's rings.

    If each host has the same GPUs of it, a ring for each GPU leaves every host by that GPU, as NCCL's channels do, and
    another joins the ranks of a host. Otherwise it is one ring in the order of ranks.
    """
    hosts = _ranks_by_gpu(communicator)
    if hosts is None or len(hosts) < 2:
        order = list(range(communicator.size))
        for src, dst in pairwise([*order, order[0]]):
            yield ConnectionId(0, src, dst)
        return
    for channel, ranks in enumerate(zip(*hosts, strict=True)):
        for src, dst in pairwise([*ranks, ranks[0]]):
            yield ConnectionId(channel, src, dst)
    for ranks_of_host in hosts:
        for src, dst in pairwise(ranks_of_host):
            yield ConnectionId(0, src, dst)


def _ranks_by_gpu(communicator: Communicator) -> Sequence[Sequence[int]] | None:
    """Return each host's ranks in the order of GPUs; None unless all hosts are known and have the same GPUs."""
    if len(communicator.members) < communicator.size:
        return None
    by_host: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for rank, member in communicator.members.items():
        by_host[member.host][member.gpu] = rank
    ordered = [sorted(ranks.items()) for ranks in by_host.values()]
    gpus = [[gpu for gpu, _ in ranks] for ranks in ordered]
    if any(row != gpus[0] for row in gpus) or sum(map(len, gpus)) < communicator.size:
        return None
    return [[rank for _, rank in ranks] for ranks in ordered]
