"""The folder of a sweep: what it is of, which runs are there, and the table of all their results.

    sweep.yaml        the experiment, the axes, and the folder of each run
    runs/<hash>/      an ordinary run's folder, and sweep.json: the machine it ran on, and when
    machines/<name>/  the sentinel experiment of each machine
    sweep.parquet     the rows of all results.csv, with a column for each axis
    recoveries.parquet, ...    the same of each kind of records that has a `sweep_file`

A run appears in the folder by a rename, so it is there whole or not at all, and once, whatever process is killed.
"""

import io
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from railyard.core.config import dump_yaml, parse_yaml
from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import Folder
from railyard.experiments.run.folder import IN_USE
from railyard.experiments.sweep.answers import BadAnswer, Outcome, files
from railyard.experiments.sweep.spec import Sweep
from railyard.results import run_folder
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import MEASURED, MeasuredResults, RecordKind
from railyard.results.runs.record_files import Plain, columns_of, from_json, text_of, to_json, to_plain
from railyard.results.sources import RUNS, SWEEP_FILE

MACHINES: Final = "machines"
RECORD: Final = "sweep.json"
TABLE: Final = "sweep.parquet"
FAILED: Final = "failed"
"""The state of a run that ended with an error, or whose records are damaged; the other states are those of its verdict.
"""
_NAME: Final = re.compile(r"[0-9a-f]{16}")  # of a run's folder
_PART: Final = ".part-"
_OUTCOME: Final = ("machine", "kernel", "cores")  # columns of the table, beside the results and the axes
Tables = dict[str, pd.DataFrame]
"""Rows of a run, or of all runs of a sweep, by the name of their file; without those that have none."""


def swept_kinds() -> Iterator[tuple[MeasuredResults, RecordKind[Any]]]:
    """Yield the kinds of records that a sweep's folder has in a file, each with its measure."""
    for measure in MEASURED.values():
        for kind in measure.records:
            if kind.sweep_file:
                yield measure, kind


def _columns_of_files() -> dict[str, tuple[str, ...]]:
    """Return the columns of each file of results, without those of the axes and of the machine."""
    columns = {TABLE: tuple(run_folder.RESULT_COLUMNS)}
    for _, kind in swept_kinds():
        columns[kind.sweep_file] = (*(kind.columns or columns_of(kind.row)), "verdict")
    return columns


class SweepFolder:
    """An open sweep folder, which no other process sweeps into once it is claimed."""

    def __init__(self, path: Path, sweep: Sweep, make: bool = True) -> None:
        """Open or make it. BadInput if it is of another sweep; FileNotFoundError if it isn't there."""
        self.path = path
        self._sweep = sweep
        self._folder = Folder(path, make)
        written = self._folder.read(SWEEP_FILE)
        self._known: list[dict[str, Any]] = []
        # states of the runs that are there, by folder
        self._states: dict[tuple[str, str], str] = {}
        # rows of the runs that were read; tables are put together from them
        self._rows: dict[str, Tables] = {}
        if written is not None:
            self._known = self._check_same(parse_yaml(text_of(written, SWEEP_FILE), SWEEP_FILE))
        elif self._folder.names():
            self._folder.close()
            raise BadInput("--out", str(path), "exists and is no sweep's folder: choose another")

    def __enter__(self) -> "SweepFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def _check_same(self, written: Any) -> list[dict[str, Any]]:
        """Return the runs that sweep.yaml has. BadInput if it is of another experiment, or of other axes."""
        ours: Any = parse_yaml(_as_yaml(self._sweep).decode(), SWEEP_FILE)
        theirs = written if isinstance(written, dict) else {}
        runs = theirs.get("runs") or []
        if not isinstance(theirs.get("axes"), dict) or not isinstance(runs, list) or not all(map(_is_run, runs)):
            self._folder.close()
            raise BadInput("--out", str(self.path), f"has a {SWEEP_FILE} that no sweep wrote: choose another folder")
        difference = ""
        if ours["experiment"] != theirs.get("experiment"):
            difference = "another experiment"
        elif list(ours["axes"]) != list(theirs["axes"]):
            difference = "other axes"
        if difference:
            self._folder.close()
            raise BadInput("--out", str(self.path), f"is a sweep of {difference}: choose another folder")
        cell_names = {cell.name for cell in self._sweep.cells}
        return [run for run in runs if run["folder"] not in cell_names]

    def claim(self) -> None:
        """Keep other sweeps out until it is closed, write sweep.yaml, and remove what a killed sweep left."""
        try:
            self._folder.lock()
        except BlockingIOError as error:
            raise BadInput("--out", str(self.path), IN_USE.replace("run", "sweep")) from error
        self._folder.write(SWEEP_FILE, _as_yaml(self._sweep, self._known))
        for parent in (RUNS, MACHINES):
            with Folder(self.path / parent, make=True) as folder:
                for name in folder.names():
                    if name.startswith(_PART):
                        folder.remove_tree(name)

    def state(self, name: str, parent: str = RUNS) -> str:
        """Return the verdict of a run, `failed`, or "" if it isn't there."""
        if (parent, name) not in self._states:
            state = self._read_state(name, parent)
            if state:
                self._states[parent, name] = state
        return self._states.get((parent, name), "")

    def _read_state(self, name: str, parent: str) -> str:
        try:
            with Folder(self.path / parent / name) as folder:
                summary = from_json(folder.read("summary.json") or b"{}", "summary.json")
                from_json(folder.read(RECORD) or b"{}", RECORD)
                records, run_data = run_folder.open_records(folder)
                records.verify_rest()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except RailyardError:
            return FAILED
        if records.damaged or run_data.get("failed") or "verdict" not in summary:
            return FAILED
        return str(summary["verdict"])

    def record(self, name: str) -> dict[str, Any]:
        """Return where and when a run was done; nothing if it isn't there."""
        try:
            with Folder(self.path / RUNS / name) as folder:
                return from_json(folder.read(RECORD) or b"{}", RECORD)
        except (OSError, RailyardError):
            return {}

    def install(self, name: str, outcome: Outcome, parent: str = RUNS, **record: Any) -> None:
        """Put a run that has ended in its place; an earlier one is removed. BadAnswer if its files can't be one's."""
        part = f"{_PART}{name}-{secrets.token_hex(4)}"
        plain = {**outcome.machine, "start_ns": outcome.start_ns, "end_ns": outcome.end_ns, **record}
        with Folder(self.path / parent, make=True) as folder:
            try:
                for name_of_file, content in files(outcome.folder or b""):
                    folder.write(f"{part}/{name_of_file}", content)
            except BadAnswer:
                folder.remove_tree(part)
                raise
            folder.write(f"{part}/{RECORD}", to_json(plain))
            # a rename is the only step that others see: a killed sweep leaves a run whole, or not at all
            if name in folder.names():
                folder.rename(name, f"{part}-old")
            folder.rename(part, name)
            folder.remove_tree(f"{part}-old")
        self._states.pop((parent, name), None)
        if parent == RUNS:
            self._rows.pop(name, None)

    def write_results(self) -> Tables:
        """Write and return the results of all runs that are there, with a column for each axis."""
        axes_of_runs = [(cell.name, cell.axes) for cell in self._sweep.cells]
        axes_of_runs += [(run["folder"], run["axes"]) for run in self._known]
        parts: dict[str, list[pd.DataFrame]] = {}
        for name, axes in axes_of_runs:
            if name not in self._rows and self.state(name):
                self._rows[name] = self._read_rows(name, axes)
            for file, part in self._rows.get(name, {}).items():
                parts.setdefault(file, []).append(part)
        tables: Tables = {}
        for file, columns in _columns_of_files().items():
            if file in parts:
                tables[file] = self._write_table(file, parts[file], columns)
        return tables

    def _read_rows(self, name: str, axes: dict[str, Any]) -> Tables:
        """Return the rows of a run, without empty columns."""
        try:
            analysis = Analysis(run_folder.load(self.path / RUNS / name))
            record = self.record(name)
        except RailyardError:  # it failed before it had records, or they are damaged
            self._states[RUNS, name] = FAILED
            return {}
        columns = {"run": name}
        columns |= {axis: _plain(value) for axis, value in axes.items()}
        columns |= {key: _plain(record.get(key)) for key in _OUTCOME}
        rows_of_files = {TABLE: _plain_measurements(analysis)}
        for _, kind in swept_kinds():
            rows_of_files[kind.sweep_file] = _plain_records(analysis, kind)
        return {file: _frame(rows, columns) for file, rows in rows_of_files.items() if rows}

    def _write_table(self, name: str, frames: list[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
        """Write and return a table."""
        table = pd.concat(frames, ignore_index=True)
        table = table.reindex(columns=[*columns, "run", *self._sweep.axes, *_OUTCOME])
        for key in self._sweep.axes:
            # a column has one type
            if table[key].map(type).nunique() > 1:
                table[key] = table[key].astype(str)
        data = io.BytesIO()
        table.to_parquet(data, compression="zstd", index=False)
        self._folder.write(name, data.getvalue())
        return table

    def machines(self) -> list[dict[str, Any]]:
        """Return each machine with the median time (s) and the verdict of its sentinel experiment."""
        machines: list[dict[str, Any]] = []
        with Folder(self.path / MACHINES, make=True) as folder:
            for name in folder.names():
                state = self.state(name, MACHINES)
                try:
                    run = run_folder.load(self.path / MACHINES / name)
                    record = from_json(folder.read(f"{name}/{RECORD}") or b"{}", RECORD)
                except RailyardError:
                    unknown: dict[str, Any] = dict.fromkeys(_OUTCOME)
                    machines.append({**unknown, "machine": name, "seconds": None, "verdict": FAILED})
                    continue
                times = [row.value for row in run.measurements if row.metric in TIME_METRICS and not row.phase]
                seconds = median(times) if times else None
                machines.append({**record, "seconds": seconds, "verdict": state})
        return machines

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the sweep itself."""
        self._folder.write(name, data)


def _is_run(run: Any) -> bool:
    """Return whether it is a run of sweep.yaml, whose folder is no path to elsewhere."""
    return isinstance(run, dict) and isinstance(run.get("axes"), dict) and bool(_NAME.fullmatch(str(run.get("folder"))))


def _plain_measurements(analysis: Analysis) -> list[Plain]:
    """Return the rows of results.csv."""
    rows: list[Plain] = []
    for row in analysis.run.measurements:
        judged_row = run_folder.judged_row(row, analysis.judgement.of_row(row))
        rows.append(to_plain(judged_row, run_folder.RESULT_COLUMNS))
    return rows


def _plain_records(analysis: Analysis, kind: RecordKind[Any]) -> list[Plain]:
    """Return the records of a kind, each with the verdict of its interval."""
    rows: list[Plain] = []
    for record in analysis.run.rows(kind):
        plain = kind.to_plain(record) if kind.to_plain else to_plain(record)
        plain["verdict"] = analysis.judgement.of_interval(record.interval)
        rows.append(plain)
    return rows


def _frame(plain_rows: list[Plain], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return rows as a table with more columns, of one value each."""
    return pd.DataFrame(plain_rows).assign(**columns).dropna(axis="columns", how="all")


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)


def _as_yaml(sweep: Sweep, other_runs: list[dict[str, Any]] | None = None) -> bytes:
    data = sweep.as_dict()
    data["runs"] += other_runs or []
    return dump_yaml(data, allow_unicode=True).encode()
