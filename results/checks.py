"""What a run had to show, and whether it did: any check that fails makes the exit status 1. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from results.aggregate import kinds_of
from results.fidelity import Judgement
from results.format import size
from results.records import Recovery, Run
from results.recovery_rows import holds
from results.steering import BEST, most_crowded
from results.stretches import dwell_s, stretches

DENSE = frozenset({"TP", "PP", "DP"})
Worst = tuple[int, Recovery]
GPU_DEATHS = frozenset({"gpu-crash", "gpu-hang", "server-crash"})


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the figures that it stands or falls by."""

    name: str
    passed: bool
    detail: str


def checks(run: Run, judgement: Judgement) -> tuple[Check, ...]:
    """Those checks for which the run has records."""
    return (
        *(*_fidelity(judgement), *_bytes(run), *_dense(run)),
        *(*_recovered(run), *_censuses(run), *_lost_bytes(run), *_connections(run), *_dwell(run)),
    )


def _fidelity(judgement: Judgement) -> Iterator[Check]:
    detail = judgement.reasons[0] if judgement.verdict == "invalid" else f"verdict {judgement.verdict}"
    yield Check("the emulation is believable", judgement.verdict != "invalid", detail)


def _bytes(run: Run) -> Iterator[Check]:
    rows = run.bytes
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
    """Faults that came alone: of several at once, the censuses say what had to recover."""
    rows = [r for r in run.recoveries if r.reroute == "on" and not r.script]
    if rows:
        bad = [f"{r.fabric} {r.fault} {r.target} repeat {r.repeat}" for r in rows if not r.recovered]
        detail = f"{len(rows) - len(bad)} of {len(rows)} faults" + (f"; not: {', '.join(bad[:3])}" if bad else "")
        yield Check("traffic recovers when rerouting is on", not bad, detail)


def _censuses(run: Run) -> Iterator[Check]:
    rows = [c for c in run.censuses if c.reroute == "on"]
    if rows:
        bad = [c for c in rows if not holds(c)]
        detail = f"{len(rows) - len(bad)} of {len(rows)} censuses"
        if bad:
            worst = max(bad, key=lambda c: c.not_recovered + c.impossible + c.carried)
            detail += f"; worst: {worst.fabric} {worst.script} repeat {worst.repeat} after {worst.act}: "
            detail += f"{worst.not_recovered} pairs not recovered, {worst.impossible} impossible, "
            detail += f"{worst.carried} dead parts carried"
        yield Check("every census is what the oracle says", not bad, detail)


def _lost_bytes(run: Run) -> Iterator[Check]:
    lost = _by_place((r for r in run.recoveries if r.reroute == "on"), lambda r: r.lost_bytes)
    if lost:
        total, worst = sum(n for n, _ in lost.values()), max(lost.values(), key=lambda found: found[0])
        detail = f"{total:,} bytes lost over {len(lost)} faults and scripts"
        yield Check(
            "no fault loses a byte when rerouting is on", total == 0, detail + (_named(worst[1]) if total else "")
        )


def _connections(run: Run) -> Iterator[Check]:
    """A GPU that dies takes its own along."""
    rows = [r for r in run.recoveries if r.reroute == "on"]
    died = {_place(r) for r in rows if r.fault in GPU_DEATHS}
    lost = _by_place((r for r in rows if _place(r) not in died), lambda r: r.connections_lost)
    if lost:
        total, worst = sum(n for n, _ in lost.values()), max(lost.values(), key=lambda found: found[0])
        detail = f"{total} lost over {len(lost)} other faults and scripts" + (_named(worst[1]) if total else "")
        yield Check("TCP connections are lost only where a GPU died", total == 0, detail)


def _by_place(rows: Iterable[Recovery], value: Callable[[Recovery], int]) -> dict[tuple[object, ...], Worst]:
    """Each fault of a script has what the whole script lost: that counts once."""
    found: dict[tuple[object, ...], Worst] = {}
    for r in rows:
        found[_place(r)] = max(found.get(_place(r), (0, r)), (value(r), r), key=lambda one: one[0])
    return found


def _place(r: Recovery) -> tuple[object, ...]:
    """A fault that came alone, or the repeat of a script that it was a part of."""
    return (r.fabric, r.policy, r.script, r.repeat) if r.script else (r.fabric, r.policy, r.fault, r.target, r.repeat)


def _named(r: Recovery) -> str:
    return f"; most: {r.fabric} {r.script or f'{r.fault} {r.target}'} repeat {r.repeat}"


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
