"""What an open live page costs the run that it shows: a share of a core, and the change of the medians. Needs root.

    sudo .venv/bin/python -m benchmarks.open_page [--pairs 10] [--out FOLDER]

See docs/benchmarks.md.
"""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import typer

from benchmarks import pairs as pairs_of_runs
from benchmarks.command import run_benchmark
from benchmarks.live_page import ADDRESS, read_page, server_of
from railyard.core.errors import RailyardError
from railyard.experiments.live.server import NICENESS

CPU_LIMIT: Final = 0.02  # of a core, with 16 GPUs
POLL_S: Final = 0.2
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def run_with_its_page_open(run: pairs_of_runs.Run) -> tuple[float, float]:
    """Make a run whose page is read until it ends; return its seconds, and the page's process's share of a core."""
    used_s = 0.0

    def read(output: Path, process: "subprocess.Popen[str]") -> None:
        nonlocal used_s
        server: psutil.Process | None = None
        while process.poll() is None:
            time.sleep(POLL_S)
            found = re.search(ADDRESS, output.read_text())
            if server is None and found:
                holder = server_of(int(found[2]))
                if holder.nice() >= NICENESS:  # before the server starts, others hold the socket
                    server = holder
                    read_page(found[1], int(found[2]), found[3])
            elif server is not None:
                with suppress(psutil.NoSuchProcess):
                    used_s = sum(server.cpu_times()[:2])

    took_s = run("--live", while_running=read)
    if used_s == 0:
        raise RailyardError("the run's page was not found")
    return took_s, used_s / took_s


@app.command()
def measure(
    pairs: pairs_of_runs.Pairs = 10,
    repeats: pairs_of_runs.Repeats = 5,
    experiment: pairs_of_runs.Experiment = "collectives",
    out: pairs_of_runs.Out = Path("open-page"),
) -> None:
    """Measure pairs of runs, in random order within each, and print whether the medians differ."""
    pairs_of_runs.measure("an open page", run_with_its_page_open, CPU_LIMIT, pairs, repeats, experiment, out)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
