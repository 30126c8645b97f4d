"""Reads files and folders of a cluster's logs into one `Cluster`, each in its format.

Logs may have any size and are read line by line; a document, as an XML file, is read whole.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from railyard.core.errors import BadInput
from railyard.core.safe_files import too_large
from railyard.workloads.cluster import communicators
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, DocumentFormat, LineFormat, LineReader
from railyard.workloads.cluster.records import Cluster, Source

HEAD_BYTES: Final = 2**16  # by which a document's format is known
MAX_DOCUMENT_BYTES: Final = 2**26
MAX_LINE: Final = 2**16
"""Characters of a line; NCCL's longest, of a ring of 4,096 ranks, have 20,000."""
MAX_FILES: Final = 4096  # of a folder: a log for each rank
PROGRESS_BYTES: Final = 2**24

OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far, and with those of all files."""


def read(paths: Sequence[str], on_progress: OnProgress = lambda *_: None) -> Cluster:
    """Return what files say together. BadInput for a file that can't be read, or of which no format knows a line."""
    cluster = Cluster()
    files: list[Path] = []
    for path in paths:
        files += _files_of(Path(path))
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        try:
            _read_file(file, cluster, lambda read, done=done: on_progress(done + read, total))  # type: ignore[misc]
        except OSError as error:
            raise BadInput("FILE", str(file), f"can't be read: {error.strerror}") from error
        done += file.stat().st_size
    communicators.join(cluster)
    return cluster


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the files in a folder, by name."""
    if not path.exists():
        raise BadInput("FILE", str(path), "is no file and no folder")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file())
    if not files:
        raise BadInput("FILE", str(path), "is a folder without files")
    if len(files) > MAX_FILES:
        raise BadInput("FILE", str(path), f"has {len(files):,} files: {MAX_FILES:,} or fewer can be read")
    return files


def _read_file(file: Path, cluster: Cluster, on_progress: Callable[[int], None]) -> None:
    source = Source(file.name)
    with file.open("rb") as document:
        head = document.read(HEAD_BYTES)
        for name, cluster_format in CLUSTER_FORMATS.items():
            if isinstance(cluster_format, DocumentFormat) and cluster_format.recognizes(head):
                size = file.stat().st_size
                if size > MAX_DOCUMENT_BYTES:
                    raise BadInput("FILE", str(file), too_large(size, MAX_DOCUMENT_BYTES))
                source.formats = (name,)
                cluster_format.read(head + document.read(), cluster, source)
                cluster.sources.append(source)
                return
    with file.open(encoding="utf-8-sig", errors="replace", newline=None) as stream:
        _read_lines(stream, cluster, source, on_progress)
    if not source.formats:
        titles = ", ".join(cluster_format.title for cluster_format in CLUSTER_FORMATS.values())
        raise BadInput("FILE", str(file), f"has no line of a known format: known are {titles}")
    cluster.sources.append(source)


def _lines(stream: TextIO) -> Iterator[str]:
    """Yield lines; of one that is longer than any of a log's, its beginning."""
    while line := stream.readline(MAX_LINE):
        yield line.rstrip("\n")
        while line and not line.endswith("\n"):
            line = stream.readline(MAX_LINE)


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
