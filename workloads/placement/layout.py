"""Which GPU is which rank. Ranks are numbered as in Megatron: tensor fastest, then data, then pipeline.

Each dimension has a part inside an HB domain and one across domains: t = t_h t_l, d = d_h d_l, p = p_h p_l (Rail-only
Table III). So a group is a grid of x GPUs in each of y domains, on the same x rails, and its collectives are
hierarchical (section III-B): what leaves a domain stays on its rail. A schedule (`place`) needs tensor-parallel groups
in one HB domain or all of several, and pipeline and data-parallel peers on one rail; tensor-parallel groups of one
domain are data-parallel to one another (Eq. 11).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from railyard.core.config import ConfigModel
from railyard.core.errors import BadInput, nearest_divisors, nearest_multiples
from railyard.workloads.schedule import Grid, Schedule

Count = Annotated[int, Field(ge=1)]


class Parallelism(ConfigModel):
    """Rail-only Table III: t, p, d, b, v, and the global batch in sequences.

    `expert`: GPUs that share out the experts of a mixture: whole tensor-parallel groups of consecutive data ranks.
    """

    tensor: Count
    pipeline: Count
    data: Count
    micro_batch: Count
    global_batch: Count
    virtual_stages: Count = 1
    expert: Count = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def expert_data(self) -> int:
        """Data ranks whose tensor-parallel groups share out the experts; 1 without expert parallelism."""
        return max(1, self.expert // self.tensor)

    @property
    def micro_batches(self) -> int:
        """m: micro-batches that each pipeline takes in an iteration."""
        return self.global_batch // (self.data * self.micro_batch)


def check_parallelism(p: Parallelism, domains: int, rails: int, field: str = "parallelism") -> None:
    """BadInput unless there is a GPU for each rank, a rank for each GPU, and a batch of whole micro-batches.

    An interleaved schedule needs several stages, and a number of micro-batches that is a multiple of these.
    """
    if p.expert > 1 and p.expert % p.tensor:
        allowed = f"must be a multiple of tensor = {p.tensor}: {nearest_multiples(p.expert, p.tensor)}"
        raise BadInput(f"{field}.expert", p.expert, allowed)
    if p.data % p.expert_data:
        replicas = p.tensor * p.data
        allowed = f"must divide tensor * data = {replicas}: {nearest_divisors(p.expert, replicas)}"
        if p.tensor == 1:
            allowed = f"must divide data = {p.data}: {nearest_divisors(p.expert, p.data)}"
        raise BadInput(f"{field}.expert", p.expert, allowed)
    if p.gpus != domains * rails:
        allowed = f"tensor * pipeline * data is domains * rails = {domains} * {rails} = {domains * rails} GPUs"
        product = f"{p.tensor} * {p.pipeline} * {p.data} = {p.gpus}"
        raise BadInput(f"{field}.data", p.data, f"must be such that {allowed}, not {product}")
    if p.global_batch % (p.data * p.micro_batch):
        step = p.data * p.micro_batch
        allowed = f"must be a multiple of data * micro_batch = {step}: {nearest_multiples(p.global_batch, step)}"
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
    job_domains, job_rails = job
    domains, rails = fabric
    if job_domains > domains or job_rails > rails:
        raise ValueError(f"a job of {job_domains} x {job_rails} doesn't fit on {domains} x {rails}")
    return tuple(domain * rails + rank for domain, rank in product(range(job_domains), range(job_rails)))


def relabelled(schedule: Schedule, places: Sequence[int], gpus: int, rails: int) -> Schedule:
    """Return the same tasks on a fabric of `gpus` GPUs, where `places[n]` is the place of the schedule's GPU n."""
    columns = schedule.columns
    new = np.asarray(places, dtype=np.int64)
    tasks = replace(columns, src=new[columns.src], dst=new[columns.dst])
    return replace(schedule, gpus=gpus, rails=rails, tasks=tasks)


Dimension = Literal["tensor", "data", "pipeline"]
DIMENSIONS: Final[tuple[Dimension, ...]] = ("tensor", "data", "pipeline")
Numbers = NDArray[np.int32]


class Split(NamedTuple):
    """A dimension's part inside an HB domain (t_h) and across domains (t_l)."""

    hb: int
    network: int


def splits(parallelism: Parallelism, rails: int) -> dict[Dimension, Split]:
    """Return the split that puts as much tensor parallelism in an HB domain as divides it, then data, then pipeline."""
    # where t p d is a multiple of `rails`, the three fill a domain exactly
    remaining = rails
    result = {}
    for name in DIMENSIONS:
        size = getattr(parallelism, name)
        hb = gcd(size, remaining)
        result[name] = Split(hb, size // hb)
        remaining //= hb
    return result


def expert_split(parallelism: Parallelism, rails: int) -> Split:
    """Return the split of the data ranks of an expert group, which fill what tensor parallelism leaves of a domain."""
    hb = gcd(parallelism.expert_data, rails // splits(parallelism, rails)["tensor"].hb)
    return Split(hb, parallelism.expert_data // hb)


@dataclass(frozen=True, eq=False)
class Layout:
    """`gpus`: the GPU number of each rank, (p, d, t), on HB domains of `rails` GPUs.

    Make it with one of the functions below, which check.
    """

    parallelism: Parallelism
    domains: int
    rails: int
    gpus: Numbers

    @property
    def tensor_groups(self) -> Numbers:
        """(p d, t): each row holds the same layers."""
        return self.gpus.reshape(-1, self.parallelism.tensor)

    @property
    def data_groups(self) -> Numbers:
        """(p t, d): each row holds the same parameters."""
        return self.gpus.transpose(0, 2, 1).reshape(-1, self.parallelism.data)

    @property
    def expert_groups(self) -> Numbers:
        """(p t d/e, e): GPUs of a row exchange tokens; the same column of every row of a stage has the same experts."""
        return self.gpus.reshape(-1, self.parallelism.expert)

    @property
    def expert_copies(self) -> Numbers:
        """(p e, t d/e): GPUs of a row hold the same experts."""
        p = self.parallelism
        by_stage = self.gpus.reshape(p.pipeline, -1, p.expert)
        return np.ascontiguousarray(by_stage.transpose(0, 2, 1)).reshape(-1, by_stage.shape[1])

    @property
    def pipelines(self) -> Numbers:
        """(d t, p): what a row's GPU sends on goes to the next in the row."""
        return self.gpus.transpose(1, 2, 0).reshape(-1, self.parallelism.pipeline)

    @property
    def splits(self) -> dict[Dimension, Split]:
        """The parts of each dimension, where ranks are as `splits` has them."""
        return splits(self.parallelism, self.rails)

    def tensor_grid(self, stage: int, replica: int) -> Grid:
        """A tensor-parallel group that `place` made, as t_l rows (domains) of t_h."""
        return tuple(map(tuple, self.gpus[stage, replica].reshape(-1, self.splits["tensor"].hb).tolist()))

    def data_grid(self, stage: int, tensor_rank: int) -> Grid:
        """GPUs that hold the same parameters, where `place` put them: d_l rows (domains) of d_h."""
        # expert ranks that lie across domains come before the copies within a domain, so ranks aren't in a grid's order
        members = np.sort(self.gpus[stage, :, tensor_rank])
        return tuple(map(tuple, members.reshape(-1, self.splits["data"].hb).tolist()))

    @property
    def rank_of(self) -> Numbers:
        """The rank on each GPU."""
        return np.argsort(self.gpus, axis=None).astype(np.int32)


def place(parallelism: Parallelism, domains: int, rails: int, field: str = "parallelism") -> Layout:
    """The layout of a job whose groups are grids, with all of a stage in domains of its own.

    BadInput, with the field's full name, if the parallelism doesn't fit the fabric or its own batch.
    """
    p = parallelism
    check_parallelism(p, domains, rails, field)
    if rails % p.tensor and p.tensor % rails:
        allowed = f"must divide the {rails} GPUs of an HB domain, or be a multiple of them"
        raise BadInput(f"{field}.tensor", p.tensor, allowed)
    if domains % p.pipeline:
        allowed = f"must divide the {domains} HB domains: {nearest_divisors(p.pipeline, domains)}"
        raise BadInput(f"{field}.pipeline", p.pipeline, allowed)
    return hierarchical(p, domains, rails, field)


def hierarchical(parallelism: Parallelism, domains: int, rails: int, field: str = "parallelism") -> Layout:
    """Return the layout with ranks where `splits` has them."""
    check_parallelism(parallelism, domains, rails, field)
    (t_hb, t_network), (d_hb, d_network), (p_hb, _) = splits(parallelism, rails).values()
    p, d, t = np.ogrid[: parallelism.pipeline, : parallelism.data, : parallelism.tensor]
    # A pipeline that has several stages in each domain turns round at a domain's end, so that a stage and the next are
    # in one domain or on one rail. Only an interleaved pipeline changes rails on its way back to the first stage, where
    # it goes through an odd number of domains (above 1), several stages in each.
    p_in = np.where(p // p_hb % 2, p_hb - 1 - p % p_hb, p % p_hb)
    # expert ranks fill a domain before their copies do: that keeps most of an all-to-all in HB domains
    e_hb, e_network = expert_split(parallelism, rails)
    copy, e = np.divmod(d, parallelism.expert_data)
    copies_hb = d_hb // e_hb
    d_in = e % e_hb + e_hb * (copy % copies_hb)
    d_across = e // e_hb + e_network * (copy // copies_hb)
    local = t % t_hb + t_hb * (d_in + d_hb * p_in)
    domain = t // t_hb + t_network * (d_across + d_network * (p // p_hb))
    return Layout(parallelism, domains, rails, (domain * rails + local).astype(np.int32))


def layout_from_order(
    parallelism: Parallelism, domains: int, rails: int, order: Sequence[Dimension], field: str = "placement"
) -> Layout:
    """GPUs are numbered through, the first dimension of `order` fastest, whatever the size of an HB domain."""
    if sorted(order) != sorted(DIMENSIONS):
        allowed = f"must name each of {', '.join(DIMENSIONS)} once, innermost first"
        raise BadInput(f"{field}.order", list(order), allowed)
    check_parallelism(parallelism, domains, rails, f"{field}.parallelism")
    outermost_first = list(reversed(order))
    numbers = np.arange(parallelism.gpus, dtype=np.int32)
    reshaped = numbers.reshape([getattr(parallelism, name) for name in outermost_first])
    axes = [outermost_first.index(name) for name in reversed(DIMENSIONS)]
    return Layout(parallelism, domains, rails, np.ascontiguousarray(reshaped.transpose(axes)))


def layout_from_ranks(
    parallelism: Parallelism, domains: int, rails: int, ranks: Sequence[int], field: str = "placement"
) -> Layout:
    """Rank i is on GPU number `ranks[i]`."""
    check_parallelism(parallelism, domains, rails, f"{field}.parallelism")
    free = set(range(parallelism.gpus))
    for i, gpu in enumerate(ranks):
        if gpu not in free:
            allowed = f"must be a GPU number from 0 to {parallelism.gpus - 1}, and each must be there once"
            raise BadInput(f"{field}.ranks.{i}", gpu, allowed)
        free.remove(gpu)
    if len(ranks) != parallelism.gpus:
        raise BadInput(f"{field}.ranks", f"{len(ranks)} of them", f"must be {parallelism.gpus}, one for each rank")
    shape = (parallelism.pipeline, parallelism.data, parallelism.tensor)
    return Layout(parallelism, domains, rails, np.asarray(ranks, dtype=np.int32).reshape(shape))


def data_parallel(gpus: int, global_batch: int, rails: int, experts: int = 1) -> Layout:
    """Return the layout of a mixture of experts on all GPUs: rank i on GPU i.

    With fewer experts than GPUs each group has all experts; with more, a GPU has several. BadInput if GPUs would have
    unequal numbers of them.
    """
    size = min(experts, gpus)
    if gpus % size or experts % size:
        raise BadInput("experts", experts, f"must divide the {gpus} GPUs, or be a multiple of them")
    parallelism = Parallelism(tensor=1, pipeline=1, data=gpus, micro_batch=1, global_batch=global_batch, expert=size)
    return hierarchical(parallelism, gpus // rails, rails)


def grids(groups: Numbers, rails: int) -> tuple[list[Numbers], Numbers]:
    """Groups (a row each) that are grids, as arrays (groups, y, x), one for each y; and the others, as they were.

    In a grid, every one of the y domains has GPUs on the same x rails.
    """
    # rails then join all GPUs that domains don't
    ordered = np.sort(groups, axis=1)
    domains = ordered // rails
    spans = 1 + (np.diff(domains, axis=1) != 0).sum(axis=1)
    result = []
    is_irregular = np.ones(len(groups), dtype=bool)
    for y in np.unique(spans):
        chosen = np.flatnonzero(spans == y)
        if groups.shape[1] % y:
            continue
        reshaped = ordered[chosen].reshape(len(chosen), y, -1)
        rows_are_domains = (reshaped // rails == reshaped[:, :, :1] // rails).all(axis=(1, 2))
        columns_are_rails = (reshaped % rails == reshaped[:, :1, :] % rails).all(axis=(1, 2))
        is_grid = rows_are_domains & columns_are_rails
        if is_grid.any():
            result.append(reshaped[is_grid])
            is_irregular[chosen[is_grid]] = False
    return result, groups[is_irregular]
