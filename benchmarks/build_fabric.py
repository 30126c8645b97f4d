"""How long Railyard takes to build a fabric and to take it down, beside stock Mininet building the same.

    sudo .venv/bin/python -m benchmarks.build_fabric [--domains 16] [--rails 8] [--repeats 3] [--json FILE]
        [--only railyard|mininet|mininet-plain]

All builders take their turn in every repeat, one after the other in one sandbox, so that whatever else the machine does
falls on all of them. See docs/benchmarks.md.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mininet.log import setLogLevel
from rich.console import Console
from rich.table import Table

from benchmarks.builders import Builder, Railyard, Stock, StockPlain
from benchmarks.command import run_benchmark
from benchmarks.measurements import Ratios, Turn, of_builder, ratios, spread
from benchmarks.teardown_check import visible, wait_for_kernel, wait_until_gone
from railyard.core.errors import BadInput
from railyard.core.host import Datapath, datapath_choice, detect, require
from railyard.core.safe_files import write_file
from railyard.core.sandbox import init, launcher
from railyard.core.sandbox.hidden import check_visible
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.spec import parse_fabric

BUILDERS: Final[dict[str, Callable[[Plan, Datapath], Builder]]] = {
    "railyard": Railyard,
    "mininet": Stock,
    "mininet-plain": StockPlain,
}
RAIL_BPS: Final = 20_000_000
"""And 12 times that in an HB domain: TCLink shapes nothing above 1000 Mbit/s."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def one_turn(builder: Builder, repeat: int) -> Turn:
    """Build, check that it works, take it down, and wait until nothing is left and the kernel has freed it."""
    before = visible()
    builder.prepare()
    begun = time.monotonic()
    net = builder.build()
    built = time.monotonic()
    builder.check(net)
    links, namespaces = len(net.links), builder.namespaces_of(net)
    stopped = time.monotonic()
    builder.stop(net)
    wait_until_gone(before)
    gone = time.monotonic()
    wait_for_kernel()
    freed = time.monotonic()
    return Turn(repeat, builder.name, built - begun, gone - stopped, freed - stopped, links, namespaces)


def compare(builders: Sequence[Builder], repeats: int, console: Console) -> list[Turn]:
    """All turns of all repeats, each told as it ends."""
    turns = []
    for repeat in range(1, repeats + 1):
        for builder in builders:
            with console.status(f"repeat {repeat} of {repeats}: {builder.name}"):
                turn = one_turn(builder, repeat)
                gc.collect()  # of the network that was, before the next one's clock starts
            turns.append(turn)
            times = f"built in {turn.build_s:.2f} s, gone in {turn.stop_s:.2f} s, freed after {turn.freed_s:.2f} s"
            console.print(f"repeat {repeat} of {repeats}: {builder.name}: {times}", highlight=False)
    return turns


def table_of(turns: Sequence[Turn], builders: Sequence[Builder], title: str) -> Table:
    """A row a builder: seconds, and how many times those of the first, Railyard, they are."""
    table = Table(title=title, title_justify="left")
    for column in ("", "build, s", "×", "tear-down, s", "×", "freed, s", "×"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for builder in builders:
        own = of_builder(turns, builder.name)
        times = ratios(turns, builder.name, builders[0].name)
        table.add_row(
            builder.name,
            str(spread([turn.build_s for turn in own])),
            f"{times.build:.1f}",
            str(spread([turn.stop_s for turn in own])),
            f"{times.stop:.1f}",
            str(spread([turn.freed_s for turn in own])),
            f"{times.freed:.1f}",
        )
    return table


def print_result(turns: Sequence[Turn], builders: Sequence[Builder], title: str, console: Console) -> None:
    """The table, and what its figures hold."""
    console.print(table_of(turns, builders, title))
    console.print("Seconds: median (least–most). ×: factor, repeat by repeat, the median.", highlight=False)
    for builder in builders:
        one = of_builder(turns, builder.name)[0]
        size = f"{one.links} links, {one.namespaces} namespaces"
        console.print(f"{builder.name} ({size}): {builder.includes}.", highlight=False)
    console.print(
        "Tear-down: until no process (stock's Open vSwitch and controller too), no interface and no namespace is in"
        " sight. Freed: until the kernel has freed what these held, in the background; counted from the same moment.",
        highlight=False,
    )


def result_of(turns: Sequence[Turn], builders: Sequence[Builder], task: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` writes: the task, the machine, every turn, and the ratios to the first builder."""

    def times(builder: Builder) -> Ratios:
        return ratios(turns, builder.name, builders[0].name)

    machine = detect()
    return {
        **{key: task[key] for key in ("domains", "rails", "repeats")},
        "machine": {"kernel": machine.kernel, "cores": machine.cores, "cpu": machine.cpu_model},
        "turns": [asdict(turn) for turn in turns],
        "times_railyard": {builder.name: times(builder)._asdict() for builder in builders[1:]},
    }


def run_in_sandbox() -> int:
    """The inner half: all of the measuring."""
    task = init.prepare()
    try:
        init.install_signal_handlers()
        setLogLevel("critical")
        # as wide as its table needs, where there is no terminal
        console = Console(width=None if sys.stdout.isatty() else 120)
        plan = make_plan(parse_fabric(_fabric(task["domains"], task["rails"])), RAIL_BPS)
        datapath, why = datapath_choice(detect())
        builders: list[Builder] = [BUILDERS[name](plan, datapath) for name in task["builders"]]
        turns = compare(builders, task["repeats"], console)
        title = f"{plan.spec.gpus} GPUs, {plan.spec.domains} domains x {plan.spec.rails} rails; {datapath}: {why}"
        print_result(turns, builders, title, console)
        if task["json"]:
            text = json.dumps(result_of(turns, builders, task), indent=2) + "\n"
            write_file(Path(task["json"]), text.encode())
    except init.StoppedBySignal as stopped:
        return stopped.exit_status
    return 0


def _fabric(domains: int, rails: int) -> dict[str, Any]:
    return {"kind": "rail-only", "domains": domains, "rails": rails}


@app.command()
def build_fabric(
    domains: Annotated[int, typer.Option(help="HB domains.")] = 16,
    rails: Annotated[int, typer.Option(help="GPUs in each.")] = 8,
    repeats: Annotated[int, typer.Option(help="How often each builds and takes down.")] = 3,
    only: Annotated[str, typer.Option(help=f"Time one builder alone: {', '.join(BUILDERS)}.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this new file.")] = None,
) -> None:
    """Build a rail-only fabric with Railyard and with stock Mininet, in turns, and compare."""
    parse_fabric(_fabric(domains, rails))
    if repeats < 1:
        raise BadInput("--repeats", repeats, "must be 1 or more")
    if only and only not in BUILDERS:
        raise BadInput("--only", only, f"allowed are {', '.join(BUILDERS)}")
    if json_file:
        _check_new(json_file)
    require(detect())
    file = str(json_file.resolve()) if json_file else ""
    task = {"domains": domains, "rails": rails, "repeats": repeats, "json": file}
    task["builders"] = [only] if only else list(BUILDERS)
    visible = [json_file.resolve().parent] if json_file else []
    again = [sys.executable, "-m", "benchmarks.build_fabric", *sys.argv[1:]]
    raise typer.Exit(launcher.enter(again, task, visible=visible))


def _check_new(file: Path) -> None:
    """BadInput if the file can't be written there."""
    for path in (file, file.resolve().parent):
        check_visible("--json", path)
    if file.exists():
        raise BadInput("--json", str(file), "is there already: name a new file")
    if not file.resolve().parent.is_dir():
        raise BadInput("--json", str(file), "must be in a folder that exists")


def main(arguments: Sequence[str] | None = None) -> int:
    return run_benchmark(app, arguments, run_in_sandbox)


if __name__ == "__main__":
    sys.exit(main())
