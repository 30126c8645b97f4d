"""Communicators from what each of their processes logged, and the hosts' GPUs and NICs that follow from them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from railyard.workloads.cluster.records import (
    Cluster,
    Communicator,
    CommunicatorPart,
    Connection,
    ConnectionId,
    End,
    Member,
    Nic,
)


def join(cluster: Cluster) -> None:
    """Make the cluster's communicators of the parts that readers found. Largest first, then in the order of the log."""
    parts = [part for part in cluster.parts if part.rank >= 0]
    _number_gpus(cluster, parts)
    groups = _with_identity(parts) + _without_identity(cluster, parts)
    for group in groups:
        cluster.communicators.append(_communicator(group))
    cluster.communicators.sort(key=lambda communicator: -communicator.size)
    for number, communicator in enumerate(cluster.communicators):
        communicator.name = f"comm {number} ({communicator.name})" if communicator.name else f"comm {number}"
    for communicator in cluster.communicators:
        _add_nics(cluster, communicator)


def _with_identity(parts: Iterable[CommunicatorPart]) -> list[list[CommunicatorPart]]:
    by_identity: defaultdict[tuple[str, int], list[CommunicatorPart]] = defaultdict(list)
    for part in parts:
        if part.identity:
            by_identity[part.identity, part.size].append(part)
    return list(by_identity.values())


def _without_identity(cluster: Cluster, parts: Iterable[CommunicatorPart]) -> list[list[CommunicatorPart]]:
    """Group parts without NCCL's id: the n-th of a size in each process is of the same communicator.

    Several communicators of the same size at the same time have ranks in common. Their parts are put together host by
    host, as groups of tensor parallelism are, and the cluster notes that this is not certain.
    """
    by_turn: defaultdict[tuple[int, int], list[CommunicatorPart]] = defaultdict(list)
    turns: defaultdict[tuple[str, int], int] = defaultdict(int)
    for part in parts:
        if part.identity:
            continue
        if not part.size:
            # an excerpt without any line of the initialization
            by_turn[0, 0].append(part)
            continue
        turn = turns[part.process, part.size]
        turns[part.process, part.size] += 1
        by_turn[part.size, turn].append(part)
    groups: list[list[CommunicatorPart]] = []
    for (size, _), candidates in by_turn.items():
        separated = _separated(candidates)
        if len(separated) > 1:
            ranks = f"{size} ranks" if size else "unknown size"
            text = f"{len(separated)} communicators of {ranks} have no id in the log: separated by host and order"
            cluster.gaps[text] = None
        groups += separated
    return groups


def _size_of(part: CommunicatorPart) -> int:
    """Return a lower bound of a communicator's size: the highest rank that its connections name, and one."""
    ranks = [part.rank]
    for connection in (*part.sent, *part.received):
        ranks += [connection.src, connection.dst]
    return max(ranks) + 1


def _separated(parts: Sequence[CommunicatorPart]) -> list[list[CommunicatorPart]]:
    """Put parts into as few groups as have each rank once; parts of a host stay together where they can."""
    groups: list[dict[int, CommunicatorPart]] = []
    for part in parts:
        free = [group for group in groups if part.rank not in group]
        beside = [group for group in free if _has_host(group.values(), part)]
        if beside:
            beside[0][part.rank] = part
        elif free:
            free[0][part.rank] = part
        else:
            groups.append({part.rank: part})
    return [list(group.values()) for group in groups]


def _has_host(parts: Iterable[CommunicatorPart], part: CommunicatorPart) -> bool:
    if part.member is None:
        return False
    hosts = {other.member.host for other in parts if other.member}
    return part.member.host in hosts


def _communicator(parts: Sequence[CommunicatorPart]) -> Communicator:
    sizes = [part.size or _size_of(part) for part in parts]
    communicator = Communicator("", max(sizes))
    communicator.is_traced = all(part.is_traced for part in parts)
    for part in parts:
        if part.member:
            communicator.members[part.rank] = part.member
        communicator.rings.update(part.rings)
        communicator.calls.update(part.calls)
        communicator.call_bytes.update(part.call_bytes)
        communicator.sends.update(part.sends)
        for position, rank in enumerate(part.group):
            communicator.global_ranks[position] = rank
        if part.last_call:
            communicator.last_calls[part.rank] = part.last_call
        if part.global_rank >= 0:
            communicator.global_ranks[part.rank] = part.global_rank
        communicator.name = communicator.name or part.title
        communicator.has_begun = communicator.has_begun or bool(part.pointer or part.rings)
        if part.is_initialized:
            communicator.initialized.add(part.rank)
        for connection, end in part.sent.items():
            communicator.connections[connection].sender = end
        for connection, end in part.received.items():
            communicator.connections[connection].receiver = end
    _add_trees(communicator, parts)
    return communicator


def _add_trees(communicator: Communicator, parts: Sequence[CommunicatorPart]) -> None:
    """Add a connection between each two neighbouring heads of a CollNet tree, which must be on one rail to reach it."""
    heads_of: defaultdict[int, dict[int, End]] = defaultdict(dict)
    for part in parts:
        for channel, end in part.heads.items():
            heads_of[channel][part.rank] = end
    for channel, heads in heads_of.items():
        for src, dst in pairwise(sorted(heads)):
            communicator.connections.setdefault(ConnectionId(channel, src, dst), Connection(heads[src], heads[dst]))


def _add_nics(cluster: Cluster, communicator: Communicator) -> None:
    """Add the NICs that only connections name, as those of AWS's plugin, which have no names in the log."""
    for connection, ends in communicator.connections.items():
        for rank, end in ((connection.src, ends.sender), (connection.dst, ends.receiver)):
            member = communicator.members.get(rank)
            if member and end and end.nic is not None:
                nics = cluster.host(member.host).nics
                nics.setdefault(end.nic, Nic(end.nic, kind=end.network))


def _number_gpus(cluster: Cluster, parts: Iterable[CommunicatorPart]) -> None:
    """Number each host's GPUs: by their PCI bus ids where several are called by the same number.

    A process that sees one GPU alone (CUDA_VISIBLE_DEVICES) calls it 0.
    """
    number_of: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for part in parts:
        if part.member and part.bus_id:
            number_of[part.member.host][part.bus_id] = part.member.gpu
    for host, numbers in number_of.items():
        if len(set(numbers.values())) < len(numbers):
            in_order = sorted(numbers, key=lambda bus_id: int(bus_id, 16))
            number_of[host] = {bus_id: position for position, bus_id in enumerate(in_order)}
        for bus_id, number in number_of[host].items():
            cluster.host(host).gpus[number] = bus_id
    for part in parts:
        if part.member and part.bus_id:
            host = part.member.host
            part.member = Member(host, number_of[host][part.bus_id])
