"""Reads files and folders of a cluster's logs into one `Cluster`, each in its format.

Logs may have any size and are read line by line; a document, as an XML file, is read whole.
"""

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, TextIO, cast

from railyard.core.errors import BadInput
from railyard.core.safe_files import too_large
from railyard.workloads.cluster import communicators, placing, topologies, traces
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, LineFormat, LineReader
from railyard.workloads.cluster.records import Cluster, Source

HEAD_BYTES: Final = 2**16  # by which a document's format is known
MAX_DOCUMENT_BYTES: Final = 2**26
MAX_LINE: Final = 2**16
"""Characters of a line; NCCL's longest, of a ring of 4,096 ranks, have 20,000."""
MAX_FILES: Final = 4096  # of a folder: a log for each rank
PROGRESS_BYTES: Final = 2**24
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
"""What terminals and CI services put into lines."""
_GZIP: Final = b"\x1f\x8b"

OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far, and with those of all files."""


def read(paths: Sequence[str], on_progress: OnProgress = lambda *_: None, ranks_per_host: int | None = None) -> Cluster:
    """Return what files say together. BadInput for a file that can't be read, or of which no format knows a line.

    Of a folder, files of no known format are left out, unless it has no other. `ranks_per_host`: of a trace's job whose
    hosts no file has.
    """
    cluster = Cluster()
    reading = _Reading(cluster, on_progress)
    for path in paths:
        requested = Path(path)
        files = _files_of(requested)
        reading.total += sum(file.stat().st_size for file in files)
        reading.read_path(requested, files)
    communicators.join(cluster)
    topologies.share(cluster)
    placing.place(cluster, ranks_per_host)
    return cluster


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the files in a folder, by name."""
    if not path.exists():
        raise BadInput("FILE", str(path), "is no file and no folder")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(
            "FILE", str(path), "is a pipe or a device, and a file is read twice: write its content to a file"
        )
    files = sorted(file for file in path.iterdir() if file.is_file())
    if not files:
        raise BadInput("FILE", str(path), "is a folder without files (those of folders in it aren't read: name these)")
    if len(files) > MAX_FILES:
        raise BadInput("FILE", str(path), f"has {len(files):,} files: {MAX_FILES:,} or fewer can be read")
    return files


class _Reading:
    """Reads files one after the other into a cluster."""

    def __init__(self, cluster: Cluster, on_progress: OnProgress) -> None:
        self._cluster = cluster
        self._on_progress = on_progress
        self.total = 0
        self._done = 0

    def read_path(self, requested: Path, files: Sequence[Path]) -> None:
        """Read a file, or those of a folder."""
        trace_files: list[Path] = []
        unknown: list[Path] = []
        for file in files:
            try:
                kind = self._read_file(file)
            except (OSError, EOFError, zlib.error) as error:
                reason = getattr(error, "strerror", None) or "it is cut off or damaged"
                raise BadInput("FILE", str(file), f"can't be read: {reason}") from error
            self._done += file.stat().st_size
            if kind == "trace":
                trace_files.append(file)
            elif kind == "unknown":
                unknown.append(file)
        unknown += traces.read(trace_files, self._cluster, in_folder=requested.is_dir())
        if len(unknown) == len(files):
            titles = ", ".join(cluster_format.title for cluster_format in CLUSTER_FORMATS.values())
            raise BadInput("FILE", str(requested), f"has no line of a known format: known are {titles}, and traces")
        for file in unknown:
            self._cluster.gaps[f"{file.name} is left out: it has no line of a known format"] = None

    def _read_file(self, file: Path) -> Literal["log", "trace", "unknown"]:
        """Read a file, unless it is of a trace, whose files are read together, or of no known format."""
        source = Source(file.name)
        with _opened(file) as content:
            head = content.read(HEAD_BYTES)
            for name, cluster_format in CLUSTER_FORMATS.items():
                if isinstance(cluster_format, DocumentFormat) and cluster_format.recognizes(head):
                    source.formats = (name,)
                    cluster_format.read(head + _rest(file, content, len(head)), self._cluster, source)
                    self._cluster.sources.append(source)
                    return "log"
        if traces.is_trace(file, head):
            return "trace"
        with _opened(file) as content, io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace") as stream:
            done = self._done
            _read_lines(stream, self._cluster, source, lambda read: self._on_progress(done + read, self.total))
        if not source.formats:
            return "unknown"
        self._cluster.sources.append(source)
        return "log"


def _opened(file: Path) -> BinaryIO:
    """Open a file, which may be compressed by gzip."""
    with file.open("rb") as content:
        is_compressed = content.read(len(_GZIP)) == _GZIP
    if is_compressed:
        return cast(BinaryIO, gzip.open(file, "rb"))
    return file.open("rb")


def _rest(file: Path, content: BinaryIO, length: int) -> bytes:
    """Return a document behind its first `length` bytes. BadInput if it is too large."""
    rest = content.read(MAX_DOCUMENT_BYTES - length + 1)
    if length + len(rest) > MAX_DOCUMENT_BYTES:
        raise BadInput("FILE", str(file), too_large(max(file.stat().st_size, length + len(rest)), MAX_DOCUMENT_BYTES))
    return rest


def _lines(stream: TextIO) -> Iterator[str]:
    """Yield lines; of one that is longer than any of a log's, its beginning."""
    while line := stream.readline(MAX_LINE):
        yield _without_colours(line.rstrip("\n"))
        while line and not line.endswith("\n"):
            line = stream.readline(MAX_LINE)


def _without_colours(line: str) -> str:
    # most lines have none, and to look for a character is much faster than a pattern
    if "\x1b" not in line:
        return line
    return _COLOURS.sub("", line)


def _read_lines(stream: TextIO, cluster: Cluster, source: Source, on_progress: Callable[[int], None]) -> None:
    readers: dict[str, LineReader] = {}
    for name, cluster_format in CLUSTER_FORMATS.items():
        if isinstance(cluster_format, LineFormat):
            readers[name] = cluster_format.reader(cluster, source)
    formats: dict[str, None] = {}
    characters = 0
    reported = 0
    for line in _lines(stream):
        source.lines += 1
        characters += len(line) + 1
        for name, reader in readers.items():
            if reader.read(line):
                source.understood += 1
                formats[name] = None
                break
        if characters - reported >= PROGRESS_BYTES:
            reported = characters
            on_progress(characters)
    for reader in readers.values():
        reader.end()
    source.formats = tuple(formats)
