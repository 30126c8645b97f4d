"""Placement policy `spread`: a GPU of each domain in turn. Source: the cyclic distribution of Slurm's srun."""

from random import Random

from railyard.workloads.placement.policy import PLACEMENT_POLICIES, FreeGpus, JobGrid, PlacementPolicy


@PLACEMENT_POLICIES.register("spread")
class Spread(PlacementPolicy):
    """Deal a job's ranks to the HB domains in turn, so that each has as few of them as may be."""

    def place(self, grid: JobGrid, free: FreeGpus, rng: Random) -> tuple[int, ...] | None:
        """Return the first free GPU of each domain, then the second one, and so on."""
        if len(free.numbers) < grid.gpus:
            return None
        in_turn: list[tuple[int, int, int]] = []
        for domain in range(free.domains):
            for place, number in enumerate(free.in_domain(domain)):
                in_turn.append((place, domain, number))
        return tuple(number for _, _, number in sorted(in_turn)[: grid.gpus])
