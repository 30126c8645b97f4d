"""Rows of results from the reports of ranks: a point, a fault with the rates of its NICs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import sub
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce.records import MIN_SAMPLES_FOR_P99, Cut, Point
from railyard.results.runs.records import GoodputTrace
from railyard.workloads.allreduce.balancing.policy import rail_seconds
from railyard.workloads.allreduce.balancing.states import LONG_WINDOW
from railyard.workloads.allreduce.engine.jobs import Migration, RankReport, latencies_s

# Shares that change by a smaller part of the buffer count as unchanged.
STEADY: Final = 0.02
_TAIL: Final = 0.1
BIN_NS: Final = 20_000_000

Row = tuple[float, ...]


def merge_turns(turns: Sequence[Sequence[RankReport]]) -> list[RankReport]:
    """Return one report for each rank from its reports of several turns."""
    merged_reports: list[RankReport] = []
    for reports in zip(*turns, strict=True):
        merged = RankReport(rank=reports[0].rank)
        copies: Counter[str] = Counter()
        for report in reports:
            merged.starts_ns += report.starts_ns
            merged.ends_ns += report.ends_ns
            merged.wrong += report.wrong
            merged.shares += report.shares
            merged.rail_seconds += report.rail_seconds
            copies += Counter(report.copies)
        merged.copies = dict(copies)
        merged_reports.append(merged)
    return merged_reports


def point(
    interval: IntervalId,
    size: int,
    sent: int,
    timed: Sequence[RankReport],
    checked: Sequence[RankReport],
    turns: Sequence[tuple[int, int]],
    predicted_s: float | None,
    dilation: float = 1.0,
    frames: float | None = None,
    credit_s: float = 0.0,
) -> Point:
    """Return the point from the ranks' reports of operations that were `checked` against numpy's sum, then `timed`.

    `turns`: how many operations of each turn don't count, and how many then do. A policy learns from all of them.
    Reports, `predicted_s` and `credit_s`, the time that idle credit of shapers may save, are of a fabric where time
    passes `dilation` times slower; the point's times are not. `frames`: of the part that a node sends in a step.
    """
    counts = _counting_operations(turns)
    times = [time / dilation for time in compress(latencies_s(timed), counts)]
    rows = _shares_of_one(timed[0])
    learning_rows = _shares_of_one(checked[0])
    # an operation without bytes has no shares
    used_rows = filter(None, compress(rows, counts))
    copied = [sum(report.copies.values()) / (len(report.ends_ns) * sent) for report in timed]
    rail_s = [seconds / dilation for seconds in mean_rail_s(timed, counts)]
    p99_s = None
    if len(times) >= MIN_SAMPLES_FOR_P99:
        p99_s = float(np.percentile(times, 99))
    credit_share = 0.0
    real_predicted_s = None
    if predicted_s is not None:
        real_predicted_s = predicted_s / dilation
    if predicted_s:
        credit_share = credit_s / predicted_s
    return Point(
        interval,
        size=size,
        sent=sent,
        operations=len(counts),
        measured=len(times),
        mean_s=fmean(times),
        typical_s=_mean_of_medians(times, turns),
        p99_s=p99_s,
        shares=_means_of_columns(used_rows),
        rail_s=tuple(rail_s),
        settled_after=settled_after(learning_rows + rows),
        wrong=_wrong_elements(checked),
        checked=_checked_elements(checked, sent),
        copied=fmean(copied),
        dilation=dilation,
        predicted_s=real_predicted_s,
        frames=frames,
        credit_share=credit_share,
    )


def _means_of_columns(rows: Iterable[Row]) -> Row:
    """Return the mean of each column of a table."""
    return tuple(map(fmean, zip(*rows, strict=True)))


def _wrong_elements(reports: Sequence[RankReport]) -> int:
    """Return how many elements of all ranks differ from numpy's sum."""
    return sum(report.wrong for report in reports)


def _checked_elements(reports: Sequence[RankReport], sent: int) -> int:
    """Return how many elements of four bytes all ranks compared. `sent`: bytes of an operation."""
    return sum(len(report.ends_ns) * sent // 4 for report in reports)


def _counting_operations(turns: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each operation whether it counts. The first ones of each turn don't."""
    counts: list[bool] = []
    for first, count in turns:
        counts += [False] * first
        counts += [True] * count
    return counts


def _mean_of_medians(times: Sequence[float], turns: Sequence[tuple[int, int]]) -> float:
    """Return the mean of each turn's median time. `times`: of the operations that count, turn by turn."""
    medians: list[float] = []
    start = 0
    for _, count in turns:
        medians.append(median(times[start : start + count]))
        start += count
    return fmean(medians)


def _shares_of_one(report: RankReport) -> list[Row]:
    """Return the share of each rail, with a sum of 1, for each operation; an empty row for one without bytes."""
    rows: list[Row] = []
    for row in report.shares:
        total = sum(row)
        if total:
            rows.append(tuple(part / total for part in row))
        else:
            rows.append(())
    return rows


def mean_rail_s(reports: Sequence[RankReport], counts: Sequence[bool]) -> Row:
    """Mean over operations of what each rail took, from the last rank's start; 0 for one that carried nothing."""
    starts = np.array([list(compress(report.starts_ns, counts)) for report in reports]) / 1e9
    took = np.array([list(compress(report.rail_seconds, counts)) for report in reports])
    return tuple(rail_seconds(starts, starts[..., np.newaxis] + took).mean(axis=0).tolist())


def settled_after(rows: Sequence[Row]) -> int | None:
    """Return the operations until shares first stood for a long window, or else stayed where they end.

    0 if they never moved, None if they moved to the end.
    """
    # a balancer at rest that looks now and then for something better isn't learning: what follows doesn't count
    rows = rows[: _first_stable_end(rows)]
    tail_length = max(1, int(len(rows) * _TAIL))
    tail = list(filter(None, rows[-tail_length:]))
    if not tail:
        return None
    last_moved = 0
    for number, has_moved in enumerate(_differs(rows, tail), start=1):
        if has_moved:
            last_moved = number
    if last_moved > len(rows) - len(tail):
        return None
    return last_moved


def _first_stable_end(rows: Sequence[Row]) -> int:
    """Return the end of the first long window without a change; the end of all rows without one."""
    for end in range(LONG_WINDOW, len(rows)):
        window = rows[end - LONG_WINDOW : end]
        if not any(_differs(window, window)):
            return end
    return len(rows)


def _differs(rows: Sequence[Row], stable_rows: Sequence[Row]) -> list[bool]:
    """Return whether each row is empty, or further than `STEADY` from the mean of stable rows."""
    mean = _means_of_columns(filter(None, stable_rows))
    return [not row or _distance(row, mean) > STEADY for row in rows]


def _distance(row: Row, other: Row) -> float:
    """Return the largest difference of a rail's share."""
    return float(max(map(abs, map(sub, row, other))))


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected and repaired, ns; `rail` by its number, sizes as in `Cut`."""

    interval: IntervalId
    fault: str
    target: str
    rail: int
    size: int
    sent: int
    t_fault: int
    t_repair: int


def cut(injected: InjectedFault, reports: Sequence[RankReport]) -> Cut:
    """Return what the fault did to the operations that ran."""
    t_fault = injected.t_fault
    migrations = _first_migrations(injected, reports)
    detect_ms = None
    if migrations:
        detect_ms = _first_noticed_s(migrations) * 1e3 - t_fault / 1e6
    migrate_ms = None
    if len(migrations) == len(reports):
        migrate_ms = _last_moved_s(migrations) * 1e3 - t_fault / 1e6
    times = latencies_s(reports)
    spans = _operation_spans(reports)
    errors = list(chain.from_iterable(report.errors for report in reports))
    has_carried = _has_carried(injected, reports[0])
    # a rail that a policy left idle has no share to get back
    home_ms = None
    if has_carried:
        home_ms = _return_ms(injected, reports[0])
    return Cut(
        injected.interval,
        fault=injected.fault,
        target=injected.target,
        size=injected.size,
        t_fault=t_fault,
        t_repair=injected.t_repair,
        inside=any(start_ns <= t_fault <= end_ns for start_ns, end_ns in spans),
        detect_ms=detect_ms,
        migrate_ms=migrate_ms,
        home_ms=home_ms,
        median_s=_median_before_s(times, spans, t_fault),
        worst_s=max(times, default=0.0),
        operations=len(times),
        wrong=_wrong_elements(reports),
        checked=_checked_elements(reports, injected.sent),
        error=next(iter(errors), ""),
        carried=has_carried,
    )


def _operation_spans(reports: Sequence[RankReport]) -> list[tuple[int, int]]:
    """Return when each operation that has ended began at the first rank, and ended at the last one, ns."""
    # ranks that were ended by an error have fewer operations than others
    starts_ns = zip(*[report.starts_ns for report in reports], strict=False)
    ends_ns = zip(*[report.ends_ns for report in reports], strict=False)
    return list(zip(map(min, starts_ns), map(max, ends_ns), strict=False))


def _median_before_s(times: Sequence[float], spans: Sequence[tuple[int, int]], t_fault: int) -> float:
    """Return the median time of the operations that ended before the fault, else that of the first; 0 without any."""
    before: list[float] = []
    for time, (_, end_ns) in zip(times, spans, strict=True):
        if end_ns < t_fault:
            before.append(time)
    if before:
        return median(before)
    return next(iter(times), 0.0)


def _first_migrations(injected: InjectedFault, reports: Sequence[RankReport]) -> list[Migration]:
    """Return the first migration of each rank that takes the fault's rail away after it; some ranks may have none."""
    migrations = []
    for report in reports:
        for migration in report.migrations:
            if injected.rail in migration.rails and migration.frozen_at * 1e9 >= injected.t_fault:
                migrations.append(migration)
                break
    return migrations


def _first_noticed_s(migrations: Sequence[Migration]) -> float:
    """Return when the first rank noticed a loss (monotonic s)."""
    return min(migration.frozen_at for migration in migrations)


def _last_moved_s(migrations: Sequence[Migration]) -> float:
    """Return when the last rank had its new tasks (monotonic s)."""
    return max(migration.decided_at for migration in migrations)


def _has_carried(injected: InjectedFault, report: RankReport) -> bool:
    """Return whether the rail carried anything in an operation that ended before the fault."""
    for end_ns, row in zip(report.ends_ns, report.shares, strict=False):
        if end_ns < injected.t_fault and row[injected.rail] > 0:
            return True
    return False


def _return_ms(injected: InjectedFault, report: RankReport) -> float | None:
    """Return the time from the repair to the first operation that uses the rail again; None without one."""
    for start_ns, row in zip(report.starts_ns, report.shares, strict=False):
        if start_ns > injected.t_repair and row[injected.rail] > 0:
            return (start_ns - injected.t_repair) / 1e6
    return None


def lost_rails(reports: Sequence[RankReport], rails: Sequence[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the events of a loss of rails: the first node noticed it, and the last node had its new tasks.

    Times are monotonic ns. `rails`: the names of all rails.
    """
    # migrations by the lost rails, and by how often a rank had lost them before
    losses = defaultdict[tuple[tuple[int, ...], int], list[Migration]](list)
    for report in reports:
        counts = Counter[tuple[int, ...]]()
        for migration in report.migrations:
            losses[migration.rails, counts[migration.rails]].append(migration)
            counts[migration.rails] += 1
    for (numbers, _), migrations in losses.items():
        noticed_s = _first_noticed_s(migrations)
        moved_s = _last_moved_s(migrations)
        names = ", ".join(rails[number] for number in numbers)
        yield round(noticed_s * 1e9), "rail-lost", {"rails": names}
        after_ms = round((moved_s - noticed_s) * 1e3, 1)
        yield round(moved_s * 1e9), "migrated", {"rails": names, "nodes": len(migrations), "ms": after_ms}


def nic_rates(injected: InjectedFault, report: RankReport, rails: Sequence[str]) -> list[GoodputTrace]:
    """Return the rate of each NIC of a node around the fault: both directions together, in bins of 20 ms.

    `report`: of the node's rank, with its counts of bytes. `rails`: the names of all rails.
    """
    counts = report.rail_bytes_over_time
    if len(counts) < 2:
        return []
    times_ns, rows = zip(*counts, strict=True)
    at = np.array(times_ns, dtype=float)
    # one of the edges is the fault, so no bin has traffic from before and after it
    first = injected.t_fault - (int(injected.t_fault - at[0]) // BIN_NS) * BIN_NS
    edges = np.arange(first, at[-1], BIN_NS)
    t_ms = tuple(((edges[:-1] - injected.t_fault) / 1e6).tolist())
    repair_ms = (injected.t_repair - injected.t_fault) / 1e6
    bytes_by_rail = np.array(rows, dtype=float)
    traces = []
    for rail, name in enumerate(rails):
        total = np.interp(edges, at, bytes_by_rail[:, rail])
        bps = tuple((np.diff(total) * 8e9 / BIN_NS).tolist())
        trace = GoodputTrace(injected.interval, injected.fault, injected.target, t_ms, bps, (), repair_ms, link=name)
        traces.append(trace)
    return traces
