"""Rows of results from the reports of ranks: a point, a fault with the rates of its NICs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise
from statistics import fmean, median
from typing import Final

import numpy as np

from railyard.core.errors import CheckFailed
from railyard.core.records import IntervalId
from railyard.results.runs.allreduce import MIN_SAMPLES_FOR_P99, Cut, Point
from railyard.results.runs.records import GoodputTrace
from railyard.workloads.allreduce.balancing.balancer import LONG_WINDOW
from railyard.workloads.allreduce.balancing.policy import rail_seconds
from railyard.workloads.allreduce.engine.jobs import RankReport, latencies_s

STEADY: Final = 0.02
"""Shares that change by less of the buffer than this are what they were."""
_TAIL: Final = 0.1
BIN_NS: Final = 20_000_000

Row = tuple[float, ...]


def check_complete(reports: Sequence[RankReport]) -> None:
    """CheckFailed, with what ended them early, unless every rank did all of its operations."""
    for report in reports:
        if report.errors:
            raise CheckFailed(f"rank {report.rank}: {report.errors[0]}")


def merge_turns(turns: Sequence[Sequence[RankReport]]) -> list[RankReport]:
    """Return one report for each rank from its reports of several turns."""
    return [
        RankReport(
            rank=reports[0].rank,
            starts_ns=[ns for report in reports for ns in report.starts_ns],
            ends_ns=[ns for report in reports for ns in report.ends_ns],
            wrong=sum(report.wrong for report in reports),
            shares=[row for report in reports for row in report.shares],
            rail_seconds=[row for report in reports for row in report.rail_seconds],
            copies=dict(sum((Counter(report.copies) for report in reports), Counter())),
        )
        for reports in zip(*turns, strict=True)
    ]


def point(
    interval: IntervalId,
    size: int,
    sent: int,
    timed: Sequence[RankReport],
    checked: Sequence[RankReport],
    turns: Sequence[tuple[int, int]],
    predicted_s: float | None,
) -> Point:
    """Return the point from the ranks' reports of operations that were `checked` against numpy's sum, then `timed`.

    `turns`: how many operations of each turn don't count, and how many then do. A policy learns from all of them.
    """
    counts = [counts for first, count in turns for counts in (*[False] * first, *[True] * count)]
    times = list(compress(latencies_s(timed), counts))
    ends = list(accumulate(count for _, count in turns))
    of_turns = [times[start:end] for start, end in pairwise([0, *ends])]
    rows = [normalised(row) for row in timed[0].shares]
    kept = [row for row in compress(rows, counts) if row]
    copied = [sum(report.copies.values()) / (len(report.ends_ns) * sent) for report in timed]
    return Point(
        interval,
        size=size,
        sent=sent,
        operations=len(counts),
        measured=len(times),
        mean_s=fmean(times),
        typical_s=fmean(median(turn) for turn in of_turns),
        p99_s=float(np.percentile(times, 99)) if len(times) >= MIN_SAMPLES_FOR_P99 else None,
        shares=tuple(fmean(column) for column in zip(*kept, strict=True)),
        rail_s=mean_rail_s(timed, counts),
        settled_after=settled_after([normalised(row) for row in checked[0].shares] + rows),
        wrong=sum(report.wrong for report in checked),
        checked=sum(len(report.ends_ns) * sent // 4 for report in checked),
        copied=fmean(copied),
        predicted_s=predicted_s,
    )


def undilated(point: Point, times: float) -> Point:
    """Return a point that was measured where time passes so many times slower in the fabric's own time."""
    return replace(
        point,
        dilation=times,
        mean_s=point.mean_s / times,
        typical_s=point.typical_s / times,
        p99_s=None if point.p99_s is None else point.p99_s / times,
        rail_s=tuple(seconds / times for seconds in point.rail_s),
        predicted_s=None if point.predicted_s is None else point.predicted_s / times,
    )


def normalised(row: Row) -> Row:
    """Shares of one, from bytes; nothing for an operation without any."""
    total = sum(row)
    return tuple(part / total for part in row) if total else ()


def mean_rail_s(reports: Sequence[RankReport], counts: Sequence[bool]) -> Row:
    """Mean over operations of what each rail took, from the last rank's start; 0 for one that carried nothing."""
    starts = zip(*([ns / 1e9 for ns in compress(report.starts_ns, counts)] for report in reports), strict=False)
    took = zip(*(compress(report.rail_seconds, counts) for report in reports), strict=False)
    rows = [
        rail_seconds(began, [tuple(at + seconds for seconds in row) for at, row in zip(began, rows, strict=True)])
        for began, rows in zip(starts, took, strict=False)
    ]
    return tuple(fmean(column) for column in zip(*rows, strict=True))


def settled_after(rows: Sequence[Row]) -> int | None:
    """Operations until shares first stood for a long window, or else stayed where they end; 0 if they never moved, None
    if they moved to the end. (That a balancer at rest looks now and then for something better is no learning.)"""
    steady_ends = (end for end in range(LONG_WINDOW, len(rows)) if _is_steady(rows[end - LONG_WINDOW : end]))
    rows = rows[: next(steady_ends, len(rows))]
    if not rows:
        return None
    tail = [row for row in rows[-max(1, int(len(rows) * _TAIL)) :] if row]
    if not tail:
        return None
    last = tuple(fmean(column) for column in zip(*tail, strict=True))
    moved = [number for number, row in enumerate(rows) if not row or _distance(row, last) > STEADY]
    after = moved[-1] + 1 if moved else 0
    return after if after <= len(rows) - len(tail) else None


def _is_steady(rows: Sequence[Row]) -> bool:
    if not all(rows):
        return False
    middle = tuple(fmean(column) for column in zip(*rows, strict=True))
    return all(_distance(row, middle) <= STEADY for row in rows)


def _distance(one: Row, other: Row) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


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
    # the first migration of each rank that takes this rail away after the fault
    found = (
        next((m for m in r.migrations if injected.rail in m.rails and m.frozen_at * 1e9 >= injected.t_fault), None)
        for r in reports
    )
    migrations = [migration for migration in found if migration]
    detected, moved = [m.frozen_at for m in migrations], [m.decided_at for m in migrations]
    times = latencies_s(reports)
    ends = [max(row) for row in zip(*(report.ends_ns for report in reports), strict=False)]
    starts = [min(row) for row in zip(*(report.starts_ns for report in reports), strict=False)][: len(ends)]
    before = [time for time, end in zip(times, ends, strict=True) if end < injected.t_fault] or times[:1]
    carried = _carried(injected, reports[0])
    returned_ns = _returned_ns(injected, reports[0]) if carried else None
    return Cut(
        injected.interval,
        fault=injected.fault,
        target=injected.target,
        size=injected.size,
        t_fault=injected.t_fault,
        t_repair=injected.t_repair,
        inside=any(start <= injected.t_fault <= end for start, end in zip(starts, ends, strict=True)),
        detect_ms=min(detected) * 1e3 - injected.t_fault / 1e6 if detected else None,
        migrate_ms=max(moved) * 1e3 - injected.t_fault / 1e6 if len(moved) == len(reports) else None,
        home_ms=None if returned_ns is None else (returned_ns - injected.t_repair) / 1e6,
        median_s=median(before) if before else 0.0,
        worst_s=max(times, default=0.0),
        operations=len(times),
        wrong=sum(report.wrong for report in reports),
        checked=sum(len(report.ends_ns) * injected.sent // 4 for report in reports),
        error=next((report.errors[0] for report in reports if report.errors), ""),
        carried=carried,
    )


def _carried(injected: InjectedFault, report: RankReport) -> bool:
    """Whether the rail had a share of what ended before the fault: one that a policy left idle has none to get back."""
    rows = zip(report.ends_ns, report.shares, strict=False)
    return any(row[injected.rail] > 0 for at, row in rows if at < injected.t_fault)


def _returned_ns(injected: InjectedFault, report: RankReport) -> int | None:
    """The start of the first operation after the repair in which the rail has a share again."""
    rows = zip(report.starts_ns, report.shares, strict=False)
    return next((at for at, row in rows if at > injected.t_repair and row[injected.rail] > 0), None)


def nic_rates(injected: InjectedFault, report: RankReport, rails: Sequence[str]) -> list[GoodputTrace]:
    """Both ways together, from the node's own counts, in bins of 20 ms around the fault."""
    counts = report.rail_bytes_over_time
    if len(counts) < 2:
        return []
    at = np.array([ns for ns, _ in counts], dtype=float)
    first = injected.t_fault - (int(injected.t_fault - at[0]) // BIN_NS) * BIN_NS
    edges = np.arange(first, at[-1], BIN_NS)
    found = []
    for rail, name in enumerate(rails):
        total = np.interp(edges, at, [float(row[rail]) for _, row in counts])
        bps = [(b - a) * 8e9 / BIN_NS for a, b in pairwise(total.tolist())]
        t_ms = [(edge - injected.t_fault) / 1e6 for edge in edges.tolist()[:-1]]
        found.append(
            GoodputTrace(
                injected.interval, injected.fault, injected.target, tuple(t_ms), tuple(bps), affected_bps=(),
                repair_ms=(injected.t_repair - injected.t_fault) / 1e6, link=name,
            )
        )  # fmt: skip
    return found
