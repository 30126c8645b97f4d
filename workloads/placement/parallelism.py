"""Parallelism of a training job (tensor t, pipeline p, data d), and where each rank goes on a fabric.

A tensor-parallel group sits in one HB domain; pipeline and data-parallel peers have the same rank in other domains, so
that they talk on one rail (Rail-only section III). Where an HB domain holds several tensor-parallel groups, these are
data-parallel to one another, and DP becomes hierarchical with d = d_h x d_l (Eq. 11). A group that is larger than a
domain fills several: t = t_h x t_l, with t_h all of a domain's GPUs, and its AllGather is hierarchical (Eq. 1).

A job of M domains x K GPUs may run on a fabric that has spares beside it, whole domains or GPUs of each. Schedules are
made for the job's own grid, and relabelled to the places of its GPUs on the fabric (`GpuPlacement`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput
from railyard.workloads.schedule import Grid, Schedule, Task, Transfer

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


@dataclass(frozen=True)
class Placement:
    """A parallelism that fits `domains` HB domains of `rails` GPUs. Make it with `place`, which checks."""

    parallelism: Parallelism
    domains: int
    rails: int

    @property
    def tensor_hb(self) -> int:
        """t_h: GPUs of a tensor-parallel group in each of its HB domains."""
        return min(self.parallelism.tensor, self.rails)

    @property
    def tensor_network(self) -> int:
        """t_l: HB domains of a tensor-parallel group."""
        return self.parallelism.tensor // self.tensor_hb

    @property
    def data_hb(self) -> int:
        """d_h: data-parallel replicas side by side in an HB domain."""
        return self.rails // self.tensor_hb

    @property
    def data_network(self) -> int:
        """d_l: data-parallel replicas in different HB domains."""
        return self.domains // (self.parallelism.pipeline * self.tensor_network)

    def tensor_group(self, stage: int, replica: int) -> tuple[int, ...]:
        """GPU numbers of the tensor-parallel group of a stage; replica r is number r % d_h in its domain(s)."""
        row, column = divmod(replica, self.data_hb)
        domain = (stage * self.data_network + row) * self.tensor_network
        first = domain * self.rails + column * self.parallelism.tensor
        return tuple(range(first, first + self.parallelism.tensor))

    def tensor_grid(self, stage: int, replica: int) -> Grid:
        """The same group as t_l rows (domains) of t_h."""
        group = self.tensor_group(stage, replica)
        return tuple(group[i : i + self.tensor_hb] for i in range(0, len(group), self.tensor_hb))

    def data_grid(self, stage: int, tensor_rank: int) -> Grid:
        """The GPUs that hold the same parameters: d_l rows (domains) of d_h."""
        groups = [self.tensor_group(stage, r)[tensor_rank] for r in range(self.parallelism.data)]
        return tuple(tuple(groups[i : i + self.data_hb]) for i in range(0, len(groups), self.data_hb))


def place(parallelism: Parallelism, domains: int, rails: int, field: str = "parallelism") -> Placement:
    """BadInput, with the field's full name, if the parallelism doesn't fit the fabric or its own batch."""
    p = parallelism
    check_size(p, domains, rails, field)
    if rails % p.tensor and p.tensor % rails:
        allowed = f"must divide the {rails} GPUs of an HB domain, or be a multiple of them"
        raise BadInput(f"{field}.tensor", p.tensor, allowed)
    if domains % p.pipeline:
        raise BadInput(f"{field}.pipeline", p.pipeline, f"must divide the {domains} HB domains")
    check_batch(p, field)
    return Placement(p, domains, rails)


def check_size(p: Parallelism, domains: int, rails: int, field: str = "parallelism") -> None:
    """BadInput unless there is a GPU for each rank, and a rank for each GPU."""
    if p.gpus != domains * rails:
        allowed = (
            f"must be such that tensor * pipeline * data is the fabric's {domains} x {rails} = {domains * rails} GPUs"
        )
        raise BadInput(f"{field}.data", p.data, f"{allowed}, not {p.tensor} * {p.pipeline} * {p.data} = {p.gpus}")


def check_batch(p: Parallelism, field: str = "parallelism") -> None:
    """BadInput unless the global batch makes whole micro-batches, as many as an interleaved schedule needs."""
    if p.global_batch % (p.data * p.micro_batch):
        raise BadInput(
            f"{field}.global_batch",
            p.global_batch,
            f"must be a multiple of data * micro_batch = {p.data * p.micro_batch}",
        )
    if p.virtual_stages > 1 and p.pipeline == 1:
        raise BadInput(f"{field}.virtual_stages", p.virtual_stages, "must be 1 where pipeline is 1")
    if p.virtual_stages > 1 and p.micro_batches % p.pipeline:
        allowed = f"needs a number of micro-batches ({p.micro_batches}) that is a multiple of pipeline ({p.pipeline})"
        raise BadInput(f"{field}.virtual_stages", p.virtual_stages, allowed)


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
        """Return the placement after moves from keys to values. ValueError if a key is empty, or a value taken."""
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
