"""Checks of a run: one that fails makes the exit status 1."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.records import IntervalId, Recovery
from railyard.failure.faults import definition_of
from railyard.results.analysis.aggregate import kinds_of
from railyard.results.analysis.recovery import (
    checks_text,
    has_goodput_evidence,
    is_probed,
    matches_oracle,
)
from railyard.results.analysis.steering import MeasurementInterval, most_changed_pair
from railyard.results.runs.allreduce import Skipped
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import ConnectivityCheck, Run
from railyard.results.runs.targets import NO_LOSS_ON_RETURN, NO_LOSS_WITHOUT_CONTROLLER, Outcome, Target
from railyard.results.views.format import interval_label, size, workload_label
from railyard.workloads.spec import traffic_kind


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the figures by which it passed or failed.

    `value` of the quantity, at most `limit`, in `unit`; `interval`: where it is worst.
    """

    name: str
    passed: bool
    detail: str
    quantity: str = ""
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    interval: IntervalId | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        plain = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) not in ("", None)}
        if self.interval:
            plain["interval"] = self.interval.as_dict()
        return plain


def checks(
    run: Run,
    judgement: Judgement,
    outcomes: Sequence[Outcome],
    intervals: Sequence[MeasurementInterval],
    performance: Sequence[Outcome],
    skipped: Sequence[Skipped],
) -> tuple[Check, ...]:
    """Return those checks for which the run has records."""
    return (
        *(*_completed(run), *_fidelity(judgement), *_bytes(run), *_dense_training(run)),
        *(*_recovery(run), *_primary_path(run), *_connectivity(run), *_too_fast(run), *_no_probe_lost(outcomes)),
        *(*_lost_bytes(run), *_connections(run), *_dwell(run, intervals)),
        *(*_required_targets(performance), *_policies(run, skipped)),
    )


def _completed(run: Run) -> Iterator[Check]:
    """What an error left out may be just what would have failed."""
    if run.failed:
        yield Check("the run went to its end", False, run.failed)


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
        worst = max(rows, key=lambda c: (c.pairs_wrong, abs(c.asked_bytes - c.delivered_bytes)))
        figures = ("bytes missing", abs(asked - delivered), 0, "B", worst.interval)
        yield Check("every byte delivered, for every pair", same, detail, *figures)


def _dense_training(run: Run) -> Iterator[Check]:
    """Rail-only III-B: without expert parallelism nothing crosses from one rail to another."""
    kinds = kinds_of(run.flows)
    dense = {
        work for (work, phase), names in kinds.items() if not phase and all(traffic_kind(n).is_dense for n in names)
    }
    rows = [c for c in run.bytes if c.interval.work in dense]
    if rows:
        crossed = sum(c.cross_rail_bytes for c in rows)
        names = ", ".join(dict.fromkeys(workload_label(c.interval) for c in rows))
        worst = max(rows, key=lambda c: c.cross_rail_bytes)
        figures = ("bytes between rails", crossed, 0, "B", worst.interval)
        detail = f"{size(crossed)} between rails ({names})"
        yield Check("dense training stays within its rails", crossed == 0, detail, *figures)


def _recovery(run: Run) -> Iterator[Check]:
    """Faults that were injected alone, and by their first packets those of scripts beside workloads, which have no
    connectivity checks.

    For other scripts, connectivity checks show what had to recover.
    """
    checked_scripts = {c.interval for c in run.connectivity_checks if c.script}
    rows = [
        r
        for r in run.recoveries
        if r.reroute == "on" and definition_of(r.fault).is_rerouted and r.interval not in checked_scripts
    ]
    rows = [r for r in rows if is_probed(r) or (not r.script and has_goodput_evidence(r))]
    failed = [r for r in rows if not (r.first_packet_ms is not None if r.script else r.recovered)]
    yield from _faults("traffic recovers when rerouting is on", rows, failed)


def _faults(claim: str, rows: Sequence[Recovery], failed: Sequence[Recovery]) -> Iterator[Check]:
    """Check that none of these faults failed."""
    if rows:
        names = f"; not: {', '.join(map(_fault_label, failed[:3]))}" if failed else ""
        figures = ("faults that failed", len(failed), 0, "faults", failed[0].interval if failed else None)
        yield Check(claim, not failed, f"{len(rows) - len(failed)} of {len(rows)} faults{names}", *figures)


def _primary_path(run: Run) -> Iterator[Check]:
    """Faults that came alone: of those in scripts, others may make it unknowable. What died beside the data plane, or
    stays in use all the same, has no detours to withdraw.
    """
    kinds = {r: definition_of(r.fault) for r in run.recoveries if r.reroute == "on" and not r.script}
    rows = [r for r, kind in kinds.items() if kind.is_rerouted and not kind.is_control_plane]
    failed = [r for r in rows if r.primary_path_ms is None]
    yield from _faults("traffic returned to its primary path after each repair", rows, failed)


def _connectivity(run: Run) -> Iterator[Check]:
    """Without rerouting too: nothing has to recover then, but failed parts must not forward anything."""
    rows = run.connectivity_checks
    if rows:
        failed, under_checked = [c for c in rows if c.done and not matches_oracle(c)], _under_checked_fabrics(rows)
        detail = checks_text(rows)
        if under_checked:
            detail += f"; too few on {', '.join(under_checked)}"
        if failed:
            worst = max(failed, key=lambda c: c.not_recovered + c.unexpected_answers + c.forwarding_failed_parts)
            where = " ".join(filter(None, (worst.fabric, worst.script)))
            detail += f"; worst: {where} repeat {worst.repeat} after {worst.last_event}: "
            detail += f"{worst.not_recovered} pairs not recovered, {worst.unexpected_answers} unexpected answers, "
            detail += f"{worst.forwarding_failed_parts} failed or slow parts forwarded too much"
        figures = ("connectivity checks that differ", len(failed), 0, "checks", failed[0].interval if failed else None)
        passed = not failed and not under_checked
        yield Check("every connectivity check matches the oracle", passed, detail, *figures)


def _under_checked_fabrics(connectivity_checks: Iterable[ConnectivityCheck]) -> list[str]:
    """Return the fabrics on which fewer than half of the due connectivity checks could be done."""
    done = pd.DataFrame([(c.fabric, c.done) for c in connectivity_checks], columns=["fabric", "done"])
    shares = done.groupby("fabric", sort=False).done.mean()
    return list(shares[shares < 0.5].index)


def _too_fast(run: Run) -> Iterator[Check]:
    """With rerouting or without: more than the oracle allows went where nothing should."""
    if rows := [r for r in run.recoveries if r.reroute]:
        total, worst = sum(r.above_max_flow for r in rows), max(rows, key=lambda r: r.above_max_flow)
        detail = f"{total} of them over {len(rows)} faults" + (f"; most: {_fault_label(worst)}" if total else "")
        figures = ("streams above their max-flow", total, 0, "streams", worst.interval)
        yield Check("no stream gets more than the max-flow of what is left", total == 0, detail, *figures)


def _no_probe_lost(outcomes: Sequence[Outcome]) -> Iterator[Check]:
    """What a data plane loses while nothing in it is broken."""
    requirements: tuple[tuple[Target, str], ...] = (
        (NO_LOSS_WITHOUT_CONTROLLER, "a controller crash loses no packet"),
        (NO_LOSS_ON_RETURN, "no packet is lost while traffic returns"),
    )
    for target, claim in requirements:
        found = [o for o in outcomes if o.target is target and o.values]
        if found:
            lost = {o: sum(value or 0 for value in o.values) for o in found}
            worst = max(found, key=lambda o: lost[o])
            faults, pairs = sum(len(o.samples) for o in found), sum(sample.pairs for o in found for sample in o.samples)
            detail = f"{sum(lost.values()):,.0f} probes lost over {faults} faults, of {pairs} probed pairs"
            detail += f"; most: {worst.fabric} {worst.of}" if lost[worst] else ""
            figures = ("probes lost", sum(lost.values()), 0, "probes")
            yield Check(claim, not any(lost.values()), detail, *figures)


def _lost_bytes(run: Run) -> Iterator[Check]:
    rows = [r for r in run.recoveries if r.reroute == "on"]
    detail = "{:,} bytes lost over {} faults and scripts"
    yield from _losses("no fault loses a byte when rerouting is on", rows, "lost_bytes", "B", detail)


def _connections(run: Run) -> Iterator[Check]:
    """A failed GPU loses its own connections."""
    rows = [r for r in run.recoveries if r.reroute == "on"]
    with_failed_gpus = {r.interval for r in rows if definition_of(r.fault).stops_gpus}
    rows = [r for r in rows if r.interval not in with_failed_gpus]
    claim, detail = "TCP connections are lost only where a GPU failed", "{} lost over {} other faults and scripts"
    yield from _losses(claim, rows, "connections_lost", "connections", detail)


def _losses(claim: str, rows: Sequence[Recovery], column: str, unit: str, detail: str) -> Iterator[Check]:
    """Check that nothing was lost. Each fault of a script has what the whole script lost: that counts once."""
    if rows:
        frame = pd.DataFrame([(r.interval, getattr(r, column), r) for r in rows], columns=["interval", "lost", "fault"])
        first = frame.loc[frame.groupby("interval", sort=False).lost.idxmax()]
        total, worst = int(first.lost.sum()), first.fault.iloc[int(first.lost.to_numpy().argmax())]
        place = f"; most: {worst.fabric} {worst.script or f'{worst.fault} {worst.target}'} repeat {worst.repeat}"
        detail = detail.format(total, len(first)) + (place if total else "")
        quantity = "bytes lost" if unit == "B" else f"{unit} lost"
        yield Check(claim, total == 0, detail, quantity, total, 0, unit, worst.interval)


def _fault_label(r: Recovery) -> str:
    return f"{r.fabric} {r.script} {r.fault} {r.target} repeat {r.repeat}".replace("  ", " ")


def _required_targets(outcomes: Sequence[Outcome]) -> Iterator[Check]:
    """Performance targets that a run must meet, with the value that is furthest from the limit."""
    for target in dict.fromkeys(o.target for o in outcomes if o.target.required):
        found = [o for o in outcomes if o.target == target and o.samples]
        if found:
            name = target.quantity if target.limit else f"{target.quantity}: none"
            detail = "; ".join(f"{target.text(o.value)} {o.of} ({o.fabric})" for o in found)
            worst = max(found, key=lambda o: o.value or 0.0)
            figures = (target.quantity, worst.value, target.limit, target.unit, worst.worst.interval)
            yield Check(name, all(o.met for o in found), detail, *figures)


def _policies(run: Run, skipped: Sequence[Skipped]) -> Iterator[Check]:
    if run.rails:
        failed = [s for s in skipped if s.failed]
        detail = f"{failed[0].policy} on {failed[0].fabric}: {failed[0].why}" if failed else "no policy broke down"
        yield Check("every policy went through", not failed, detail, "policies that failed", len(failed), 0, "policies")


def _is_damped(policy: str) -> bool:
    """Whether damping applies: True for a policy of a plugin that isn't loaded now."""
    return policy not in HEALTH_POLICIES or HEALTH_POLICIES[policy].is_damped


def _dwell(run: Run, intervals: Sequence[MeasurementInterval]) -> Iterator[Check]:
    """Check the law of damping: in any time t a pair changes its paths at most 1 + t / dwell times."""
    dwell, damped_intervals = run.dwell_s, [s for s in intervals if _is_damped(s.policy)]
    worst = most_changed_pair(damped_intervals, dwell) if dwell else None
    if worst:
        where = interval_label(worst.interval.interval, f"{worst.interval.fabric} {worst.interval.policy}")
        detail = f"{worst.changes} of {worst.allowed} by {' to '.join(worst.pair)}, which came nearest to it ({where})"
        figures = ("route changes of a pair", worst.changes, worst.allowed, "changes", worst.interval.interval)
        yield Check("route changes stay under the dwell limit", worst.changes <= worst.allowed, detail, *figures)
