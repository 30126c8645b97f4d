"""Recovery on the terminal: a line a fault and fabric, a line for whatever else is wanted, a line a script."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from railyard.results.analysis.recovery_rows import RecoveryRow, ScriptRow, told_of, verdict
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Recovery
from railyard.results.runs.recovery_targets import CHECKED, Outcome, is_of_first_packets
from railyard.results.views import format as fmt
from railyard.results.views.recovery_text import Line, both_ms, limits, lines_of, measured, missed, nobody, wanted
from railyard.results.views.terminal import Column, fitted

_UNAFFECTED: Final = "– no one was cut off by it"
_FIRST: Final = "1st packet ms"
_MARK: Final = {"met": "✓", "not met": "✗", "not measured": fmt.NOTHING, "": ""}


@dataclass(frozen=True, slots=True)
class _Place:
    """A line: a fault on a fabric with rerouting (on one side of it, maybe), and without. Either may be missing."""

    fault: str
    fabric: str
    on: Line | None
    off: RecoveryRow | None

    @property
    def repeats(self) -> tuple[Recovery, ...]:
        return self.on.row.repeats if self.on else self.off.repeats if self.off else ()


def recovery_table(console: Console, rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """With rerouting: the first packet beside what is wanted, and the steps. Without: goodput alone."""

    def column(name: str, cell: Callable[[_Place], str], drop: int = 0, text: bool = False) -> Column:
        return Column(name, tuple(cell(place) for place in places), drop, text)

    places = list(_places(rows))
    columns = [
        column("fault", lambda p: f"{p.fault}, {p.on.side}" if p.on and p.on.side else p.fault, text=True),
        column("fabric", lambda p: p.fabric, text=True),
        column("n", lambda p: str(len(p.repeats))),
        column("detected", lambda p: _step(p.on, "detect_ms"), 4),
        column("installed", lambda p: _step(p.on, "reroute_ms"), 3),
        column(_FIRST, lambda p: _first(p.on)),
        column("wanted ms", lambda p: limits(p.on.bar) if p.on else fmt.NOTHING),
        column("", lambda p: _MARK[p.on.met] if p.on else ""),
        column("goodput", lambda p: _step(p.on, "goodput_ms"), 2),
        column("conns\nlost", _conns, 5),
        column("no reroute", lambda p: _goodput(p.off), 1),
        column("fidelity", lambda p: _doubt(p.repeats, judgement)),
    ]
    note = _UNAFFECTED if any(nobody(row) for row in rows) else ""
    always = {_FIRST} if any(p.on for p in places) else set()
    shown = [c for c in columns if c.name in always or any(cell not in ("", fmt.NOTHING) for cell in c.cells)]
    return fitted(console, "Recovery from the fault (1st packet: median / p95; the rest: medians)", shown, 0, note)


def _places(rows: Sequence[RecoveryRow]) -> Iterator[_Place]:
    """A fault's fabrics together, each with its lines."""
    by_place: dict[tuple[str, str], dict[str, RecoveryRow]] = {}
    for row in rows:
        by_place.setdefault((row.name, row.fabric), {})[row.reroute] = row
    for (fault, fabric), sides in by_place.items():
        lines = lines_of(sides["on"], both_sides=False) if "on" in sides else [None]
        for line in lines:
            yield _Place(fault, fabric, line, sides.get("off") if line is None or line.leads else None)


def _first(line: Line | None) -> str:
    return fmt.NOTHING if line is None or nobody(line.row) else both_ms(line.first)


def _step(line: Line | None, step: str) -> str:
    """Where nobody was cut off, nothing had to be done, and nothing came back either. Said once for both sides."""
    if line is None or (nobody(line.row) and not line.row.steps[step].median):
        return fmt.NOTHING
    return fmt.milliseconds(line.row.steps[step].median) if line.leads else ""


def _conns(place: _Place) -> str:
    """Said once for both sides."""
    return fmt.NOTHING if place.on is None else str(place.on.row.connections_lost) if place.on.leads else ""


def _goodput(row: RecoveryRow | None) -> str:
    if row is None or (nobody(row) and row.steps["goodput_ms"].median == 0):
        return fmt.NOTHING
    return fmt.milliseconds(row.steps["goodput_ms"].median)


def _doubt(repeats: Sequence[Recovery], judgement: Judgement) -> str:
    """The verdict where it isn't ok."""
    found = verdict(repeats, judgement)
    return "" if found == "ok" else found


def outcome_lines(outcomes: Iterable[Outcome]) -> Iterator[Text]:
    """What else is wanted than first packets in time: a line each, with every fabric on which it was measured.

    Checks have lines of their own.
    """
    others = (o for o in outcomes if o.values and not is_of_first_packets(o.bar) and o.bar not in CHECKED)
    for bar, group in groupby(others, key=lambda o: o.bar):
        line = Text(f"{bar.what} (≤ {wanted(bar)}):")
        for o in group:
            mark, worst = (("✓", "green"), "") if o.met else (("✗", "bold red"), f" ({o.worst})")
            line.append(" ").append_text(
                Text.assemble(mark, f" {measured(o)}{worst}", (f" {o.fabric} (n={len(o.values)})", "dim"))
            )
        yield line


def missed_line(outcomes: Iterable[Outcome]) -> Text | None:
    """How many of the times that are wanted were met, and which weren't; None where none was measured."""
    found = [o for o in outcomes if o.met is not None and o.bar not in CHECKED]
    if not found:
        return None
    names = missed(found)
    line = Text(f"wanted times: {len(found) - len(names)} of {len(found)} met")
    return line.append(f"; not: {'; '.join(names)}", "bold red") if names else line


def script_lines(scripts: Iterable[ScriptRow]) -> Iterator[Text]:
    """A line a script and fabric, its repeats together."""
    ordered = sorted(scripts, key=lambda s: (s.script, s.fabric, s.reroute))
    for (name, fabric, reroute), group in groupby(ordered, key=lambda s: (s.script, s.fabric, s.reroute)):
        runs = list(group)
        faults, lost = sum(len(s.faults) for s in runs), sum(s.lost_bytes for s in runs)
        censuses = [census for s in runs for census in s.censuses]
        counted = f"censuses: {told_of(censuses)}; " if censuses else ""
        returning = sum(r.return_lost for s in runs for r in s.mended_alone)
        after = f", {returning} probes lost in returning" if returning else ""
        said = f"{faults} faults (n={len(runs)}), {counted}{fmt.size(lost)} lost{after}"
        yield Text.assemble(f"{name} on {fabric}, reroute {reroute}: ", (said, "bold"))
