"""Section of the report with the recorded live page: the state of all links and the events at any time of the run."""

from typing import Any

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import LIVE_PAGE
from railyard.results.views.report import Section, section


@section("time")
class _TimeTravel(Section):
    """The recorded live page of a run with --live, which shows any time of it."""

    title = "Any time of the run"
    order = 68
    template = "time_travel.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return analysis.run.provenance.get("live_page") == LIVE_PAGE

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        return {"page": LIVE_PAGE}
