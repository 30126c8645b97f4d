"""GPUs and domains that failed and were replaced, in the report: steps, iterations before and after, spread."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from railyard.experiments.measures.replacement.analysis import SPREAD_COLUMNS, ReplacementRow, rows_of
from railyard.experiments.measures.replacement.plot import replacement_plots
from railyard.results import format as fmt
from railyard.results.analysis.repeats import Figure, median_and_p95, median_p95_ms
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section
from railyard.results.views.table import Column, Table, text, texts


class ReplacementSection(Section):
    """GPUs and domains that failed under a running job and were replaced."""

    title = "Replacements"
    order = 64
    template = "replacements.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with replacements."""
        return bool(analysis.derived(rows_of))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield how long each replacement interrupted the job."""
        for row in analysis.derived(rows_of):
            interruption = row.figures["interruption_ms"]
            spread = SPREAD_UNKNOWN
            if interruption.n > 1 and interruption.least is not None and interruption.most is not None:
                spread = f"{_ms(interruption.least)} to {_ms(interruption.most)}, {interruption.n} runs"
            yield Card(
                f"{row.case} on {row.fabric}, replaced by {row.method}: interruption of the job",
                fmt.milliseconds(interruption.median),
                f"iteration after / before {fmt.ratio(_slowdown(row))}, theory {fmt.ratio(row.predicted_slowdown)}",
                spread,
                row.verdict,
            )

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables and figures of its template."""
        rows = analysis.derived(rows_of)
        return {
            "steps": [replacement_steps_table(rows), iterations_table(rows), spread_table(rows)],
            "plots": replacement_plots(analysis.run.events),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print medians."""
        if analysis.derived(rows_of):
            console.print(replacements_table(analysis.derived(rows_of)).to_terminal())

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all rows."""
        return {"replacements": [row.as_dict() for row in analysis.derived(rows_of)]}


_ms = fmt.or_dash(fmt.milliseconds)
_NAMES = (text("case"), text("way", "method"), *texts("fabric", "failed"))


def _median(title: str, field: str, show: Callable[[Any], str], group: str = "") -> Column:
    return Column(title, lambda row: row.medians[field], show, group=group)


def replacement_steps_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return the replacement of each failure, its steps from the fault on, and its cost."""
    columns = (
        *_NAMES,
        *(text("replaced by"), text("fidelity", "verdict")),
        *(Column("n"), _median("detected", "detect_ms", _ms)),
        *(_median("links off", "optical_links_down_ms", _ms), _median("replaced", "replaced_ms", _ms)),
        _median("interruption", "interruption_ms", _ms),
        *(_median("iterations lost", "iterations_lost", "{:g}".format), _median("moved", "moved_bytes", fmt.size)),
    )
    return Table(columns, rows)


def _slowdown(row: ReplacementRow) -> float | None:
    """Return an iteration's time after the replacement over that before; None if one of them is invalid."""
    if row.verdict == "invalid":
        return None
    return row.slowdown


def iterations_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return times of the state transfer and of an iteration, beside the model."""
    transfer = "state transfer"
    iteration = "iteration time"
    columns = (
        *_NAMES,
        _median("measured", "state_transfer_ms", _ms, transfer),
        _median("predicted", "state_transfer_predicted_ms", _ms, transfer),
        _median("before", "before_s", fmt.seconds, iteration),
        _median("predicted", "before_predicted_s", fmt.seconds, iteration),
        _median("after", "after_s", fmt.seconds, iteration),
        _median("predicted", "after_predicted_s", fmt.seconds, iteration),
        Column("after / before", _slowdown, fmt.ratio, group=iteration),
        Column("predicted", "predicted_slowdown", fmt.ratio, group=iteration),
    )
    return Table(columns, rows)


def spread_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return a row for each figure: median and 95th percentile with their 95% confidence intervals."""

    def of_first(column: Column) -> Column:
        return replace(column, value=lambda x: column.get(x[0]))

    columns = (
        *map(of_first, _NAMES),
        text("figure", lambda x: SPREAD_COLUMNS[x[1]]),
        Column("n", lambda x: x[2].n),
        Column("median", lambda x: median_and_p95(x[2])[0]),
        Column("p95", lambda x: median_and_p95(x[2])[1]),
    )
    cells: list[tuple[ReplacementRow, str, Figure]] = []
    for row in rows:
        cells += [(row, name, statistics) for name, statistics in row.figures.items()]
    return Table(columns, cells)


def replacements_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return medians for the terminal; the failed part where rows differ in that alone."""
    alike = Counter((row.case, row.method, row.fabric) for row in rows)

    def failed(row: ReplacementRow) -> str:
        if alike[row.case, row.method, row.fabric] == 1:
            return ""
        return row.failed

    def fidelity(row: ReplacementRow) -> str:
        if row.verdict == "ok":
            return ""
        return row.verdict

    columns = (
        *_NAMES[:3],
        text("failed", failed),
        Column("replaced\nms", lambda r: median_p95_ms(r.figures["replaced_ms"])),
        Column("interruption\nms", lambda r: median_p95_ms(r.figures["interruption_ms"])),
        _median("iter.\nlost", "iterations_lost", "{:g}".format),
        _median("moved", "moved_bytes", fmt.size),
        _median("iteration\nbefore", "before_s", fmt.seconds),
        _median("after", "after_s", fmt.seconds),
        Column("after /\nbefore", _slowdown, fmt.ratio),
        Column("pre-\ndicted", "predicted_slowdown", fmt.ratio),
        Column("fidelity", fidelity),
    )
    return Table(columns, rows, "GPU and domain replacements (median / p95; else medians)").without_empty()
