"""How a training job is spread over GPUs (tensor t, pipeline p, data d), and where each rank goes on a fabric.

A tensor-parallel group sits in one HB domain; pipeline and data-parallel peers have the same rank in other domains, so
that they talk on one rail (Rail-only section III). Where an HB domain holds several tensor-parallel groups, these are
data-parallel to one another, and DP becomes hierarchical with d = d_h x d_l (Eq. 11). A group that is larger than a
domain fills several: t = t_h x t_l, with t_h all of a domain's GPUs, and its AllGather is hierarchical (Eq. 1).
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from railyard.core.errors import BadInput
from railyard.topologies.spec import ConfigModel
from railyard.workloads.program import Grid

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
