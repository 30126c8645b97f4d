"""Table of targets: limits, what was measured, and the verdict."""

from collections.abc import Sequence
from typing import Final

from railyard.results import format as fmt
from railyard.results.analysis import targets as goals
from railyard.results.analysis.targets import Outcome
from railyard.results.views.table import Column, Table, text

MARKS: Final = {True: "✓", False: "✗", None: fmt.NOTHING}
"""Result of a target, as tables show it."""


def targets_table(outcomes: Sequence[Outcome], title: str = "") -> Table:
    """Return a row for each target and fabric that was measured: the limit, the value, and where it is worst."""

    def limit(o: Outcome) -> str:
        goal = f", goal {o.target.text(o.target.goal)}" if o.target.goal is not None else ""
        return f"{'≤' if o.target.least is None else '≥'} {o.target.limits_text}{goal}"

    columns = [
        text("", lambda o: MARKS[o.met]),
        text("target", "name"),
        text("fabric", lambda o: o.fabric or None),
        Column("n", lambda o: len(o.values)),
        Column("limit", limit),
        Column("measured", "text"),
        Column("of", lambda o: o.worst.of),
        text("source", lambda o: o.target.source),
    ]
    shown = goals.measured_targets(outcomes)
    if any(o.verdict != "ok" for o in shown):
        columns.append(text("fidelity", "verdict"))
    return Table(columns, shown, title)
