"""Targets of measures in the report: one table for each measure that states targets."""

from typing import Any

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import Section, section
from railyard.results.views.table import Table
from railyard.results.views.targets import targets_table


@section("measure-targets")
class _Targets(Section):
    """Targets that measures state, and whether the run met them."""

    title = "Targets"
    order = 66

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.shown_outcomes)

    def tables(self, analysis: Analysis) -> list[Table]:
        return [targets_table(outcomes, name) for name, outcomes in analysis.shown_outcomes.items()]

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all targets by measure; nothing for a run without any."""
        plain: dict[str, list[dict[str, Any]]] = {}
        for name, outcomes in analysis.shown_outcomes.items():
            plain[name] = [outcome.as_dict() for outcome in outcomes]
        return {"measure_targets": plain} if plain else {}
