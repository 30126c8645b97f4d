"""CPU seconds per byte of several jobs that are replayed together, beside one job of the same traffic. Needs root.

    sudo .venv/bin/python -m benchmarks.several_jobs [--jobs 4] [--domains 8] [--rails 8] [--repeats 5]

Each job runs AllReduces on a rectangle of its own; the one job runs the same AllReduces in groups of the same GPUs.
Both take turns on one fabric in a sandbox. CPU seconds are those of all processes of the sandbox: replay workers,
switches, controller. The exit status is 1 if the median ratio is above 1.1. See docs/benchmarks.md.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Final

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.command import run_benchmark
from railyard.controller.processes.clients import ControllerProcess
from railyard.core.errors import BadInput, RailyardError, nearest_multiples
from railyard.core.host import datapath_choice, detect, require
from railyard.core.sandbox import init, launcher
from railyard.topologies.build.network import FabricNet
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric
from railyard.workloads.collectives.algorithm import run, whole_phase
from railyard.workloads.combined import PlacedJob, combined
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.placement.layout import relabelled
from railyard.workloads.replay.job import windows_for_links
from railyard.workloads.replay.run import replay
from railyard.workloads.schedule import Grid, Program, Schedule, payload_rates

LIMIT: Final = 1.1
RAIL_BPS: Final = 10_000_000  # of 64 GPUs, so that two cores carry them
ITERATIONS: Final = 4
SECONDS: Final = 5.0  # of a turn at line rate
COLLECTIVE: Final = "all-reduce-hierarchical"
TIMEOUT_S: Final = 120.0
SEVERAL: Final = "several jobs"
SINGLE: Final = "one job"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Turn:
    """A replay of one of the two schedules: CPU seconds of all processes, and verified bytes."""

    schedule: str
    cpu_s: float
    size: int

    @property
    def ns_per_byte(self) -> float:
        """CPU time per byte."""
        return self.cpu_s / self.size * 1e9


def rectangles(domains: int, rails: int, jobs: int) -> list[Grid]:
    """Return the GPUs of each job: rectangles of one size, in rows and columns as even as the number of jobs allows.

    BadInput unless they fill the fabric, with two domains and two rails each at least.
    """
    columns = next(count for count in range(int(jobs**0.5), 0, -1) if jobs % count == 0)
    rows = jobs // columns
    for name, size, parts in (("--domains", domains, rows), ("--rails", rails, columns)):
        if size % parts or size == parts:
            nearest = nearest_multiples(max(size, 2 * parts), parts)
            allowed = f"must be a multiple of {parts}, and more than that, for {jobs} jobs: {nearest}"
            raise BadInput(name, size, allowed)
    height = domains // rows
    width = rails // columns
    grids: list[Grid] = []
    for row in range(rows):
        for column in range(columns):
            first_gpus = [(row * height + domain) * rails + column * width for domain in range(height)]
            grids.append(tuple(tuple(range(first, first + width)) for first in first_gpus))
    return grids


def several_jobs(domains: int, rails: int, grids: Sequence[Grid], data_bytes: float) -> Schedule:
    """Return jobs that each run AllReduces of so many bytes on a grid, joined in one schedule."""
    jobs: list[PlacedJob] = []
    for number, grid in enumerate(grids):
        program = Program(len(grid), len(grid[0]))
        phase = whole_phase("allreduce", "DP", COLLECTIVE, len(grid[0]), len(grid), data_bytes)
        run(program, phase, program.grid)
        gpus = tuple(gpu for row in grid for gpu in row)
        schedule = relabelled(program.schedule("allreduce"), gpus, domains * rails, rails)
        jobs.append(PlacedJob(f"job{number}", schedule, gpus, ITERATIONS))
    return combined(jobs).schedule


def single_job(domains: int, rails: int, grids: Sequence[Grid], data_bytes: float) -> Schedule:
    """Return one job that runs the same AllReduces in groups of the same GPUs."""
    program = Program(domains, rails)
    phase = whole_phase("allreduce", "DP", COLLECTIVE, len(grids[0][0]), len(grids[0]), data_bytes)
    for _ in range(ITERATIONS):
        run(program, phase, *grids)
    return program.schedule("allreduce")


def schedules(plan: Plan, grids: Sequence[Grid]) -> dict[str, Schedule]:
    """Return both schedules by name, with bytes that take `SECONDS` at line rate."""
    spec = plan.spec
    rates = payload_rates(plan.hb_bps, plan.rail_bps, spec.mtu)
    probe = single_job(spec.domains, spec.rails, grids, 1e6)
    data_bytes = 1e6 * SECONDS / line_rate_duration_s(probe, rates, spec)
    return {
        SEVERAL: several_jobs(spec.domains, spec.rails, grids, data_bytes),
        SINGLE: single_job(spec.domains, spec.rails, grids, data_bytes),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds so far of all processes of this PID namespace, and of this one's children that ended."""
    total_s = 0.0
    for process in psutil.process_iter():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total_s += times.user + times.system
        if process.pid == os.getpid():
            total_s += times.children_user + times.children_system
    return total_s


def measure(plan: Plan, name: str, schedule: Schedule) -> Turn:
    """Replay a schedule on the built fabric. RailyardError unless every byte arrives as it was sent."""
    before_s = cpu_seconds()
    windows = windows_for_links(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    done = replay(schedule, windows, seed=1, deadline_s=TIMEOUT_S)
    size = sum(done.delivered.values())
    if done.corrupt or done.broken or size != sum(schedule.matrix.values()):
        raise RailyardError(f"{name}: {size:,} bytes arrived whole of {sum(schedule.matrix.values()):,}")
    return Turn(name, cpu_seconds() - before_s, size)


def ratios(turns: Sequence[Turn]) -> list[float]:
    """Return the cost per byte of several jobs over that of one, repeat by repeat."""
    several = [turn.ns_per_byte for turn in turns if turn.schedule == SEVERAL]
    single = [turn.ns_per_byte for turn in turns if turn.schedule == SINGLE]
    return [cost / single_cost for cost, single_cost in zip(several, single, strict=True)]


def table_of(turns: Sequence[Turn], title: str) -> Table:
    """Return a row for each of the two: bytes, and CPU nanoseconds per byte."""
    table = Table(title=title, title_justify="left")
    for column in ("", "bytes", "CPU, ns per byte", "least–most"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name in (SEVERAL, SINGLE):
        costs = [turn.ns_per_byte for turn in turns if turn.schedule == name]
        size = next(turn.size for turn in turns if turn.schedule == name)
        table.add_row(name, f"{size:,}", f"{median(costs):.1f}", f"{min(costs):.1f}–{max(costs):.1f}")
    return table


def run_in_sandbox() -> int:
    """Build the fabric and measure: the inner half."""
    task = init.prepare()
    try:
        init.install_signal_handlers()
        console = Console(width=None if sys.stdout.isatty() else 120)
        plan = make_plan(parse_fabric(_fabric(task["domains"], task["rails"])), RAIL_BPS)
        grids = rectangles(task["domains"], task["rails"], task["jobs"])
        net = FabricNet(plan, datapath_choice(detect())[0], ControllerProcess())
        with console.status("building the fabric"):
            net.start()
        turns: list[Turn] = []
        both = list(schedules(plan, grids).items())
        with console.status("replaying"):
            for repeat in range(task["repeats"]):
                # who is first changes, so that warm caches help both
                for name, schedule in both if repeat % 2 else both[::-1]:
                    turns.append(measure(plan, name, schedule))
        net.stop()
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    title = f"{task['jobs']} jobs on {plan.spec.gpus} GPUs, and one job of the same traffic"
    console.print(table_of(turns, title))
    ratio = median(ratios(turns))
    verdict = "ok" if ratio <= LIMIT else "not shown"
    console.print(
        f"verdict: {verdict}: several jobs take {ratio:.3f} of the CPU of one per byte, {LIMIT} or less asked"
    )
    return int(ratio > LIMIT)


def _fabric(domains: int, rails: int) -> dict[str, Any]:
    return {"kind": "rail-only", "domains": domains, "rails": rails}


@app.command()
def compare(
    jobs: Annotated[int, typer.Option(help="Jobs that run together.")] = 4,
    domains: Annotated[int, typer.Option(help="HB domains.")] = 8,
    rails: Annotated[int, typer.Option(help="GPUs in each.")] = 8,
    repeats: Annotated[int, typer.Option(help="Turns of each.")] = 5,
) -> None:
    """Replay several jobs and one job of the same traffic in turns, and compare CPU seconds per byte."""
    for field, value in (("--jobs", jobs), ("--repeats", repeats)):
        if value < 1:
            raise BadInput(field, value, "must be 1 or more")
    parse_fabric(_fabric(domains, rails))
    rectangles(domains, rails, jobs)
    require(detect())
    task = {"jobs": jobs, "domains": domains, "rails": rails, "repeats": repeats}
    raise typer.Exit(launcher.enter([sys.executable, "-m", "benchmarks.several_jobs", *sys.argv[1:]], task))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return its exit status."""
    return run_benchmark(app, arguments, run_in_sandbox)


if __name__ == "__main__":
    sys.exit(main())
