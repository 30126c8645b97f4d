"""The report's tables of faults, of what was wanted, of scripts: cells that are already formatted. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.recovery_rows import (
    SIDES,
    RecoveryRow,
    ScriptRow,
    holds,
    is_probed,
    is_unaffected,
    probed_on,
    told_of,
    verdict,
)
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Census, Recovery
from railyard.results.runs.recovery_targets import OTHERS, Outcome, times_ours
from railyard.results.views import format as fmt
from railyard.results.views.recovery_text import (
    NO_ONE_AFFECTED,
    NO_ONE_PROBED,
    Line,
    both,
    both_ms,
    lines_of,
    measured,
    median_and_p95,
    met,
    nobody,
    recovered,
    wanted,
)
from railyard.results.views.report_tables import Table

_COST: Final = ("probes lost", "returning", "bytes lost", "conns lost")
_STEPS: Final = (
    "detected",
    "decided",
    "installed",
    "first packet",
    "source side",
    "far side",
    "goodput",
    "after repair",
    "detours gone",
)


def first_packets_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """A row a fault, fabric, rerouting and side: when packets flowed again, beside what is wanted."""
    body = tuple(
        (
            *(line.row.name, line.row.fabric, line.row.reroute, line.side or "", verdict(line.row.repeats, judgement)),
            *(str(line.first.n), *_first(line), wanted(line.bar), line.met),
        )
        for row in rows
        for line in lines_of(row, both_sides=True)
    )
    return Table(("fault", "fabric", "reroute", "side", "fidelity", "n", "median", "p95", "wanted", "is"), body, 5)


def steps_table(rows: Sequence[RecoveryRow]) -> Table:
    """A row a fault, fabric and rerouting: the controller's steps, goodput, the way back, and what it cost in all."""
    columns = ("fault", "fabric", "reroute", "recovered", "detected", "decided", "installed", "back to 95%")
    groups = (
        *(("", 4), ("medians", 3), ("goodput in ms, median / p95", 2)),
        *(("after repair, ms", 1), ("in all repeats", len(_COST))),
    )
    return Table((*columns, "after repair", "detours gone", *_COST), tuple(_steps(row) for row in rows), 3, groups)


def _steps(row: RecoveryRow) -> tuple[str, ...]:
    """Where nobody was cut off, nothing had to be done, and no goodput came back either."""
    alone = bool(nobody(row)) and row.steps["goodput_ms"].median == 0
    medians = [row.steps[step].median for step in ("detect_ms", "decided_ms", "reroute_ms")]
    return (
        *(row.name, row.fabric, row.reroute, recovered(row)),
        *(fmt.NOTHING if nobody(row) and ms is None else fmt.milliseconds(ms) for ms in medians),
        *(fmt.NOTHING if alone else both_ms(row.steps[s]) for s in ("goodput_ms", "back_ms")),
        fmt.NOTHING if row.reroute == "off" else both_ms(row.steps["home_ms"]),
        *(f"{row.total('probes_lost'):,}", f"{row.total('return_lost'):,}", fmt.size(row.total("lost_bytes"))),
        str(row.connections_lost),
    )


def _first(line: Line) -> tuple[str, str]:
    if why := nobody(line.row):
        return why, fmt.NOTHING
    return median_and_p95(line.first)


def repeats_table(rows: Iterable[RecoveryRow]) -> Table:
    """Every repeat of one fault."""
    body = tuple(_repeat(row.fabric, r) for row in rows for r in row.repeats)
    columns = ("fabric", "reroute", "target", "repeat", *_STEPS, *_COST)
    return Table(columns, body, 3)


def _repeat(fabric: str, r: Recovery) -> tuple[str, ...]:
    alone = is_unaffected(r) or not is_probed(r)
    times = {"source": r.source_ms, "far": r.far_ms}
    sides = (fmt.milliseconds(times[side]) if probed_on(r, side) else fmt.NOTHING for side in SIDES)
    goodput = (fmt.NOTHING if alone and ms == 0 else fmt.milliseconds(ms) for ms in (r.goodput_ms, r.back_ms))
    why = NO_ONE_AFFECTED if is_probed(r) else NO_ONE_PROBED
    return (
        *(fabric, r.reroute, r.target, str(r.repeat)),
        *(fmt.milliseconds(ms) for ms in (r.detect_ms, r.decided_ms, r.reroute_ms)),
        *((why, fmt.NOTHING, fmt.NOTHING) if alone else (fmt.milliseconds(r.first_packet_ms), *sides)),
        *(*goodput, fmt.NOTHING if r.reroute == "off" else fmt.milliseconds(r.home_ms)),
        *(str(r.probes_lost), str(r.return_lost), fmt.size(r.lost_bytes), str(r.connections_lost)),
    )


def bars_table(outcomes: Iterable[Outcome]) -> Table:
    """What is wanted, what came of it, and which repeat is furthest from a bar that is missed."""
    body = tuple(
        (
            *(o.name, o.fabric or fmt.NOTHING, met(o), str(len(o.values)), wanted(o.bar), measured(o)),
            o.worst if o.met is False else "",
        )
        for o in outcomes
    )
    return Table(("what", "fabric", "is", "n", "wanted", "measured", "furthest off"), body, 3)


def reasons_table(outcomes: Iterable[Outcome]) -> Table:
    """What each of these times is made of."""
    body = tuple(dict.fromkeys((o.bar.what, o.bar.why) for o in outcomes))
    return Table(("what", "made of"), body, 2)


def others_table(rows: Iterable[RecoveryRow]) -> Table | None:
    """Beside what others say of theirs. Faults that cut somebody off, with rerouting on; None if there was none."""
    body = []
    for row in rows:
        first, goodput = row.steps["first_packet_ms"], row.steps["goodput_ms"]
        if row.reroute == "on" and first.median != 0 and not row.unprobed:
            times = (times_ours(other, first.median) for other in OTHERS)
            shown = tuple(fmt.NOTHING if t is None else f"{t:,.1f} times" for t in times)
            body.append((row.name, row.fabric, str(first.n), both(first), both(goodput), *shown))
    names = tuple(f"{other.name}'s {other.ms:g} ms is" for other in OTHERS)
    return Table(("fault", "fabric", "n", "first packet", "goodput back", *names), tuple(body), 2) if body else None


def scripts_table(scripts: Iterable[ScriptRow], judgement: Judgement) -> Table:
    """A row a script, fabric and repeat."""
    body = []
    for s in scripts:
        slowest = max((r for r in s.faults if r.first_packet_ms is not None), key=_first_packet, default=None)
        worst = (
            f"{fmt.milliseconds(slowest.first_packet_ms)}: {slowest.fault} {slowest.target}" if slowest else fmt.NOTHING
        )
        cut = sum(r.first_packet_ms is None and is_probed(r) for r in s.faults)
        returning = sum(r.return_lost for r in s.mended_alone)
        cost = (str(returning), fmt.size(s.lost_bytes), str(s.connections_lost))
        head = (s.script, s.fabric, s.reroute, verdict(s.faults, judgement), str(s.repeat))
        body.append(
            (*head, str(len(s.faults)), str(cut), worst, told_of(s.censuses) if s.censuses else fmt.NOTHING, *cost)
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
    return Table((*columns, "censuses", "lost returning", "bytes lost", "conns lost"), tuple(body), 4)


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
            str(r.return_lost) if r in script.mended_alone else fmt.NOTHING,
        )
        for r in script.faults
    )
    return Table(
        ("fault", "target", "at", "for", "detected", "decided", "installed", "first packet", *_COST[:2]), body, 2
    )


def censuses_table(censuses: Iterable[Census]) -> Table:
    """Those of which something has to be said: what didn't hold."""
    body = tuple(
        (
            *(c.script, c.fabric, c.act, "; ".join(c.wrong.splitlines())),
            *(str(n) for n in (c.repeat, c.broken, c.pairs, c.reachable, c.answered)),
            *(str(n) for n in (c.not_recovered, c.impossible, c.carried)),
        )
        for c in censuses
        if c.taken and not holds(c)
    )
    columns = ("script", "fabric", "after", "what", "repeat", "broken", "pairs", "reachable", "answered")
    return Table((*columns, "not recovered", "impossible", "wrongly carried"), body, 4)


def heartbeats_table(rows: Iterable[Row]) -> Table:
    """What watching costs: a row a figure and fabric."""
    body = tuple(
        (r.metric.replace("_", " "), fabric, fmt.quantity(s.median, r.unit), str(len(s.values)))
        for r in rows
        for fabric, s in r.by_fabric.items()
    )
    return Table(("figure", "fabric", "median", "n"), body, 2)
