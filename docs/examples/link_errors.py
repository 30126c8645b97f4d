"""A report section: how far each calibrated link is off, worst first.

It adds a table to report.html, a line to the terminal's summary, and a key to the headline of summary.json.

    script/run run quickstart --plugin docs/examples/link_errors.py
"""

from typing import Any

from rich.console import Console

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import percent
from railyard.results.runs.records import LinkCheck
from railyard.results.views.report import Section, section
from railyard.results.views.table import Column, Table, text


def error(link: LinkCheck) -> float:
    """Return how far a link is off, as a share of what is expected."""
    return abs(link.measured_bps / link.expected_bps - 1)


@section("link-errors")
class LinkErrors(Section):
    """Error of every calibrated link, worst first."""

    title = "Link errors"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.run.links)

    def tables(self, analysis: Analysis) -> list[Table]:
        columns = (
            text("fabric", lambda x: x.fabric, key="fabric"),
            text("link", lambda x: x.link, key="link"),
            Column("expected", lambda x: x.expected_bps, unit="bit/s", key="expected_bps"),
            Column("measured", lambda x: x.measured_bps, unit="bit/s", key="measured_bps"),
            Column("error", error, percent, key="error"),
        )
        return [Table(columns, sorted(analysis.run.links, key=error, reverse=True))]

    def show(self, analysis: Analysis, console: Console) -> None:
        if analysis.run.links:
            worst = max(analysis.run.links, key=error)
            console.print(f"worst link: {worst.link} on {worst.fabric}, {percent(error(worst))} off", highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"link_errors": [row for table in self.tables(analysis) for row in table.to_dicts()]}
