"""Bytes between every two GPUs in one iteration, by kind, counted from the model and its layout: no schedule needed.

Sparse and vectorised, so that clusters of tens of thousands of GPUs take seconds. All in 16 bits. Rings follow the
order of a group; where a group spans HB domains and is a grid, they run on each rail and in each domain (Rail-only
Eq. 1). An even all-to-all is kept as its groups and the bytes of one pair. Units: bytes, as floats, since a ring's
share of a buffer need not be whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from railyard.workloads.models.catalogue import FP16_BYTES, Dense
from railyard.workloads.models.mixture import Mixture, check_experts
from railyard.workloads.placement.layout import Layout, Numbers, grids

Bytes = NDArray[np.float64]
Scope = Literal["HB domain", "rail", "across rails"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
# pairs that an all-to-all is spelled out to: all of 4,096 GPUs, which takes 0.3 GB
MAX_PAIRS: Final = 2**24


@dataclass(frozen=True, eq=False)
class Pairs:
    """`bytes[i]` go from GPU number `src[i]` to `dst[i]`: each pair is there once, and no GPU with itself."""

    src: Numbers
    dst: Numbers
    bytes: Bytes

    @property
    def count(self) -> int:
        return self.src.size

    @property
    def total(self) -> float:
        """Bytes of all pairs."""
        return float(self.bytes.sum())

    @property
    def bytes_range(self) -> tuple[float, float]:
        """Bytes of the pair that has fewest, and of the one that has most; ValueError if there is none."""
        return float(self.bytes.min()), float(self.bytes.max())

    def where(self, mask: NDArray[np.bool_]) -> "Pairs":
        """Return the pairs of a mask."""
        return Pairs(self.src[mask], self.dst[mask], self.bytes[mask])

    def scaled(self, factor: float) -> "Pairs":
        """Return the same pairs with that many times the bytes."""
        return replace(self, bytes=self.bytes * factor)

    def between_first(self, gpus: int) -> "Pairs":
        """Return the pairs between the first GPUs."""
        return self.where((self.src < gpus) & (self.dst < gpus))

    def at(self, scope: Scope, rails: int) -> "Pairs":
        """Return those in this place, with HB domains of `rails` GPUs."""
        same_domain = self.src // rails == self.dst // rails
        same_rail = self.src % rails == self.dst % rails
        masks = {"HB domain": same_domain, "rail": ~same_domain & same_rail, "across rails": ~same_domain & ~same_rail}
        return self.where(masks[scope])


@dataclass(frozen=True, eq=False)
class Uniform:
    """In each row of `groups`, every GPU sends `bytes_per_pair` bytes to every other.

    `scope` and `rails`: only to those in that place, with HB domains of `rails` GPUs.
    """

    # spelled out only when asked to: among 16,384 GPUs an all-to-all has 268 million pairs
    groups: Numbers
    bytes_per_pair: float
    scope: Scope | None = None
    rails: int = 1

    @cached_property
    def count(self) -> int:
        """Pairs, without spelling them out."""
        rows, n = self.groups.shape
        all_pairs: int = rows * n * (n - 1)
        if self.scope is None:
            return all_pairs
        in_domains = _count_equal_pairs(self.groups // self.rails)
        on_rails = _count_equal_pairs(self.groups % self.rails)
        counts = {"HB domain": in_domains, "rail": on_rails, "across rails": all_pairs - in_domains - on_rails}
        return counts[self.scope]

    @property
    def total(self) -> float:
        """Bytes of all pairs."""
        return self.count * self.bytes_per_pair

    @property
    def bytes_range(self) -> tuple[float, float]:
        """Bytes of every pair, twice."""
        return self.bytes_per_pair, self.bytes_per_pair

    @property
    def src(self) -> Numbers:
        return self.expanded.src

    @property
    def dst(self) -> Numbers:
        return self.expanded.dst

    @property
    def bytes(self) -> Bytes:
        return self.expanded.bytes

    @cached_property
    def expanded(self) -> Pairs:
        """Pair by pair; ValueError above `MAX_PAIRS`."""
        return self._pairs(list(self.groups))

    def scaled(self, factor: float) -> "Uniform":
        """The same pairs with that many times the bytes."""
        return replace(self, bytes_per_pair=self.bytes_per_pair * factor)

    def between_first(self, gpus: int) -> Pairs:
        """Return the pairs between the first GPUs, one by one; ValueError above `MAX_PAIRS`."""
        return self._pairs([row[row < gpus] for row in self.groups])

    def at(self, scope: Scope, rails: int) -> "Uniform":
        """Those in this place, with HB domains of `rails` GPUs."""
        if self.scope is not None:
            raise ValueError(f"these are already only those of one place, {self.scope}")
        return replace(self, scope=scope, rails=rails)

    def _pairs(self, rows: Sequence[Numbers]) -> Pairs:
        pair_count = sum(row.size * (row.size - 1) for row in rows)
        if pair_count > MAX_PAIRS:
            raise ValueError(
                f"{pair_count:,} pairs of an all-to-all are too many to spell out: count and total say as much, "
                f"or ask for those among fewer GPUs; the limit is {MAX_PAIRS:,}"
            )
        src = np.concatenate([np.repeat(row, max(0, row.size - 1)) for row in rows])
        dst = np.concatenate([np.tile(row, (row.size, 1))[~np.eye(row.size, dtype=bool)] for row in rows])
        pairs = Pairs(src, dst, np.full(src.size, self.bytes_per_pair))
        if self.scope is None:
            return pairs
        return pairs.at(self.scope, self.rails)


def _count_equal_pairs(labels: Numbers) -> int:
    """Ordered pairs of different columns that have the same label, in all rows."""
    ordered = np.sort(labels, axis=1)
    starts = np.ones(ordered.shape, dtype=bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    runs = np.diff(np.append(np.flatnonzero(starts), ordered.size)).astype(np.int64)
    return int((runs * (runs - 1)).sum())


@dataclass(frozen=True, eq=False)
class Traffic:
    """The matrix of a cluster of `domains` HB domains of `rails` GPUs, by kind."""

    domains: int
    rails: int
    pairs: Mapping[str, Pairs | Uniform]

    @property
    def gpus(self) -> int:
        return self.domains * self.rails

    @property
    def volumes(self) -> dict[str, float]:
        """Bytes of all GPUs together."""
        return {kind: pairs.total for kind, pairs in self.pairs.items()}

    def at(self, kind: str, scope: Scope) -> Pairs | Uniform:
        """Return the pairs of a kind in one place. Those across rails need spines, or forwarding."""
        return self.pairs[kind].at(scope, self.rails)

    def dense(self, gpus: int) -> Bytes:
        """(gpus, gpus), sender by receiver, of the first GPUs, all kinds together."""
        matrix = np.zeros((gpus, gpus))
        for pairs in self.pairs.values():
            selected = pairs.between_first(gpus)
            np.add.at(matrix, (selected.src, selected.dst), selected.bytes)
        return matrix


def gpt_traffic(model: Dense, layout: Layout) -> Traffic:
    """An iteration of a dense model; embeddings are left out, as in `volumes`."""
    p = layout.parallelism
    if model.layers % p.pipeline:
        raise ValueError(f"{p.pipeline} stages must divide {model.layers} layers")
    # 4 AllGather and 4 ReduceScatter for each layer and micro-batch (Rail-only, appendix B)
    collectives = 8 * model.layers // p.pipeline * p.micro_batches
    gathered = collectives * model.gathered_bytes(p.micro_batch)
    gradients = FP16_BYTES * model.layers * model.layer_parameters / (p.pipeline * p.tensor)
    parts = {
        "TP": _collective_rings(layout.tensor_groups, layout.rails, gathered),
        "PP": _pipeline_transfers(layout, model.gathered_bytes(p.micro_batch) / p.tensor),
        "DP": _collective_rings(layout.data_groups, layout.rails, 2 * gradients),
    }
    pairs_by_kind = {kind: _merged(part, layout) for kind, part in parts.items()}
    return Traffic(layout.domains, layout.rails, pairs_by_kind)


def moe_traffic(model: Mixture, layout: Layout) -> Traffic:
    """A step of a mixture of experts: all-to-all in the layout's expert groups, AllReduce of what is replicated.

    A GPU of a group has `experts` / `expert` of the experts, and each stage of a pipeline as many layers.
    """
    p = layout.parallelism
    check_experts(model, p)
    # of all micro-batches of a replica
    tokens = p.global_batch * model.sequence // (p.data * p.tensor)
    exchanged = model.all_to_alls / p.pipeline * model.exchanged_bytes(tokens) / p.expert
    gpu_experts = model.experts // p.expert
    gpu_static_bytes = FP16_BYTES * model.static_parameters / (p.pipeline * p.tensor)
    gpu_expert_bytes = FP16_BYTES * gpu_experts * model.expert_parameters / p.pipeline
    static = _collective_rings(layout.data_groups, layout.rails, 2 * gpu_static_bytes)
    experts = _collective_rings(layout.expert_copies, layout.rails, 2 * gpu_expert_bytes)
    pairs: dict[str, Pairs | Uniform] = {"EP": Uniform(layout.expert_groups, exchanged)}
    if p.tensor > 1:
        # an AllGather and a ReduceScatter around attention, forward and backward
        gathered = 4 * model.moe_layers / p.pipeline * FP16_BYTES * tokens * p.tensor * model.hidden
        pairs["TP"] = _merged(_collective_rings(layout.tensor_groups, layout.rails, gathered), layout)
    if p.pipeline > 1:
        boundary_bytes = FP16_BYTES * p.micro_batch * model.sequence * model.hidden / p.tensor
        boundaries = _pipeline_transfers(layout, boundary_bytes)
        pairs["PP"] = _merged(boundaries, layout)
    pairs["DP"] = _merged([*static, *experts], layout)
    return Traffic(layout.domains, layout.rails, pairs)


def _rings(groups: Numbers, size: float) -> list[Pairs]:
    """Each of a row sends `size` bytes to the next, and the last to the first."""
    if groups.shape[1] < 2 or not groups.size:
        return []
    return [Pairs(groups.reshape(-1), np.roll(groups, -1, axis=1).reshape(-1), np.full(groups.size, size))]


def _collective_rings(groups: Numbers, rails: int, data_bytes: float) -> list[Pairs]:
    """AllGather, or ReduceScatter, of `data_bytes` in each row: on rails, then in domains (Rail-only Eq. 1).

    A group that is no grid has one ring, in the order of its ranks.
    """
    grid_arrays, irregular_groups = grids(groups, rails)
    n = groups.shape[1]
    rings = _rings(irregular_groups, (n - 1) * data_bytes / n)
    for grid in grid_arrays:
        _, y, x = grid.shape
        rings += _rings(grid.reshape(-1, x), (x - 1) * data_bytes / x)
        rings += _rings(grid.transpose(0, 2, 1).reshape(-1, y), (y - 1) * data_bytes / (x * y))
    return rings


def _pipeline_transfers(layout: Layout, boundary_bytes: float) -> list[Pairs]:
    """Activations to the next stage and gradients back, for each chunk and micro-batch."""
    p = layout.parallelism
    if p.pipeline < 2:
        return []
    stages = layout.pipelines
    # with v chunks a micro-batch passes each boundary v times, and goes v - 1 times from the last stage to the first
    hops = [(stages[:, :-1].ravel(), stages[:, 1:].ravel(), p.virtual_stages)]
    if p.virtual_stages > 1:
        hops.append((stages[:, -1], stages[:, 0], p.virtual_stages - 1))
    transfers = []
    for src, dst, passes in hops:
        size = np.full(src.size, p.micro_batches * passes * boundary_bytes, dtype=float)
        transfers += [Pairs(src, dst, size), Pairs(dst, src, size)]
    return transfers


def _merged(parts: Sequence[Pairs], layout: Layout) -> Pairs:
    """Each pair once, by sender and receiver."""
    n = layout.gpus.size
    if not parts:
        return Pairs(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))
    keys = np.concatenate([part.src.astype(np.int64) * n + part.dst for part in parts])
    unique, pair_index = np.unique(keys, return_inverse=True)
    size = np.bincount(pair_index, weights=np.concatenate([part.bytes for part in parts])).astype(np.float64)
    src, dst = np.divmod(unique, n)
    return Pairs(src.astype(np.int32), dst.astype(np.int32), size)


def shares(volumes: dict[str, float]) -> dict[str, float]:
    """Return each kind's part of the whole."""
    whole = sum(volumes.values())
    return {kind: size / whole for kind, size in volumes.items()}
