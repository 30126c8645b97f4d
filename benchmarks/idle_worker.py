"""What an idle Dask worker costs a run beside it: its share of a core, and the change of the medians. Needs root.

    sudo .venv/bin/python -m benchmarks.idle_worker [--pairs 10] [--out FOLDER]

See docs/benchmarks.md.
"""

import random
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import psutil
import typer
from rich.console import Console

from benchmarks.command import run_benchmark
from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import PROJECT
from railyard.experiments.sweep.cluster import RESOURCE, Cluster
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.comparison import MIN_VALUES, Comparison, RowKey, Values, compare, values_of
from railyard.results.runs import store
from railyard.results.views import comparison as views

LIMIT: Final = 0.005  # of the change of a median
CPU_LIMIT: Final = 0.01  # of a core
FIXED: Final = ("rail_rate=20Mbit", "duration=1s")  # `auto` would give each run a rate of its own
SIDES: Final = ("without", "with")
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


def run(name: str, out: Path, repeats: int) -> float:
    """Run an experiment into a folder; return the seconds that it took. MissingRequirement if it has no records."""
    options = [word for value in (*FIXED, f"repeats={repeats}") for word in ("-o", value)]
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROJECT / "run_experiment.py"), "run", name, *options, "--out", str(out), "--quiet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise MissingRequirement(f"a run of {name} failed: {done.stderr.strip().splitlines()[-1:]}", "see doctor")
    return time.monotonic() - start_s


def paired(out: Path, pairs: int) -> Comparison:
    """Compare the median of each time, with the worker over without it, pair by pair."""
    ratios = defaultdict[RowKey, list[float]](list)
    for number in range(pairs):
        medians = [
            {
                key: median(values.believed)
                for key, values in values_of(store.load(out / f"{number:02}-{side}")).items()
                if values.believed and key.metric in TIME_METRICS and not key.phase
            }
            for side in SIDES
        ]
        for key in medians[0].keys() & medians[1].keys():
            ratios[key].append(medians[1][key] / medians[0][key])
    longest = max(map(len, ratios.values()), default=0)
    rows = [{key: Values([own[n]]) for key, own in ratios.items() if n < len(own)} for n in range(longest)]
    return compare([{key: Values([1.0]) for key in row} for row in rows], rows, LIMIT)


@app.command()
def measure(
    pairs: Annotated[int, typer.Option(help="Runs with and without the worker.")] = 10,
    repeats: Annotated[int, typer.Option(help="Repeats of each run.")] = 5,
    experiment: Annotated[str, typer.Option(help="The experiment.")] = "collectives",
    out: Annotated[Path, typer.Option(help="The runs' folder; those that are there are not run again.")] = Path(
        "idle-worker"
    ),
) -> None:
    """Measure pairs of runs, in random order within each, and print whether the medians differ."""
    for option, value, least in (("--pairs", pairs, MIN_VALUES), ("--repeats", repeats, 1)):
        if value < least:
            raise BadInput(option, value, f"must be {least} or more")
    console, dice, shares = Console(), random.Random(1), list[float]()
    out.mkdir(parents=True, exist_ok=True)
    for number in range(pairs):
        for side in dice.sample(SIDES, 2):
            folder = out / f"{number:02}-{side}"
            if (folder / "run.json").exists():
                continue
            if side == "without":
                took_s = run(experiment, folder, repeats)
                console.print(f"{folder.name}: {took_s:.1f} s")
                continue
            with worker() as process:
                before = sum(process.cpu_times()[:2])
                took_s = run(experiment, folder, repeats)
                share = (sum(process.cpu_times()[:2]) - before) / took_s
            shares.append(share)
            console.print(f"{folder.name}: {took_s:.1f} s, worker {share:.2%} of a core")
    found = paired(out, pairs)
    console.print("A: 1; B: the time with the worker over that without it, by pair")
    views.show(found, console)
    same = found.counts["same"]
    is_ok = 0 < same == len(found.rows) and max(shares, default=0.0) < CPU_LIMIT
    line = f"an idle worker changes {same} of {len(found.rows)} medians by {LIMIT:.1%} or less"
    line += f", and takes up to {max(shares):.2%} of a core" if shares else ""
    console.print(f"verdict: {'ok' if is_ok else 'not shown'}: {line}", highlight=False, soft_wrap=True)
    if not is_ok:
        raise typer.Exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
