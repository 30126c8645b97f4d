"""Health-routing policies in the report: what each achieved, and scores, paths and load over time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rich.console import Console

from railyard.controller.health.policy import HEALTH_POLICIES
from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.analysis import (
    BASELINE_POLICY,
    ORACLE_POLICY,
    FabricWorkload,
    MeasurementInterval,
    PolicyRow,
    evenness_by_policy,
    intervals_of,
    rows_of,
)
from railyard.experiments.measures.steering.plot_over_time import over_time
from railyard.experiments.measures.steering.plots import policies
from railyard.experiments.measures.steering.spine_condition import Cell, cells_of
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row, time_label
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Verdict, worst_verdict
from railyard.results.views.report import Card, Section, spread_text
from railyard.results.views.table import Column, Table, text

_MAX_DRAWN: Final = 6
_MAX_POLICY_ROWS: Final = 20


class PoliciesSection(Section):
    """Times of each policy, beside dr and the oracle."""

    title = "Policies"
    order = 20
    template = "policies.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with times under policies, or with scores to draw."""
        drawn_intervals, _ = drawn(analysis.derived(intervals_of))
        return bool(_shown_rows(analysis)) or bool(drawn_intervals)

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield the best policy of each workload on each fabric."""
        for work, rows in _shown_rows(analysis).items():
            candidates = list(filter(_is_candidate, rows))
            if candidates:
                best = max(candidates, key=_over_dr)
                yield _card(work, best, rows)

    def headline(self, analysis: Analysis) -> list[Table]:
        """Return the table of each workload on each fabric."""
        return [policies_table(rows, _title(work)) for work, rows in _shown_rows(analysis).items()]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables and figures of its template."""
        shown, not_shown = drawn(analysis.derived(intervals_of))
        tables = []
        for work, rows in _shown_rows(analysis).items():
            labels = {analysis.labels[work[0], row.policy]: row.policy for row in rows}
            tables.append((_title(work), policies(rows, work), phases_table(analysis.times, work, labels)))
        figures = []
        for interval in shown:
            title = f"{interval.policy}: {_title((interval.fabric, interval.interval))}"
            figures.append((title, over_time(interval)))
        return {"policies": tables, "over_time": figures, "not_drawn": _not_drawn_text(not_shown)}

    def explanation(self, analysis: Analysis) -> str:
        """Return the rows on the figures of its tables, if there are any."""
        return "policies_explained.html.j2" if _shown_rows(analysis) else ""

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a table for each fabric and workload, as many as there is room for."""
        rows_left = _MAX_POLICY_ROWS
        rows_by_work = _shown_rows(analysis)
        for number, (work, rows) in enumerate(rows_by_work.items()):
            if rows_left <= 0:
                console.print(f"… {len(rows_by_work) - number} more such tables in report.html", highlight=False)
                return
            title = f"{_title(work)}, by policy (m/p: measured over predicted)"
            table = policies_table(rows[:rows_left], title, len(rows) - rows_left)
            console.print(table.to_terminal())
            rows_left -= len(rows)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all rows, and the evenness of the rails in each interval of a policy."""
        rows: list[dict[str, Any]] = []
        for of_work in analysis.derived(rows_of).values():
            rows += policies_table(of_work).to_dicts()
        headline: dict[str, Any] = {"steering": rows}
        evenness = evenness_by_policy(analysis)
        # most runs steer nothing, and some have too few scores for it
        if evenness:
            headline["rail_evenness"] = evenness
        return headline


def _shown_rows(analysis: Analysis) -> Mapping[FabricWorkload, Sequence[PolicyRow]]:
    """Return the rows of each workload on each fabric; none where cells of the papers' condition show the times."""
    if analysis.derived(cells_of):
        return {}
    return analysis.derived(rows_of)


def _is_candidate(row: PolicyRow) -> bool:
    """Return whether a policy may be the best one: it was compared, and is neither the baseline nor the oracle."""
    return row.over_dr is not None and row.policy not in (BASELINE_POLICY, ORACLE_POLICY)


def _over_dr(row: PolicyRow) -> float:
    return row.over_dr or 0.0


def _card(work: FabricWorkload, best: PolicyRow, rows: Sequence[PolicyRow]) -> Card:
    """Return the card of the best policy, beside the oracle. `rows`: of all policies."""
    oracle_text = ""
    for row in rows:
        if row.policy == ORACLE_POLICY and row.over_dr:
            oracle_text = f"{ORACLE_POLICY} {fmt.times(row.over_dr)}"
    return Card(
        f"{_title(work)}: {best.policy} faster than {BASELINE_POLICY}",
        fmt.times(best.over_dr),
        oracle_text,
        spread_text(best.times, fmt.seconds),
        best.verdict,
    )


def _not_drawn_text(intervals: Iterable[MeasurementInterval]) -> str:
    """Return a sentence that names intervals without a figure, and the files that have their scores."""
    policies_by_title: dict[str, list[str]] = {}
    for interval in intervals:
        title = _title((interval.fabric, interval.interval))
        policies_by_title.setdefault(title, []).append(interval.policy)
    if not policies_by_title:
        return ""
    parts: list[str] = []
    for title, names in policies_by_title.items():
        parts.append(f"{title} under {', '.join(names)}")
    return f"Not drawn: {'; '.join(parts)}. Their scores and choices are in health.parquet and choices.parquet."


def _title(fabric_workload: FabricWorkload) -> str:
    fabric, work = fabric_workload
    return f"{fmt.workload_label(work)} on {fabric}"


def worst(judged: Iterable[Cell | PolicyRow]) -> Verdict:
    """Return the worst verdict of rows or cells."""
    return worst_verdict(row.verdict for row in judged)


def verdict_column(judged: Sequence[Cell | PolicyRow]) -> Column:
    """Return the column of verdicts; in JSON alone if all are ok."""
    title = "" if worst(judged) == "ok" else "verdict"
    return text(title, "verdict", key="verdict")


_times = fmt.or_dash("{:.2f}".format)
_tenths = fmt.or_dash("{:.1f}".format)
_most_changed = fmt.or_dash("{0.changes} of {0.allowed}".format)


def policies_table(rows: Sequence[PolicyRow], title: str = "", more: int = 0) -> Table:
    """Return a row a policy. On the terminal `more` rows are in the report."""
    dr_this = f"{BASELINE_POLICY} / this"
    this_oracle = f"this / {ORACLE_POLICY}"
    columns = (
        Column("", "fabric", key="fabric"),
        Column("", lambda row: fmt.workload_label(row.work), key="workload"),
        text("policy", key="policy"),
        Column("median", unit="s", key="median"),
        Column("least", lambda row: min(row.times), unit="s", key="min"),
        Column("most", lambda row: max(row.times), unit="s", key="max"),
        Column("", lambda row: len(row.times), key="repeats"),
        Column("predicted", unit="s", on_terminal=False, key="predicted"),
        Column("m/p", "displayed_ratio", unit="ratio", style="dim"),
        Column("", "ratio", key="ratio"),
        Column(dr_this, "over_dr", _times, short=dr_this.replace("/ ", "/\n"), style="bold", key="over_dr"),
        Column(this_oracle, "over_oracle", _times, short=this_oracle.replace("/ ", "/\n"), key="over_oracle"),
        Column("route changes a second", "changes_per_s", _tenths, short="routes\n/ s", key="route_changes_per_s"),
        Column("most of a pair", "most_changed", _most_changed, short="most of\na pair"),
        Column("", lambda row: row.most_changed and row.most_changed.changes, key="most_changes_of_a_pair"),
        Column("", lambda row: row.most_changed and row.most_changed.allowed, key="allowed_changes_of_a_pair"),
        Column("ms to routes", "reaction_ms", _tenths, short="ms to\nroutes", key="reaction_ms_median"),
        Column("worst", "worst_reaction_ms", _tenths, key="reaction_ms_worst"),
        Column("evenness of rails", "evenness", _times, on_terminal=False, key="rail_evenness"),
        verdict_column(rows),
    )
    return Table(columns, rows, title, more=more)


def phases_table(timed: Sequence[Row], work: FabricWorkload, labels: Mapping[str, str]) -> Table:
    """Return medians: phases down, policies (by the label that their records carry) across."""

    def median(fabric: str, row: Row) -> float | None:
        spread = row.by_fabric.get(fabric)
        return spread.median if spread else None

    phases = [row for row in timed if row.work == work[1] and row.phase]
    columns = [text("phase", time_label)]
    for label, policy in labels.items():
        is_measured = any(label in row.by_fabric for row in phases)
        if is_measured:
            columns.append(Column(policy, partial(median, label), unit="s"))
    if len(columns) == 1:
        phases = []
    return Table(columns, phases)


def drawn(intervals: Sequence[MeasurementInterval]) -> tuple[list[MeasurementInterval], list[MeasurementInterval]]:
    """Return the first repeats of policies that use scores: those of one fabric and workload, to draw, and others."""
    first: dict[tuple[str, IntervalId, str], MeasurementInterval] = {}
    for interval in intervals:
        if interval.health and _uses_scores(interval.policy):
            first.setdefault((interval.fabric, interval.interval.work, interval.policy), interval)
    # a figure takes a second to draw: policies are compared on one fabric, and the files have the others' scores
    shown: list[MeasurementInterval] = []
    not_shown: list[MeasurementInterval] = []
    first_place: FabricWorkload | None = None
    for (fabric, work, _), interval in first.items():
        if first_place is None:
            first_place = (fabric, work)
        if (fabric, work) == first_place and len(shown) < _MAX_DRAWN:
            shown.append(interval)
        else:
            not_shown.append(interval)
    return shown, not_shown


def _uses_scores(policy: str) -> bool:
    """Return whether a policy uses scores; a policy of a plugin that isn't loaded now may."""
    return policy not in HEALTH_POLICIES or HEALTH_POLICIES[policy].uses_scores
