"""A run's folder: written file by file, each whole or not at all, and read back so that it can be drawn again.

What each file holds, and the columns of tables: docs/results.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

from rich.console import Console

from railyard.core import crash
from railyard.core.config import dump_yaml, parse_yaml
from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import Folder
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import RecordKind
from railyard.results.runs import journal
from railyard.results.runs import record_files as rows
from railyard.results.runs.manifest import NAME as MANIFEST
from railyard.results.runs.manifest import RecordReader, with_manifest
from railyard.results.runs.records import (
    EVENTS,
    MEASUREMENTS,
    NOT_COMPARED,
    RESULTS_CSV,
    Measurement,
    Run,
    Verdict,
    record_kinds,
)
from railyard.results.timeline import add_links, timeline
from railyard.results.views import perfetto, report
from railyard.results.views import report as summary
from railyard.results.views.tracks import Track

FORMAT: Final = 3
Files = Iterator[tuple[str, bytes]]  # name and content
LIVE_RECORD: Final = "live.jsonl"
"""Record of the live page, if the run had one: no part of what was measured."""
MAX_LIVE_RECORD: Final = 64 << 20  # bytes
ORIGINAL_SUMMARY: Final = "summary.original.json"
NO_RUN: Final = "is not a run's folder: it has no run.json"
RESULT_COLUMNS: Final = (
    "fabric", "policy", "workload", "phase", "metric", "value", "unit", "predicted", "ratio", "repeat",
    "scene", "script", "reroute", "predicted_by_uplink", "frames", "credit_share", "shares_links_with",
    "predicted_with_latency", "verdict", "formula", "not_compared",
)  # fmt: skip


class Writable(Protocol):
    """A folder, or another place for files."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""


def save(run: Run, folder: Path | Writable) -> Analysis:
    """Write the whole folder: what was measured first, then the manifest, and what is drawn from them last.

    Return the analysis that it was drawn from. OSError, with the file's name, if something can't be written.
    """
    if isinstance(folder, Path):
        with Folder(folder, make=True) as opened:
            return save(run, opened)
    analysis = Analysis(run)
    _write(folder, with_manifest(_recorded(run, analysis.judgement)))
    _write(folder, _drawn(analysis, folder if isinstance(folder, Folder) else None))
    return analysis


def redraw(run: Run, folder: Folder, console: Console) -> None:
    """Print the summary of a run that was read back, and write what is drawn from its records alone.

    The other files of a killed run, which has only a journal, are written first. If records are damaged, the summary
    that the run wrote is kept as summary.original.json. BadInput if there is no sense in the records that are left, or
    in those of a folder without a manifest.
    """
    drawn: list[tuple[str, bytes]] = []
    problem = None
    try:
        analysis = Analysis(run)
        report.print_summary(analysis, console)
        if journal.is_left(folder):
            drawn += with_manifest(_recorded(run, analysis.judgement))
        drawn += _drawn(analysis, folder)
    except Exception as error:
        problem = unfit("DIR", str(folder.path), "drawn from", error, run)
        if run.damaged:
            drawn = [("summary.json", rows.to_json({"name": run.name, **report.completeness(run), "passed": False}))]
    if run.damaged:
        # the name may be that of a folder
        with suppress(IsADirectoryError):
            written = folder.read("summary.json")
            if written and b'"complete": true' in written and not folder.read(ORIGINAL_SUMMARY):
                drawn.insert(0, (ORIGINAL_SUMMARY, written))
    _write(folder, drawn)
    if problem:
        raise problem
    folder.remove(journal.NAME)


def unfit(field: str, value: str, action: str, error: Exception, run: Run | None = None) -> BadInput:
    """Return the error for records that an exception shows to make no sense. Limits of the machine are raised again.

    `field`, `value`: where the user named the records; `action`: for the message, such as `drawn from`.
    """
    if crash.from_system(error):
        raise error
    # records that are as the manifest has them show a defect of ours, or are forged: a crash report tells which
    line = f"{type(error).__name__}: {error}".partition("\n")[0][:80]
    if run is None or (run.verified and not run.damaged):
        line = f"{line} ({crash.write_report(crash.crash_text(error))})"
    problem = BadInput(field, value, f"can't be {action} the records that it has: {line}")
    problem.__cause__ = error
    return problem


def _recorded(run: Run, judgement: Judgement) -> Iterator[tuple[str, bytes, int | None]]:
    """Yield name, content and number of rows."""
    yield "spec.yaml", dump_yaml(run.spec, allow_unicode=True).encode(), None
    yield "provenance.json", rows.to_json(run.provenance), None
    judged = [judged_row(row, judgement.of_row(row)) for row in run.measurements]
    yield RESULTS_CSV, rows.to_csv(RESULT_COLUMNS, judged), len(judged)
    for kind in _tables():
        records = run.rows(kind)
        if kind is MEASUREMENTS:
            types = {"ratio": float, "verdict": str}
            yield kind.file, rows.to_parquet(kind.row, judged, types), len(judged)
        elif records or kind.in_every_run:
            yield kind.file, _table(kind, records), len(records)
    events = [rows.to_json(asdict(event), indent=None) for event in run.events]
    yield "events.jsonl", b"".join(events), len(events)
    run_data: dict[str, Any] = {
        "format": FORMAT,
        "name": run.name,
        "started_utc": run.started_utc,
        "scale": run.scale,
        "duration_s": run.duration_s,
        "interrupted": run.interrupted,
        "failed": run.failed,
    }
    for kind in _lists():
        run_data[kind.name] = list(map(rows.to_plain, run.rows(kind)))
    yield "run.json", rows.to_json(run_data, indent=None), None
    for name, data in run.files.items():
        yield name, data, None


def _tables() -> list[RecordKind[Any]]:
    """Return the kinds of records that have a table of their own, in the order of the files."""
    return [kind for kind in record_kinds().values() if kind.file and kind is not EVENTS]


def _lists() -> list[RecordKind[Any]]:
    """Return the kinds of records that are lists in run.json."""
    return [kind for kind in record_kinds().values() if not kind.file]


def _table(kind: RecordKind[Any], records: Sequence[Any]) -> bytes:
    """Return the CSV or Parquet file of records."""
    if not kind.file.endswith(".csv"):
        return rows.to_parquet(kind.row, records)
    columns = kind.columns or tuple(rows.columns_of(kind.row))
    if kind.to_plain:
        records = [SimpleNamespace(**kind.to_plain(record)) for record in records]
    return rows.to_csv(columns, records)


def judged_row(row: Measurement, verdict: Verdict) -> SimpleNamespace:
    """Return a row with its verdict; one that isn't compared with its prediction has no ratio."""
    ratio = None if verdict in NOT_COMPARED else row.ratio
    return SimpleNamespace(**rows.to_plain(row), ratio=ratio, verdict=verdict)


def timeline_of(run: Run, folder: Folder | None) -> Track:
    """Return the timeline of a run, with its links if a live page recorded them in the run's folder."""
    root = timeline(run)
    record = None
    if folder:
        # a missing or too large file counts as none
        with suppress(OSError):
            record = folder.read(LIVE_RECORD, MAX_LIVE_RECORD)
    add_links(root, record or b"")
    return root


def _drawn(analysis: Analysis, folder: Folder | None) -> Files:
    yield "summary.json", rows.to_json(summary.summarise(analysis))
    yield "report.html", report.render(analysis).encode()
    yield "timeline.pftrace", perfetto.encode(timeline_of(analysis.run, folder))


def _write(folder: Writable, files: Iterable[tuple[str, bytes]]) -> None:
    """Write each file as soon as it is made. OSError names the file."""
    for name, data in files:
        try:
            folder.write(name, data)
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror or error}") from error


def load(folder: Path | Folder) -> Run:
    """Read a run's folder back; records that differ from its manifest are left out, and named in `damaged`.

    BadInput if it is no run's folder, or one that can't be read.
    """
    path = folder if isinstance(folder, Path) else folder.path
    try:
        if isinstance(folder, Folder):
            return _load(folder, path)
        with Folder(folder) as opened:
            return _load(opened, path)
    except OSError as error:
        raise BadInput("DIR", str(path), NO_RUN) from error
    except RailyardError as error:
        raise BadInput("DIR", str(path), f"can't be read back: {error}") from error
    except Exception as error:
        raise unfit("DIR", str(path), "read back from", error) from error


def open_records(folder: Folder) -> tuple[RecordReader, dict[str, Any]]:
    """Return the reader of a run's records, and what run.json has.

    RailyardError if that is of another format. What is damaged is in the reader, when all has been read.
    """
    reader = RecordReader(folder)
    run_data: dict[str, Any] = reader.get("run.json", partial(rows.from_json, file="run.json"), {})
    file_format = run_data.pop("format", FORMAT if reader.damaged else None)
    if file_format != FORMAT:
        raise RailyardError(f"run.json is of format {str(file_format)[:20]}, not {FORMAT}")
    return reader, run_data


def _load(folder: Folder, path: Path) -> Run:
    if journal.is_left(folder):
        return journal.read(folder)
    if not folder.has(MANIFEST) and not folder.has("run.json"):
        raise FileNotFoundError(path / "run.json")
    reader, run_data = open_records(folder)
    spec: dict[str, Any] = reader.get("spec.yaml", _spec, {})
    provenance: dict[str, Any] = reader.get("provenance.json", partial(rows.from_json, file="provenance.json"), {})
    parts: dict[str, list[rows.Plain]] = {}
    for kind in _lists():
        parts[kind.name] = run_data.pop(kind.name, [])
    for kind in _tables():
        parts[kind.name] = _rows(reader, kind)
    parts["events"] = reader.get("events.jsonl", partial(rows.from_json_lines, file="events.jsonl"), [])
    reader.verify_rest()
    verified = reader.is_verified
    try:
        if reader.damaged:
            run_data = {"name": path.absolute().name, "started_utc": "", **run_data}
        fields = {"spec": spec, "provenance": provenance, **_fields_of_run(run_data)}
        if not verified:
            rows.check_row(fields, Run, "run.json")
        run = Run(**fields, damaged=reader.damaged, verified=verified)
        for name, kind in record_kinds().items():
            # pop frees the rows as soon as they are read
            make = partial(rows.from_plain, kind.row, parts.pop(name), "" if verified else kind.place)
            run.rows(kind).extend(reader.attempt(make, []))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if verified:
            # the rows are as Railyard wrote them, or forged: see `unfit`
            raise
        line = str(error).partition("\n")[0]
        raise RailyardError(f"the records don't fit together: {type(error).__name__}: {line}") from error
    return run


def _fields_of_run(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of run.json without lists of records that no measure here has: of a plugin, for example."""
    names = {field.name for field in fields(Run)}
    return {key: value for key, value in content.items() if key in names or not isinstance(value, list)}


def _spec(data: bytes) -> dict[str, Any]:
    try:
        parsed = parse_yaml(rows.text_of(data, "spec.yaml"), "spec.yaml")
    except BadInput as error:
        raise RailyardError(f"spec.yaml {error.allowed}") from error
    if not isinstance(parsed, dict):
        raise BadInput("spec.yaml", str(parsed)[:40], "must hold the keys and values of an experiment")
    return parsed


def _rows(reader: RecordReader, kind: RecordKind[Any]) -> list[rows.Plain]:
    """Return the rows of a kind's file; none if it is a file that not every run has."""
    parse = partial(rows.from_parquet, file=kind.file)
    if kind.file.endswith(".csv"):
        parse = partial(rows.from_csv, file=kind.file, kind=kind.row)
    table: list[rows.Plain] = reader.get(kind.file, parse, [], required=kind.in_every_run)
    if kind.from_plain:
        for row in table:
            kind.from_plain(row)
    return table
