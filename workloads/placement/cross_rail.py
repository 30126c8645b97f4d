"""Which process groups need traffic between rails, for a layout as good or bad as it may be. Decides nothing else.

Two GPUs in different HB domains and on different rails have no way to each other in a rail-only network but forwarding
(Rail-only section IV-B). A group in one domain, on one rail, or that is a grid, needs none: its collectives are
hierarchical (section III-B).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from railyard.topologies.addresses import Gpu
from railyard.topologies.nics import RailOfRank
from railyard.workloads.placement.layout import Layout, Numbers, grids
from railyard.workloads.schedule import Schedule

MAX_LISTED: Final = 4  # pairs and rails that a finding names


@dataclass(frozen=True, slots=True)
class Finding:
    """A group that needs traffic between rails: its members, and why. `ranks[i]` is on `gpus[i]`."""

    kind: str
    group: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    reason: str


def lint(layout: Layout) -> tuple[Finding, ...]:
    """Return what crosses rails."""
    p = layout.parallelism
    findings = list(_group_findings("TP", layout.tensor_groups, "stage {}, replica {}", p.data, layout))
    findings += _group_findings("DP", layout.data_groups, "stage {}, tensor rank {}", p.tensor, layout)
    findings += _boundary_findings(layout)
    if p.expert > 1:
        findings += _expert_findings(layout)
    return tuple(findings)


def _expert_findings(layout: Layout) -> Iterator[Finding]:
    """A finding for each group of experts whose all-to-all crosses rails."""
    for number, group in enumerate(layout.expert_groups):
        crossing = crosses(group[:, None], group[None, :], layout.rails)
        if crossing.any():
            count = f"{int(crossing.sum()):,} of {group.size * (group.size - 1):,} pairs of its all-to-all"
            forwarding = "on rail-only these are forwarded in HB domains (two-phase, Eq. 3)"
            reason = f"{count} change domain and rail; {forwarding}"
            yield _finding("EP", f"experts' group {number}", group, reason, layout)


def lint_schedule(schedule: Schedule, nics: RailOfRank = ()) -> tuple[Finding, ...]:
    """Steps of a schedule whose transfers cross rails, each once; `ranks` are GPU numbers.

    `nics`: the rail of each rank, where GPUs share NICs.
    """
    rail_of = nics or range(schedule.rails)
    crossing: defaultdict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for _, t in schedule.transfers:
        phase = schedule.phases[t.phase]
        is_one_rail = rail_of[t.src % schedule.rails] == rail_of[t.dst % schedule.rails]
        if crosses(t.src, t.dst, schedule.rails) and not is_one_rail:
            crossing[phase.kind, phase.name].add((t.src, t.dst))
    findings = []
    for (kind, name), pairs in crossing.items():
        gpus = tuple(sorted(set(chain.from_iterable(pairs))))
        names = tuple(Gpu(*divmod(gpu, schedule.rails)).name for gpu in gpus)
        reason = f"{len(pairs):,} of its pairs change domain and rail: {_pair_names(sorted(pairs), schedule.rails)}"
        findings.append(Finding(kind, f"step {name}", gpus, names, reason))
    return tuple(findings)


def crosses(src: Any, dst: Any, rails: int) -> Any:
    """Return whether a pair differs in domain and in rail. For arrays of GPUs, return an array."""
    return (src // rails != dst // rails) & (src % rails != dst % rails)


def _group_findings(kind: str, groups: Numbers, name_format: str, per_stage: int, layout: Layout) -> Iterator[Finding]:
    """A finding for each ring, in the order of ranks, that crosses rails and can't be hierarchical."""
    rails = layout.rails
    grid_starts: set[int] = set()
    for grid_gpus in grids(groups, rails)[0]:
        grid_starts.update(grid_gpus[:, 0, 0].tolist())
    next_gpus = np.roll(groups, -1, axis=1)
    crossing = crosses(groups, next_gpus, rails)
    for row in np.flatnonzero(crossing.any(axis=1)):
        group = groups[row]
        chosen = crossing[row]
        # collectives of a grid are hierarchical: its ring in the order of ranks is not used
        if int(group.min()) not in grid_starts:
            pairs = _pair_names(np.stack((group[chosen], next_gpus[row][chosen]), axis=1).tolist(), rails)
            reason = f"{_grid_mismatch(group, rails)}; its ring changes domain and rail at {pairs}"
            yield _finding(kind, name_format.format(*divmod(int(row), per_stage)), group, reason, layout)


def _boundary_findings(layout: Layout) -> Iterator[Finding]:
    """A finding for each stage boundary that some pipeline crosses on different rails, the way back included."""
    p = layout.parallelism
    stages = layout.pipelines
    boundaries = [(s, s + 1) for s in range(p.pipeline - 1)]
    if p.virtual_stages > 1 and p.pipeline > 1:
        # a micro-batch goes back from the last stage to the first one's next chunk of layers
        boundaries.append((p.pipeline - 1, 0))
    for a, b in boundaries:
        pairs = stages[:, (a, b)]
        pairs = pairs[crosses(pairs[:, 0], pairs[:, 1], layout.rails)]
        if len(pairs):
            count = f"{len(pairs)} of {len(stages)} pipelines change domain and rail"
            return_note = ", back for the next chunk of layers" if b == 0 and a else ""
            reason = f"{count}: {_pair_names(pairs.tolist(), layout.rails)}"
            yield _finding("PP", f"stage {a} to {b}{return_note}", pairs.T.ravel(), reason, layout)


def _finding(kind: str, group: str, gpus: Numbers, reason: str, layout: Layout) -> Finding:
    names = tuple(Gpu(*divmod(int(gpu), layout.rails)).name for gpu in gpus)
    return Finding(kind, group, tuple(layout.rank_of[gpus].tolist()), names, reason)


def _grid_mismatch(group: Numbers, rails: int) -> str:
    """How a group falls short of a grid: with two of its domains that don't match."""
    ranks_by_domain: defaultdict[int, list[int]] = defaultdict(list)
    for gpu in np.sort(group).tolist():
        ranks_by_domain[gpu // rails].append(gpu % rails)
    first, first_ranks = next(iter(ranks_by_domain.items()))
    for domain, ranks in ranks_by_domain.items():
        if ranks != first_ranks:
            return f"on {_rail_names(first_ranks)} in d{first} but on {_rail_names(ranks)} in d{domain}"
    raise AssertionError("in a group that is no grid, two domains differ")


def _rail_names(ranks: Sequence[int]) -> str:
    return _listed([f"rail{rank}" for rank in ranks[:MAX_LISTED]], len(ranks))


def _listed(names: Sequence[str], count: int) -> str:
    text = ", ".join(names)
    if count > len(names):
        text += f" and {count - len(names):,} more"
    return text


def _pair_names(pairs: Sequence[Sequence[int]], rails: int) -> str:
    names: list[str] = []
    for src, dst in pairs[:MAX_LISTED]:
        names.append(f"{Gpu(*divmod(src, rails)).name} to {Gpu(*divmod(dst, rails)).name}")
    return _listed(names, len(pairs))
