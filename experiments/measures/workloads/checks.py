"""Checks of workloads: every byte is delivered, and dense training stays within its rails."""

from collections.abc import Iterator, Sequence

from railyard.experiments.measures.workloads.records import WAITS, WaitRecord
from railyard.results.analysis.aggregate import kinds_of
from railyard.results.format import size, workload_label
from railyard.results.measured import Check
from railyard.results.runs.records import ByteCheck, Run
from railyard.workloads.spec import traffic_kind


def checks(run: Run) -> Iterator[Check]:
    """Yield each check that the run has byte counts for."""
    if run.bytes:
        yield _delivery_check(run.bytes)
    waits = run.rows(WAITS)
    if waits:
        yield _waiting_check(waits)
    dense = _dense_training(run)
    if dense:
        yield _dense_training_check(dense)


def _delivery_check(counts: Sequence[ByteCheck]) -> Check:
    wrong_pairs = sum(count.pairs_wrong for count in counts)
    asked = sum(count.asked_bytes for count in counts)
    delivered = sum(count.delivered_bytes for count in counts)
    is_complete = all(count.asked_bytes == count.delivered_bytes for count in counts)
    worst = max(counts, key=_bytes_wrong)
    return Check(
        "every byte delivered, for every pair",
        passed=wrong_pairs == 0 and is_complete,
        detail=f"{delivered:,} of {asked:,} bytes over {len(counts)} workload runs, {wrong_pairs} GPU pairs differ",
        quantity="bytes missing",
        value=abs(asked - delivered),
        limit=0,
        unit="B",
        interval=worst.interval,
    )


def _waiting_check(waits: Sequence[WaitRecord]) -> Check:
    """Communicators without a path wait: a transfer between their GPUs that arrives contradicts the fabric's policy."""
    arrived = sum(wait.arrived for wait in waits)
    pairs = sum(wait.pairs for wait in waits)
    worst = max(waits, key=lambda wait: wait.arrived)
    return Check(
        "communicators that have no path wait for ever",
        passed=arrived == 0,
        detail=f"{pairs} GPU pairs without a path, of which {arrived} delivered bytes before the time limit",
        quantity="pairs that delivered bytes without a path",
        value=arrived,
        limit=0,
        interval=worst.interval,
    )


def _bytes_wrong(count: ByteCheck) -> tuple[int, int]:
    """Return by how much a count is off, to compare it with others."""
    return count.pairs_wrong, abs(count.asked_bytes - count.delivered_bytes)


def _dense_training(run: Run) -> list[ByteCheck]:
    """Return the byte counts of workloads all of whose traffic is that of dense training."""
    dense_works = set()
    for (work, phase), kinds in kinds_of(run.flows).items():
        if phase:
            continue
        if all(traffic_kind(kind).is_dense for kind in kinds):
            dense_works.add(work)
    return [count for count in run.bytes if count.interval.work in dense_works]


def _dense_training_check(counts: Sequence[ByteCheck]) -> Check:
    """Rail-only III-B: without expert parallelism nothing crosses from one rail to another."""
    crossed = sum(count.cross_rail_bytes for count in counts)
    names = dict.fromkeys(workload_label(count.interval) for count in counts)
    worst = max(counts, key=lambda count: count.cross_rail_bytes)
    return Check(
        "dense training stays within its rails",
        passed=crossed == 0,
        detail=f"{size(crossed)} between rails ({', '.join(names)})",
        quantity="bytes between rails",
        value=crossed,
        limit=0,
        unit="B",
        interval=worst.interval,
    )
