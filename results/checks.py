"""What a run had to show, and whether it did: any check that fails makes the exit status 1. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from results.aggregate import kinds_of
from results.fidelity import Judgement
from results.format import size
from results.records import Run
from results.steering import BEST, most_crowded
from results.stretches import dwell_s, stretches

DENSE = frozenset({"TP", "PP", "DP"})


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the figures that it stands or falls by."""

    name: str
    passed: bool
    detail: str


def checks(run: Run, judgement: Judgement) -> tuple[Check, ...]:
    """Those checks for which the run has records."""
    return (*_fidelity(judgement), *_bytes(run), *_dense(run), *_recovered(run), *_connections(run), *_dwell(run))


def _fidelity(judgement: Judgement) -> Iterator[Check]:
    detail = judgement.reasons[0] if judgement.verdict == "invalid" else f"verdict {judgement.verdict}"
    yield Check("the emulation is believable", judgement.verdict != "invalid", detail)


def _bytes(run: Run) -> Iterator[Check]:
    faulted = {(x.fabric, x.workload, x.repeat) for x in run.loads if x.transfers_faulted}
    rows = [c for c in run.bytes if (c.fabric, c.workload, c.repeat) not in faulted]
    if rows:
        wrong = sum(c.pairs_wrong for c in rows)
        asked, delivered = sum(c.asked_bytes for c in rows), sum(c.delivered_bytes for c in rows)
        same = wrong == 0 and all(c.asked_bytes == c.delivered_bytes for c in rows)
        detail = f"{delivered:,} of {asked:,} bytes over {len(rows)} workload runs, {wrong} GPU pairs differ"
        yield Check("every byte delivered, for every pair", same, detail)


def _dense(run: Run) -> Iterator[Check]:
    """Rail-only III-B: without expert parallelism nothing crosses from one rail to another."""
    kinds = kinds_of(run.flows)
    rows = [c for c in run.bytes if kinds.get((c.workload, "")) and DENSE.issuperset(kinds[c.workload, ""])]
    if rows:
        crossed = sum(c.cross_rail_bytes for c in rows)
        names = ", ".join(dict.fromkeys(c.workload for c in rows))
        yield Check("dense training stays within its rails", crossed == 0, f"{size(crossed)} between rails ({names})")


def _recovered(run: Run) -> Iterator[Check]:
    rows = [r for r in run.recoveries if r.reroute == "on"]
    if rows:
        bad = [f"{r.fabric} {r.fault} {r.target} repeat {r.repeat}" for r in rows if not r.recovered]
        detail = f"{len(rows) - len(bad)} of {len(rows)} faults" + (f"; not: {', '.join(bad[:3])}" if bad else "")
        yield Check("traffic recovers when rerouting is on", not bad, detail)


def _connections(run: Run) -> Iterator[Check]:
    rows = [r for r in run.recoveries if r.reroute == "on" and r.fault.startswith("link")]
    if rows:
        lost = sum(r.connections_lost for r in rows)
        yield Check("a link down breaks no TCP connection", lost == 0, f"{lost} lost over {len(rows)} faults")


def _dwell(run: Run) -> Iterator[Check]:
    """Damping's promise: in any time t a pair changes its paths at most 1 + t / dwell times.

    Nothing damps the oracle.
    """
    dwell, told = dwell_s(run), [s for s in stretches(run) if s.policy != BEST]
    worst = most_crowded(told, dwell) if dwell else None
    if worst:
        where = f"{worst.stretch.label}, {worst.stretch.workload}, repeat {worst.stretch.repeat}"
        detail = f"{worst.changes} of {worst.allowed} by {' to '.join(worst.pair)}, which came nearest to it ({where})"
        yield Check("route changes stay under the dwell limit", worst.changes <= worst.allowed, detail)
