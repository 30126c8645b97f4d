"""What was measured, turn by turn, and what that says. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Turn:
    """A fabric built and taken down once. `links`, `namespaces`: how many it had.

    `stop_s`: from the call of `stop` until nothing of it is to be seen; `freed_s`: until the kernel has freed it.
    """

    repeat: int
    builder: str
    build_s: float
    stop_s: float
    freed_s: float
    links: int
    namespaces: int


class Spread(NamedTuple):
    """Median, least and most of some seconds."""

    median: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.minimum:.2f}–{self.maximum:.2f})"


def spread(seconds: Sequence[float]) -> Spread:
    return Spread(median(seconds), min(seconds), max(seconds))


class Ratios(NamedTuple):
    """How many times as long another builder took, pair by pair (the turns of one repeat), and the median of that."""

    build: float
    stop: float
    freed: float


def of_builder(turns: Sequence[Turn], builder: str) -> list[Turn]:
    """Its turns, by repeat."""
    return sorted((turn for turn in turns if turn.builder == builder), key=lambda turn: turn.repeat)


def ratios(turns: Sequence[Turn], builder: str, reference: str) -> Ratios:
    """`builder` over `reference`. ValueError if they had not the same repeats."""
    pairs = list(zip(of_builder(turns, builder), of_builder(turns, reference), strict=True))
    if any(a.repeat != b.repeat for a, b in pairs):
        raise ValueError(f"{builder} and {reference} must have had the same repeats")
    return Ratios(
        build=median(a.build_s / b.build_s for a, b in pairs),
        stop=median(a.stop_s / b.stop_s for a, b in pairs),
        freed=median(a.freed_s / b.freed_s for a, b in pairs),
    )
