"""Bytes that each pair of ranks exchanges when Gloo carries the operations of a recording.

Gloo's algorithms: AllReduce is a ring towards the lower rank, AllGather one towards the higher, a broadcast a binomial
tree, a reduction a ring whose parts go to the root; everything else goes straight from rank to rank. PyTorch makes a
ReduceScatter of an AllReduce. A rank of a ring sends a part of the buffer more or less than another where it can't be
split evenly; that is left out here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from railyard.workloads.recording.symmetry import Families, Program

Pairs = Counter[tuple[int, int]]


def pair_bytes(programs: Mapping[int, Program], families: Families) -> Pairs:
    """Return the bytes from rank to rank. `programs`: of every rank."""
    pairs: Pairs = Counter()
    for rank, program in programs.items():
        for operation in program:
            if "communicator" in operation:
                group = _group_of(rank, families[operation["communicator"]])
                for place, size in _sent(operation, group.index(rank), len(group)).items():
                    if group[place] != rank:
                        pairs[rank, group[place]] += size
    return pairs


def _group_of(rank: int, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    for group in groups:
        if rank in group:
            return group
    raise ValueError(f"rank {rank} is in none of {groups}")


def _sent(operation: Mapping[str, Any], place: int, count: int) -> Mapping[int, int]:
    """Return the bytes that a place of a group sends to each in an operation; its own place may be among them."""
    size = operation.get("bytes", 0)
    root = operation.get("root", 0)
    match operation["op"]:
        case "all-to-all":
            return dict.fromkeys(range(count), size)
        case "all-to-allv":
            return dict(enumerate(operation["sends"]))
        case "send":
            return {operation["peer"]: size}
        case "broadcast":
            return dict.fromkeys(_children(place, root, count), size)
        case "gather":
            return {root: size}
        case "scatter":
            return dict.fromkeys(range(count), size) if place == root else {}
    return _sent_in_ring(operation, place, count)


def _sent_in_ring(operation: Mapping[str, Any], place: int, count: int) -> Mapping[int, int]:
    """Return the bytes that a place sends in an operation that is a ring; none in a barrier."""
    size = operation.get("bytes", 0)
    lower = (place - 1) % count
    higher = (place + 1) % count
    match operation["op"]:
        case "all-reduce" | "reduce-scatter":
            return {lower: 2 * (count - 1) * size // count}
        case "all-gather":
            return {higher: (count - 1) * size // count}
        case "all-gatherv":
            return {higher: sum(operation["receives"]) - operation["receives"][higher]}
        case "reduce":
            sent = Counter({lower: (count - 1) * size // count})
            sent[operation["root"]] += size // count
            return sent
    return {}


def _children(place: int, root: int, count: int) -> list[int]:
    """Return the places that a place sends a broadcast on to: those whose number has one higher bit, from the root."""
    number = (place - root) % count
    children: list[int] = []
    bit = 1 << number.bit_length()
    while number + bit < count:
        children.append((number + bit + root) % count)
        bit <<= 1
    return children
