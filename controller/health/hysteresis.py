"""Hysteresis and a minimum dwell time before a pair takes a better path, so that routes don't flap. Pure: time is
given.

The papers don't mention it. A path that all pairs leave recovers and attracts them again: without damping, routes
change as often as scores do.
"""

from dataclasses import dataclass
from typing import Final

from railyard.controller.health.decision import path_score
from railyard.controller.health.policy import BEST, BLOCKED, Scores
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import PathKind, Shares

POINT: Final = BEST * BEST  # a point of 100, in the whole millionths of a path's score
FLAP_WINDOW_DWELLS: Final = 4  # dwell times after which a change is no longer soon
MAX_FLAPS: Final = 4
UNCHANGED: Final = -1
HOPS: Final[dict[PathKind, int]] = {"d": 1, "r": 1, "dr": 2, "rd": 2, "spine": 3, "drd": 3}
"""Components crossed: domains, rails, and the spine layer between two rails."""


@dataclass(frozen=True, slots=True)
class Damping:
    """Limits of changes. ValueError if one is negative.

    `margin`: percent by which a score must be better; None for policies that don't decide by scores. `noise`: points of
    100 by which it must be so at least, since one point is a large part of a low score. `dwell_ns`: the least time
    between two changes of one pair.
    """

    margin: int | None = 10
    dwell_ns: int = 200_000_000
    noise: int = 5

    def __post_init__(self) -> None:
        if min(self.margin or 0, self.dwell_ns, self.noise) < 0:
            raise ValueError(f"margin, dwell time and noise must be 0 or more: {self}")


@dataclass(frozen=True, slots=True)
class ActivePaths:
    """The current paths of a pair, since when (monotonic ns), and its number of flaps.

    A flap is a change soon after the one before; each doubles the dwell time. UNCHANGED: no change yet.
    """

    shares: Shares
    since_ns: int
    flaps: int = UNCHANGED

    def dwell_ns(self, damping: Damping) -> int:
        """Return the dwell time, doubled for each flap."""
        return damping.dwell_ns << max(0, self.flaps)


def damp(
    active: ActivePaths | None, target: Shares, src: Gpu, dst: Gpu, scores: Scores, now_ns: int, damping: Damping
) -> ActivePaths:
    """Return the pair's paths from now on: `active` itself, or the policy's choice."""
    if active is None or not active.shares:
        return ActivePaths(target, now_ns)
    if target in ((), active.shares) or now_ns < active.since_ns + active.dwell_ns(damping):
        return active
    if damping.margin is not None and not _is_better(active.shares, target, src, dst, scores, damping):
        return active
    soon = active.flaps > UNCHANGED and now_ns - active.since_ns < FLAP_WINDOW_DWELLS * active.dwell_ns(damping)
    return ActivePaths(target, now_ns, min(active.flaps + 1, MAX_FLAPS) if soon else 0)


def _is_better(old: Shares, new: Shares, src: Gpu, dst: Gpu, scores: Scores, damping: Damping) -> bool:
    """Whether paths are better by margin and noise (of blocked paths, any other is), or no worse and of fewer hops.

    Sets of paths are better if their best path is (spraying sets in) or their worst (a path of the set went bad).
    """
    before = [path_score(share.path, src, dst, scores) for share in old]
    after = [path_score(share.path, src, dst, scores) for share in new]
    margin, noise = damping.margin or 0, damping.noise * POINT

    def better(new_score: int, old_score: int) -> bool:
        return new_score * BEST > old_score * (BEST + margin) and (
            new_score - old_score >= noise or old_score == BLOCKED
        )

    if better(min(after), min(before)) or better(max(after), max(before)):
        return True
    new_hops, old_hops = (max(HOPS[share.path.kind] for share in shares) for shares in (new, old))
    return min(after) >= min(before) and new_hops < old_hops
