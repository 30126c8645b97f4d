"""Traces as Railyard holds them, and the files that they are read from.

For each rank a list of operations, and what each of them waits for on its rank. Nothing here knows a file format or a
fabric. `match` finds which operations of different ranks belong together, `lower` makes tasks of them. Bytes and
seconds are those of the trace.

A trace is one file for all ranks, or one for each, found by the number before its suffix.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from railyard.core.errors import BadInput

Format = Literal["chakra", "param", "simai"]
Op = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "all-to-allv", "all-gatherv", "reduce-scatterv",
    "broadcast", "reduce", "gather", "scatter", "barrier",
]  # fmt: skip
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
    """Start of an operation, in seconds from the beginning of the run, and how long it took."""

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


_RANKED: Final = re.compile(r"(?:(?P<stem>.+)\.)?(?:rank)?(?P<rank>0|[1-9][0-9]{0,5})\.(?P<suffix>et|json)")


@dataclass(frozen=True)
class Files:
    """`name`: what they have in common; `content`: of each rank's file in order, or of the one for all (`shared`)."""

    name: str
    names: tuple[str, ...]
    content: tuple[bytes, ...]
    shared: bool


def read_files(path: str, field: str) -> Files:
    """Read a file, or a file for each rank: `path` is their folder or beginning (PATH.0.et, PATH.1.et, ...).

    BadInput if there is nothing, more than one trace, or a rank between others that has no file.
    """
    given_path = Path(path)
    try:
        if given_path.is_file() and not _RANKED.fullmatch(given_path.name):
            return Files(given_path.stem, (given_path.name,), (given_path.read_bytes(),), shared=True)
        return _read_rank_files(given_path, field)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(field, path, f"can't be read: {reason}") from error


def is_trace_prefix(stem: str) -> bool:
    """Return whether the working folder has a file such as STEM.0.et."""
    matches = (_RANKED.fullmatch(file.name) for file in Path().iterdir())
    return any(match["stem"] == stem for match in matches if match)


def _read_rank_files(given_path: Path, field: str) -> Files:
    folder = given_path if given_path.is_dir() else given_path.parent
    match = _RANKED.fullmatch(given_path.name)
    expected_stem = None if given_path.is_dir() else match["stem"] if match and given_path.exists() else given_path.name
    rank_files: defaultdict[tuple[str | None, str], dict[int, Path]] = defaultdict(dict)
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = _RANKED.fullmatch(file.name)
        if found and file.is_file() and (given_path.is_dir() or found["stem"] == expected_stem):
            rank_files[found["stem"], found["suffix"]][int(found["rank"])] = file
    if match and given_path.exists():
        rank_files = defaultdict(dict, {k: v for k, v in rank_files.items() if k[1] == match["suffix"]})
    if not rank_files:
        allowed = "is no trace: give a file, or a folder or the beginning of files such as NAME.0.et, NAME.1.et"
        raise BadInput(field, str(given_path), allowed)
    if len(rank_files) > 1:
        choices = ", ".join(sorted(f"{stem or ''}.*.{suffix}" for stem, suffix in rank_files))
        raise BadInput(field, str(given_path), f"has several traces: give the first file of one of {choices}")
    (stem, _), by_rank = next(iter(rank_files.items()))
    for rank in range(max(by_rank) + 1):
        if rank not in by_rank:
            raise BadInput(
                field, str(given_path), f"misses rank {rank}: there are files for ranks up to {max(by_rank)}"
            )
    paths = [by_rank[rank] for rank in range(len(by_rank))]
    content = tuple(file.read_bytes() for file in paths)
    return Files(stem or folder.resolve().name, tuple(file.name for file in paths), content, shared=False)


def trace_name(path: str) -> str:
    """Return the name of a trace by its path alone: without folder, rank and suffix."""
    name = Path(path).name
    match = _RANKED.fullmatch(name)
    return (match["stem"] if match else Path(name).stem) or Path(path).resolve().parent.name


def parse_json(content: bytes, where: str) -> Any:
    """Plain data of a JSON file. BadInput says where it breaks off."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        raise BadInput(where, location, f"is cut off or no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(where, "its content", "is no JSON in UTF-8") from error
