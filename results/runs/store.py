"""A run's folder: written file by file, each whole or not at all, and read back so that it can be drawn again.

What each file holds, and the columns of tables: docs/results.md.
"""

import errno
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow.parquet as pq
import yaml

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.records import ConnectivityCheck, Recovery
from railyard.core.safe_files import Folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs import old_format, timeline
from railyard.results.runs import records as rows
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Measurement, Run
from railyard.results.views import report
from railyard.results.views import report as summary

FORMAT: Final = 2
Files = Iterator[tuple[str, bytes]]  # name and content
NO_RUN: Final = "is not a run's folder: it has no run.json"
RESULT_COLUMNS: Final = (
    "fabric", "policy", "workload", "phase", "metric", "value", "unit", "predicted", "ratio", "repeat",
    "scene", "script", "reroute",
)  # fmt: skip
RECOVERY_COLUMNS: Final = (
    "fault", "target", "t_fault", "detect_ms", "reroute_ms", "first_packet_ms", "goodput_ms", "lost_bytes", "recovered",
    "fabric", "policy", "reroute", "repeat", "goodput_after_repair_ms", "probes_lost", "connections_lost",
    "t_repair", "decided_ms", "source_side_ms", "far_side_ms", "probes_lost_after_repair", "script", "primary_path_ms",
    "source_side_probed", "far_side_probed", "above_max_flow", "workload", "part",
)  # fmt: skip
_PARTS: Final[dict[str, type]] = {
    "fabrics": rows.FabricRun,
    "rails": rows.Rails,
    "goodput": rows.GoodputTrace,
    "links": rows.LinkCheck,
    "loads": rows.Load,
    "bytes": rows.ByteCheck,
}
_FILES: Final[dict[str, tuple[str, type]]] = {
    "recoveries": ("recovery.csv", Recovery),
    "connectivity_checks": ("connectivity.csv", ConnectivityCheck),
    "replacements": ("replacement.csv", rows.Replacement),
    "measurements": ("results.parquet", Measurement),
    "flows": ("flows.parquet", rows.Flow),
    "health": ("health.parquet", rows.HealthSample),
    "choices": ("choices.parquet", rows.Choice),
}
_OPTIONAL: Final = {
    "connectivity.csv": "census.csv",
    "replacement.csv": "takeover.csv",
    "health.parquet": "",
    "choices.parquet": "",
}
"""Files that only some runs have -> their names in older runs."""


def save(run: Run, folder: Path | Folder) -> Analysis:
    """Write the whole folder: what was measured first, what is drawn from it last. MissingRequirement if the disk is
    full. Return the analysis that it was drawn from.
    """
    analysis = Analysis(run)
    _write(folder, chain(_recorded(run, analysis.judgement), _drawn(analysis)))
    return analysis


def save_drawn(analysis: Analysis, folder: Path | Folder) -> None:
    """Write what is drawn from the records alone: summary.json, report.html, timeline.json."""
    _write(folder, _drawn(analysis))


def _recorded(run: Run, judgement: Judgement) -> Files:
    yield "spec.yaml", yaml.safe_dump(run.spec, sort_keys=False, allow_unicode=True).encode()
    yield "provenance.json", _json(run.provenance)
    judged = [{**rows.to_plain(m, RESULT_COLUMNS), "verdict": judgement.of_row(m)} for m in run.measurements]
    yield "results.csv", rows.to_csv((*RESULT_COLUMNS, "verdict"), [SimpleNamespace(**row) for row in judged])
    for name, (file, kind) in _FILES.items():
        records = getattr(run, name)
        if records or file not in _OPTIONAL:
            columns = RECOVERY_COLUMNS if kind is Recovery else tuple(rows.columns_of(kind))
            extra = ("ratio",) if kind is Measurement else ()
            is_csv = file.endswith(".csv")
            yield file, rows.to_csv(columns, records) if is_csv else rows.to_parquet(kind, records, extra)
    yield "events.jsonl", b"".join(_json(asdict(e), indent=None) for e in run.events)
    parts = {name: [rows.to_plain(row) for row in getattr(run, name)] for name in _PARTS}
    own_fields = ("name", "started_utc", "scale", "duration_s", "interrupted", "failed")
    rest = {"format": FORMAT, **{name: getattr(run, name) for name in own_fields}, **parts}
    yield "run.json", _json(rest, indent=None)
    yield from run.files.items()


def _drawn(analysis: Analysis) -> Files:
    yield "summary.json", _json(summary.summarise(analysis))
    yield "report.html", report.render(analysis).encode()
    yield "timeline.json", _json(timeline.trace(analysis.run), indent=None)


def _write(folder: Path | Folder, files: Files) -> None:
    """Write each file as soon as it is made. A full disk (or quota) is a missing requirement, in one line."""
    path = folder if isinstance(folder, Path) else folder.path
    try:
        with Folder(folder, make=True) if isinstance(folder, Path) else nullcontext(folder) as opened:
            for name, data in files:
                path = opened.path / name
                opened.write(name, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = f"free some space, or choose a folder on another disk with --out (df -h {path.parent} shows the space)"
        raise MissingRequirement(f"the disk is full: {path} could not be written", remedy) from error


def load(folder: Path) -> Run:
    """Read a run's folder back. BadInput if it isn't one, or isn't whole."""
    if not (folder / "run.json").is_file():
        raise BadInput("DIR", str(folder), NO_RUN)
    try:
        return _load(folder)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        line = str(error).partition("\n")[0]
        raise BadInput("DIR", str(folder), f"can't be read back: {type(error).__name__}: {line}") from error


def _load(folder: Path) -> Run:
    rest = json.loads((folder / "run.json").read_text())
    file_format = rest.pop("format")
    if file_format not in (old_format.FORMAT, FORMAT):
        raise ValueError(f"run.json is of format {file_format}, not {FORMAT}")
    spec = yaml.safe_load((folder / "spec.yaml").read_text())
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    parts: dict[str, list[rows.Plain]] = {name: rest.pop(name, []) for name in _PARTS}
    parts |= {name: _read(folder / file, kind) for name, (file, kind) in _FILES.items()}
    old_format.add_operations(parts["flows"])
    if file_format == old_format.FORMAT:
        rest = old_format.upgrade(rest, spec, parts, events)
    kinds = _PARTS | {name: kind for name, (_, kind) in _FILES.items()}
    records: dict[str, Any] = {name: rows.from_plain(kind, parts[name]) for name, kind in kinds.items()}
    provenance = json.loads((folder / "provenance.json").read_text())
    run = Run(spec=spec, provenance=provenance, events=[rows.Event(**event) for event in events], **records, **rest)
    old_format.read_multirail(run, folder / "multirail.json")
    return run


def _read(path: Path, kind: type) -> list[rows.Plain]:
    """Return the rows of a file; none if it is one that not every run has."""
    if not path.exists() and path.name in _OPTIONAL:
        path = path.with_name(_OPTIONAL[path.name] or path.name)
        if not path.exists():
            return []
    return rows.from_csv(kind, path.read_text()) if path.suffix == ".csv" else pq.ParquetFile(path).read().to_pylist()


def _json(data: object, indent: int | None = 2) -> bytes:
    """A line (or with `indent` a page) of JSON; what JSON doesn't know, such as a path, is written as its text."""
    compact = (",", ":") if indent is None else None
    return (json.dumps(data, indent=indent, separators=compact, ensure_ascii=False, default=str) + "\n").encode()
