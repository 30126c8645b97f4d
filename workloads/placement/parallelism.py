"""Parallelism of a training job (tensor t, pipeline p, data d), and the GPUs of a job on a fabric that has spares.

A job of M domains x K GPUs may run on a fabric that has spares beside it, whole domains or GPUs of each. Schedules are
made for the job's own grid, and relabelled to the places of its GPUs on the fabric (`relabelled`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput
from railyard.workloads.schedule import Schedule, Transfer

Count = Annotated[int, Field(ge=1)]


class Parallelism(ConfigModel):
    """Rail-only Table III: t, p, d, b, v, and the global batch in sequences."""

    tensor: Count
    pipeline: Count
    data: Count
    micro_batch: Count
    global_batch: Count
    virtual_stages: Count = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """m: micro-batches that each pipeline takes in an iteration."""
        return self.global_batch // (self.data * self.micro_batch)


def check_parallelism(p: Parallelism, domains: int, rails: int, field: str = "parallelism") -> None:
    """BadInput unless there is a GPU for each rank, a rank for each GPU, and a batch of whole micro-batches.

    An interleaved schedule needs several stages, and a number of micro-batches that is a multiple of these.
    """
    if p.gpus != domains * rails:
        allowed = f"tensor * pipeline * data is the fabric's {domains} x {rails} = {domains * rails} GPUs"
        product = f"{p.tensor} * {p.pipeline} * {p.data} = {p.gpus}"
        raise BadInput(f"{field}.data", p.data, f"must be such that {allowed}, not {product}")
    if p.global_batch % (p.data * p.micro_batch):
        allowed = f"must be a multiple of data * micro_batch = {p.data * p.micro_batch}"
        raise BadInput(f"{field}.global_batch", p.global_batch, allowed)
    if p.virtual_stages > 1 and p.pipeline == 1:
        raise BadInput(f"{field}.virtual_stages", p.virtual_stages, "must be 1 where pipeline is 1")
    if p.virtual_stages > 1 and p.micro_batches % p.pipeline:
        allowed = f"needs a number of micro-batches ({p.micro_batches}) that is a multiple of pipeline ({p.pipeline})"
        raise BadInput(f"{field}.virtual_stages", p.virtual_stages, allowed)


def place_with_spares(job: tuple[int, int], fabric: tuple[int, int]) -> tuple[int, ...]:
    """Return the places (GPU numbers on the fabric) of a job's GPUs: in the fabric's first domains and ranks.

    Job and fabric are (domains, rails). ValueError if it doesn't fit.
    """
    (m, k), (domains, rails) = job, fabric
    if m > domains or k > rails:
        raise ValueError(f"a job of {m} x {k} doesn't fit on {domains} x {rails}")
    return tuple(d * rails + g for d in range(m) for g in range(k))


def relabelled(schedule: Schedule, places: Sequence[int], gpus: int, rails: int) -> Schedule:
    """Return the same tasks on a fabric of `gpus` GPUs, where `places[n]` is the place of the schedule's GPU n."""
    tasks = tuple(
        replace(task, src=places[task.src], dst=places[task.dst])
        if isinstance(task, Transfer)
        else replace(task, gpu=places[task.gpu])
        for task in schedule.tasks
    )
    return replace(schedule, gpus=gpus, rails=rails, tasks=tasks)
