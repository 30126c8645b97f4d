"""Placement policy `rail-aligned`: a rectangle of domains and neighbouring rails. Source: Rail-only, section VI."""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("rail-aligned")
class RailAligned(PlacementPolicy):
    """Give a job the same rails in each of its HB domains, so that none of its traffic needs another GPU's links.

    Of the rectangles with a place it takes the one on the lowest rails, in the first domains.
    """

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return the GPUs of the first free rectangle, domain by domain."""
        for first in range(free.rails - grid.rails + 1):
            rows = []
            for domain in range(free.domains):
                row = range(domain * free.rails + first, domain * free.rails + first + grid.rails)
                if free.numbers.issuperset(row):
                    rows.append(row)
            # domains needn't be neighbours: a rail joins all of them alike
            if len(rows) >= grid.domains:
                return tuple(number for row in rows[: grid.domains] for number in row)
        return None
