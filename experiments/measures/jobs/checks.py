"""Checks of jobs: every byte of every job is delivered."""

from collections.abc import Iterator

from railyard.experiments.measures.jobs.records import JOB_RUNS
from railyard.results.measured import Check
from railyard.results.runs.records import Run


def checks(run: Run) -> Iterator[Check]:
    """Yield the check, if any job ran."""
    rows = run.rows(JOB_RUNS)
    if not rows:
        return
    worst = max(rows, key=lambda row: (row.pairs_wrong, row.asked_bytes - row.delivered_bytes))
    asked = 0
    delivered = 0
    wrong_pairs = 0
    for row in rows:
        asked += row.asked_bytes
        delivered += row.delivered_bytes
        wrong_pairs += row.pairs_wrong
    yield Check(
        "every byte of every job delivered",
        passed=wrong_pairs == 0 and asked == delivered,
        detail=f"{delivered:,} of {asked:,} bytes over {len(rows)} runs of jobs, {wrong_pairs} GPU pairs differ",
        quantity="bytes missing",
        value=asked - delivered,
        limit=0,
        unit="B",
        interval=worst.interval,
    )
