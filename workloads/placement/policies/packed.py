"""Placement policy `packed`: the first free GPUs, domain by domain. Source: the block distribution of Slurm's srun."""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("packed")
class Packed(PlacementPolicy):
    """Fill one HB domain after the other, whatever rails are free in each."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return the first free GPUs."""
        if len(free.numbers) < grid.gpus:
            return None
        return tuple(sorted(free.numbers)[: grid.gpus])
