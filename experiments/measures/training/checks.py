"""Checks of trainings under faults: each ended, and its weights are those of a training without a fault."""

from collections.abc import Iterator
from typing import Final

from railyard.experiments.measures.training import outcome
from railyard.results.measured import Check
from railyard.results.runs.records import Run

CLAIMS: Final = {
    "every training ends in spite of its fault": outcome.COMPLETED,
    "all ranks of a training have the same weights": outcome.RANKS,
    "weights equal those of a training without a fault": outcome.WEIGHTS,
}
"""What is claimed -> the metric that is not 0 where it holds."""


def checks(run: Run) -> Iterator[Check]:
    """Yield a check for each claim that the run has measured."""
    for claim, metric in CLAIMS.items():
        rows = [row for row in run.measurements if row.metric == metric]
        if not rows:
            continue
        failed = [row.interval for row in rows if not row.value]
        detail = f"{len(rows) - len(failed)} of {len(rows)} trainings"
        worst = None
        if failed:
            worst = failed[0]
            detail += f"; not: {worst.workload}, {worst.script}, repeat {worst.repeat}"
        yield Check(
            claim,
            passed=not failed,
            detail=detail,
            quantity="trainings that failed",
            value=len(failed),
            limit=0,
            unit="trainings",
            interval=worst,
        )
