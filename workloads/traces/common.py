"""Traces as Railyard holds them, the formats of their files, and the files.

For each rank a list of operations, and what each of them waits for on its rank. Nothing of it depends on a format or a
fabric. `match` finds which operations of different ranks belong together, `lower` makes tasks of them. Bytes and
seconds are those of the trace.

A trace is one file for all ranks, or one for each, found by the number before its suffix.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

from railyard.core.errors import BadInput
from railyard.core.registry import Registry
from railyard.core.safe_files import decoded, read_input, too_large

Op = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "all-to-allv", "all-gatherv", "reduce-scatterv",
    "broadcast", "reduce", "gather", "scatter", "barrier",
]  # fmt: skip
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
# of a trace's files together: decoded, they take up to 50 times as much memory
MAX_BYTES: Final = 2**24
MAX_OPERATIONS: Final = 2**19
Groups = Mapping[str, tuple[int, ...]]  # ranks of process groups, by name


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


NodeId = tuple[int, int]  # (rank, position in the rank's list)


class Measured(NamedTuple):
    """Start of an operation, in seconds from the beginning of the run, and how long it took."""

    start_s: float
    seconds: float


AllMeasured = Mapping[NodeId, Measured]  # what was measured of operations, by their numbers


@dataclass(frozen=True)
class Trace:
    """A job's operations, rank by rank.

    `notes`: what of the file is not in them, or was taken in its place.

    `rewrite` makes the trace's own files again (name: content) with what was measured of each operation.

    `ranks_per_node`: of the job, if the trace says it.
    """

    name: str
    ranks: tuple[tuple[Node, ...], ...]
    rewrite: Callable[[AllMeasured], dict[str, bytes]]
    notes: tuple[str, ...] = ()
    ranks_per_node: int | None = None

    def node(self, node_id: NodeId) -> Node:
        """An operation by rank and position."""
        return self.ranks[node_id[0]][node_id[1]]


class Files(NamedTuple):
    """`name`: what they have in common; `content`: of each rank's file in order, or of the one for all (`shared`)."""

    name: str
    names: tuple[str, ...]
    content: tuple[bytes, ...]
    shared: bool

    @property
    def suffix(self) -> str:
        """The suffix of the first file: `.json`."""
        return Path(self.names[0]).suffix


class ReplayOn(NamedTuple):
    """What a trace is read for: a fabric's GPUs and rails, FLOP/s of a GPU, and groups from a file of their own."""

    gpus: int
    rails: int
    flops_per_s: float
    groups: Groups


class TraceFormat(ABC):
    """A format of trace files."""

    rank_suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files, NAME.<rank>.<suffix>, of a trace with a file for each rank."""
    folder_file: ClassVar[str] = ""
    """Name of the file for all ranks in a folder that is a trace of this format."""
    takes_groups: ClassVar[bool] = False  # whether process groups may be defined in a file of their own
    is_general: ClassVar[bool] = False
    """Whether it recognizes files of other formats too, so that these are asked first."""

    @abstractmethod
    def recognizes(self, files: Files) -> bool:
        """Return whether files are of this format. Formats that were registered later are asked before others."""

    @abstractmethod
    def read(self, files: Files, on: ReplayOn) -> Trace:
        """Return the trace. BadInput says where it can't be read."""


TRACE_FORMATS: Final = Registry[TraceFormat](
    "trace format",
    "railyard.workloads.traces.formats",
    TraceFormat,
    order=lambda trace_format: 0 if trace_format.is_general else 1,
)
"""Every format of trace files by name: `format` of a workload of kind trace."""


def check_format(name: str) -> str:
    """Return the name of a format, or auto; ValueError for any other."""
    if name == "auto":
        return name
    return TRACE_FORMATS.checked(name)


def format_of(files: Files, field: str) -> str:
    """Return the name of the format of files. BadInput if they are of none."""
    formats = dict(TRACE_FORMATS.items())
    # a plugin's format was registered last, and may be a special case of a general one
    for name in reversed(formats):
        if formats[name].recognizes(files):
            return name
    raise BadInput(field, files.name, f"is in no known format: known are {', '.join(formats)}")


def parse_whole(where: str, key: str, value: object, minimum: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from a file, where none but such will do. BadInput says where it isn't one."""
    # some writers have numbers as text or as floats; 20 digits are above every limit
    if (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= most:
        is_too_large = isinstance(value, int) and value > most
        upper = f" to {most}" if is_too_large or most < 2**63 - 1 else " or more"
        raise BadInput(where, value, f"is no {key}: a whole number of {minimum}{upper} is needed")
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


def check_operations(where: str, ranks: int, each: int) -> None:
    """Raise BadInput if a file for all ranks, which has `each` operations for each, has too many in all."""
    if ranks * max(each, 1) > MAX_OPERATIONS:
        allowed = f"makes {ranks * each:,} operations of all ranks: {MAX_OPERATIONS:,} or fewer can be read"
        raise BadInput(where, f"{each:,} for each of {ranks:,} ranks", allowed)


def check_rank(where: str, rank: int, ranks: int) -> int:
    """BadInput unless the trace has this rank."""
    if rank >= ranks:
        raise BadInput(where, rank, f"is a rank that is missing: the trace has ranks 0 to {ranks - 1}")
    return rank


def text_of(content: bytes, where: str) -> str:
    """Return the text of a file, without a byte order mark. BadInput if it is none."""
    try:
        return decoded(content)
    except UnicodeDecodeError as error:
        raise BadInput(where, "its content", "is no text in UTF-8") from error


def check_printable(text: str, data: object) -> None:
    """Raise ValueError if JSON has half of a surrogate pair."""
    # it may stand alone in JSON, but no name with it can be printed
    if _HALF.search(text):
        json.dumps(data, ensure_ascii=False).encode()


def parse_json(content: bytes, where: str) -> Any:
    """Plain data of a JSON file. BadInput says where it breaks off."""
    text = text_of(content, where)
    try:
        data = json.loads(text)
        check_printable(text, data)
        return data
    except json.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        raise BadInput(where, location, f"is cut off or no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        # RecursionError: lists within lists, thousands deep
        raise BadInput(where, "its content", "is no JSON in UTF-8") from error


def read_groups(path: str, field: str) -> Groups:
    """Read ASTRA-sim's file of communicator groups: {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7]}."""
    where = Path(path).name
    data = parse_json(read_input(Path(path), field, MAX_BYTES), where)
    if not isinstance(data, dict):
        raise BadInput(where, "its content", 'must be {"NAME": [RANK, ...]}')
    return {name: ranks_of(f"{where}: group {name}", ranks, 2**31) for name, ranks in data.items()}


def read_files(path: str, field: str) -> Files:
    """Read a file, or a file for each rank: `path` is their folder or beginning (PATH.0.et, PATH.1.et, ...).

    BadInput if there is nothing, more than one trace, or a rank between others that has no file.
    """
    requested = Path(path)
    try:
        file_of_folder = _file_of_folder(requested)
        if file_of_folder is not None:
            content = read_input(file_of_folder, field, MAX_BYTES)
            return Files(trace_name(path), (file_of_folder.name,), (content,), shared=True)
        if requested.is_file() and not _ranked(requested.name):
            content = read_input(requested, field, MAX_BYTES)
            return Files(requested.stem, (requested.name,), (content,), shared=True)
        traces = _traces_at(requested)
        _check_single_trace(requested, field, traces)
    except (OSError, ValueError) as error:
        raise BadInput(field, path, f"can't be read: {getattr(error, 'strerror', None) or error}") from error
    (stem, _), file_of_rank = traces.popitem()
    files = [file for _, file in sorted(file_of_rank.items())]
    total = sum(_size(file) for file in files)
    if total > MAX_BYTES:
        allowed = f"{too_large(total, MAX_BYTES, len(files))}; take fewer ranks, or cut the trace to one iteration"
        raise BadInput(field, str(requested), allowed)
    contents = tuple(read_input(file, field, MAX_BYTES) for file in files)
    names = tuple(file.name for file in files)
    return Files(stem or files[0].parent.resolve().name, names, contents, shared=False)


def _file_of_folder(folder: Path) -> Path | None:
    """Return the file for all ranks in a folder that is a trace of itself, or of such a path; None for any other."""
    for name in TRACE_FORMATS:
        file_name = TRACE_FORMATS[name].folder_file
        if file_name and folder.name == file_name and folder.is_file():
            return folder
        if file_name and (folder / file_name).is_file():
            return folder / file_name
    return None


def _traces_at(requested: Path) -> dict[tuple[str | None, str], dict[int, Path]]:
    """Return the files of each trace by rank. A trace is known by its (stem, suffix).

    A folder has all of its traces. The file of one rank, or the beginning of names, has those that are named so.
    """
    traces: dict[tuple[str | None, str], dict[int, Path]] = {}
    is_folder = requested.is_dir()
    folder = requested if is_folder else requested.parent
    if not folder.is_dir():
        return traces
    example = _ranked(requested.name) if requested.exists() else None
    required_stem = example["stem"] if example else requested.name
    for file in sorted(folder.iterdir()):
        match = _ranked(file.name)
        if match is None or not file.is_file():
            continue
        if not is_folder and match["stem"] != required_stem:
            continue
        if example and match["suffix"] != example["suffix"]:
            continue
        trace = traces.setdefault((match["stem"], match["suffix"]), {})
        trace[int(match["rank"])] = file
    return traces


def _check_single_trace(
    requested: Path, field: str, traces: Mapping[tuple[str | None, str], Mapping[int, Path]]
) -> None:
    """Raise BadInput unless there is one trace with all of its ranks."""
    if not traces:
        allowed = "is no trace: give a file, or a folder or the beginning of files such as NAME.0.et, NAME.1.et; "
        allowed += "in an experiment's file a relative path starts at its folder"
        raise BadInput(field, str(requested), allowed)
    if len(traces) > 1:
        choices = ", ".join(sorted(f"{stem or ''}.*.{suffix}" for stem, suffix in traces))
        raise BadInput(field, str(requested), f"has several traces: give the first file of one of {choices}")
    (ranks,) = traces.values()
    last = max(ranks)
    for rank in range(last):
        if rank not in ranks:
            raise BadInput(field, str(requested), f"misses rank {rank}: there are files for ranks up to {last}")


def _size(file: Path) -> int:
    """Return the bytes of a file; 0 if it can't be looked at."""
    try:
        return file.stat().st_size
    except OSError:
        # reading it reports why
        return 0


def _ranked(name: str) -> re.Match[str] | None:
    """The parts of the name of a rank's file: stem (or None), rank and suffix; None if it isn't one."""
    suffixes: set[str] = set()
    for format_name in TRACE_FORMATS:
        suffixes.update(TRACE_FORMATS[format_name].rank_suffixes)
    rank = r"(?:rank)?(?P<rank>0|[1-9][0-9]{0,5})"
    return re.fullmatch(rf"(?:(?P<stem>.+)\.)?{rank}\.(?P<suffix>{'|'.join(suffixes)})", name)


def is_trace_prefix(stem: str) -> bool:
    """Return whether the working folder has a file such as STEM.0.et."""
    for file in Path().iterdir():
        match = _ranked(file.name)
        if match and match["stem"] == stem:
            return True
    return False


def trace_name(path: str) -> str:
    """Return the name of a trace by its path alone: without folder, rank and suffix.

    A file that stands for its folder has the folder's name.
    """
    name = Path(path).name
    if any(name and name == TRACE_FORMATS[each].folder_file for each in TRACE_FORMATS):
        return Path(path).resolve().parent.name
    match = _ranked(name)
    stem = match["stem"] if match else Path(name).stem
    return stem or Path(path).resolve().parent.name
