"""Pairs of runs, with something idle beside them and without: whether it changes the medians of what they measure."""

import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import PROJECT
from railyard.results import run_folder
from railyard.results.analysis.aggregate import TIME_METRICS
from railyard.results.analysis.comparison import MIN_VALUES, Comparison, RowKey, Values, compare, values_of
from railyard.results.views import comparison as views

LIMIT: Final = 0.005  # of the change of a median
FIXED: Final = ("rail_rate=20Mbit", "duration=1s")  # `auto` would give each run a rate of its own
SIDES: Final = ("without", "with")

Pairs = Annotated[int, typer.Option(help="Runs with it and without it.")]
Repeats = Annotated[int, typer.Option(help="Repeats of each run.")]
Experiment = Annotated[str, typer.Option(help="The experiment.")]
Out = Annotated[Path, typer.Option(help="The runs' folder; those that are there are not run again.")]
Run = Callable[..., float]
"""Make a run with these further options, and return its seconds; `while_running` gets its output and its process."""


def run(
    experiment: str,
    out: Path,
    repeats: int,
    *options: str,
    while_running: Callable[[Path, "subprocess.Popen[str]"], None] = lambda *_: None,
) -> float:
    """Run an experiment into a folder; return the seconds that it took. MissingRequirement if it has no records."""
    overrides = [word for value in (*FIXED, f"repeats={repeats}") for word in ("-o", value)]
    argv = [sys.executable, str(PROJECT / "run_experiment.py"), "run", experiment, *overrides, "--out", str(out)]
    start_s = time.monotonic()
    with tempfile.NamedTemporaryFile("w+") as output:
        with subprocess.Popen([*argv, *options], stdout=output, stderr=subprocess.STDOUT, text=True) as process:
            while_running(Path(output.name), process)
        if process.returncode not in (0, 1):
            last = Path(output.name).read_text().strip().splitlines()[-1:]
            raise MissingRequirement(f"a run of {experiment} failed: {last}", "see doctor")
    return time.monotonic() - start_s


def paired(out: Path, pairs: int) -> Comparison:
    """Compare the median of each time, with it over without it, pair by pair."""
    ratios = defaultdict[RowKey, list[float]](list)
    for number in range(pairs):
        medians = [
            {
                key: median(values.believed)
                for key, values in values_of(run_folder.load(out / f"{number:02}-{side}")).items()
                if values.believed and key.metric in TIME_METRICS and not key.phase
            }
            for side in SIDES
        ]
        for key in medians[0].keys() & medians[1].keys():
            ratios[key].append(medians[1][key] / medians[0][key])
    longest = max(map(len, ratios.values()), default=0)
    rows = [{key: Values([own[n]]) for key, own in ratios.items() if n < len(own)} for n in range(longest)]
    return compare([{key: Values([1.0]) for key in row} for row in rows], rows, LIMIT)


def measure(
    what: str,
    with_it: Callable[[Run], tuple[float, float]],
    cpu_limit: float,
    pairs: int,
    repeats: int,
    experiment: str,
    out: Path,
) -> None:
    """Measure pairs of runs, in random order within each, and print whether the medians differ. typer.Exit if so.

    `with_it` makes a run beside `what`, and returns its seconds and the share of a core that `what` took.
    """
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

            def make(*options: str, folder: Path = folder, **beside: Callable[..., None]) -> float:
                return run(experiment, folder, repeats, *options, **beside)

            if side == "without":
                console.print(f"{folder.name}: {make():.1f} s")
                continue
            took_s, share = with_it(make)
            shares.append(share)
            console.print(f"{folder.name}: {took_s:.1f} s, {what} {share:.2%} of a core")
    found = paired(out, pairs)
    console.print(f"A: 1; B: the time with {what} over that without it, by pair")
    views.show(found, console)
    same = found.counts["same"]
    is_ok = 0 < same == len(found.rows) and max(shares, default=0.0) < cpu_limit
    line = f"{what} changes {same} of {len(found.rows)} medians by {LIMIT:.1%} or less"
    line += f", and takes up to {max(shares):.2%} of a core" if shares else ""
    console.print(f"verdict: {'ok' if is_ok else 'not shown'}: {line}", highlight=False, soft_wrap=True)
    if not is_ok:
        raise typer.Exit(1)
