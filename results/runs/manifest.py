"""manifest.json: the size, SHA-256 and number of rows of every record of a run, by which later damage to them is found.

It is the last record to be written, and `report` never changes it. Checksums find damage and edits, not forgery:
anyone who can edit a record can also edit the manifest.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import MOST_BYTES, Folder
from railyard.results.runs.record_files import from_json, to_json

NAME: Final = "manifest.json"
_EXPECTED: Final = 'must be {"files": {NAME: {"bytes": N, "sha256": TEXT, "rows": N or null}}, "sha256": of "files"}'
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of the manifest for a file. `rows`: None if it is no table."""

    size: int
    sha256: str
    rows: int | None

    def problem(self, data: bytes) -> str:
        """Return how the file's content differs, "" if it doesn't."""
        rows = "" if self.rows is None else f", with {self.rows:,} rows"
        if len(data) != self.size:
            return f"has {len(data):,} bytes; the manifest has {self.size:,}{rows}"
        if _digest(data) != self.sha256:
            return f"was changed: its checksum is not that of the manifest{rows}"
        return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def with_manifest(files: Iterable[tuple[str, bytes, int | None]]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file, given with its number of rows; the manifest comes last."""
    entries = {}
    for name, data, rows in files:
        entries[name] = {"bytes": len(data), "sha256": _digest(data), "rows": rows}
        yield name, data
    yield NAME, to_json({"files": entries, "sha256": _digest(to_json(entries))})


class RecordReader:
    """Reads the records of a run's folder. `damaged`: what is wrong with them, a line for each.

    A record that isn't as the manifest has it is noted, and left out.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._entries: dict[str, Entry] | None = None
        self._names_read: set[str] = set()
        self.damaged: list[str] = []
        if folder.has(NAME):
            self._entries = self.attempt(lambda: _entries(from_json(self._read(NAME, MOST_BYTES) or b"", NAME)), None)
        else:
            self.damaged.append(f"{NAME} is missing, so nothing can be verified")

    @property
    def is_verified(self) -> bool:
        """True if what `get` returns is what was written: there is a manifest that can be read."""
        return self._entries is not None

    def get(self, name: str, parse: Callable[[bytes], T], default: T, required: bool = True) -> T:
        """Return what `parse` makes of a file, or the default if it is damaged, or missing and not `required`."""

        def read() -> T:
            data = self._verified(name)
            if data is None:
                if required:
                    raise RailyardError(f"{name} is missing")
                return default
            content = parse(data)
            entry = (self._entries or {}).get(name)
            if entry and isinstance(content, list) and entry.rows != len(content):
                raise RailyardError(f"{name} has {len(content):,} rows; the manifest has {entry.rows}")
            return content

        return self.attempt(read, default)

    def attempt(self, make: Callable[[], T], default: T) -> T:
        """Return what `make` returns, or the default after a RailyardError, which is noted."""
        try:
            return make()
        except RailyardError as error:
            self.damaged.append(str(error))
            return default

    def verify_rest(self) -> None:
        """Verify the files that no `get` asked for."""
        for name in sorted(set(self._entries or ()) - self._names_read):
            self.get(name, lambda data: data, b"")

    def _verified(self, name: str) -> bytes | None:
        self._names_read.add(name)
        entry = (self._entries or {}).get(name)
        most_bytes = MOST_BYTES
        if entry:
            most_bytes = min(entry.size, MOST_BYTES)
        data = self._read(name, most_bytes)
        if self._entries is None:
            return data
        if not entry:
            if data is not None:
                raise RailyardError(f"{name} is not in the manifest, so it is left out")
        elif data is None:
            rows = "" if entry.rows is None else f", with {entry.rows:,} rows"
            raise RailyardError(f"{name} is missing; the manifest has it{rows}")
        elif problem := entry.problem(data):
            raise RailyardError(f"{name} {problem}")
        return data

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            return self._folder.read(name, most)
        except OSError as error:
            raise RailyardError(f"{name} can't be read: {(error.strerror or str(error)).lower()}") from error


def _is_entry(entry: object) -> bool:
    """Return whether plain data has the keys and types of an entry."""
    if not isinstance(entry, dict) or entry.keys() != {"bytes", "sha256", "rows"}:
        return False
    if type(entry["bytes"]) is not int or entry["bytes"] < 0:
        return False
    return isinstance(entry["sha256"], str) and (entry["rows"] is None or type(entry["rows"]) is int)


def _is_name(name: str) -> bool:
    """Return whether a file of this name lies in the run's folder."""
    path = PurePosixPath(name)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _entries(plain: dict[str, Any]) -> dict[str, Entry]:
    """Return the entries of a manifest. BadInput if it is none."""
    files = plain.get("files")
    if not isinstance(files, dict):
        raise BadInput(NAME, str(files)[:40], _EXPECTED)
    for name, entry in files.items():
        if not _is_entry(entry) or not _is_name(name):
            raise BadInput(f"{NAME}: files", f"{name}: {entry}"[:80], _EXPECTED)
    if plain.get("sha256") != _digest(to_json(files)):
        raise RailyardError(f"{NAME} was changed: its own checksum differs, so nothing can be verified")
    return {name: Entry(e["bytes"], e["sha256"], e["rows"]) for name, e in files.items()}
