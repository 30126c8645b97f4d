"""First routes of an experiment whose routes are steered: background, scores, and the paths that policies choose."""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from rich.console import Console

from railyard.core.units import format_time
from railyard.experiments.measures.steering.expected_times import InitialState, initial_states
from railyard.experiments.measures.steering.spec import grid_of
from railyard.experiments.options import plain_table
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.format import NOTHING
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Shares
from railyard.workloads.background.spec import BackgroundSpec

PAIRS_SHOWN: Final = 4


def print_first_routes(spec: ExperimentSpec, console: Console) -> None:
    """Print for each workload on each fabric its background, its scores and each policy's first paths.

    With the first seed; of the scenes of a grid the last, which has most load.
    """
    grid = grid_of(spec)
    last_of_workload: dict[tuple[str, str], tuple[str, InitialState]] = {}
    for label, name, initial in initial_states(spec, seeds=1):
        last_of_workload[label, initial.workload_label] = (name, initial)
    for (label, _), (name, initial) in last_of_workload.items():
        policies = len(initial.routing.policies)
        runs = f"{policies} policies in turn"
        if policies == 1:
            runs = f"policy {initial.routing.policies[0]}"
        if grid:
            runs += f" in each of {len(grid.on(initial.plan.spec).scenes)} scenes"
        if spec.repeats > 1:
            runs += f", seeds {spec.seed} to {spec.seed + spec.repeats - 1}"
        console.print(f"[bold]{name}[/] on {label}, replayed by {runs}; here with seed {initial.seed}", highlight=False)
        _print_background(initial, console)
        _print_paths(initial, console)
        console.print()


def _print_background(initial: InitialState, console: Console) -> None:
    """Print what is sent beside the workload, and the scores that follow from it."""
    for item in initial.background:
        console.print(f"background: {describe_background(item)}", highlight=False)
    if not initial.background:
        console.print("background: none", highlight=False)
    scores = initial.scores
    summary = f"rails {_score_ranges(scores.rails)}; domains {_score_ranges(scores.domains)}"
    if initial.plan.uplinks:
        summary += f"; spines {scores.spine}"
    console.print(f"scores as it begins: {summary}", highlight=False)


def _print_paths(initial: InitialState, console: Console) -> None:
    """Print the first paths of some pairs by each policy."""
    pairs = [(flow.src, flow.dst) for flow in initial.flows]
    # pairs that change rails have more paths to choose from
    pairs.sort(key=_is_within_rail)
    shown = pairs[:PAIRS_SHOWN]
    titles = [f"{src.name} to {dst.name}" for src, dst in shown]
    table = plain_table("first paths, by rail", *titles)
    for policy in initial.routing.policies:
        chosen = initial.chosen(policy, shown)
        cells = [format_shares(chosen[pair]) for pair in shown]
        table.add_row(policy, *cells)
    console.print(table)
    if len(pairs) > PAIRS_SHOWN:
        console.print(f"and {len(pairs) - PAIRS_SHOWN:,} pairs more", highlight=False)


def _is_within_rail(pair: tuple[Gpu, Gpu]) -> bool:
    src, dst = pair
    return src.rank == dst.rank


def describe_background(item: BackgroundSpec) -> str:
    """Return a background as text: `rails 0, 1 at 90%, from 4s on, for 2s, every 8s`."""
    wave = item.wave
    parts = [f"{item.text} at {100 * item.load:.3g}%"]
    if wave.first:
        parts.append(f"from {format_time(wave.first)} on")
    if wave.lasts is not None:
        parts.append(f"for {format_time(wave.lasts)}")
    if wave.every is not None:
        parts.append(f"every {format_time(wave.every)}")
    return ", ".join(parts)


def _score_ranges(scores: Sequence[int]) -> str:
    """Return equal neighbours as one range: (10, 10, 100) -> `0 to 1: 10, 2: 100`."""
    ranges: list[str] = []
    first = 0
    for score, group in groupby(scores):
        last = first + len(list(group)) - 1
        elements = f"{first} to {last}"
        if first == last:
            elements = str(first)
        ranges.append(f"{elements}: {score}")
        first = last + 1
    return ", ".join(ranges)


def format_shares(shares: Shares) -> str:
    """Return the paths of a pair as text: `drd 4, 5, 6`; `dr 1, rd 0`."""
    parts: list[str] = []
    for kind, shares_of_kind in groupby(shares, key=attrgetter("path.kind")):
        rails = [str(share.path.rail) for share in shares_of_kind]
        parts.append(f"{kind} {', '.join(rails)}")
    return ", ".join(parts) or NOTHING
