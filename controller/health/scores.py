"""h-scores: the health of each rail, HB domain and the spine layer, by which sources decide (part 1)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

BEST: Final = 100
BLOCKED: Final = 0


@dataclass(frozen=True)
class Scores:
    """Integers from 0 (blocked) to 100 (idle). `rails[g]` is H(rail g) x 100, `domains[d]` H(domain d) x 100.

    `spine`: of the spine layer as a whole; 100 where there is none. `version` grows by one with every change.
    ValueError for a score outside 0 to 100.
    """

    rails: tuple[int, ...]
    domains: tuple[int, ...]
    spine: int = BEST
    version: int = 0

    def __post_init__(self) -> None:
        for score in (*self.rails, *self.domains, self.spine):
            if not BLOCKED <= score <= BEST:
                raise ValueError(f"an h-score is {BLOCKED} to {BEST}, not {score}")

    @cached_property
    def sorted_rails(self) -> tuple[tuple[int, int], ...]:
        """(score, rail), lowest score first: the list that best fit searches (part 2)."""
        return tuple(sorted((score, rail) for rail, score in enumerate(self.rails)))


def idle(domains: int, rails: int) -> Scores:
    """Return the scores before the first report: all idle."""
    return Scores((BEST,) * rails, (BEST,) * domains)
