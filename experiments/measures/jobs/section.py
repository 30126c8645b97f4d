"""Jobs in the report: their slow-downs beside the predicted, and the links that they shared."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console

from railyard.experiments.measures.jobs.analysis import FaultRow, JobRow, fault_rows, job_rows
from railyard.experiments.measures.jobs.plots import gantt_plots
from railyard.experiments.measures.jobs.records import JOB_LINKS, JobLink
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import NOTHING, interval, percent, size
from railyard.results.views.report import Card, Section, spread_text
from railyard.results.views.table import Column, Table, text

MAX_LINKS: Final = 20
LINKS_TITLE: Final = "Links that jobs shared"


class JobsSection(Section):
    """Each job alone on its GPUs and together with the others, and the prediction by max-min fair shares of links."""

    title = "Jobs"
    order = 42
    template = "jobs.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with jobs."""
        return bool(job_rows(analysis))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield the slow-down of the job that suffers most."""
        rows = [row for row in job_rows(analysis) if row.slow_downs.values]
        if not rows:
            return
        worst = max(rows, key=lambda row: row.slow_downs.measured or 0.0)
        slow_downs = worst.slow_downs
        predicted = slow_downs.predicted
        theory = "no prediction"
        if predicted is not None:
            theory = f"{_ratio(predicted.mean)} predicted"
            if not predicted.is_point:
                theory += f", {interval(predicted.least, predicted.most)}"
        spread = spread_text(slow_downs.values, _ratio)
        yield Card(f"{worst.job}: slow-down", _ratio(slow_downs.measured), theory, spread, worst.verdict)

    def tables(self, analysis: Analysis) -> list[Table]:
        """Return the table of jobs, and that of the links that jobs shared longest."""
        tables = [Table(_job_columns(), job_rows(analysis), title=self.title)]
        faults = fault_rows(analysis)
        if faults:
            tables.append(Table(_fault_columns(), faults, title="Jobs beside faults"))
        links = shared_links(analysis)
        if links:
            more = max(0, len(links) - MAX_LINKS)
            shown = links[:MAX_LINKS]
            tables.append(Table(_link_columns(), shown, LINKS_TITLE, more=more, elsewhere="in job_links.csv"))
        return tables

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the figure of each fabric: phases of jobs, and shared links."""
        return {"plots": gantt_plots(analysis.run)}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print the tables, without that of links."""
        if not self.applies(analysis):
            return
        for table in self.tables(analysis):
            if table.title != LINKS_TITLE:
                console.print(table.to_terminal(), "")

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return the rows of both tables."""
        if not self.applies(analysis):
            return {}
        summary: dict[str, Any] = {}
        for table in self.tables(analysis):
            summary[table.title.lower().replace(" ", "_")] = table.to_dicts()
        return summary


def shared_links(analysis: Analysis) -> list[JobLink]:
    """Return the links that jobs shared in the first repeat of each fabric, longest first."""
    rows = [row for row in analysis.run.rows(JOB_LINKS) if row.shared_s > 0 and row.repeat == 0]
    return sorted(rows, key=lambda row: (-row.shared_s, row.link, row.direction, row.job))


def _ratio(value: float | str | None) -> str:
    """Return the text of a ratio, or of the reason why there is none."""
    if isinstance(value, str):
        return value
    return NOTHING if value is None else f"{value:.3f}"


def _job_columns() -> list[Column]:
    return [
        text("job", key="job"),
        text("fabric", key="fabric"),
        text("placement", key="placement"),
        text("GPUs", "gpus_text", key="gpus"),
        Column("iteration alone", "alone_s", unit="s", key="alone_s"),
        Column("together", "together_s", unit="s", key="together_s"),
        Column("slow-down", lambda row: row.slow_downs.measured, _ratio, key="slow_down"),
        Column("predicted", _predicted("mean"), _ratio, key="slow_down_predicted"),
        Column("interval", _predicted_interval),
        Column("", _predicted("least"), key="slow_down_least"),
        Column("", _predicted("most"), key="slow_down_most"),
        text("as predicted", "agreement", key="as_predicted"),
        Column("waiting", "waiting_share", percent, key="waiting_share"),
        Column("on shared links", "shared_bytes", size, key="shared_bytes"),
        text("verdict", key="verdict"),
    ]


def _predicted(name: str) -> Callable[[JobRow], Any]:
    """Return a function that gives the mean or an end of the predicted slow-down of a row; None without any."""

    def value(row: JobRow) -> Any:
        return getattr(row.slow_downs.predicted, name, None)

    return value


def _predicted_interval(row: JobRow) -> str:
    return interval(_predicted("least")(row), _predicted("most")(row))


def _fault_columns() -> list[Column]:
    return [
        text("job", key="job"),
        text("fabric", key="fabric"),
        text("fault", key="fault"),
        Column("together", "together_s", unit="s", key="together_s"),
        Column("with the fault", "with_fault_s", unit="s", key="with_fault_s"),
        Column("ratio", "ratio", _ratio, key="ratio"),
        Column("predicted", _or_reason("ratio_predicted"), _ratio, key="ratio_predicted"),
        Column("meanwhile", "slow_down", _ratio, key="slow_down"),
        Column("predicted meanwhile", _or_reason("slow_down_predicted"), _ratio, key="slow_down_predicted"),
        Column("predicted alone", _or_reason("alone_predicted"), _ratio, key="alone_predicted"),
        text("verdict", key="verdict"),
    ]


def _or_reason(name: str) -> Callable[[FaultRow], float | str | None]:
    """Return a function that gives a prediction of a row, or why there is none."""

    def value(row: FaultRow) -> float | str | None:
        predicted: float | None = getattr(row, name)
        return row.not_predicted or predicted

    return value


def _link_columns() -> list[Column]:
    return [
        text("link", key="link"),
        text("direction", key="direction"),
        text("job", key="job"),
        Column("bytes", "bytes", size, key="bytes"),
        Column("in use", "busy_s", unit="s", key="busy_s"),
        Column("shared", "shared_s", unit="s", key="shared_s"),
        text("shared with", key="shared_with"),
    ]
