"""Where a job's GPUs are on a larger fabric: schedules are made for the job's own grid, and relabelled to real places.

A job of M domains x K GPUs may run on a fabric that has spares beside it, whole domains or GPUs of each; when one of
its GPUs fails, its rank moves to a spare, and the schedule stays what it was but for the number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from railyard.workloads.schedule import Schedule, Task, Transfer


@dataclass(frozen=True, slots=True)
class Places:
    """`at[n]` is the number, on a fabric with `rails` GPUs to a domain and `gpus` in all, of the job's GPU n."""

    gpus: int
    rails: int
    at: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.at)) < len(self.at):
            raise ValueError(f"two of the job's GPUs are at one place: {self.at}")
        if not all(0 <= place < self.gpus for place in self.at):
            raise ValueError(f"places must be 0 to {self.gpus - 1}: {self.at}")

    def moved(self, to: Mapping[int, int]) -> "Places":
        """With those at the keys now at the values, which must be free. ValueError too for a key where nobody is."""
        if not to.keys() <= set(self.at):
            raise ValueError(f"none of the job is at {sorted(to.keys() - set(self.at))}")
        return replace(self, at=tuple(to.get(place, place) for place in self.at))


def beside_spares(job: tuple[int, int], fabric: tuple[int, int]) -> Places:
    """A job's (domains, rails) in the first domains and ranks of a fabric's. ValueError if it doesn't fit."""
    (m, k), (domains, rails) = job, fabric
    if m > domains or k > rails:
        raise ValueError(f"a job of {m} x {k} doesn't fit on {domains} x {rails}")
    return Places(domains * rails, rails, tuple(d * rails + g for d in range(m) for g in range(k)))


def placed(schedule: Schedule, places: Places) -> Schedule:
    """The same tasks at those places. ValueError unless there is a place for each of the schedule's GPUs."""
    if len(places.at) != schedule.gpus:
        raise ValueError(f"{len(places.at)} places for {schedule.gpus} GPUs")

    def there(task: Task) -> Task:
        if isinstance(task, Transfer):
            return replace(task, src=places.at[task.src], dst=places.at[task.dst])
        return replace(task, gpu=places.at[task.gpu])

    tasks = tuple(there(task) for task in schedule.tasks)
    return replace(schedule, gpus=places.gpus, rails=places.rails, tasks=tasks)
