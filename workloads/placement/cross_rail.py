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
from railyard.workloads.schedule import Schedule

MAX_LISTED: Final = 4
"""Pairs and rails that a finding names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A group that needs traffic between rails: its members, and why. `ranks[i]` is on `gpus[i]`."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    reason: str


def lint(layout: Layout, experts: int = 0) -> tuple[Finding, ...]:
    """Return what crosses rails. `experts`: ranks that exchange tokens with one another, side by side; 0: dense."""
    p = layout.parallelism
    found = list(_group_findings("TP", layout.tensor_groups, "stage {}, replica {}", p.data, layout))
    found += _group_findings("DP", layout.data_groups, "stage {}, tensor rank {}", p.tensor, layout)
    found += _boundary_findings(layout)
    if experts > 1:
        found += _expert_findings(layout, experts)
    return tuple(found)


def lint_schedule(schedule: Schedule) -> tuple[Finding, ...]:
    """Steps of a schedule whose transfers cross rails, each once; `ranks` are GPU numbers."""
    crossing: defaultdict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for _, t in schedule.transfers:
        phase = schedule.phases[t.phase]
        if crosses(np.array([t.src]), np.array([t.dst]), schedule.rails)[0]:
            crossing[phase.kind, phase.name].add((t.src, t.dst))
    found = []
    for (kind, name), pairs in crossing.items():
        gpus = sorted({gpu for pair in pairs for gpu in pair})
        reason = f"{len(pairs):,} of its pairs change domain and rail: {_format_pairs(sorted(pairs), schedule.rails)}"
        names = tuple(_name(gpu, schedule.rails) for gpu in gpus)
        found.append(Finding(kind, f"step {name}", tuple(gpus), names, reason))
    return tuple(found)


def crosses(src: Numbers | NDArray[np.int64], dst: Numbers | NDArray[np.int64], rails: int) -> NDArray[np.bool_]:
    """Return which pairs differ in domain and in rail."""
    crossing: NDArray[np.bool_] = (src // rails != dst // rails) & (src % rails != dst % rails)
    return crossing


def _group_findings(kind: str, groups: Numbers, name_format: str, per_stage: int, layout: Layout) -> Iterator[Finding]:
    """A finding for each ring, in the order of ranks, that crosses rails and can't be hierarchical."""
    rails = layout.rails
    grid_starts = {int(start) for grid_gpus in grids(groups, rails)[0] for start in grid_gpus[:, 0, 0]}
    next_gpus = np.roll(groups, -1, axis=1)
    crossing = crosses(groups, next_gpus, rails)
    for row in np.flatnonzero(crossing.any(axis=1)):
        group = groups[row]
        if int(group.min()) in grid_starts:
            continue
        pairs = [(int(a), int(b)) for a, b in zip(group[crossing[row]], next_gpus[row][crossing[row]], strict=True)]
        reason = f"{_grid_mismatch(group, rails)}; its ring changes domain and rail at {_format_pairs(pairs, rails)}"
        yield _finding(kind, name_format.format(*divmod(int(row), per_stage)), group, reason, layout)


def _boundary_findings(layout: Layout) -> Iterator[Finding]:
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
            return_note = ", back for the next chunk of layers" if b == 0 and a else ""
            group = np.concatenate([src[crossing], dst[crossing]])
            reason = f"{count}: {_format_pairs(pairs, layout.rails)}"
            yield _finding("PP", f"stage {a} to {b}{return_note}", group, reason, layout)


def _expert_findings(layout: Layout, experts: int) -> Iterator[Finding]:
    for number, group in enumerate(layout.gpus.reshape(-1, experts)):
        crossing = crosses(group[:, None], group[None, :], layout.rails)
        if crossing.any():
            count = f"{int(crossing.sum()):,} of {experts * (experts - 1):,} pairs of its all-to-all"
            reason = (
                f"{count} change domain and rail; on rail-only these are forwarded in HB domains (two-phase, Eq. 3)"
            )
            yield _finding("EP", f"experts' group {number}", group, reason, layout)


def _finding(kind: str, group: str, gpus: Numbers, reason: str, layout: Layout) -> Finding:
    ranks = tuple(int(rank) for rank in layout.rank_of[gpus])
    return Finding(kind, group, ranks, tuple(_name(int(gpu), layout.rails) for gpu in gpus), reason)


def _grid_mismatch(group: Numbers, rails: int) -> str:
    """How a group falls short of a grid: with two of its domains that don't match."""
    ranks_by_domain: defaultdict[int, list[int]] = defaultdict(list)
    for gpu in sorted(int(n) for n in group):
        ranks_by_domain[gpu // rails].append(gpu % rails)
    (first, first_ranks), *others = ranks_by_domain.items()
    other, other_ranks = next((d, ranks) for d, ranks in others if ranks != first_ranks)
    return f"on {_format_rails(first_ranks)} in d{first} but on {_format_rails(other_ranks)} in d{other}"


def _format_rails(ranks: list[int]) -> str:
    shown = ", ".join(f"rail{rank}" for rank in ranks[:MAX_LISTED])
    return shown if len(ranks) <= MAX_LISTED else f"{shown} and {len(ranks) - MAX_LISTED} more"


def _format_pairs(pairs: list[tuple[int, int]], rails: int) -> str:
    shown = ", ".join(f"{_name(a, rails)} to {_name(b, rails)}" for a, b in pairs[:MAX_LISTED])
    return shown if len(pairs) <= MAX_LISTED else f"{shown} and {len(pairs) - MAX_LISTED:,} more"


def _name(gpu: int, rails: int) -> str:
    return Gpu(*divmod(gpu, rails)).name
