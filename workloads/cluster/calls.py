"""Calls of collectives as traces name them: the operation, its bytes, and the communicator that each belongs to."""

import json
from collections.abc import Sequence
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import MAX_RANKS
from railyard.workloads.cluster.records import Cluster, CommunicatorPart, LastCall
from railyard.workloads.traces.formats.param import ELEMENT_BYTES

_OPERATIONS: Final = (
    ("alltoall", "all-to-all"), ("reducescatter", "reduce-scatter"), ("allgather", "all-gather"),
    ("allreduce", "all-reduce"), ("broadcast", "broadcast"), ("bcast", "broadcast"), ("reduce", "reduce"),
    ("gather", "gather"), ("scatter", "scatter"), ("barrier", "barrier"), ("send", "send"), ("recv", "recv"),
)  # fmt: skip
"""Beginnings of names without their signs, and the operation. The longer of two comes first."""
_SHORT_DTYPES: Final = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
    "fp8e4m3": 1, "fp8e5m2": 1,
}  # fmt: skip
"""Element sizes by the names that torchcomms gives them, in bytes."""


def operation_of(name: str) -> str | None:
    """Return the operation that a library's name stands for, as `_reduce_scatter_base`; None for one of no group."""
    letters = "".join(filter(str.isalpha, name.lower())).removeprefix("nccl").removeprefix("coalesced")
    for beginning, operation in _OPERATIONS:
        if letters.startswith((beginning, f"i{beginning}")):
            return operation
    return None


def element_bytes(dtype: object) -> int:
    """Return the bytes of an element; 0 for a type that isn't known."""
    name = str(dtype).lower().removeprefix("torch.")
    return _SHORT_DTYPES.get(name) or ELEMENT_BYTES.get(name, 0)


def whole_numbers(value: object) -> tuple[int, ...]:
    """Return the numbers of a list that may be written as text; none if it isn't one, or if it is shortened."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return ()
    return tuple(value)


MAX_BYTES: Final = 2**63 - 1  # of a call


class TracedRank:
    """The communicators of one rank in a trace, and its calls of them."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        """`rank`: of the job."""
        cluster.traced_ranks.add(rank)
        self._cluster = cluster
        self._rank = rank
        self._parts: dict[str, CommunicatorPart] = {}

    def add_group(self, name: str, title: str, ranks: Sequence[int]) -> None:
        """Add a communicator under a name that the rank's calls give.

        None if the rank isn't in it, or has it, or if it has ranks that no job has.
        """
        group = tuple(ranks)
        is_possible = all(0 <= rank < MAX_RANKS for rank in group)
        if self._rank not in group or name in self._parts or not is_possible:
            return
        # groups of different ranks may have the same name, as each rank's own tensor-parallel group
        identity = f"{name} of ranks {list(group)}"
        part = CommunicatorPart(f"rank {self._rank}", identity, size=len(group), rank=group.index(self._rank))
        part.title = title
        part.global_rank = self._rank
        part.group = group
        part.is_traced = True
        self._parts[name] = part
        self._cluster.parts.append(part)

    def has_group(self, name: str) -> bool:
        """Return whether a communicator of this name was added."""
        return name in self._parts

    def group(self, name: str) -> tuple[int, ...]:
        """Return the ranks of a communicator."""
        return self._parts[name].group

    def set_last_call(self, name: str, call: LastCall) -> None:
        """Set the last collective that the rank called on a communicator."""
        self._parts[name].last_call = call

    def add_call(self, name: str, operation: str, size: int, peer: int | None = None) -> None:
        """Count a call of a communicator. `size`: bytes; `peer`: the rank of the job that a send goes to."""
        if not 0 <= size <= MAX_BYTES:
            raise BadInput(f"rank {self._rank}: {operation}", size, f"must be 0 to {MAX_BYTES} bytes")
        part = self._parts[name]
        part.calls[operation] += 1
        part.call_bytes[operation] += size
        if operation == "send" and peer in part.group and peer != self._rank:
            part.sends[part.rank, part.group.index(peer)] += 1


def pytorch_groups(listed: Any) -> list[tuple[str, str, list[int]]]:
    """Return name, description and ranks of each of PyTorch's process groups; without ranks, a group has all of them.

    ValueError, TypeError, LookupError or AttributeError if it is no list of such.
    """
    groups: list[tuple[str, str, list[int]]] = []
    for group in listed:
        ranks = group.get("ranks") or []
        members = list(whole_numbers(ranks)) or [int(rank) for rank in ranks]
        name = str(group["pg_name"])
        groups.append((name, str(group.get("pg_desc") or name), members))
    return groups
