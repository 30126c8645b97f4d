"""Which process groups need traffic between rails, for a layout as good or bad as it may be. Decides nothing else.

Two GPUs in different HB domains and on different rails have no way to each other in a rail-only network but forwarding
(Rail-only section IV-B). A group in one domain, on one rail, or that is a grid, needs none: its collectives are
hierarchical (section III-B).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from railyard.topologies.addresses import Gpu
from railyard.workloads.placement.layout import Layout, Numbers, grids
from railyard.workloads.schedule import Kind, Schedule

SHOWN: Final = 4
"""Pairs and rails that a finding names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A group that needs traffic between rails: who is in it, and why in plain words. `ranks[i]` is on `gpus[i]`."""

    kind: Kind
    group: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    why: str


def lint(layout: Layout, experts: int = 0) -> tuple[Finding, ...]:
    """All that crosses rails. `experts`: ranks that exchange tokens with one another, side by side; 0 for dense."""
    p = layout.parallelism
    found = list(_of_groups("TP", layout.tensor_groups, "stage {}, replica {}", p.data, layout))
    found += _of_groups("DP", layout.data_groups, "stage {}, tensor rank {}", p.tensor, layout)
    found += _of_boundaries(layout)
    if experts > 1:
        found += _of_experts(layout, experts)
    return tuple(found)


def lint_schedule(schedule: Schedule) -> tuple[Finding, ...]:
    """Steps of a schedule whose transfers cross rails, each once; `ranks` are GPU numbers."""
    crossing: defaultdict[tuple[Kind, str], set[tuple[int, int]]] = defaultdict(set)
    for _, t in schedule.transfers:
        phase = schedule.phases[t.phase]
        if crosses(np.array([t.src]), np.array([t.dst]), schedule.rails)[0]:
            crossing[phase.kind, phase.name].add((t.src, t.dst))
    found = []
    for (kind, name), pairs in crossing.items():
        gpus = sorted({gpu for pair in pairs for gpu in pair})
        why = f"{len(pairs):,} of its pairs change domain and rail: {_pairs_of(sorted(pairs), schedule.rails)}"
        names = tuple(_name(gpu, schedule.rails) for gpu in gpus)
        found.append(Finding(kind, f"step {name}", tuple(gpus), names, why))
    return tuple(found)


def crosses(src: Numbers | NDArray[np.int64], dst: Numbers | NDArray[np.int64], rails: int) -> NDArray[np.bool_]:
    """Whether a pair differs in domain and in rail."""
    crossing: NDArray[np.bool_] = (src // rails != dst // rails) & (src % rails != dst % rails)
    return crossing


def _of_groups(kind: Kind, groups: Numbers, words: str, per_stage: int, layout: Layout) -> Iterator[Finding]:
    """A finding for each ring, in the order of ranks, that crosses rails and can't be hierarchical."""
    rails = layout.rails
    grid_starts = {int(start) for boxed in grids(groups, rails)[0] for start in boxed[:, 0, 0]}
    following = np.roll(groups, -1, axis=1)
    crossing = crosses(groups, following, rails)
    for row in np.flatnonzero(crossing.any(axis=1)):
        group = groups[row]
        if int(group.min()) in grid_starts:
            continue
        pairs = [(int(a), int(b)) for a, b in zip(group[crossing[row]], following[row][crossing[row]], strict=True)]
        why = f"{_no_grid(group, rails)}; its ring changes domain and rail at {_pairs_of(pairs, rails)}"
        yield _finding(kind, words.format(*divmod(int(row), per_stage)), group, why, layout)


def _of_boundaries(layout: Layout) -> Iterator[Finding]:
    """A finding for each stage boundary that some pipeline crosses on different rails, the way back included."""
    p, stages = layout.parallelism, layout.pipelines
    boundaries = [(s, s + 1) for s in range(p.pipeline - 1)]
    if p.virtual_stages > 1 and p.pipeline > 1:
        boundaries.append((p.pipeline - 1, 0))
    for a, b in boundaries:
        src, dst = stages[:, a], stages[:, b]
        crossing = crosses(src, dst, layout.rails)
        if crossing.any():
            pairs = [(int(s), int(d)) for s, d in zip(src[crossing], dst[crossing], strict=True)]
            count = f"{len(pairs)} of {len(stages)} pipelines change domain and rail"
            back = ", back for the next chunk of layers" if b == 0 and a else ""
            group = np.concatenate([src[crossing], dst[crossing]])
            why = f"{count}: {_pairs_of(pairs, layout.rails)}"
            yield _finding("PP", f"stage {a} to {b}{back}", group, why, layout)


def _of_experts(layout: Layout, experts: int) -> Iterator[Finding]:
    for number, group in enumerate(layout.gpus.reshape(-1, experts)):
        crossing = crosses(group[:, None], group[None, :], layout.rails)
        if crossing.any():
            count = f"{int(crossing.sum()):,} of {experts * (experts - 1):,} pairs of its all-to-all"
            why = f"{count} change domain and rail; on rail-only these are forwarded in HB domains (two-phase, Eq. 3)"
            yield _finding("EP", f"experts' group {number}", group, why, layout)


def _finding(kind: Kind, group: str, gpus: Numbers, why: str, layout: Layout) -> Finding:
    ranks = tuple(int(rank) for rank in layout.rank_of[gpus])
    return Finding(kind, group, ranks, tuple(_name(int(gpu), layout.rails) for gpu in gpus), why)


def _no_grid(group: Numbers, rails: int) -> str:
    """How a group falls short of a grid: with two of its domains that don't match."""
    held: defaultdict[int, list[int]] = defaultdict(list)
    for gpu in sorted(int(n) for n in group):
        held[gpu // rails].append(gpu % rails)
    (first, its), *others = held.items()
    other, theirs = next((d, ranks) for d, ranks in others if ranks != its)
    return f"on {_listed(its)} in d{first} but on {_listed(theirs)} in d{other}"


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(f"rail{rank}" for rank in ranks[:SHOWN])
    return shown if len(ranks) <= SHOWN else f"{shown} and {len(ranks) - SHOWN} more"


def _pairs_of(pairs: list[tuple[int, int]], rails: int) -> str:
    shown = ", ".join(f"{_name(a, rails)} to {_name(b, rails)}" for a, b in pairs[:SHOWN])
    return shown if len(pairs) <= SHOWN else f"{shown} and {len(pairs) - SHOWN:,} more"


def _name(gpu: int, rails: int) -> str:
    return Gpu(*divmod(gpu, rails)).name
