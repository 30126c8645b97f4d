"""Where a job's GPUs are on a larger fabric: schedules are made for the job's own grid, and relabelled to real places.

A job of M domains x K GPUs may run on a fabric that has spares beside it, whole domains or GPUs of each; when one of
its GPUs fails, its rank moves to a spare, and the schedule stays what it was but for the number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from railyard.workloads.schedule import Schedule, Task, Transfer


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """`at[n]` is the number, on a fabric with `rails` GPUs to a domain and `gpus` in all, of the job's GPU n."""

    gpus: int
    rails: int
    at: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.at)) < len(self.at):
            raise ValueError(f"two of the job's GPUs are at one place: {self.at}")
        if not all(0 <= gpu < self.gpus for gpu in self.at):
            raise ValueError(f"places must be 0 to {self.gpus - 1}: {self.at}")

    def with_moves(self, moves: Mapping[int, int]) -> "GpuPlacement":
        """With those at the keys now at the values, which must be free. ValueError too for a key where nobody is."""
        if not moves.keys() <= set(self.at):
            raise ValueError(f"none of the job is at {sorted(moves.keys() - set(self.at))}")
        return replace(self, at=tuple(moves.get(gpu, gpu) for gpu in self.at))


def place_with_spares(job: tuple[int, int], fabric: tuple[int, int]) -> GpuPlacement:
    """A job's (domains, rails) in the first domains and ranks of a fabric's. ValueError if it doesn't fit."""
    (m, k), (domains, rails) = job, fabric
    if m > domains or k > rails:
        raise ValueError(f"a job of {m} x {k} doesn't fit on {domains} x {rails}")
    return GpuPlacement(domains * rails, rails, tuple(d * rails + g for d in range(m) for g in range(k)))


def relabelled(schedule: Schedule, gpu_placement: GpuPlacement) -> Schedule:
    """The same tasks at those places. ValueError unless there is a place for each of the schedule's GPUs."""
    if len(gpu_placement.at) != schedule.gpus:
        raise ValueError(f"{len(gpu_placement.at)} places for {schedule.gpus} GPUs")

    def relabel_task(task: Task) -> Task:
        if isinstance(task, Transfer):
            return replace(task, src=gpu_placement.at[task.src], dst=gpu_placement.at[task.dst])
        return replace(task, gpu=gpu_placement.at[task.gpu])

    tasks = tuple(relabel_task(task) for task in schedule.tasks)
    return replace(schedule, gpus=gpu_placement.gpus, rails=gpu_placement.rails, tasks=tasks)
