"""The report's tables of faults, recovery targets and scripts: cells that are already formatted."""

from collections.abc import Iterable, Sequence
from typing import Final

from railyard.core.records import Recovery
from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.recovery import (
    SIDES,
    RecoveryRow,
    ScriptRow,
    checks_text,
    is_probed,
    is_unaffected,
    matches_oracle,
    probed_on,
    verdict,
)
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import ConnectivityCheck
from railyard.results.runs.recovery_targets import PUBLISHED_SYSTEMS, Outcome, times_slower
from railyard.results.views import format as fmt
from railyard.results.views.recovery_text import (
    NOT_AFFECTED,
    NOT_PROBED,
    Line,
    lines_of,
    measured_text,
    median_and_p95,
    median_p95_ms,
    median_p95_text,
    met,
    missing_reason,
    recovered,
    target_text,
)
from railyard.results.views.report_tables import Table

_COST_COLUMNS: Final = ("probes lost", "after repair", "bytes lost", "conns lost")
_STEP_COLUMNS: Final = (
    "detected",
    "decided",
    "installed",
    "first packet",
    "source side",
    "far side",
    "goodput",
    "after repair",
    "detours withdrawn",
)


def first_packets_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """A row a fault, fabric, rerouting and side: when packets flowed again, beside the target."""
    body = tuple(
        (
            *(line.row.name, line.row.fabric, line.row.reroute, line.side or "", verdict(line.row.repeats, judgement)),
            *(str(line.first.n), *_first_packet_cells(line), target_text(line.recovery_target), line.met),
        )
        for row in rows
        for line in lines_of(row, both_sides=True)
    )
    return Table(("fault", "fabric", "reroute", "side", "fidelity", "n", "median", "p95", "target", "is"), body, 5)


def steps_table(rows: Sequence[RecoveryRow]) -> Table:
    """A row for each fault, fabric and rerouting: the controller's steps, goodput, the return, the cost."""
    columns = ("fault", "fabric", "reroute", "recovered", "detected", "decided", "installed", "back to 95%")
    groups = (
        *(("", 4), ("medians", 3), ("goodput in ms, median / p95", 2)),
        *(("after repair, ms", 1), ("in all repeats", len(_COST_COLUMNS))),
    )
    return Table(
        (*columns, "after repair", "detours withdrawn", *_COST_COLUMNS), tuple(_steps(row) for row in rows), 3, groups
    )


def _steps(row: RecoveryRow) -> tuple[str, ...]:
    """One row; dashes where no other GPU was affected, so that there was nothing to recover."""
    is_unaffected_row = bool(missing_reason(row)) and row.steps["goodput_ms"].median == 0
    medians = [row.steps[step].median for step in ("detect_ms", "decided_ms", "reroute_ms")]
    return (
        *(row.name, row.fabric, row.reroute, recovered(row)),
        *(fmt.NOTHING if missing_reason(row) and ms is None else fmt.milliseconds(ms) for ms in medians),
        *(
            fmt.NOTHING if is_unaffected_row else median_p95_ms(row.steps[s])
            for s in ("goodput_ms", "goodput_after_repair_ms")
        ),
        fmt.NOTHING if row.reroute == "off" else median_p95_ms(row.steps["primary_path_ms"]),
        *(
            f"{row.total('probes_lost'):,}",
            f"{row.total('probes_lost_after_repair'):,}",
            fmt.size(row.total("lost_bytes")),
        ),
        str(row.connections_lost),
    )


def _first_packet_cells(line: Line) -> tuple[str, str]:
    if why := missing_reason(line.row):
        return why, fmt.NOTHING
    return median_and_p95(line.first)


def repeats_table(rows: Iterable[RecoveryRow]) -> Table:
    """Every repeat of one fault."""
    body = tuple(_repeat(row.fabric, r) for row in rows for r in row.repeats)
    columns = ("fabric", "reroute", "target", "repeat", *_STEP_COLUMNS, *_COST_COLUMNS)
    return Table(columns, body, 3)


def _repeat(fabric: str, r: Recovery) -> tuple[str, ...]:
    is_unaffected_row = is_unaffected(r) or not is_probed(r)
    times = {"source": r.source_side_ms, "far": r.far_side_ms}
    sides = (fmt.milliseconds(times[side]) if probed_on(r, side) else fmt.NOTHING for side in SIDES)
    goodput = (
        fmt.NOTHING if is_unaffected_row and ms == 0 else fmt.milliseconds(ms)
        for ms in (r.goodput_ms, r.goodput_after_repair_ms)
    )
    why = NOT_AFFECTED if is_probed(r) else NOT_PROBED
    return (
        *(fabric, r.reroute, r.target, str(r.repeat)),
        *(fmt.milliseconds(ms) for ms in (r.detect_ms, r.decided_ms, r.reroute_ms)),
        *((why, fmt.NOTHING, fmt.NOTHING) if is_unaffected_row else (fmt.milliseconds(r.first_packet_ms), *sides)),
        *(*goodput, fmt.NOTHING if r.reroute == "off" else fmt.milliseconds(r.primary_path_ms)),
        *(str(r.probes_lost), str(r.probes_lost_after_repair), fmt.size(r.lost_bytes), str(r.connections_lost)),
    )


def targets_table(outcomes: Iterable[Outcome]) -> Table:
    """Each recovery target, what was measured, and the repeat that is furthest from a target that is missed."""
    body = tuple(
        (
            *(
                o.name,
                o.fabric or fmt.NOTHING,
                met(o),
                str(len(o.values)),
                target_text(o.recovery_target),
                measured_text(o),
            ),
            o.worst if o.met is False else "",
        )
        for o in outcomes
    )
    return Table(("target", "fabric", "is", "n", "limit", "measured", "furthest off"), body, 3)


def reasons_table(outcomes: Iterable[Outcome]) -> Table:
    """What each of these times consists of."""
    body = tuple(dict.fromkeys((o.recovery_target.what, o.recovery_target.why) for o in outcomes))
    return Table(("target", "consists of"), body, 2)


def others_table(rows: Iterable[RecoveryRow]) -> Table | None:
    """Compare faults that affected other GPUs, with rerouting on, with published systems; None if there was none."""
    body = []
    for row in rows:
        first, goodput = row.steps["first_packet_ms"], row.steps["goodput_ms"]
        if row.reroute == "on" and first.median != 0 and not row.unprobed:
            times = (times_slower(system, first.median) for system in PUBLISHED_SYSTEMS)
            shown = tuple(fmt.NOTHING if t is None else f"{t:,.1f} times" for t in times)
            body.append((row.name, row.fabric, str(first.n), median_p95_text(first), median_p95_text(goodput), *shown))
    names = tuple(f"{system.name}'s {system.ms:g} ms is" for system in PUBLISHED_SYSTEMS)
    return Table(("fault", "fabric", "n", "first packet", "goodput back", *names), tuple(body), 2) if body else None


def scripts_table(scripts: Iterable[ScriptRow], judgement: Judgement) -> Table:
    """A row a script, fabric and repeat."""
    body = []
    for s in scripts:
        slowest = max((r for r in s.faults if r.first_packet_ms is not None), key=_first_packet, default=None)
        worst = (
            f"{fmt.milliseconds(slowest.first_packet_ms)}: {slowest.fault} {slowest.target}" if slowest else fmt.NOTHING
        )
        not_recovered = sum(r.first_packet_ms is None and is_probed(r) for r in s.faults)
        return_lost_total = sum(r.probes_lost_after_repair for r in s.repaired_alone)
        cost_cells = (str(return_lost_total), fmt.size(s.lost_bytes), str(s.connections_lost))
        row_head = (s.script, s.fabric, s.reroute, verdict(s.faults, judgement), str(s.repeat))
        body.append(
            (
                *row_head,
                str(len(s.faults)),
                str(not_recovered),
                worst,
                checks_text(s.connectivity_checks) if s.connectivity_checks else fmt.NOTHING,
                *cost_cells,
            )
        )
    columns = (
        "script",
        "fabric",
        "reroute",
        "fidelity",
        "repeat",
        "faults",
        "until their repair",
        "slowest first packet",
    )
    return Table((*columns, "connectivity checks", "lost after repair", "bytes lost", "conns lost"), tuple(body), 4)


def _first_packet(recovery: Recovery) -> float:
    return recovery.first_packet_ms or 0.0


def script_faults_table(script: ScriptRow) -> Table:
    """Every fault of one repeat of a script, in the order of time."""
    zero = script.faults[0].t_fault if script.faults else 0
    body = tuple(
        (
            *(r.fault, r.target, fmt.seconds((r.t_fault - zero) / 1e9), fmt.seconds((r.t_repair - r.t_fault) / 1e9)),
            *(fmt.milliseconds(ms) for ms in (r.detect_ms, r.decided_ms, r.reroute_ms)),
            *(fmt.milliseconds(r.first_packet_ms) if is_probed(r) else fmt.NOTHING, str(r.probes_lost)),
            str(r.probes_lost_after_repair) if r in script.repaired_alone else fmt.NOTHING,
        )
        for r in script.faults
    )
    return Table(
        ("fault", "target", "at", "for", "detected", "decided", "installed", "first packet", *_COST_COLUMNS[:2]),
        body,
        2,
    )


def failed_checks_table(connectivity_checks: Iterable[ConnectivityCheck]) -> Table:
    """The connectivity checks that don't match the oracle."""
    body = tuple(
        (
            *(c.script, c.fabric, c.last_event, "; ".join(c.mismatches.splitlines())),
            *(str(n) for n in (c.repeat, c.broken, c.pairs, c.reachable, c.answered)),
            *(str(n) for n in (c.not_recovered, c.unexpected_answers, c.forwarding_failed_parts)),
        )
        for c in connectivity_checks
        if c.done and not matches_oracle(c)
    )
    columns = ("script", "fabric", "after", "what", "repeat", "broken", "pairs", "reachable", "answered")
    return Table((*columns, "not recovered", "unexpected answers", "failed parts forwarding"), body, 4)


def heartbeats_table(rows: Iterable[Row]) -> Table:
    """The cost of heartbeats: a row for each figure and fabric."""
    body = tuple(
        (r.metric.replace("_", " "), fabric, fmt.quantity(s.median, r.unit), str(len(s.values)))
        for r in rows
        for fabric, s in r.by_fabric.items()
    )
    return Table(("figure", "fabric", "median", "n"), body, 2)
