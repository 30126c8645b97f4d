"""Rows of results from the reports of ranks: a point, a fault with the rates of its NICs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from railyard.core.records import IntervalId
from railyard.results.runs.allreduce import MIN_SAMPLES_FOR_P99, Cut, Point
from railyard.results.runs.records import GoodputTrace
from railyard.workloads.allreduce.balancing.balancer import LONG_WINDOW
from railyard.workloads.allreduce.balancing.policy import rail_seconds
from railyard.workloads.allreduce.engine.jobs import Migration, RankReport, latencies_s

STEADY: Final = 0.02  # shares that change by less of the buffer than this are what they were
_TAIL: Final = 0.1
BIN_NS: Final = 20_000_000

Row = tuple[float, ...]


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
    dilation: float = 1.0,
    frames: float | None = None,
    credit_s: float = 0.0,
) -> Point:
    """Return the point from the ranks' reports of operations that were `checked` against numpy's sum, then `timed`.

    `turns`: how many operations of each turn don't count, and how many then do. A policy learns from all of them.
    Reports, `predicted_s` and `credit_s`, the time that idle credit of shapers may save, are of a fabric where time
    passes `dilation` times slower; the point's times are not. `frames`: of the part that a node sends in a step.
    """
    counts = [counts for first, count in turns for counts in (*[False] * first, *[True] * count)]
    times = [time / dilation for time in compress(latencies_s(timed), counts)]
    ends = list(accumulate(count for _, count in turns))
    of_turns = [times[start:end] for start, end in pairwise([0, *ends])]
    # shares of one from bytes; an operation without any has none
    rows, learning_rows = (
        [tuple(part / sum(row) for part in row) if sum(row) else () for row in reports[0].shares]
        for reports in (timed, checked)
    )
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
        rail_s=tuple(seconds / dilation for seconds in mean_rail_s(timed, counts)),
        settled_after=settled_after(learning_rows + rows),
        wrong=sum(report.wrong for report in checked),
        checked=sum(len(report.ends_ns) * sent // 4 for report in checked),
        copied=fmean(copied),
        dilation=dilation,
        predicted_s=None if predicted_s is None else predicted_s / dilation,
        frames=frames,
        credit_share=credit_s / predicted_s if predicted_s else 0.0,
    )


def mean_rail_s(reports: Sequence[RankReport], counts: Sequence[bool]) -> Row:
    """Mean over operations of what each rail took, from the last rank's start; 0 for one that carried nothing."""
    starts = np.array([list(compress(report.starts_ns, counts)) for report in reports]) / 1e9
    took = np.array([list(compress(report.rail_seconds, counts)) for report in reports])
    return tuple(rail_seconds(starts, starts[..., np.newaxis] + took).mean(axis=0).tolist())


def settled_after(rows: Sequence[Row]) -> int | None:
    """Operations until shares first stood for a long window, or else stayed where they end; 0 if they never moved, None
    if they moved to the end. (That a balancer at rest looks now and then for something better is no learning.)"""
    windows = ((end, rows[end - LONG_WINDOW : end]) for end in range(LONG_WINDOW, len(rows)))
    rows = rows[: next((end for end, window in windows if not any(_differs(window, window))), len(rows))]
    tail = [row for row in rows[-max(1, int(len(rows) * _TAIL)) :] if row]
    if not tail:
        return None
    after = max((number for number, moved in enumerate(_differs(rows, tail), start=1) if moved), default=0)
    return after if after <= len(rows) - len(tail) else None


def _differs(rows: Sequence[Row], others: Sequence[Row]) -> list[bool]:
    """Return whether each row is empty, or further than `STEADY` from the mean of the others."""
    mean = [fmean(column) for column in zip(*filter(None, others), strict=True)]
    return [not row or max(abs(a - b) for a, b in zip(row, mean, strict=True)) > STEADY for row in rows]


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
    rail, t_fault, t_repair = injected.rail, injected.t_fault, injected.t_repair
    # the first migration of each rank that takes this rail away after the fault
    found = (next((m for m in r.migrations if rail in m.rails and m.frozen_at * 1e9 >= t_fault), None) for r in reports)
    migrations = [migration for migration in found if migration]
    detected, moved = [m.frozen_at for m in migrations], [m.decided_at for m in migrations]
    times = latencies_s(reports)
    ends = [max(row) for row in zip(*(report.ends_ns for report in reports), strict=False)]
    starts = [min(row) for row in zip(*(report.starts_ns for report in reports), strict=False)][: len(ends)]
    before = [time for time, end in zip(times, ends, strict=True) if end < t_fault] or times[:1]
    # a rail that a policy left idle has no share to get back; else it is back with the first operation that uses it
    first = reports[0]
    shares = [row[rail] for row in first.shares]
    carried = any(share > 0 for at, share in zip(first.ends_ns, shares, strict=False) if at < t_fault)
    used_ns = (at for at, share in zip(first.starts_ns, shares, strict=False) if at > t_repair and share > 0)
    returned_ns = next(used_ns, None) if carried else None
    return Cut(
        injected.interval,
        fault=injected.fault,
        target=injected.target,
        size=injected.size,
        t_fault=t_fault,
        t_repair=t_repair,
        inside=any(start <= t_fault <= end for start, end in zip(starts, ends, strict=True)),
        detect_ms=min(detected) * 1e3 - t_fault / 1e6 if detected else None,
        migrate_ms=max(moved) * 1e3 - t_fault / 1e6 if len(moved) == len(reports) else None,
        home_ms=None if returned_ns is None else (returned_ns - t_repair) / 1e6,
        median_s=median(before) if before else 0.0,
        worst_s=max(times, default=0.0),
        operations=len(times),
        wrong=sum(report.wrong for report in reports),
        checked=sum(len(report.ends_ns) * injected.sent // 4 for report in reports),
        error=next((report.errors[0] for report in reports if report.errors), ""),
        carried=carried,
    )


def lost_rails(reports: Sequence[RankReport], rails: Sequence[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the events of a loss of rails: the first node noticed it, and the last node had its new tasks.

    Times are monotonic ns. `rails`: the names of all rails.
    """
    found = defaultdict[tuple[tuple[int, ...], int], list[Migration]](list)
    for report in reports:
        seen = Counter[tuple[int, ...]]()
        for migration in report.migrations:
            found[migration.rails, seen[migration.rails]].append(migration)
            seen[migration.rails] += 1
    for (numbers, _), migrations in found.items():
        noticed_s, moved_s = min(m.frozen_at for m in migrations), max(m.decided_at for m in migrations)
        names = ", ".join(rails[n] for n in numbers)
        yield round(noticed_s * 1e9), "rail-lost", {"rails": names}
        after_ms = round((moved_s - noticed_s) * 1e3, 1)
        yield round(moved_s * 1e9), "migrated", {"rails": names, "nodes": len(migrations), "ms": after_ms}


def nic_rates(injected: InjectedFault, report: RankReport, rails: Sequence[str]) -> list[GoodputTrace]:
    """Both ways together, from the node's own counts, in bins of 20 ms around the fault."""
    counts = report.rail_bytes_over_time
    if len(counts) < 2:
        return []
    at = np.array([ns for ns, _ in counts], dtype=float)
    first = injected.t_fault - (int(injected.t_fault - at[0]) // BIN_NS) * BIN_NS
    edges = np.arange(first, at[-1], BIN_NS)
    t_ms = tuple((edge - injected.t_fault) / 1e6 for edge in edges.tolist()[:-1])
    repair_ms = (injected.t_repair - injected.t_fault) / 1e6
    found = []
    for rail, name in enumerate(rails):
        total = np.interp(edges, at, [float(row[rail]) for _, row in counts])
        bps = tuple((np.diff(total) * 8e9 / BIN_NS).tolist())
        trace = GoodputTrace(injected.interval, injected.fault, injected.target, t_ms, bps, (), repair_ms, link=name)
        found.append(trace)
    return found
