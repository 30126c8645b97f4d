"""Throughput of an allreduce over one rail and two, by the processor time that its nodes have. No root, no fabric.

    .venv/bin/python -m benchmarks.allreduce_cores [--repeats 5] [--json FILE]

Nodes are processes on loopback addresses, and a rail's rate is set by its senders. All nodes share the given cores, a
part of a core as a duty cycle: they are stopped for the other part of every 20 ms. See docs/benchmarks.md.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from railyard.core.errors import BadInput, RailyardError
from railyard.core.safe_files import write_file
from railyard.workloads.allreduce.balancing.costs import Rail
from railyard.workloads.allreduce.engine.jobs import (
    Operations,
    ProcessPlacement,
    RankConfig,
    Timeouts,
    latencies_s,
    loopback,
)
from railyard.workloads.allreduce.engines.railyard import Ranks

NODES: Final = 2
SIZE: Final = 8 * 2**20
RATE: Final = 150e6  # bytes per second of a rail
PARTS: Final = (0.125, 0.25, 0.5, 0.75, 1.0)
RAIL_COUNTS: Final = (1, 2)
PERIOD_S: Final = 0.02
FIRST_PORT: Final = 23_000
WARMUP_OPERATIONS: Final = 3
OPERATIONS: Final = 8
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class RingThroughput:
    """Rings on so many rails with so many cores: MB/s of every repeat."""

    rails: int
    cores: float
    throughputs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the repeats."""
        return median(self.throughputs)


class LoopbackRanks(Ranks):
    """Ranks on loopback addresses. They start on the cores of the process that starts them."""

    def __init__(self, rails: Sequence[Rail], nodes: int, first_port: int) -> None:
        self.layout = loopback(rails, nodes, first_port)
        # a stopped node sends no heartbeat, and its rails are not dead
        timeouts = Timeouts(heartbeat_s=5.0, stall_s=30.0)
        self._join_timeout_s = timeouts.join_s
        self._answer_timeout_s = timeouts.operation_s
        place = ProcessPlacement()
        self._tasks = [RankConfig(node, self.layout, place, timeouts, "equal") for node in range(nodes)]
        self._aggregator_tasks = []
        self.processes = []
        self._aggregators = []

    def place(self, cores: Sequence[int]) -> None:
        """Put the nodes on these cores in turn."""
        for number, process in enumerate(self.processes):
            os.sched_setaffinity(process.pid, {cores[number % len(cores)]})

    @contextmanager
    def running_part(self, part: float) -> Iterator[None]:
        """Let the nodes run only a part of every period while entered; all of it if it is 1."""
        if part >= 1:
            yield
            return
        over = threading.Event()
        cycle = threading.Thread(target=self._cycle, args=(part, over))
        cycle.start()
        try:
            yield
        finally:
            over.set()
            cycle.join()
            self.resume()

    def _cycle(self, part: float, over: threading.Event) -> None:
        while not over.wait(part * PERIOD_S):
            self.pause()
            over.wait((1 - part) * PERIOD_S)
            self.resume()


def measured(rail_count: int, cores: Sequence[int], part: float, number: int) -> float:
    """Return the MB/s of allreduces. `cores`: of the nodes; `part` of them; `number`: of the group."""
    rails = [Rail(f"tcp{rail}", "tcp", RATE) for rail in range(rail_count)]
    with LoopbackRanks(rails, NODES, FIRST_PORT + 10 * (number % 1000)) as ranks:
        ranks.place(cores)
        with ranks.running_part(part):
            ranks.run(Operations("allreduce", "float32", SIZE, WARMUP_OPERATIONS, 1))
            reports = ranks.run(Operations("allreduce", "float32", SIZE, OPERATIONS, 1))
    for report in reports:
        if report.errors:
            raise RailyardError(report.errors[0])
    return SIZE / median(latencies_s(reports)) / 1e6


def results(repeats: int) -> list[RingThroughput]:
    """Measure both counts of rails with parts of a core, and with all cores; repeats take turns."""
    all_cores = sorted(os.sched_getaffinity(0))
    places = [(all_cores[:1], part) for part in PARTS]
    if len(all_cores) > 1:
        places.append((all_cores, 1.0))
    throughputs: dict[tuple[int, float], list[float]] = {}
    number = 0
    for _ in range(repeats):
        for rail_count in RAIL_COUNTS:
            for cores, part in places:
                number += 1
                value = measured(rail_count, cores, part, number)
                throughputs.setdefault((rail_count, len(cores) * part), []).append(value)
    return [RingThroughput(rail_count, cores, tuple(values)) for (rail_count, cores), values in throughputs.items()]


def table_of(rows: Sequence[RingThroughput]) -> Table:
    """Return a row for each part of the cores: MB/s, and two rails over one and of twice one rail's most."""
    table = Table(title=f"Allreduce of {SIZE >> 20} MiB, {NODES} nodes", title_justify="left")
    for column in ("cores", "MB/s, one rail", "MB/s, two rails", "two over one", "of both peaks"):
        table.add_column(column, justify="right", no_wrap=True)
    by_place = {(row.rails, row.cores): row for row in rows}
    peak = max(row.median for row in rows if row.rails == 1)
    for cores in sorted({row.cores for row in rows}):
        one_rail = by_place[1, cores]
        two_rails = by_place[2, cores]
        ratio = f"{two_rails.median / one_rail.median:.2f}"
        table.add_row(f"{cores:g}", _text(one_rail), _text(two_rails), ratio, f"{two_rails.median / (2 * peak):.0%}")
    return table


def _text(row: RingThroughput) -> str:
    return f"{row.median:.0f} ({min(row.throughputs):.0f}–{max(row.throughputs):.0f})"


@app.command()
def allreduce_cores(
    repeats: Annotated[int, typer.Option(help="How often each is measured.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this new file.")] = None,
) -> None:
    """Measure rings on one rail and on two, with a part of a core up to all cores."""
    if repeats < 1:
        raise BadInput("--repeats", repeats, "must be 1 or more")
    if json_file and (json_file.exists() or not json_file.resolve().parent.is_dir()):
        raise BadInput("--json", str(json_file), "must be a new file, in a folder that exists")
    rows = results(repeats)
    Console(width=None if sys.stdout.isatty() else 120).print(table_of(rows))
    if json_file:
        write_file(json_file, (json.dumps([asdict(row) for row in rows], indent=2) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return run_benchmark(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
