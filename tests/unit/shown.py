"""Views of a run, for tests that have the run alone."""

from io import StringIO
from typing import Any

from rich.console import Console

from railyard.experiments.measures.steering.analysis import FabricWorkload, PolicyRow, rows_of
from railyard.experiments.measures.steering.spine_condition import Cell, cells_of
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.targets import Outcome
from railyard.results.runs.records import Run
from railyard.results.views import report


def summarise(run: Run) -> dict[str, Any]:
    return report.summarise(Analysis(run))


def print_summary(run: Run, console: Console) -> None:
    report.print_summary(Analysis(run), console)


def render(run: Run) -> str:
    return report.render(Analysis(run))


def cells(run: Run) -> tuple[Cell, ...]:
    return Analysis(run).derived(cells_of)


def policy_rows(run: Run) -> dict[FabricWorkload, tuple[PolicyRow, ...]]:
    return Analysis(run).derived(rows_of)


def outcomes(run: Run) -> tuple[Outcome, ...]:
    return Analysis(run).outcomes


def table_rows(text: str, column: int = 1) -> dict[str, list[str]]:
    """Return the words of each row of a table with lines, by the text in a column."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return {line.split("│")[column].strip(): line.split() for line in lines}


def screen(run: Run, width: int = 100, is_terminal: bool = True) -> list[str]:
    """Return what is printed of a run at the end, by lines."""
    out = StringIO()
    print_summary(run, Console(file=out, width=width, force_terminal=is_terminal, color_system=None))
    return out.getvalue().splitlines()
