"""Recovery on the terminal: a line for each fault and fabric, each other recovery target, and each script."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from railyard.core.records import Recovery
from railyard.results.analysis.recovery import RecoveryRow, ScriptRow, checks_text, verdict
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.recovery_targets import REQUIRED_TARGETS, Outcome, is_first_packet_target
from railyard.results.views import format as fmt
from railyard.results.views.recovery_text import (
    Line,
    limits_text,
    lines_of,
    measured_text,
    median_p95_ms,
    missed_targets,
    missing_reason,
    target_text,
)
from railyard.results.views.terminal import Column, fit_to_width

_UNAFFECTED_NOTE: Final = "– no other GPU was affected"
_FIRST_PACKET_COLUMN: Final = "1st packet ms"
_MET_MARK: Final = {"met": "✓", "not met": "✗", "not measured": fmt.NOTHING, "": ""}


@dataclass(frozen=True, slots=True)
class _FaultLine:
    """A line: a fault on a fabric with rerouting (on one side of it, maybe), and without. Either may be missing."""

    fault: str
    fabric: str
    with_reroute: Line | None
    without_reroute: RecoveryRow | None

    @property
    def repeats(self) -> tuple[Recovery, ...]:
        return (
            self.with_reroute.row.repeats
            if self.with_reroute
            else self.without_reroute.repeats
            if self.without_reroute
            else ()
        )


def recovery_table(console: Console, rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """Return the table: with rerouting the first packet beside its target, and the steps; without it goodput alone."""

    def column(name: str, cell: Callable[[_FaultLine], str], drop: int = 0, text: bool = False) -> Column:
        return Column(name, tuple(cell(fault_line) for fault_line in fault_lines), drop, text)

    fault_lines = list(_fault_lines(rows))
    columns = [
        column(
            "fault",
            lambda p: f"{p.fault}, {p.with_reroute.side}" if p.with_reroute and p.with_reroute.side else p.fault,
            text=True,
        ),
        column("fabric", lambda p: p.fabric, text=True),
        column("n", lambda p: str(len(p.repeats))),
        column("detected", lambda p: _step(p.with_reroute, "detect_ms"), 4),
        column("installed", lambda p: _step(p.with_reroute, "reroute_ms"), 3),
        column(_FIRST_PACKET_COLUMN, lambda p: _first_packet(p.with_reroute)),
        column("target ms", lambda p: limits_text(p.with_reroute.recovery_target) if p.with_reroute else fmt.NOTHING),
        column("", lambda p: _MET_MARK[p.with_reroute.met] if p.with_reroute else ""),
        column("goodput", lambda p: _step(p.with_reroute, "goodput_ms"), 2),
        column("conns\nlost", _connections, 5),
        column("no reroute", lambda p: _goodput(p.without_reroute), 1),
        column("fidelity", lambda p: _verdict_text(p.repeats, judgement)),
    ]
    note = _UNAFFECTED_NOTE if any(missing_reason(row) for row in rows) else ""
    required_columns = {_FIRST_PACKET_COLUMN} if any(p.with_reroute for p in fault_lines) else set()
    shown = [c for c in columns if c.name in required_columns or any(cell not in ("", fmt.NOTHING) for cell in c.cells)]
    return fit_to_width(
        console, "Recovery from the fault (1st packet: median / p95; the rest: medians)", shown, 0, note
    )


def _fault_lines(rows: Sequence[RecoveryRow]) -> Iterator[_FaultLine]:
    """A fault's fabrics together, each with its lines."""
    by_fault: dict[tuple[str, str], dict[str, RecoveryRow]] = {}
    for row in rows:
        by_fault.setdefault((row.name, row.fabric), {})[row.reroute] = row
    for (fault, fabric), sides in by_fault.items():
        lines = lines_of(sides["on"], both_sides=False) if "on" in sides else [None]
        for line in lines:
            yield _FaultLine(fault, fabric, line, sides.get("off") if line is None or line.is_first_line else None)


def _first_packet(line: Line | None) -> str:
    return fmt.NOTHING if line is None or missing_reason(line.row) else median_p95_ms(line.first)


def _step(line: Line | None, step: str) -> str:
    """Return a step's median, once for both sides; a dash where no other GPU was affected."""
    if line is None or (missing_reason(line.row) and not line.row.steps[step].median):
        return fmt.NOTHING
    return fmt.milliseconds(line.row.steps[step].median) if line.is_first_line else ""


def _connections(fault_line: _FaultLine) -> str:
    """Return the connections lost, once for both sides."""
    return (
        fmt.NOTHING
        if fault_line.with_reroute is None
        else str(fault_line.with_reroute.row.connections_lost)
        if fault_line.with_reroute.is_first_line
        else ""
    )


def _goodput(row: RecoveryRow | None) -> str:
    if row is None or (missing_reason(row) and row.steps["goodput_ms"].median == 0):
        return fmt.NOTHING
    return fmt.milliseconds(row.steps["goodput_ms"].median)


def _verdict_text(repeats: Sequence[Recovery], judgement: Judgement) -> str:
    """The verdict where it isn't ok."""
    found = verdict(repeats, judgement)
    return "" if found == "ok" else found


def outcome_lines(outcomes: Iterable[Outcome]) -> Iterator[Text]:
    """Yield a line for each recovery target other than first packets, with every fabric on which it was measured.

    Checks have lines of their own.
    """
    others = (
        o
        for o in outcomes
        if o.values and not is_first_packet_target(o.recovery_target) and o.recovery_target not in REQUIRED_TARGETS
    )
    for recovery_target, group in groupby(others, key=lambda o: o.recovery_target):
        line = Text(f"{recovery_target.what} (≤ {target_text(recovery_target)}):")
        for o in group:
            mark, worst = (("✓", "green"), "") if o.met else (("✗", "bold red"), f" ({o.worst})")
            line.append(" ").append_text(
                Text.assemble(mark, f" {measured_text(o)}{worst}", (f" {o.fabric} (n={len(o.values)})", "dim"))
            )
        yield line


def missed_targets_line(outcomes: Iterable[Outcome]) -> Text | None:
    """Return how many recovery targets were met, and which were not; None where none was measured."""
    found = [o for o in outcomes if o.met is not None and o.recovery_target not in REQUIRED_TARGETS]
    if not found:
        return None
    names = missed_targets(found)
    line = Text(f"recovery targets met: {len(found) - len(names)} of {len(found)}")
    return line.append(f"; not: {'; '.join(names)}", "bold red") if names else line


def script_lines(scripts: Iterable[ScriptRow]) -> Iterator[Text]:
    """A line a script and fabric, its repeats together."""
    ordered = sorted(scripts, key=lambda s: (s.script, s.fabric, s.reroute))
    for (name, fabric, reroute), group in groupby(ordered, key=lambda s: (s.script, s.fabric, s.reroute)):
        runs = list(group)
        faults, lost = sum(len(s.faults) for s in runs), sum(s.lost_bytes for s in runs)
        connectivity_checks = [connectivity_check for s in runs for connectivity_check in s.connectivity_checks]
        checks_summary = f"connectivity checks: {checks_text(connectivity_checks)}; " if connectivity_checks else ""
        returning = sum(r.probes_lost_after_repair for s in runs for r in s.repaired_alone)
        return_text = f", {returning} probes lost after repairs" if returning else ""
        text_parts = f"{faults} faults (n={len(runs)}), {checks_summary}{fmt.size(lost)} lost{return_text}"
        yield Text.assemble(f"{name} on {fabric}, reroute {reroute}: ", (text_parts, "bold"))
