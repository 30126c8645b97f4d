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

POINT: Final = BEST * BEST
"""A point of 100, in the whole millionths of a path's score."""
FLAP_WINDOW_DWELLS: Final = 4
"""Dwell times after which a change is no longer soon: a choice that follows an alternating load is always late."""
MAX_FLAPS: Final = 4
UNCHANGED: Final = -1
HOPS: Final[dict[PathKind, int]] = {"d": 1, "r": 1, "dr": 2, "rd": 2, "spine": 3, "drd": 3}
"""Components crossed: domains, rails, and the spine layer between two rails."""


@dataclass(frozen=True, slots=True)
class Damping:
    """`margin`: percent by which a score must be better (None: what is wanted is taken, better or not, as for policies
    that go by something else than scores), and `noise` the points of 100 by which it must be so at least: where all
    is nearly full, one point more is a large part and means nothing. `dwell_ns`: the least time between two changes of
    one pair. ValueError if one is negative.
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

    def changed(self, shares: Shares, now_ns: int, damping: Damping) -> "ActivePaths":
        """Other paths from now on."""
        soon = self.flaps > UNCHANGED and now_ns - self.since_ns < FLAP_WINDOW_DWELLS * self.dwell_ns(damping)
        return ActivePaths(shares, now_ns, min(self.flaps + 1, MAX_FLAPS) if soon else 0)


def damp(
    active: ActivePaths | None, target: Shares, src: Gpu, dst: Gpu, scores: Scores, now_ns: int, damping: Damping
) -> ActivePaths:
    """Return the pair's paths from now on: `active` itself, or the policy's choice."""
    if active is None or not active.shares:
        return ActivePaths(target, now_ns)
    if target in ((), active.shares) or now_ns < active.since_ns + active.dwell_ns(damping):
        return active
    is_better = damping.margin is None or _is_better(active.shares, target, src, dst, scores, damping)
    return active.changed(target, now_ns, damping) if is_better else active


def _is_better(old: Shares, new: Shares, src: Gpu, dst: Gpu, scores: Scores, damping: Damping) -> bool:
    """Better by margin and noise (what is blocked is left for anything that isn't), or fewer hops and no worse: the way
    back, once the fabric is idle again.

    Sets of paths are better if their best path is (spraying sets in) or their worst (a path of the set went bad).
    """
    before = [path_score(share.path, src, dst, scores) for share in old]
    after = [path_score(share.path, src, dst, scores) for share in new]
    margin, noise = damping.margin or 0, damping.noise * POINT

    def better(new_score: int, old_score: int) -> bool:
        return new_score * BEST > old_score * (BEST + margin) and (
            new_score - old_score >= noise or old_score == BLOCKED
        )

    if any(better(pick(after), pick(before)) for pick in (min, max)):
        return True
    return min(after) >= min(before) and _max_hops(new) < _max_hops(old)


def _max_hops(shares: Shares) -> int:
    return max(HOPS[share.path.kind] for share in shares)
