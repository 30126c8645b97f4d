"""Checks of recovery: traffic recovers and returns, nothing is lost, and packets go where the oracle expects them."""

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter

import pandas as pd

from railyard.core.records import ConnectivityCheck, IntervalId, Record, Recovered, Recovery
from railyard.experiments.measures.faults.analysis import checks_text, failed_checks
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

    Faults that came alone, and by their first packets those of scripts beside workloads. A fault that failed in a
    disturbed interval is not judged.
    """
    yield from _first_packets(run, disturbed)
    alone: list[Recovery] = []
    for fault in _rerouted(run):
        # other faults of a script may keep a detour in use, and what died beside the data plane has none
        if not fault.script and not definition_of(fault.fault).is_control_plane:
            alone.append(fault)
    stayed = [fault for fault in alone if fault.primary_path_ms is None]
    yield from _faults_check("traffic returned to its primary path after each repair", alone, stayed, disturbed)


def _first_packets(run: Run, disturbed: Collection[IntervalId]) -> Iterator[Check]:
    """Check that traffic recovers from the faults of which there is evidence."""
    # connectivity checks show what had to recover in the scripts that have any
    checked_scripts = {check.interval for check in run.rows(CONNECTIVITY_CHECKS) if check.script}
    affected: list[Recovery] = []
    unaffected = 0
    for fault in _rerouted(run):
        if fault.interval in checked_scripts or not _has_evidence(fault):
            continue
        if fault.recovered is Recovered.UNAFFECTED:
            unaffected += 1
        else:
            affected.append(fault)
    note = ""
    if unaffected:
        note = f"; {unaffected} more affected no pair"
    failed = [fault for fault in affected if not _has_recovered(fault)]
    yield from _faults_check("traffic recovers when rerouting is on", affected, failed, disturbed, note)


def _rerouted(run: Run) -> list[Recovery]:
    """Return the faults that rerouting helps against, of those that were injected with rerouting on."""
    return [fault for fault in _with_rerouting_on(run) if definition_of(fault.fault).is_rerouted]


def _with_rerouting_on(run: Run) -> list[Recovery]:
    return [fault for fault in run.rows(RECOVERIES) if fault.reroute == "on"]


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
    not_judged = len(missed) - len(failed)
    judged = len(faults) - not_judged
    if not judged:
        return
    detail = f"{judged - len(failed)} of {judged} faults"
    if failed:
        detail += f"; not: {', '.join(map(_fault_label, failed[:3]))}"
    if not_judged:
        detail += f"; not judged, the machine was disturbed: {not_judged}"
    yield Check(
        claim, not failed, detail + note, "faults that failed", len(failed), 0, "faults", _first_interval(failed)
    )


def _first_interval(failed: Sequence[Record]) -> IntervalId | None:
    """Return the interval of the first record that failed; None if none failed."""
    if not failed:
        return None
    return failed[0].interval


def _connectivity(run: Run) -> Iterator[Check]:
    """Check what each connectivity check found, and that enough of them could be done."""
    # without rerouting nothing has to recover, but failed parts must not forward anything then either
    rows = run.rows(CONNECTIVITY_CHECKS)
    if not rows:
        return
    failed = failed_checks(run)
    under_checked = _fabrics_with_few_checks(rows)
    detail = checks_text(rows)
    if under_checked:
        detail += f"; too few on {', '.join(under_checked)}"
    if failed:
        worst = max(failed, key=attrgetter("mismatch_count"))
        where = " ".join(filter(None, (worst.fabric, worst.script)))
        detail += f"; worst: {where} repeat {worst.repeat} after {worst.last_event}: "
        detail += f"{worst.not_recovered} pairs not recovered, {worst.unexpected_answers} unexpected answers, "
        detail += f"{worst.forwarding_failed_parts} failed or slow parts forwarded too much"
    figures = ("connectivity checks that differ", len(failed), 0, "checks", _first_interval(failed))
    passed = not failed and not under_checked
    yield Check("every connectivity check matches the oracle", passed, detail, *figures)


def _fabrics_with_few_checks(rows: Sequence[ConnectivityCheck]) -> list[str]:
    """Return the fabrics on which fewer than half of the due checks could be done."""
    is_done = pd.DataFrame([(row.fabric, row.done) for row in rows], columns=["fabric", "is_done"])
    shares = is_done.groupby("fabric", sort=False).is_done.mean()
    return list(shares[shares < 0.5].index)


def _too_fast(run: Run) -> Iterator[Check]:
    """With rerouting or without: more than the oracle allows went where nothing should."""
    faults = [fault for fault in run.rows(RECOVERIES) if fault.reroute]
    if not faults:
        return
    total = sum(fault.above_max_flow for fault in faults)
    worst = max(faults, key=attrgetter("above_max_flow"))
    detail = f"{total} of them over {len(faults)} faults"
    if total:
        detail += f"; most: {_fault_label(worst)}"
    figures = ("streams above their max-flow", total, 0, "streams", worst.interval)
    yield Check("no stream gets more than the max-flow of what is left", total == 0, detail, *figures)


def _losses(run: Run) -> Iterator[Check]:
    """Check that nothing was lost with rerouting on; a failed GPU loses its own connections."""
    faults = _with_rerouting_on(run)
    with_failed_gpus = {fault.interval for fault in faults if definition_of(fault.fault).stops_gpus}
    without_failed_gpus = [fault for fault in faults if fault.interval not in with_failed_gpus]
    lost_bytes = ("no fault loses a byte when rerouting is on", "{:,} bytes lost over {} faults and scripts")
    connections = ("TCP connections are lost only where a GPU failed", "{} lost over {} other faults and scripts")
    for (claim, detail), counted, column, quantity, unit in (
        (lost_bytes, faults, "lost_bytes", "bytes lost", "B"),
        (connections, without_failed_gpus, "connections_lost", "connections lost", "connections"),
    ):
        if counted:
            values = [(fault.interval, getattr(fault, column), fault) for fault in counted]
            frame = pd.DataFrame(values, columns=["interval", "lost", "fault"])
            # each fault of a script has what the whole script lost: that counts once
            first = frame.loc[frame.groupby("interval", sort=False).lost.idxmax()]
            total = int(first.lost.sum())
            worst = first.fault.iloc[int(first.lost.to_numpy().argmax())]
            text = detail.format(total, len(first))
            if total:
                name = worst.script or f"{worst.fault} {worst.target}"
                text += f"; most: {worst.fabric} {name} repeat {worst.repeat}"
            yield Check(claim, total == 0, text, quantity, total, 0, unit, worst.interval)


def _fault_label(fault: Recovery) -> str:
    parts = (fault.fabric, fault.script, fault.fault, fault.target, f"repeat {fault.repeat}")
    return " ".join(filter(None, parts))
