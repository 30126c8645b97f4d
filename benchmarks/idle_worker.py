"""What an idle Dask worker costs a run beside it: its share of a core, and the change of the medians. Needs root.

    sudo .venv/bin/python -m benchmarks.idle_worker [--pairs 10] [--out FOLDER]

See docs/benchmarks.md.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import typer

from benchmarks import pairs as pairs_of_runs
from benchmarks.command import run_benchmark
from railyard.core.installation import PROJECT
from railyard.experiments.sweep.cluster import Cluster
from railyard.experiments.sweep.remote import RESOURCE

CPU_LIMIT: Final = 0.01  # of a core
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@contextmanager
def worker() -> Iterator[psutil.Process]:
    """Start a scheduler and a worker, let them be quiet as a sweep does, and yield the worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    common = ("--no-dashboard", "--protocol", "tcp")
    scheduler = ("scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], *common)
    own = ("worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--resources", f"{RESOURCE}=1")
    with ExitStack() as stack:
        for arguments in (scheduler, own):
            argv = [sys.executable, "-m", f"distributed.cli.dask_{arguments[0]}", *arguments[1:]]
            process = subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        cluster = Cluster(address)
        stack.callback(cluster.close)
        yield psutil.Process(process.pid)


def run_beside_a_worker(run: pairs_of_runs.Run) -> tuple[float, float]:
    """Make a run with a worker on the machine; return its seconds, and the worker's share of a core."""
    with worker() as process:
        before = sum(process.cpu_times()[:2])
        took_s = run()
        return took_s, (sum(process.cpu_times()[:2]) - before) / took_s


@app.command()
def measure(
    pairs: pairs_of_runs.Pairs = 10,
    repeats: pairs_of_runs.Repeats = 5,
    experiment: pairs_of_runs.Experiment = "collectives",
    out: pairs_of_runs.Out = Path("idle-worker"),
) -> None:
    """Measure pairs of runs, in random order within each, and print whether the medians differ."""
    pairs_of_runs.measure("an idle worker", run_beside_a_worker, CPU_LIMIT, pairs, repeats, experiment, out)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
