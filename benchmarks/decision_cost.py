"""What a health-score decision costs (dr, rd, or drd by best fit), beside the same decision by looking at every rail.

    .venv/bin/python -m benchmarks.decision_cost [--decisions 20000] [--repeats 5]

One core, no root. Both take their turn on the same pairs and scores in every repeat, and must agree. See
docs/health-routing.md.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from benchmarks.measurements import spread
from railyard.controller.health.policy import Scores, choose_path, near_path, path_score
from railyard.core.errors import BadInput
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, path_of

RAILS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
DOMAINS: Final = 64
SCANS: Final = 400_000
"""Rails that a linear scan looks at in a turn, so that it takes seconds at any K."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Decide = Callable[[Gpu, Gpu, Scores], Path | None]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds in each repeat: a decision by search, one by linear scan, and sorting the rails once."""

    rails: int
    search_us: tuple[float, ...]
    scan_us: tuple[float, ...]
    sort_us: tuple[float, ...]


def by_scan(src: Gpu, dst: Gpu, scores: Scores) -> Path | None:
    """The same decision without a sorted list: the lowest rail score above m of all rails."""
    near = near_path(src, dst, scores)
    domains = scores.domains[src.domain] * scores.domains[dst.domain]
    if near is None or near.kind == "d" or not domains:
        return near
    near_score = path_score(near, src, dst, scores)
    best_fit = min(((h, rail) for rail, h in enumerate(scores.rails) if h * domains > near_score), default=None)
    return near if best_fit is None else path_of("drd", best_fit[1])


def task_of(rails: int, decisions: int) -> tuple[Scores, list[tuple[Gpu, Gpu]]]:
    """Random scores, and pairs between domains whose own rails are busy, so that all of them have to search."""
    rng = random.Random(rails)
    busy_count = rails // 2  # the busy half
    busy = [rng.randint(1, 50) for _ in range(busy_count)]
    scores = Scores(
        tuple(busy + [rng.randint(0, 100) for _ in range(rails - busy_count)]),
        tuple(rng.randint(51, 100) for _ in range(DOMAINS)),
    )
    ends = [
        (rng.sample(range(DOMAINS), 2), rng.randrange(busy_count), rng.randrange(busy_count)) for _ in range(decisions)
    ]
    return scores, [(Gpu(d1, g1), Gpu(d2, g2)) for (d1, d2), g1, g2 in ends]


def time_us(decide: Decide, scores: Scores, pairs: Sequence[tuple[Gpu, Gpu]]) -> float:
    """Microseconds a decision."""
    begun = time.perf_counter()
    for src, dst in pairs:
        decide(src, dst, scores)
    return (time.perf_counter() - begun) / len(pairs) * 1e6


def sort_us(scores: Scores) -> float:
    """Microseconds to sort the rails of a new report."""
    fresh = Scores(scores.rails, scores.domains)
    begun = time.perf_counter()
    _ = fresh.sorted_rails
    return (time.perf_counter() - begun) * 1e6


def measure(rails: int, decisions: int, repeats: int) -> Cost:
    """ValueError if search and scan should ever disagree."""
    scores, pairs = task_of(rails, decisions)
    scan_pairs = pairs[: max(1, SCANS // rails)]
    if any(choose_path(src, dst, scores) != by_scan(src, dst, scores) for src, dst in scan_pairs):
        raise ValueError(f"search and scan disagree at {rails} rails")
    turns = [
        (time_us(choose_path, scores, pairs), time_us(by_scan, scores, scan_pairs), sort_us(scores))
        for _ in range(repeats)
    ]
    search, scan, sort = zip(*turns, strict=True)
    return Cost(rails, search, scan, sort)


def table_of(costs: Sequence[Cost]) -> Table:
    """A row a K: what a decision costs, its growth since the first row, and how many times that a linear scan costs."""
    table = Table(title="Cost of a decision on one core, µs", title_justify="left")
    columns = (
        "rails K",
        "by search",
        "growth",
        "log K growth",
        "by linear scan",
        "scan / search",
        "sort, once a report",
    )
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    first = costs[0]
    for cost in costs:
        factors = [scan / search for scan, search in zip(cost.scan_us, cost.search_us, strict=True)]
        table.add_row(
            str(cost.rails),
            str(spread(cost.search_us)),
            f"× {median(cost.search_us) / median(first.search_us):.2f}",
            f"× {log2(cost.rails) / log2(first.rails):.2f}",
            f"{median(cost.scan_us):.1f}",
            f"× {median(factors):.1f}",
            f"{median(cost.sort_us):.0f}",
        )
    return table


@app.command()
def decision_cost(
    decisions: Annotated[int, typer.Option(help="Decisions a repeat.")] = 20_000,
    repeats: Annotated[int, typer.Option(help="How often each takes its turn.")] = 5,
) -> None:
    """Time decisions with 8 to 4,096 rails, by binary search and by linear scan, in turns."""
    for option, value in (("--decisions", decisions), ("--repeats", repeats)):
        if value < 1:
            raise BadInput(option, value, "must be 1 or more")
    console = Console(width=None if sys.stdout.isatty() else 120)
    costs = []
    with console.status("measuring") as status:
        for rails in RAILS:
            status.update(f"{rails} rails")
            costs.append(measure(rails, decisions, repeats))
    console.print(table_of(costs))
    console.print("µs: median (least–most) of the repeats. Factors: repeat by repeat, the median.", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
