"""Fail-slow in the report: what got slow, what was named, and the iteration times of each case."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from rich.console import Console

from railyard.experiments.measures.fail_slow.analysis import cases_by_fabric, score_of
from railyard.experiments.measures.fail_slow.plot import iteration_plot
from railyard.experiments.measures.fail_slow.records import ITERATION_TIMES, SLOW_CASES, SlowCase
from railyard.failure.diagnosis.cases import Score
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import NOTHING, percent, ratio
from railyard.results.views.report import Card, Section
from railyard.results.views.table import Column, Table, text

MARKS: Final = {True: "✓", False: "✗"}
PARTS: Final = {"gpu": "GPU", "rail": "rail link", "hb": "HB link", "none": "nothing"}


class FailSlowSection(Section):
    """GPUs and links that got slow under a job, and what the detector named."""

    title = "Fail-slow"
    order = 47
    template = "fail_slow.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with such cases."""
        return bool(analysis.run.rows(SLOW_CASES))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield how often the detector was right, on the first fabric."""
        for (fabric, detector), cases in list(cases_by_fabric(analysis.run.rows(SLOW_CASES)).items())[:1]:
            total = score_of(cases)
            note = f"{total.false_alarms} false alarms in {total.quiet} quiet jobs"
            title = f"{detector} on {fabric}: slow GPU or link named alone"
            yield Card(title, f"{total.right} of {total.slow}", note)

    def tables(self, analysis: Analysis) -> list[Table]:
        """Return scores by fabric and detector, and a row for each case."""
        rows = analysis.run.rows(SLOW_CASES)
        scores = [(*names, score_of(cases)) for names, cases in cases_by_fabric(rows).items()]
        return [_scores_table(scores), _cases_table(analysis, rows)]

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the figure of its template."""
        return {"plots": [iteration_plot(analysis.run.rows(SLOW_CASES), analysis.run.rows(ITERATION_TIMES))]}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print both tables."""
        if self.applies(analysis):
            scores, cases = self.tables(analysis)
            console.print(replace(cases, title=self.title).to_terminal())
            console.print(scores.to_terminal(), "")

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all cases, and the scores."""
        if not self.applies(analysis):
            return {}
        scores, cases = self.tables(analysis)
        return {"fail_slow": {"scores": scores.to_dicts(), "cases": cases.to_dicts()}}


def _scores_table(scores: list[tuple[str, str, Score]]) -> Table:
    def of_score(name: str) -> Any:
        return lambda row: getattr(row[2], name)

    columns = (
        text("fabric", lambda row: row[0], key="fabric"),
        text("detector", lambda row: row[1], key="detector"),
        Column("slow", of_score("slow"), key="slow"),
        Column("named alone", of_score("right"), key="right"),
        Column("named wrongly", of_score("wrong"), key="wrong"),
        Column("quiet", of_score("quiet"), key="quiet"),
        Column("false alarms", of_score("false_alarms"), key="false_alarms"),
        Column("precision", of_score("precision"), percent, key="precision"),
        Column("recall", of_score("recall"), percent, key="recall"),
    )
    return Table(columns, scores)


def _cases_table(analysis: Analysis, rows: list[SlowCase]) -> Table:
    def verdict(row: SlowCase) -> str:
        return analysis.judgement.of_interval(row.interval)

    columns = (
        text("fabric", key="fabric"),
        text("slow", _slow_part, key="slow"),
        Column("times", "ratio", ratio, key="ratio"),
        Column("from iteration", "iteration", key="iteration"),
        Column("slow-down", "slowdown", ratio, key="slowdown"),
        Column("predicted", "predicted", ratio, key="predicted"),
        Column("reported", "reported", _iteration, key="reported"),
        text("named", lambda row: row.named or NOTHING, key="named"),
        Column("passes", key="passes"),
        text("right", lambda row: MARKS[row.is_right], key="is_right"),
        text("verdict", verdict, key="verdict"),
    )
    return Table(columns, rows)


def _slow_part(row: SlowCase) -> str:
    return f"{PARTS[row.slow_part]} {row.target}".strip()


def _iteration(number: int) -> str:
    if number < 0:
        return NOTHING
    return str(number)
