"""Placement policies: which free GPUs of a fabric a job gets. Built-in ones are in the folder `policies`.

A job has a grid of its own, rows of GPUs that it takes for HB domains, and rank n of it is on the n-th of the GPUs that
a policy returns. Where the policy puts a row over several HB domains of the fabric, its traffic crosses rails.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

from railyard.core.registry import Registry

MIN_GPUS: Final = 2


@dataclass(frozen=True, slots=True)
class JobGrid:
    """The shape of a job: `domains` rows of `rails` GPUs."""

    domains: int
    rails: int

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.domains * self.rails

    def __str__(self) -> str:
        domains = "domain" if self.domains == 1 else "domains"
        rails = "rail" if self.rails == 1 else "rails"
        return f"{self.domains} {domains} x {self.rails} {rails}"


@dataclass(frozen=True)
class FreeGpus:
    """GPUs, by number, that no job has, of a fabric with so many domains and rails."""

    domains: int
    rails: int
    numbers: frozenset[int]

    def in_domain(self, domain: int) -> tuple[int, ...]:
        """Return the free GPUs of an HB domain, in order."""
        first = domain * self.rails
        return tuple(number for number in range(first, first + self.rails) if number in self.numbers)


class PlacementPolicy:
    """Base of placement policies."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return the GPU of each rank, by number; None if the job has no place.

        `rng`: for what is drawn at random, the same for the same job and seed.
        """
        raise NotImplementedError


def _problems(name: str, policy: PlacementPolicy) -> Iterator[str]:
    """Try the policy on a small fabric of which one GPU is taken."""
    if type(policy).place is PlacementPolicy.place:
        return
    free = FreeGpus(2, 2, frozenset({0, 1, 2}))
    try:
        gpus = policy.place(JobGrid(1, 2), free, Random(0))
    except Exception as error:
        yield f"place(1 x 2) raises {type(error).__name__}: {error}"
        return
    if gpus is not None and (len(set(gpus)) != MIN_GPUS or not free.numbers.issuperset(gpus)):
        yield f"place(1 x 2) gives {gpus!r}: two of the free GPUs 0, 1 and 2 are needed, or None"


PLACEMENT_POLICIES: Final = Registry[PlacementPolicy](
    "placement policy",
    "railyard.workloads.placement.policies",
    PlacementPolicy,
    ["place(grid, free, rng)"],
    _problems,
)


def largest_grid(policy: PlacementPolicy, wanted: JobGrid, free: FreeGpus, seed: int) -> JobGrid | None:
    """Return the largest grid for which a policy has a place, with no more GPUs than wanted; None if there is none."""
    sides = product(range(1, free.domains + 1), range(1, free.rails + 1))
    grids = [JobGrid(domains, rails) for domains, rails in sides]
    most = min(len(free.numbers), wanted.gpus)
    fitting = [grid for grid in grids if MIN_GPUS <= grid.gpus <= most]
    # of equals, the one that is most like what is wanted
    fitting.sort(key=lambda grid: (-grid.gpus, abs(grid.rails - wanted.rails)))
    for grid in fitting:
        if policy.place(grid, free, Random(seed)) is not None:
            return grid
    return None
