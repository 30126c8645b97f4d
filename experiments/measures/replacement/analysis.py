"""Replacements by case, way and fabric: medians, statistics of repeats, verdicts, and the target of optical ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import pandas as pd

from railyard.experiments.measures.replacement.records import REPLACEMENTS, Replacement
from railyard.results.analysis.aggregate import grouped, labels, none_if_nan
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure, figure
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome, Sample, Target, outcomes_of
from railyard.results.runs.record_files import columns_of
from railyard.results.runs.records import Run, Verdict, worst_verdict

SPREAD_COLUMNS: Final = {
    "replaced_ms": "replaced",
    "state_transfer_ms": "state transfer",
    "interruption_ms": "interruption",
    "after_s": "iteration after",
}
"""Fields whose median and 95th percentile are shown, and how sure those are."""
INTERVAL_PARTS: Final = ("before", "replacement", "after")


def _columns_of_numbers() -> list[str]:
    """Return the columns of a replacement that are measured numbers."""
    columns: list[str] = []
    for name, kind in columns_of(Replacement).items():
        if kind is not str and name not in ("repeat", "t_fault"):
            columns.append(name)
    return columns


_MEDIANS: Final = _columns_of_numbers()


@dataclass(frozen=True)
class ReplacementRow:
    """The repeats of a case; `medians` by field, None where no repeat has a value."""

    case: str
    method: str
    fabric: str
    n: int
    failed: str
    replaced_by: str
    verdict: Verdict
    medians: dict[str, float | None]
    figures: dict[str, Figure]  # of `SPREAD_COLUMNS`, all in ms
    slowdown: float | None  # an iteration after, over one before
    predicted_slowdown: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        plain: dict[str, Any] = {
            "case": self.case,
            "method": self.method,
            "fabric": self.fabric,
            "failed": self.failed,
            "replaced_by": self.replaced_by,
            "verdict": self.verdict,
            "repeats": self.n,
        }
        for name, value in self.medians.items():
            plain[f"{name}_median"] = value
        for name, statistics in self.figures.items():
            # all statistics are in ms, whatever the unit of the field is
            stem, _, _ = name.rpartition("_")
            plain[f"{stem}_ms"] = statistics.as_dict()
        plain["after_over_before"] = self.slowdown
        plain["after_over_before_predicted"] = self.predicted_slowdown
        return plain


def rows_of(analysis: Analysis) -> tuple[ReplacementRow, ...]:
    """Return the rows of a run."""
    return replacement_rows(analysis.run, analysis.judgement)


def replacement_rows(run: Run, judgement: Judgement) -> tuple[ReplacementRow, ...]:
    """Return rows in the order in which they were first run, each with its worst verdict before, during and after."""
    names = labels(run)
    rows: list[ReplacementRow] = []
    by_case = grouped(run.rows(REPLACEMENTS), "case", "method", "fabric", "policy", "failed")
    for (case, method, fabric, policy, failed), repeats in by_case.items():
        frame = pd.DataFrame(repeats)
        medians = frame[_MEDIANS].astype(float).median()
        verdicts: list[Verdict] = []
        for repeat, part in product(repeats, INTERVAL_PARTS):
            interval = replace(repeat.interval, part=part)
            verdicts.append(judgement.of_interval(interval))
        row = ReplacementRow(
            case=case,
            method=method,
            fabric=names.get((fabric, policy), fabric),
            n=len(repeats),
            failed=failed,
            replaced_by=", ".join(frame.replaced_by.unique()),
            verdict=worst_verdict(verdicts),
            medians={str(name): none_if_nan(value) for name, value in medians.items()},
            figures=_figures(frame),
            slowdown=none_if_nan(medians.after_s / medians.before_s),
            predicted_slowdown=none_if_nan(medians.after_predicted_s / medians.before_predicted_s),
        )
        rows.append(row)
    return tuple(rows)


def _figures(frame: pd.DataFrame) -> dict[str, Figure]:
    """Return the statistics of each of SPREAD_COLUMNS, in ms."""
    figures: dict[str, Figure] = {}
    for name in SPREAD_COLUMNS:
        factor = 1e3 if name.endswith("_s") else 1.0
        statistics = figure(frame[name] * factor)
        if statistics:
            figures[name] = statistics
    return figures


OPTICAL_REPLACEMENT: Final = Target(
    quantity="optical replacement by an idle GPU, beyond the time its links are down",
    most=50,
    source="a lost carrier, a decision, ports that an optical switch moves one by one, the spare's addresses and "
    "routes",
)


def target_outcomes(analysis: Analysis) -> list[Outcome]:
    """Return the target of optical replacements, for each fabric on which it was measured."""
    return outcomes_of(OPTICAL_REPLACEMENT, _optical_samples(analysis.run), analysis.judgement)


def _optical_samples(run: Run) -> Iterator[tuple[str, str, Sample]]:
    """Yield the time of each optical replacement by an idle GPU, without the time that its links are down."""
    names = labels(run)
    for replacement in run.rows(REPLACEMENTS):
        if (replacement.case, replacement.method) != ("idle-gpu", "optical"):
            continue
        fabric = names.get((replacement.fabric, replacement.policy), replacement.fabric)
        value = replacement.replaced_ms - replacement.optical_links_down_ms
        yield fabric, "", Sample(value, f"{replacement.failed}, repeat {replacement.repeat}", replacement.interval)
