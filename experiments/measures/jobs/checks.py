"""Checks of jobs: every byte of every job is delivered, and ports count what the routes of the jobs say."""

from collections.abc import Iterator, Sequence

from railyard.experiments.measures.jobs.records import JOB_PORTS, JOB_RUNS, JobPort, JobRun
from railyard.results.measured import Check
from railyard.results.runs.records import Run


def checks(run: Run) -> Iterator[Check]:
    """Yield the checks for which the run has records."""
    job_runs = run.rows(JOB_RUNS)
    if job_runs:
        yield _delivered(job_runs)
    ports = run.rows(JOB_PORTS)
    used = [row for row in ports if row.jobs]
    if used:
        yield _as_routed(used)
    unused = [row for row in ports if not row.jobs]
    if unused:
        yield _unused(unused)


def _delivered(rows: Sequence[JobRun]) -> Check:
    worst = max(rows, key=lambda row: (row.pairs_wrong, row.asked_bytes - row.delivered_bytes))
    asked = 0
    delivered = 0
    wrong_pairs = 0
    for row in rows:
        asked += row.asked_bytes
        delivered += row.delivered_bytes
        wrong_pairs += row.pairs_wrong
    return Check(
        "every byte of every job delivered",
        passed=wrong_pairs == 0 and asked == delivered,
        detail=f"{delivered:,} of {asked:,} bytes over {len(rows)} runs of jobs, {wrong_pairs} GPU pairs differ",
        quantity="bytes missing",
        value=asked - delivered,
        limit=0,
        unit="B",
        interval=worst.interval,
    )


def _as_routed(rows: Sequence[JobPort]) -> Check:
    """Return the check of ports that jobs use, by the one that is furthest off of what it is allowed."""
    worst = max(rows, key=lambda row: row.off_bytes / row.allowed_bytes)
    counts = f"{worst.counted_bytes:,} bytes counted, {worst.expected_bytes:,} by the routes"
    return Check(
        "ports count the bytes that routes of jobs say",
        passed=worst.off_bytes <= worst.allowed_bytes,
        detail=f"of {len(rows)} counts, that of {_place(worst)} is furthest off: {counts}",
        quantity="bytes off at a port",
        value=worst.off_bytes,
        limit=worst.allowed_bytes,
        unit="B",
        interval=worst.interval,
    )


def _unused(rows: Sequence[JobPort]) -> Check:
    """Return the check of ports that no job's route crosses, such as those of the GPUs of other jobs."""
    worst = max(rows, key=lambda row: row.counted_bytes)
    return Check(
        "ports that no job's route crosses are idle",
        passed=worst.counted_bytes <= worst.allowed_bytes,
        detail=f"of {len(rows)} counts, that of {_place(worst)} is highest: {worst.counted_bytes:,} bytes",
        quantity="bytes at a port without a route",
        value=worst.counted_bytes,
        limit=worst.allowed_bytes,
        unit="B",
        interval=worst.interval,
    )


def _place(row: JobPort) -> str:
    """Return the port of a row and the jobs that ran, for messages."""
    return f"{row.link} {row.direction} ({row.interval.workload})"
