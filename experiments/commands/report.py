"""`report`: draw a run's report again from its records."""

from pathlib import Path
from typing import Annotated

import typer

from railyard.core.errors import BadInput
from railyard.core.safe_files import become_owner_of
from railyard.experiments.commands.options import console
from railyard.experiments.run import folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs import store
from railyard.results.views import report


def command(run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")]) -> None:
    """Draw a run's report, summary and timeline again from its records; print the summary."""
    with folder.reporting_path_errors("DIR", run):
        try:
            become_owner_of(run)  # for reading too: root could follow links to more than their owner can read
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput("DIR", str(run), store.NO_RUN) from None
        analysis = Analysis(store.load(run))
        store.save_drawn(analysis, run)
    report.print_summary(analysis, console())
    print(run / "report.html")
