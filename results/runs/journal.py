"""journal.jsonl: the records of a run while it is under way, from which the folder of a killed run is finished.

Each line is a JSON object. `{"run": {...}}` sets fields of `Run`; `{"kind": "loads", "at": 3, "interval": {...},
"columns": [...], "rows": [[...], ...]}` puts rows of one interval at that place of a list. It is appended between
measurement intervals, and removed when the run's other files are written.
"""

import io
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from railyard.core.errors import BadInput, RailyardError
from railyard.core.records import INTERVAL_FIELDS, Record
from railyard.core.safe_files import MOST_BYTES, Folder
from railyard.results.measured import RecordKind
from railyard.results.runs.manifest import NAME as MANIFEST
from railyard.results.runs.record_files import Plain, check_memory, check_row, from_json, from_plain
from railyard.results.runs.records import RUN, Event, Run, record_kinds

NAME: Final = "journal.jsonl"
KILLED: Final = "the run was killed: the interval that was under way then is lost"
_STATE: Final = ("name", "started_utc", "spec", "provenance", "scale", "interrupted", "failed")
# a row of these kinds may be replaced by one with more in it
_REPLACED: Final = ("fabrics", "loads")


class Journal:
    """The journal of a run, open to append to. A journal that can't be written ends; the run goes on."""

    def __init__(self, run: Run, folder: Folder) -> None:
        """Begin it in the folder, with what is known before anything is measured."""
        self._run, self._folder, self._begun = run, folder, time.monotonic()
        self._state: dict[str, bytes] = {}
        self._written: dict[str, int] = dict.fromkeys(record_kinds(), 0)  # rows of each kind
        self._replaced: dict[str, list[object]] = {name: [] for name in _REPLACED}  # rows as they were written
        self._files: set[str] = set()
        self._free_bytes = MOST_BYTES
        self._fd = -1
        try:
            self._fd = folder.open_to_append(NAME)
        except OSError as error:
            self._fail(error)
        self.flush()

    def flush(self, has_ended: bool = False) -> None:
        """Append what the run recorded since the last call, and wait until the disk has it.

        `has_ended`: these are all records of the run.
        """
        if self._fd < 0:
            return
        try:
            state = self._changed_state() | {"duration_s": time.monotonic() - self._begun}
            if has_ended:
                state |= {"duration_s": self._run.duration_s, "has_ended": True}
            for name in self._run.files.keys() - self._files:
                self._folder.write(name, self._run.files[name])
            self._files = set(self._run.files)
            lines: list[bytes] = []
            for kind in record_kinds().values():
                lines += self._new_rows(kind)
            lines.append(_line({"run": state, "files": sorted(self._files)}))
            self._append(b"".join(lines))
        except OSError as error:
            self._fail(error)

    def close(self, remove: bool) -> None:
        """Close it; with `remove`, remove it from the folder."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if remove:
            self._folder.remove(NAME)

    def _changed_state(self) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name in _STATE:
            value = getattr(self._run, name)
            text = _line(value)
            # a copy as text: the dicts and lists of a run change in place
            if self._state.get(name) != text:
                changed[name] = value
                self._state[name] = text
        return changed

    def _new_rows(self, kind: RecordKind[Any]) -> list[bytes]:
        name = kind.name
        row = kind.row
        # a copy, since other threads add events meanwhile
        records = list(self._run.rows(kind))
        at = self._written[name]
        if name in _REPLACED:
            for place, (written, record) in enumerate(zip(self._replaced[name], records, strict=False)):
                if written is not record:
                    at = place
                    break
            self._replaced[name] = records
        self._written[name] = len(records)
        lines = []
        columns = [f.name for f in fields(row) if f.name != "interval"]
        values = attrgetter(*columns)
        interval_of = attrgetter("interval") if issubclass(row, Record) else _none
        for interval, group in groupby(records[at:], interval_of):
            rows = list(map(values, group))
            where = {"interval": interval.as_dict()} if interval else {}
            lines.append(_line({"kind": name, "at": at, **where, "columns": columns, "rows": rows}))
            at += len(rows)
        return lines

    def _append(self, data: bytes) -> None:
        self._free_bytes -= len(data)
        if self._free_bytes < 0:
            raise OSError(0, f"it would have more than {MOST_BYTES:,} bytes")
        # write may take only a part, as on a disk that is almost full
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(self._fd, unwritten) :]
        os.fdatasync(self._fd)

    def _fail(self, error: OSError) -> None:
        """End it: the records are still written when the run ends."""
        text = f"{NAME} can't be written ({error.strerror or error}): the records are written at the end alone"
        self._run.events.append(Event(time.monotonic_ns(), RUN, "journal-failed", {"text": text}))
        self.close(remove=False)


def _none(_: object) -> None:
    """Return no interval."""


def _line(data: object) -> bytes:
    return (json.dumps(data, separators=(",", ":"), ensure_ascii=False, default=_plain) + "\n").encode()


def _plain(value: object) -> object:
    """Return what JSON doesn't know as plain data: a number of numpy, a dataclass; else its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "item"):
        return value.item()
    return str(value)


@dataclass
class _Content:
    """What the lines of a journal set."""

    run_fields: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    rows: dict[str, list[Plain]] = field(default_factory=lambda: {name: [] for name in record_kinds()})

    def add(self, line: dict[str, Any], where: str) -> None:
        """Add a line. BadInput if it is none that a journal has."""
        if isinstance(line.get("run"), dict) and isinstance(line.get("files"), list):
            self.run_fields |= line["run"]
            self.files = list(map(str, line["files"]))
        elif not self._has_rows(line):
            raise BadInput(where, str(line)[:40], "is no line of a journal")
        else:
            interval = {key: value for key, value in line.get("interval", {}).items() if key in INTERVAL_FIELDS}
            columns = list(map(str, line["columns"]))
            rows = [interval | dict(zip(columns, row, strict=True)) for row in line["rows"]]
            at = line["at"]
            self.rows[line["kind"]][at : at + len(rows)] = rows

    def _has_rows(self, line: dict[str, Any]) -> bool:
        """Return whether a line has rows of a kind of records, for a place that follows those before it."""
        name = line.get("kind")
        at = line.get("at")
        rows = line.get("rows")
        columns = line.get("columns")
        if not isinstance(name, str) or name not in self.rows:
            return False
        if not isinstance(at, int) or not 0 <= at <= len(self.rows[name]):
            return False
        if not isinstance(rows, list) or not isinstance(columns, list):
            return False
        if not isinstance(line.get("interval", {}), dict):
            return False
        return all(isinstance(row, list) and len(row) == len(columns) for row in rows)


def is_left(folder: Folder) -> bool:
    """Return whether a run wrote a journal there, and did not come to write its other files."""
    return folder.has(NAME) and not folder.has(MANIFEST)


def read(folder: Folder) -> Run:
    """Return the run of a journal: what it had measured when it was killed.

    A line that can't be read is named in `damaged`, and so are rows that it makes no sense of; what follows the line is
    left out.
    """
    content = _Content()
    damaged = list[str]()
    data = folder.read(NAME, MOST_BYTES) or b""
    check_memory(data, NAME)
    # a last line without an end is no damage: the run was killed while it wrote it
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(io.BytesIO(whole), 1):
        try:
            content.add(from_json(line, NAME, number), f"{NAME}, line {number}")
        except RailyardError as error:
            damaged.append(f"{error}; what follows it is left out")
            break
    records: dict[str, list[Any]] = {}
    for name, kind in record_kinds().items():
        try:
            records[name] = from_plain(kind.row, content.rows[name], f"{NAME}, {name}")
        except RailyardError as error:
            damaged.append(str(error))
    files = _read_files(folder, content.files, damaged)
    run_fields: dict[str, Any] = {
        "name": folder.path.absolute().name,
        "started_utc": "",
        "spec": {},
        "provenance": {},
    }
    for name in (*_STATE, "duration_s"):
        if name in content.run_fields:
            run_fields[name] = content.run_fields[name]
    if damaged or content.run_fields.get("has_ended") is not True:
        run_fields["interrupted"] = True
        reason = f"{NAME}: {damaged[0]}" if damaged else KILLED
        run_fields["failed"] = run_fields.get("failed") or reason
    check_row(run_fields, Run, NAME)
    run = Run(**run_fields, files=files, damaged=damaged, verified=False)
    for name, kind in record_kinds().items():
        run.rows(kind).extend(records.get(name, []))
    return run


def _read_files(folder: Folder, names: Iterable[str], damaged: list[str]) -> dict[str, bytes]:
    """Return the content of files that a journal names, by name; what is missing is added to `damaged`."""
    files: dict[str, bytes] = {}
    for name in names:
        content = None
        with suppress(OSError, ValueError):
            content = folder.read(name, MOST_BYTES)
        if content is None:
            damaged.append(f"{name} is missing")
        else:
            files[name] = content
    return files
