"""How a benchmark starts: its command line, and in a sandbox what it measures."""

import sys
from collections.abc import Callable, Sequence

import typer

from railyard.core.errors import RailyardError
from railyard.core.host import raise_open_file_limit
from railyard.core.sandbox import init


def run_benchmark(app: typer.Typer, arguments: Sequence[str] | None, inside: Callable[[], int] | None = None) -> int:
    """The exit status. What a user gets wrong, or the machine lacks, becomes one line; SystemExit as typer ends.

    `inside`: what to do when this process is already in a sandbox, for benchmarks that build fabrics.
    """
    raise_open_file_limit()
    try:
        if inside and init.inside():
            return inside()
        app(arguments)
    except RailyardError as error:
        print("error:", error, file=sys.stderr)
        return error.exit_status
    return 0
