"""What each policy made of it, as tables: for the terminal, and for the report. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table as TerminalTable

from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.steering import (
    BASELINE_POLICY,
    ORACLE_POLICY,
    FabricWorkload,
    MostChangedPair,
    PolicyRow,
)
from railyard.results.plots.times import label
from railyard.results.views import format as fmt
from railyard.results.views.report_tables import Table
from railyard.results.views.terminal import Column, fit_to_width

_Cell = Callable[[PolicyRow], str]
_TIMES: Final[Mapping[str, _Cell]] = {
    "median": lambda r: fmt.seconds(r.median),
    "least": lambda r: fmt.seconds(min(r.times)),
    "most": lambda r: fmt.seconds(max(r.times)),
}


def terminal_table(console: Console, title: str, rows: Sequence[PolicyRow], more: int) -> TerminalTable:
    """A line a policy; `more` lines are in the report."""

    def column(name: str, cell: _Cell, drop: int = 0, style: str = "") -> Column:
        return Column(name, tuple(cell(r) for r in rows), drop, style=style)

    columns = [Column("policy", tuple(r.policy for r in rows), text=True)]
    columns += [column(name, cell, 0 if name == "median" else 2) for name, cell in _TIMES.items()]
    columns += [
        column("m/p", lambda r: fmt.ratio(r.ratio), 3, "dim"),
        column(f"{BASELINE_POLICY} /\nthis", lambda r: _times(r.over_dr), style="bold"),
        column(f"this /\n{ORACLE_POLICY}", lambda r: _times(r.over_oracle)),
        column("routes\n/ s", lambda r: _rate(r.changes_per_s)),
        column("most of\na pair", lambda r: _most_changed_text(r.most_changed), 1),
        column("ms to\nroutes", lambda r: _ms(r.reaction_ms)),
        column("worst", lambda r: _ms(r.worst_reaction_ms), 2),
    ]
    return fit_to_width(console, title, columns, more)


def policies_table(rows: Sequence[PolicyRow]) -> Table:
    """A row a policy, with all that is known of it."""
    columns = (
        *("policy", *_TIMES, "predicted", "m/p", f"{BASELINE_POLICY} / this", f"this / {ORACLE_POLICY}"),
        *("route changes a second", "most of a pair", "ms to routes", "worst"),
    )
    body = tuple(
        (
            *(r.policy, *(cell(r) for cell in _TIMES.values()), fmt.seconds(r.predicted), fmt.ratio(r.ratio)),
            *(_times(r.over_dr), _times(r.over_oracle), _rate(r.changes_per_s), _most_changed_text(r.most_changed)),
            *(_ms(r.reaction_ms), _ms(r.worst_reaction_ms)),
        )
        for r in rows
    )
    return Table(columns, body, 1)


def phases_table(timed: Sequence[Row], fabric_workload: FabricWorkload, labels: Mapping[str, str]) -> Table | None:
    """Medians: phases down, policies (by the label that their records carry) across. None without phases."""
    phases = [r for r in timed if r.work == fabric_workload[1] and r.phase]
    shown = {name: policy for name, policy in labels.items() if any(name in r.by_fabric for r in phases)}
    body = tuple(
        (label(r), *(fmt.seconds(r.by_fabric[n].median) if n in r.by_fabric else fmt.NOTHING for n in shown))
        for r in phases
    )
    return Table(("phase", *shown.values()), body, 1) if body and shown else None


def _times(ratio: float | None) -> str:
    return fmt.NOTHING if ratio is None else f"{ratio:.2f}"


def _rate(per_s: float | None) -> str:
    return fmt.NOTHING if per_s is None else f"{per_s:.1f}"


def _most_changed_text(pair_changes: MostChangedPair | None) -> str:
    return fmt.NOTHING if pair_changes is None else f"{pair_changes.changes} of {pair_changes.allowed}"


def _ms(ms: float | None) -> str:
    return fmt.NOTHING if ms is None else f"{ms:.1f}"
