"""Placement policy `topology`: as few HB domains as possible, best fit. Source: Slurm's plugin topology/block.

Slurm's blocks are nodes that NVLink joins. It takes the fewest blocks that hold a job, and of these the fullest ones.
"""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("topology")
class FewestDomains(PlacementPolicy):
    """Take the fewest HB domains that have room, and leave empty ones to larger jobs."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return the free GPUs of these domains: the emptiest first, the last one as full as it may be."""
        if len(free.numbers) < grid.gpus:
            return None
        remaining = {domain: free.in_domain(domain) for domain in range(free.domains)}
        gpus: list[int] = []
        while len(gpus) < grid.gpus:
            missing = grid.gpus - len(gpus)
            enough = [domain for domain, numbers in remaining.items() if len(numbers) >= missing]
            if enough:
                # the emptier ones stay for jobs that need a whole domain
                chosen = min(enough, key=lambda domain: len(remaining[domain]))
            else:
                chosen = max(remaining, key=lambda domain: len(remaining[domain]))
            gpus += remaining.pop(chosen)[:missing]
        return tuple(sorted(gpus))
