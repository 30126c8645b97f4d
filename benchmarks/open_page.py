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
from benchmarks.live_page import ADDRESS, WARM_UP_S, read_page, server_of
from railyard.core.errors import RailyardError
from railyard.experiments.live.server import NICENESS

CPU_LIMIT: Final = 0.02  # of a core, with 16 GPUs
POLL_S: Final = 0.2
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def run_with_its_page_open(run: pairs_of_runs.Run) -> tuple[float, float]:
    """Make a run whose page is read until it ends; return its seconds, and the page's process's share of a core.

    The share is of the time from `WARM_UP_S` after the page opened: its process starts before anything is measured.
    """
    used = list[tuple[float, float]]()  # monotonic s, CPU time s

    def read(output: Path, process: "subprocess.Popen[str]") -> None:
        server, opened_s = None, 0.0
        while process.poll() is None:
            time.sleep(POLL_S)
            found = re.search(ADDRESS, output.read_text())
            if server is None and found:
                holder = server_of(int(found[2]))
                if holder.nice() >= NICENESS:  # before the server starts, others hold the socket
                    server, opened_s = holder, time.monotonic()
                    read_page(found[1], int(found[2]), found[3])
            elif server is not None and time.monotonic() > opened_s + WARM_UP_S:
                with suppress(psutil.NoSuchProcess):
                    used.append((time.monotonic(), sum(server.cpu_times()[:2])))

    took_s = run("--live", while_running=read)
    if len(used) < 2:
        raise RailyardError("the run's page was not found")
    (start_s, start_cpu_s), (end_s, end_cpu_s) = used[0], used[-1]
    return took_s, (end_cpu_s - start_cpu_s) / (end_s - start_s)


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
