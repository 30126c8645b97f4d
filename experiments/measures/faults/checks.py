"""Checks of recovery: traffic recovers and returns, nothing is lost, and packets go where the oracle expects them."""

from collections.abc import Collection, Iterator, Sequence

import pandas as pd

from railyard.core.records import IntervalId, Recovered, Recovery
from railyard.experiments.measures.faults.analysis import checks_text
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, RECOVERIES
from railyard.failure.faults import definition_of
from railyard.results.analysis.run_analysis import Analysis, claims
from railyard.results.measured import Check
from railyard.results.runs.records import Run


def checks(analysis: Analysis) -> Iterator[Check]:
    """Yield the checks for which a run has records, with those that targets of recovery claim."""
    yield from _recovery(analysis.run, analysis.judgement.disturbed)
    yield from _connectivity(analysis.run)
    yield from _too_fast(analysis.run)
    yield from claims(analysis.outcomes)
    yield from _losses(analysis.run)


def _recovery(run: Run, disturbed: Collection[IntervalId]) -> Iterator[Check]:
    """Check that traffic recovers from faults that rerouting helps against, and returns after their repair.

    Faults that came alone, and by their first packets those of scripts beside workloads: for other scripts,
    connectivity checks show what had to recover. In scripts, other faults may make the return unknowable; what died
    beside the data plane has no detours to withdraw. A fault that failed in a disturbed interval is not judged.
    """
    yield from _first_packets(run, disturbed)
    alone = [fault for fault in _rerouted(run) if not fault.script]
    alone = [fault for fault in alone if not definition_of(fault.fault).is_control_plane]
    stayed = [fault for fault in alone if fault.primary_path_ms is None]
    yield from _faults_check("traffic returned to its primary path after each repair", alone, stayed, disturbed)


def _first_packets(run: Run, disturbed: Collection[IntervalId]) -> Iterator[Check]:
    """Check that traffic recovers from the faults of which there is evidence."""
    checked_scripts = {check.interval for check in run.rows(CONNECTIVITY_CHECKS) if check.script}
    evident = [fault for fault in _rerouted(run) if fault.interval not in checked_scripts and _has_evidence(fault)]
    affected = [fault for fault in evident if fault.recovered is not Recovered.UNAFFECTED]
    unaffected = len(evident) - len(affected)
    note = f"; {unaffected} more affected no pair" if unaffected else ""
    failed = [fault for fault in affected if not _has_recovered(fault)]
    yield from _faults_check("traffic recovers when rerouting is on", affected, failed, disturbed, note)


def _rerouted(run: Run) -> list[Recovery]:
    """Return the faults that rerouting helps against, of those that were injected with rerouting on."""
    rows = [row for row in run.rows(RECOVERIES) if row.reroute == "on"]
    return [row for row in rows if definition_of(row.fault).is_rerouted]


def _has_evidence(fault: Recovery) -> bool:
    """Return whether probes, or for a fault that came alone goodput, show if traffic recovered."""
    return fault.is_probed or (not fault.script and fault.has_goodput_evidence)


def _has_recovered(fault: Recovery) -> bool:
    """Return whether traffic recovered: in a script beside a workload, whether a packet came through."""
    if fault.script:
        return fault.first_packet_ms is not None
    return bool(fault.recovered)


def _faults_check(
    claim: str,
    faults: Sequence[Recovery],
    missed: Sequence[Recovery],
    disturbed: Collection[IntervalId],
    note: str = "",
) -> Iterator[Check]:
    """Yield the check of a claim about faults, if any of them can be judged.

    `missed`: those that don't keep to it. `disturbed`: intervals in which a miss isn't judged. `note`: for its detail.
    """
    failed = [fault for fault in missed if fault.interval not in disturbed]
    not_judged = [fault for fault in missed if fault.interval in disturbed]
    judged = len(faults) - len(not_judged)
    if not judged:
        return
    detail = f"{judged - len(failed)} of {judged} faults"
    if failed:
        detail += f"; not: {', '.join(map(_fault_label, failed[:3]))}"
    if not_judged:
        detail += f"; not judged, the machine was disturbed: {len(not_judged)}"
    interval = failed[0].interval if failed else None
    yield Check(claim, not failed, detail + note, "faults that failed", len(failed), 0, "faults", interval)


def _connectivity(run: Run) -> Iterator[Check]:
    """Without rerouting too: nothing has to recover then, but failed parts must not forward anything."""
    rows = run.rows(CONNECTIVITY_CHECKS)
    if rows:
        failed = [c for c in rows if c.done and c.mismatch_count]
        done = pd.DataFrame([(c.fabric, c.done) for c in rows], columns=["fabric", "done"])
        shares = done.groupby("fabric", sort=False).done.mean()
        under_checked = list(shares[shares < 0.5].index)  # fewer than half of the due checks could be done
        detail = checks_text(rows)
        if under_checked:
            detail += f"; too few on {', '.join(under_checked)}"
        if failed:
            worst = max(failed, key=lambda c: c.mismatch_count)
            where = " ".join(filter(None, (worst.fabric, worst.script)))
            detail += f"; worst: {where} repeat {worst.repeat} after {worst.last_event}: "
            detail += f"{worst.not_recovered} pairs not recovered, {worst.unexpected_answers} unexpected answers, "
            detail += f"{worst.forwarding_failed_parts} failed or slow parts forwarded too much"
        figures = ("connectivity checks that differ", len(failed), 0, "checks", failed[0].interval if failed else None)
        passed = not failed and not under_checked
        yield Check("every connectivity check matches the oracle", passed, detail, *figures)


def _too_fast(run: Run) -> Iterator[Check]:
    """With rerouting or without: more than the oracle allows went where nothing should."""
    if rows := [r for r in run.rows(RECOVERIES) if r.reroute]:
        total = sum(r.above_max_flow for r in rows)
        worst = max(rows, key=lambda r: r.above_max_flow)
        detail = f"{total} of them over {len(rows)} faults" + (f"; most: {_fault_label(worst)}" if total else "")
        figures = ("streams above their max-flow", total, 0, "streams", worst.interval)
        yield Check("no stream gets more than the max-flow of what is left", total == 0, detail, *figures)


def _losses(run: Run) -> Iterator[Check]:
    """Check that nothing was lost with rerouting on; a failed GPU loses its own connections.

    Each fault of a script has what the whole script lost: that counts once.
    """
    rows = [r for r in run.rows(RECOVERIES) if r.reroute == "on"]
    with_failed_gpus = {r.interval for r in rows if definition_of(r.fault).stops_gpus}
    others = [r for r in rows if r.interval not in with_failed_gpus]
    lost_bytes = ("no fault loses a byte when rerouting is on", "{:,} bytes lost over {} faults and scripts")
    connections = ("TCP connections are lost only where a GPU failed", "{} lost over {} other faults and scripts")
    for (claim, detail), counted, column, quantity, unit in (
        (lost_bytes, rows, "lost_bytes", "bytes lost", "B"),
        (connections, others, "connections_lost", "connections lost", "connections"),
    ):
        if counted:
            values = [(r.interval, getattr(r, column), r) for r in counted]
            frame = pd.DataFrame(values, columns=["interval", "lost", "fault"])
            first = frame.loc[frame.groupby("interval", sort=False).lost.idxmax()]
            total = int(first.lost.sum())
            worst = first.fault.iloc[int(first.lost.to_numpy().argmax())]
            place = f"; most: {worst.fabric} {worst.script or f'{worst.fault} {worst.target}'} repeat {worst.repeat}"
            text = detail.format(total, len(first)) + (place if total else "")
            yield Check(claim, total == 0, text, quantity, total, 0, unit, worst.interval)


def _fault_label(r: Recovery) -> str:
    return f"{r.fabric} {r.script} {r.fault} {r.target} repeat {r.repeat}".replace("  ", " ")
