"""A placement policy: rectangles from the last rail downwards, so that the first rails stay free for large jobs.

In an experiment's file: `jobs: [{name: small, workload: {...}, domains: 2, rails: 1, placement: high-rails}]`.
"""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("high-rails")
class HighRails(PlacementPolicy):
    """Give a job the same neighbouring rails in each of its domains, the highest that are free."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        for first in range(free.rails - grid.rails, -1, -1):
            gpus: list[int] = []
            for domain in range(free.domains):
                begin = domain * free.rails + first
                row = range(begin, begin + grid.rails)
                if free.numbers.issuperset(row) and len(gpus) < grid.gpus:
                    gpus += row
            if len(gpus) == grid.gpus:
                return tuple(gpus)
        return None
