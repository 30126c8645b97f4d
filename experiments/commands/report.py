"""`report`: draw a run's report again from its records."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import Folder, become_owner_of
from railyard.experiments.live import derived
from railyard.experiments.live.recorded import PAGE, write_page
from railyard.experiments.options import AsJson, Junit, Markdown, console, shows_progress
from railyard.experiments.run import folder
from railyard.results import run_folder
from railyard.results.runs import journal
from railyard.results.runs.record_files import to_json
from railyard.results.views import chrome_trace

PURPOSE = "Work with results"


@shows_progress
def command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    junit: Junit = None,
    markdown: Markdown = None,
    as_json: AsJson = False,
    show: Annotated[
        bool,
        typer.Option(
            "--open", help="Open the live page of the finished run in a browser, recorded or made from its records."
        ),
    ] = False,
    timeline_json: Annotated[
        bool, typer.Option("--timeline-json", help="Also write timeline.json, in Chrome's trace format.")
    ] = False,
) -> int:
    """Draw a run's report, summary and timeline again from its records; print the summary.

    The folder of a run that was killed is finished: it gets the files that the run did not come to write.

    The records are verified by the run's manifest: damaged ones are left out and named, and the exit status is 1.
    """
    folder.check_outputs({"--junit": junit, "--markdown": markdown})
    with folder.reporting_path_errors("DIR", run):
        try:
            # root could follow links to files that the owner of the run can't read
            become_owner_of(run)
        except (FileNotFoundError, NotADirectoryError):
            raise BadInput("DIR", str(run), run_folder.NO_RUN) from None
        with Folder(run) as opened:
            if opened.is_claimed():
                raise BadInput("DIR", str(run), "is of a run that is under way: wait until it has ended")
            was_killed = journal.is_left(opened)
            records = run_folder.load(opened)
            for line in records.damaged:
                print(f"damaged: {line}", file=sys.stderr)
            run_folder.redraw(records, opened, console(stderr=as_json))
            if timeline_json:
                tracks = chrome_trace.encode(run_folder.timeline_of(records, opened))
                opened.write("timeline.json", to_json(tracks, indent=None))
            # a notice comes last: an error must be the only line
            if was_killed:
                print("the run was killed: its folder is finished from its journal", file=sys.stderr)
            has_page = write_page(opened)
            if show and not has_page:
                try:
                    derived.write_page(opened, records)
                    has_page = True
                except RailyardError as error:
                    print(f"no page of any time of the run: {error}", file=sys.stderr)
            folder.write_outputs(opened, junit, markdown, as_json)
    pages = [run / "report.html"]
    if has_page:
        pages.append(run / PAGE)
    for page in pages:
        print(page, file=sys.stderr if as_json else sys.stdout)
    if show:
        webbrowser.open(pages[-1].absolute().as_uri())
    return 1 if records.damaged else 0
