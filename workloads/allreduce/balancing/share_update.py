"""Steps by which the shares of a split come to end together. Nezha section 4.3, Eq. 7 and 8.

Plain descent on the maximum of Eq. 5 would move one rail at a time by a step that fits no other; here each rail's step
is its distance from the common level over its own slope dT/dalpha = S / B, so the shares keep adding up to one, and
where the slopes are right one step is enough.

A slip in the paper: Eq. 8 divides by the nodes less one, which adds up to one only for the rails less one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

MIN_SHARE_CHANGE: Final = 0.01
"""A step that moves no share by more than this part of the buffer is none, and a share that is less is none."""


def spread(seconds: Iterable[float]) -> float:
    """By what part of the slowest the fastest was earlier; 0 for fewer than two."""
    times = list(seconds)
    longest = max(times, default=0.0)
    return (longest - min(times)) / longest if longest > 0 else 0.0


def initial_shares(seconds: Sequence[float]) -> tuple[float, ...]:
    """Eq. 8, from the times that even shares took; N read as the number of rails."""
    total = sum(seconds)
    if len(seconds) == 1 or total <= 0:
        return tuple(1 / len(seconds) for _ in seconds)
    return tuple((total - time) / (total * (len(seconds) - 1)) for time in seconds)


def update_shares(shares: Sequence[float], seconds: Sequence[float], slopes: Sequence[float]) -> tuple[float, ...]:
    """Eq. 7, one step: towards the level at which all rails end together. A rail whose share runs out gets none."""
    weights = [1 / slope for slope in slopes]
    target_s = sum(w * t for w, t in zip(weights, seconds, strict=True)) / sum(weights)
    stepped = [a - (t - target_s) * w for a, t, w in zip(shares, seconds, weights, strict=True)]
    shares_kept = [share if share >= MIN_SHARE_CHANGE else 0.0 for share in stepped]
    return tuple(share / sum(shares_kept) for share in shares_kept)


def slope(share: float, seconds: float, expected: float) -> float:
    """dT/dalpha of a rail, in seconds for the whole buffer: `expected` by its line, but held between a fifth of T/alpha
    and all of it (set-up times are never negative), so that it errs on the slow side."""
    secant = max(seconds, 1e-9) / share
    return min(secant, max(secant / 5, expected))


def without_rail(shares: Sequence[float], index: int) -> tuple[float, ...]:
    """One gets nothing, and the others its share in proportion to theirs."""
    rest = sum(shares) - shares[index]
    return tuple(0.0 if other == index else share / rest for other, share in enumerate(shares))


def max_share_change(shares: Sequence[float], target: Sequence[float]) -> float:
    """The largest of the changes."""
    return max(abs(a - b) for a, b in zip(shares, target, strict=True))
