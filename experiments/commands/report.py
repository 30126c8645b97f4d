"""`report`: draw a run's report again from its records."""

from pathlib import Path
from typing import Annotated

import typer

from railyard.experiments.commands.options import console
from railyard.experiments.run import folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs import store
from railyard.results.views import summary


def command(run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")]) -> None:
    """Draw a run's report, summary and timeline again from its records; print the summary."""
    analysis = Analysis(store.load(run))
    with folder.reporting_path_errors("DIR", run):
        store.save_drawn(analysis, run)
    summary.print_summary(analysis, console())
    print(run / "report.html")
