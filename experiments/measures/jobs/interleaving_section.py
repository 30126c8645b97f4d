"""Interleaving of jobs in the report: shifts, slow-downs before and after, and bursts on the link they share most."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.analysis import slow_downs_of
from railyard.experiments.measures.jobs.plots import bursts_plots
from railyard.experiments.measures.jobs.records import (
    INTERLEAVED,
    JOB_BURSTS,
    JOB_RUNS,
    JOB_SHIFTS,
    TOGETHER,
    JobShift,
)
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import NOTHING, percent
from railyard.results.views.report import Section
from railyard.results.views.table import Column, Table, text


@dataclass(frozen=True)
class InterleavedRow:
    """A job before and after its shift: slow-downs (median over repeats, and predicted) and compatibility."""

    fabric: str
    job: str
    shift_s: float
    before: float | None
    before_predicted: float
    after: float | None
    after_predicted: float
    compatibility_before: float
    compatibility_after: float


class InterleavingSection(Section):
    """Jobs that begin later by a shift that the simulation found, so that their bursts alternate."""

    title = "Interleaving"
    order = 43
    template = "interleaving.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run whose jobs were interleaved."""
        return bool(analysis.run.rows(JOB_SHIFTS))

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the table and figures of its template."""
        return {"shifts": _table(analysis), "plots": bursts_plots(analysis.run.rows(JOB_BURSTS))}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print the table of shifts."""
        if self.applies(analysis):
            console.print(_table(analysis).to_terminal(), "")

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return the rows of the table."""
        if not self.applies(analysis):
            return {}
        return {"interleaving": _table(analysis).to_dicts()}


def interleaved_rows(analysis: Analysis) -> list[InterleavedRow]:
    """Return a row for each job of each fabric."""
    rows: list[InterleavedRow] = []
    for (fabric, _, job), shifts in grouped(analysis.run.rows(JOB_SHIFTS), "fabric", "policy", "job").items():
        # the shift follows from the simulation, so all repeats have the same
        shift = shifts[0]
        row = InterleavedRow(
            fabric=fabric,
            job=job,
            shift_s=shift.shift_s,
            before=_slow_down(analysis, shift, TOGETHER),
            before_predicted=shift.slow_down_before,
            after=_slow_down(analysis, shift, INTERLEAVED),
            after_predicted=shift.slow_down_after,
            compatibility_before=shift.compatibility_before,
            compatibility_after=shift.compatibility_after,
        )
        rows.append(row)
    return rows


def _slow_down(analysis: Analysis, shift: JobShift, mode: str) -> float | None:
    """Return the median slow-down of a job in a mode; None if none was measured."""
    intervals: set[IntervalId] = set()
    for run in analysis.run.rows(JOB_RUNS):
        if (run.fabric, run.policy, run.mode) == (shift.fabric, shift.policy, mode):
            intervals.add(run.interval)
    slow_downs = slow_downs_of(analysis.run, shift.job, intervals)
    return median(row.value for row in slow_downs) if slow_downs else None


def _table(analysis: Analysis) -> Table:
    columns = [
        text("job", key="job"),
        text("fabric", key="fabric"),
        Column("shift", "shift_s", unit="s", key="shift_s"),
        Column("slow-down", "before", _ratio, key="before"),
        Column("predicted", "before_predicted", _ratio, key="before_predicted"),
        Column("interleaved", "after", _ratio, key="after"),
        Column("predicted", "after_predicted", _ratio, key="after_predicted"),
        Column("compatibility", "compatibility_before", percent, key="compatibility_before"),
        Column("interleaved", "compatibility_after", percent, key="compatibility_after"),
    ]
    return Table(columns, interleaved_rows(analysis), title="Interleaving")


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"
