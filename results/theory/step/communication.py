"""Time of a step's communication: rings as NCCL runs them, all-to-alls of experts, and transfers between stages."""

from functools import cache
from math import comb

import numpy as np

from railyard.results.theory.iteration.search import divisors
from railyard.results.theory.step.compute import BYTES
from railyard.results.theory.step.hardware import Hardware
from railyard.results.theory.step.strategy import FloatArray, Recipe, Strategies
from railyard.workloads.models.transformer import Transformer


def inside_domain(group: FloatArray, stride: FloatArray, domain_gpus: int) -> FloatArray:
    """Return how many ranks of a group share an HB domain, where neighbours are `stride` GPUs apart.

    The largest divisor of the group's size that fits, so that each domain has as many.
    """
    room = np.maximum(1, domain_gpus // stride)
    inside = np.ones_like(group)
    for size in np.unique(group):
        sizes = np.array(divisors(int(size)), dtype=np.float64)
        chosen = group == size
        inside[chosen] = sizes[np.searchsorted(sizes, room[chosen], side="right") - 1]
    return inside


def ring_s(data_bytes: FloatArray, inside: FloatArray, group: FloatArray, hardware: Hardware) -> FloatArray:
    """Return the time of an AllGather or ReduceScatter in one ring through all ranks, as NCCL runs it.

    data_bytes: the whole gathered data
    inside: ranks in each HB domain. Rings use all NICs of a domain's ranks at once, so a ring over domains is as fast
        as these together, and never faster than HB links. Rail-only Eq. 1 moves less over rails where few ranks share
        a domain, but uses rails and HB links one after the other.
    """
    across = group / inside
    # a ring has as many links between domains as ranks in each, one for each NIC, in both directions
    hb_rate = hardware.hb_rate / (1 + hardware.small_group / inside)
    rate = np.where(across > 1, np.minimum(hb_rate, inside * hardware.rail_rate), hb_rate)
    hops_over_rails = np.where(across > 1, across, 0.0)
    latency_s = (group - 1 - hops_over_rails) * hardware.hb_latency_s + hops_over_rails * hardware.rail_latency_s
    return np.where(group > 1, (group - 1) / group * data_bytes / rate + latency_s, 0.0)


def tensor_collectives(recipe: Recipe) -> int:
    """Return the AllGathers and ReduceScatters of tensor parallelism in a layer.

    4 and 4 (Rail-only Eq. 10; without sequence parallelism AllReduces of as many bytes), 2 and 2 more in a forward pass
    that is done again. The extra AllGathers that sequence parallelism needs in the backward pass always run beside a
    matmul (Korthikanti et al. 2022, section 4.2.2).
    """
    return 12 if recipe.recompute == "full" else 8


def tensor_s(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of all of a micro-batch's tensor-parallel collectives in one stage."""
    return tensor_collectives(recipe) * model.layers / s.pipeline * _tensor_ring_s(model, hardware, s)


def _tensor_ring_s(model: Transformer, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of an AllGather of a micro-batch's activations over tensor-parallel ranks."""
    gathered = BYTES * s.micro_batch * model.sequence / s.context * model.hidden
    inside = inside_domain(s.tensor, np.ones_like(s.tensor), hardware.domain_gpus)
    return ring_s(gathered, inside, s.tensor, hardware)


def context_s(model: Transformer, hardware: Hardware, s: Strategies, attention_s: FloatArray) -> FloatArray:
    """Return the time of a micro-batch's exchange of keys and values that attention doesn't hide, in one stage.

    Ring attention: each rank's keys and values pass all others, and in the backward pass their gradients too.
    """
    widths = sum(kind.layers * (kind.key_width + kind.value_width) for kind in model.layer_kinds)
    passed = BYTES * s.micro_batch * model.sequence / s.context * widths / (s.tensor * s.pipeline)
    leaves = s.tensor * s.context > hardware.domain_gpus
    rate = np.where(leaves, hardware.rail_rate, hardware.hb_rate)
    exchange_s = 3 * (s.context - 1) * passed / rate
    return np.where(s.context > 1, np.maximum(0.0, exchange_s - attention_s), 0.0)


def expert_s(model: Transformer, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of a micro-batch's all-to-alls, in one stage: dispatch and combine, forward and backward.

    In two phases (Rail-only Eq. 3): a token crosses the rails once for each other HB domain that has one of its
    experts, and is copied to its experts there over HB links. Routers that limit a token to some groups of experts
    (DeepSeek-AI 2024, section 2.1.2) limit its domains too.
    """
    if not model.moe_layers:
        return 0 * s.tensor
    copies = max(kind.experts_per_token for kind in model.layer_kinds)
    tokens = s.micro_batch * model.sequence / (s.context * s.tensor)
    inside = inside_domain(s.expert, np.ones_like(s.expert), hardware.domain_gpus)
    domains = s.expert / inside
    groups = (model.expert_groups, model.groups_per_token)
    other_domains = np.array([(count - 1) * domain_share(int(count), copies, *groups) for count in domains])
    token_bytes = BYTES * model.expert_hidden
    rail_s = tokens * token_bytes * other_domains / hardware.rail_rate
    hb_s = tokens * token_bytes * copies * (inside - 1) / inside / hardware.hb_rate
    return np.asarray(4 * model.moe_layers / s.pipeline * (rail_s + hb_s))


@cache
def domain_share(domains: int, copies: int, groups: int, groups_per_token: int) -> float:
    """Return the probability that an HB domain has one of a token's experts, which are drawn at random.

    domains: that the experts are spread over, evenly and in order
    copies: experts of a token
    groups, groups_per_token: groups of experts, and how many of them a token's experts come from
    """
    groups_of_domain = max(1, groups // domains)
    group_share = min(1.0, groups / domains)
    probability = 0.0
    for chosen in range(1, min(groups_of_domain, groups_per_token) + 1):
        ways = comb(groups_of_domain, chosen) * comb(groups - groups_of_domain, groups_per_token - chosen)
        expert_share = min(1.0, chosen * group_share / groups_per_token)
        probability += ways / comb(groups, groups_per_token) * (1 - (1 - expert_share) ** copies)
    return probability


def hop_s(model: Transformer, recipe: Recipe, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of one transfer of a micro-batch's activations between stages: 2 b s h/(t c) bytes.

    Without sequence parallelism each rank needs all of them, and gathers the parts of the other ranks (Narayanan et al.
    2021, section 4.1).
    """
    boundary = BYTES * s.micro_batch * model.sequence / s.context * model.hidden / s.tensor
    leaves = s.tensor * s.replicas * s.pipeline > hardware.domain_gpus
    over_rails = boundary / hardware.rail_rate + hardware.rail_latency_s
    in_domain = boundary / hardware.hb_rate + hardware.hb_latency_s
    transfer_s = np.where(leaves, over_rails, in_domain)
    if not recipe.sequence_parallel:
        transfer_s = transfer_s + _tensor_ring_s(model, hardware, s)
    return np.where(s.pipeline > 1, transfer_s, 0.0)


def data_ring_s(parameters: FloatArray, value_bytes: int, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the time of one AllGather or ReduceScatter of a GPU's parameters outside of experts over its replicas."""
    inside = inside_domain(s.replicas, s.tensor, hardware.domain_gpus)
    return ring_s(value_bytes * parameters, inside, s.replicas, hardware)


def expert_data_ring_s(parameters: FloatArray, value_bytes: int, hardware: Hardware, s: Strategies) -> FloatArray:
    """Return the same of a GPU's experts."""
    inside = inside_domain(s.expert_replicas, s.expert, hardware.domain_gpus)
    return ring_s(value_bytes * parameters, inside, s.expert_replicas, hardware)
