"""What every trace is read into: for each rank a list of operations, and what each of them waits for on its rank.

Nothing here knows a file format, and nothing knows a fabric. `match` finds which operations of different ranks belong
together, `lower` makes tasks of them. Bytes and seconds are those of the trace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from railyard.core.errors import BadInput

Format = Literal["chakra", "param", "simai"]
Op = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "all-to-allv",
    "all-gatherv",
    "reduce-scatterv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
]
MAX_INT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Gap:
    """Anything that takes time on its rank and sends nothing; with zero seconds it only orders what is around it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Send:
    """`bytes` to rank `dst`. Sends and receives of a pair of ranks and a tag belong together in their order."""

    dst: int
    bytes: int
    tag: int


@dataclass(frozen=True, slots=True)
class Recv:
    """`bytes` from rank `src`."""

    src: int
    bytes: int
    tag: int


@dataclass(frozen=True, slots=True)
class Call:
    """A rank's call of a collective of `group` (ranks, in the group's order).

    `data_bytes`: of AllReduce, broadcast and reduce the buffer; of AllGather and ReduceScatter the whole gathered data;
    of all-to-all the bytes of a pair; of gather and scatter one rank's part. The v-collectives have `sends` and
    `receives` in its place: bytes to and from each of the group, itself included. `root` is a rank. `group_name` tells
    apart groups that have the same ranks.
    """

    op: Op
    group: tuple[int, ...]
    data_bytes: float = 0.0
    root: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    group_name: str = ""
    kind: str = "collective"


Action = Gap | Send | Recv | Call


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a rank. `where` is for messages; `after` are positions in the rank's list, in any order."""

    where: str
    action: Action
    after: tuple[int, ...] = ()


NodeId = tuple[int, int]
"""(rank, position in the rank's list)."""


class Measured(NamedTuple):
    """When an operation began, in seconds from the beginning of the run, and how long it took."""

    start_s: float
    seconds: float


@dataclass(frozen=True)
class Trace:
    """A job's operations, rank by rank. `notes`: what of the file is not in them, or was taken in its place.

    `rewrite` makes the trace's own files again (name: content) with what was measured of each operation.
    """

    name: str
    format: Format
    ranks: tuple[tuple[Node, ...], ...]
    rewrite: Callable[[Mapping[NodeId, Measured]], dict[str, bytes]]
    notes: tuple[str, ...] = ()

    def node(self, node_id: NodeId) -> Node:
        """An operation by rank and position."""
        return self.ranks[node_id[0]][node_id[1]]


def parse_whole(where: str, key: str, value: object, minimum: int = 0) -> int:
    """A whole number from a file, where none but such will do. BadInput says where it isn't one."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_INT:
        raise BadInput(where, value, f"is no {key}: a whole number of {minimum} or more is needed")
    return value


def ranks_of(where: str, value: object, ranks: int) -> tuple[int, ...]:
    """The ranks of a group, each once. BadInput for one of which there is no trace."""
    if not isinstance(value, list) or not value:
        raise BadInput(where, value, "is no group: a list of ranks is needed")
    group = tuple(parse_whole(where, "rank", item) for item in value)
    if len(set(group)) < len(group):
        raise BadInput(where, list(group), "has a rank twice")
    check_rank(where, max(group), ranks)
    return group


def check_rank(where: str, rank: int, ranks: int) -> int:
    """BadInput unless the trace has this rank."""
    if rank >= ranks:
        raise BadInput(where, rank, f"is a rank that is missing: the trace has ranks 0 to {ranks - 1}")
    return rank
