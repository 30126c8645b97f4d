"""Results of a run in a script or notebook: tables, the verdict, and the checks."""

from functools import cached_property
from html import escape
from pathlib import Path
from statistics import median
from typing import Final, Self

import pandas as pd

from railyard.core.errors import BadInput, CheckFailed
from railyard.experiments.api import inconclusive
from railyard.experiments.api.messages import path_text
from railyard.experiments.measures.faults.records import RECOVERIES, RECOVERY_COLUMNS
from railyard.experiments.measures.faults.states import csv_row
from railyard.results import run_folder
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.run_analysis import BELIEVABLE, Analysis
from railyard.results.measured import Check
from railyard.results.runs.record_files import to_plain
from railyard.results.runs.records import Measurement, Run, Verdict
from railyard.topologies.prediction import WHOLE

_COLOURS: Final = {"ok": "#009e73", "degraded": "#e69f00", "invalid": "#d55e00"}
# Rows of a table in a notebook.
_MAX_ROWS: Final = 60


class Results:
    """Measurements of a run beside their predictions, its recoveries, and the verdict on the emulation.

    `analysis` has everything that reports show; `folder` is the run's folder, None if it was not saved.
    """

    def __init__(self, run: Run, folder: Path | None = None) -> None:
        self.analysis = Analysis(run)
        self.folder = folder

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row for each measurement, with the columns of results.csv (docs/results.md)."""
        analysis = self.analysis
        rows = [run_folder.judged_row(row, analysis.judgement.of_row(row)) for row in analysis.run.measurements]
        plain_rows = [to_plain(row, run_folder.RESULT_COLUMNS) for row in rows]
        return pd.DataFrame(plain_rows, columns=list(run_folder.RESULT_COLUMNS))

    @cached_property
    def recoveries(self) -> pd.DataFrame:
        """A row for each fault that was injected, with the columns of recovery.csv (docs/results.md)."""
        rows = [csv_row(row) for row in self.analysis.run.rows(RECOVERIES)]
        return pd.DataFrame(rows, columns=list(RECOVERY_COLUMNS))

    @property
    def verdict(self) -> Verdict:
        """Fidelity of the emulation: "ok", "degraded" or "invalid"."""
        return self.analysis.judgement.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons of a verdict that isn't ok, worst first."""
        return tuple(self.analysis.judgement.reasons)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Checks of the run, passed and failed."""
        return self.analysis.checks

    @property
    def passed(self) -> bool:
        """True if all checks passed."""
        return self.analysis.passed

    def check(self) -> Self:
        """Return these results; CheckFailed with the first check that failed.

        In pytest it counts as inconclusive if the machine was too busy, and no other check failed.
        """
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            return self
        functional = [check for check in failed if check.name != BELIEVABLE]
        first = failed[0]
        if functional:
            first = functional[0]
        error = CheckFailed(f"{first.name}: {first.detail}")
        if not functional:
            inconclusive.mark(error, self.analysis.judgement.machine_reason)
        raise error

    @property
    def seconds(self) -> float:
        """Time of the first workload as a whole, s; the median of its repeats. BadInput if nothing was measured."""
        return median(row.value for row in self._times)

    @property
    def predicted(self) -> float | None:
        """Predicted time of the first workload, s; None where no formula exists."""
        return self._times[0].predicted

    @property
    def ratio(self) -> float | None:
        """Measured over predicted time of the first workload."""
        if not self.predicted:
            return None
        return self.seconds / self.predicted

    @property
    def _times(self) -> list[Measurement]:
        rows = [m for m in self.analysis.run.measurements if m.phase == WHOLE and m.metric in TIME_METRICS]
        if not rows:
            raise BadInput("results", self.analysis.run.name, "has no time of a workload")
        return [row for row in rows if row.interval.work == rows[0].interval.work and row.fabric == rows[0].fabric]

    def __repr__(self) -> str:
        counts = (
            f"{len(self.analysis.run.measurements)} measurements, {len(self.analysis.run.rows(RECOVERIES))} recoveries"
        )
        return f"<Results {self.analysis.run.name}: {counts}, verdict {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return verdict, checks and tables for a notebook."""
        run = self.analysis.run
        colour = _COLOURS.get(self.verdict, "inherit")
        parts = [f"<h4>{escape(run.name)}: <span style='color:{colour}'>{self.verdict}</span></h4>"]
        if self.reasons:
            items = "".join(f"<li>{escape(reason)}</li>" for reason in self.reasons)
            parts.append(f"<ul>{items}</ul>")
        parts.append("<table>")
        for check in self.checks:
            mark = "&#10003;" if check.passed else "&#10007;"
            parts.append(f"<tr><td>{mark}</td><td>{escape(check.name)}</td><td>{escape(check.detail)}</td></tr>")
        parts.append("</table>")
        for table in (self.results, self.recoveries):
            if len(table):
                is_filled = table.notna().any() & (table != "").any()
                parts.append(table.loc[:, is_filled].to_html(index=False, max_rows=_MAX_ROWS, border=0))
        return "".join(parts)


def load(folder: str | Path) -> Results:
    """Read a run's folder. BadInput if it is none, or can't be read."""
    path = Path(path_text("DIR", folder))
    return Results(run_folder.load(path), path)
