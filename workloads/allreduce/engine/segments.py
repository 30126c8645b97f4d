"""Parts of a buffer: a rail's (pointer, length), and what is left of one. All counts are elements.

Source: Nezha sections 3.2 and 3.4: rails share one buffer, and each is told where to start and how far to go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor

Span = tuple[int, int]
"""(start, end), the end not included."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` elements from `start` on, for `rail`."""

    rail: int
    start: int
    length: int


def split_by_share(length: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole elements by share, `length` in all: rounded down, and what is left to the largest remainders."""
    total = sum(shares)
    if length < 0 or total <= 0 or min(shares) < 0:
        raise ValueError(
            f"length {length}, shares {tuple(shares)}: need length 0 or more, shares 0 or more, one above 0"
        )
    exact = [length * share / total for share in shares]
    counts = [floor(part) for part in exact]
    order = sorted((i for i in range(len(shares)) if shares[i] > 0), key=lambda i: counts[i] - exact[i])
    index = 0
    while (left := length - sum(counts)) != 0:  # float rounding of huge lengths may be off by more than one
        step = 1 if left > 0 else -1
        if counts[order[index]] + step >= 0:
            counts[order[index]] += step
        index = (index + 1) % len(order)
    return tuple(counts)


def partition(length: int, shares: Sequence[float]) -> tuple[Segment, ...]:
    """One segment for each rail that gets an element; of an empty buffer an empty one, for the largest share."""
    if length == 0:
        return (Segment(max(range(len(shares)), key=lambda rail: shares[rail]), 0, 0),)
    segments, start = [], 0
    for rail, count in enumerate(split_by_share(length, shares)):
        if count:
            segments.append(Segment(rail, start, count))
        start += count
    return tuple(segments)


def split_evenly(start: int, length: int, count: int) -> list[Span]:
    """A range in `count` spans of nearly the same length; some are empty where it is short."""
    edges = [start + length * i // count for i in range(count + 1)]
    return list(pairwise(edges))


def pieces(start: int, length: int, longest: int) -> list[Span]:
    """A range in spans of nearly the same length, none above `longest`; of an empty range one empty span."""
    return split_evenly(start, length, max(1, -(-length // longest)))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted, joined where they touch or overlap, empty ones left out."""
    out: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def common(first: Iterable[Span], second: Iterable[Span]) -> list[Span]:
    """What both have."""
    others = merged(second)
    return merged((max(a, c), min(b, d)) for a, b in merged(first) for c, d in others if max(a, c) < min(b, d))


def missing(start: int, end: int, done: Iterable[Span]) -> list[Span]:
    """What of `start` to `end` isn't done."""
    left, at = [], start
    for a, b in merged(done):
        if a > at:
            left.append((at, min(a, end)))
        at = max(at, b)
    return merged([*left, (at, end)])
