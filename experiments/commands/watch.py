"""`watch RUN`: the state of a live run's links on the terminal, as the live page shows it in a browser."""

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from railyard.core.errors import BadInput, RailyardError, print_error
from railyard.core.host import raise_open_file_limit
from railyard.core.installation import PROJECT, module_command
from railyard.core.units import format_rate, format_size
from railyard.experiments import options
from railyard.experiments.commands import ps
from railyard.experiments.live.sampler import LinkSample, Sampler
from railyard.experiments.live_run_options import LiveRunName
from railyard.experiments.options import plain_table
from railyard.topologies.fabric_kinds import Link
from railyard.topologies.plan import read_active_plan

PURPOSE = "Look into a live run"
PERIOD_S: Final = 0.5
BUSIEST: Final = 5  # links that are listed; of those without a carrier, twice as many


def command(
    run: LiveRunName,
    once: Annotated[bool, typer.Option("--once", help="Print one sample, and end.")] = False,
) -> int:
    """Show traffic, queues and dead links of a live run on the terminal; Ctrl-C ends it."""
    chosen, _ = ps.choose_up(run)
    argv = module_command("railyard.experiments.commands.watch", chosen.name, "once" if once else "")
    return ps.run_inside(chosen, argv, {"PYTHONPATH": str(PROJECT)})


def view(title: str, links: Sequence[Link], samples: Sequence[LinkSample]) -> Group:
    """Return a row for each switch and HB domain, the busiest links, and those without a carrier."""
    numbers = ("LINKS UP", "IN", "OUT", "QUEUED", "DROPPED")
    table = plain_table("NODE", *numbers, right=numbers)
    by_node = defaultdict[str, list[tuple[Link, LinkSample]]](list)
    for link, sample in zip(links, samples, strict=True):
        by_node[link.b.node].append((link, sample))
    for node, node_rows in by_node.items():
        up = 0
        into = 0
        out = 0
        queued = 0
        drops = 0
        for link, sample in node_rows:
            up += sample.up
            into += sample.to_network * link.rate_bps
            out += sample.from_network * link.rate_bps
            queued += sample.queue
            drops += sample.drops
        links_up = f"{up} of {len(node_rows)}"
        table.add_row(node, links_up, rate(into // 1000), rate(out // 1000), _size(queued), str(drops))
    both = sorted(zip(links, samples, strict=True), key=lambda pair: -max(pair[1].to_network, pair[1].from_network))
    busy = [f"{name(link)} {max(s.to_network, s.from_network) / 10:.0f}%" for link, s in both[:BUSIEST]]
    dead = [name(link) for link, sample in both if not sample.up]
    return Group(Text(title), table, Text(f"busiest: {', '.join(busy)}"), Text(_carrier_text(dead)))


def _carrier_text(dead: Sequence[str]) -> str:
    """Return which links have no carrier."""
    if not dead:
        return "all links have a carrier"
    text = f"no carrier: {', '.join(dead[: 2 * BUSIEST])}"
    if len(dead) > 2 * BUSIEST:
        text += f" and {len(dead) - 2 * BUSIEST} more"
    return text


def rate(bps: float) -> str:
    """Return a rate with its unit, 0 without one."""
    if not bps:
        return "0"
    return format_rate(bps, 3)


def _size(count: int) -> str:
    """Return a number of bytes with its unit, 0 without one."""
    if not count:
        return "0"
    return format_size(count, 3)


def name(link: Link) -> str:
    """Return a link's name, as `capture` takes it: `d0g1:rail0`."""
    return f"{link.a.node}:{link.a.interface}"


def main(arguments: Sequence[str], out: Console) -> int:
    """Watch in the sandbox: RUN, and `once` or nothing."""
    run, once = arguments
    plan = read_active_plan()
    if plan is None:
        raise BadInput("RUN", run, ps.NO_FABRIC)
    raise_open_file_limit()
    title = f"{run}: {plan.title.removeprefix('the ')}"
    try:
        sampler = Sampler(plan)
        # a rate needs two samples
        sampler.sample()
        with Live(console=out, auto_refresh=False) as live:
            while True:
                time.sleep(PERIOD_S)
                live.update(view(title, plan.links, sampler.sample()[1]), refresh=True)
                if once:
                    return 0
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        raise RailyardError(f"the fabric went away: {error}") from error


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], options.console()))
    except RailyardError as error:
        sys.exit(print_error(str(error), error.exit_status))
