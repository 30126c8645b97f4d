"""Placement policy `random`: free GPUs drawn by the seed, as without any topology."""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("random")
class RandomGpus(PlacementPolicy):
    """Draw a job's GPUs, and the order of its ranks on them."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return drawn GPUs."""
        if len(free.numbers) < grid.gpus:
            return None
        return tuple(rng.sample(sorted(free.numbers), grid.gpus))
