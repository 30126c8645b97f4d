"""What `dry-run` says more of an experiment that steers: its background, and where each policy would send at first."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Table

from railyard.core.units import format_time
from railyard.experiments.run.initial_state import InitialState, initial_states
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.views.format import NOTHING
from railyard.topologies.paths import Shares
from railyard.workloads.background.spec import BackgroundSpec

PAIRS: Final = 4
"""Pairs whose paths are shown."""


def show(spec: ExperimentSpec, console: Console) -> None:
    """Print it for each workload on each fabric, with the first seed; nothing if nobody steers.

    Of the scenes of a grid the last, which has most load.
    """
    scenes = len(spec.grid.scenes) if spec.grid else 1
    for label, name, initial in list(initial_states(spec, seeds=1))[scenes - 1 :: scenes]:
        runs = f"{len(initial.routing.policies)} policies in turn"
        runs += f" in each of {scenes} scenes" if spec.grid else ""
        runs += f", seeds {spec.seed} to {spec.seed + spec.repeats - 1}" if spec.repeats > 1 else ""
        console.print(f"[bold]{name}[/] on {label}, replayed by {runs}; here with seed {initial.seed}", highlight=False)
        _state(initial, console)
        _paths(initial, console)
        console.print()


def _state(initial: InitialState, console: Console) -> None:
    """The background, and the scores that should follow from it."""
    for line in [describe_background(item) for item in initial.background] or ["none"]:
        console.print(f"background: {line}", highlight=False)
    scores = initial.scores
    spine = f"; spines {scores.spine}" if initial.plan.uplinks else ""
    summary = f"rails {_score_ranges(scores.rails)}; domains {_score_ranges(scores.domains)}{spine}"
    console.print(f"scores as it begins: {summary}", highlight=False)


def describe_background(item: BackgroundSpec) -> str:
    """`rails 0, 1 at 90%, from 4s on, for 2s, every 8s`."""
    wave = item.wave
    parts = [f"{item.text} at {100 * item.load:.3g}%"]
    parts += [f"from {format_time(wave.first)} on"] if wave.first else []
    parts += [f"for {format_time(wave.lasts)}"] if wave.lasts is not None else []
    parts += [f"every {format_time(wave.every)}"] if wave.every is not None else []
    return ", ".join(parts)


def _score_ranges(scores: Sequence[int]) -> str:
    """(10, 10, 100) -> `0 to 1: 10, 2: 100`."""
    found, at = [], 0
    for score, group in groupby(scores):
        end = at + len(list(group)) - 1
        found.append(f"{at}: {score}" if at == end else f"{at} to {end}: {score}")
        at = end + 1
    return ", ".join(found)


def _paths(initial: InitialState, console: Console) -> None:
    """A line a policy: the paths that it gives some pairs by these scores."""
    pairs = [(flow.src, flow.dst) for flow in initial.flows]
    pairs.sort(key=lambda pair: pair[0].rank == pair[1].rank)  # those with more to choose first
    table = Table(box=None, pad_edge=False)
    table.add_column("first paths, by rail")
    for src, dst in pairs[:PAIRS]:
        table.add_column(f"{src.name} to {dst.name}")
    for policy in initial.routing.policies:
        chosen = initial.chosen(policy)
        table.add_row(policy, *(format_shares(chosen[pair]) for pair in pairs[:PAIRS]))
    console.print(table)
    if len(pairs) > PAIRS:
        console.print(f"and {len(pairs) - PAIRS:,} pairs more", highlight=False)


def format_shares(shares: Shares) -> str:
    """`drd 4, 5, 6`; `dr 1, rd 0`."""
    kinds = groupby((share.path for share in shares), key=lambda path: path.kind)
    return ", ".join(f"{kind} {', '.join(str(path.rail) for path in paths)}" for kind, paths in kinds) or NOTHING
