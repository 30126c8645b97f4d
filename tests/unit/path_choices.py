"""Fabric kinds, their forwarding policies, and the paths that these give, in the form that tests ask for them."""

from functools import cache

from railyard.controller.failover.detours import Broken, choose
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.topologies.forwarding import FORWARDING_POLICIES, Fabric, Path, hops, policy_shares
from railyard.topologies.spec import FabricSpec

JOINING = frozenset(name for name, policy in FORWARDING_POLICIES.items() if policy.forwards_in_domains)
"""Policies that leave no pair without a path."""
POLICIES = {
    name: tuple(policy for policy in kind.policies if policy in JOINING)
    for name, kind in FABRIC_KINDS.items()
    if kind.planes == 1 and kind.policies and not kind.is_graph
}
"""Of the kinds whose GPUs have one rail link to a rail switch: policies that join all pairs."""
CHOICES = [(kind, policy) for kind, policies in POLICIES.items() for policy in policies]


def own_path(policy: str, src: Gpu, dst: Gpu) -> Path:
    """The path of a policy that gives one."""
    (share,) = policy_shares(policy, src, dst, Fabric("rail-only", 8, 8))
    return share.path


def chosen_path(policy: str, src: Gpu, dst: Gpu, broken: Broken, rails: int, kind: str) -> Path | None:
    """The path with a failure; None if there is none."""
    shares = choose(_spec(policy, rails, kind), src, dst, broken)
    return shares[0].path if shares else None


@cache
def _spec(policy: str, rails: int, kind: str) -> FabricSpec:
    return FabricSpec.model_construct(kind=kind, domains=8, rails=rails, policy=policy)


Hops = tuple[tuple[int, int, str], ...]


def gpu_hops(src: int, dst: int, rails: int, fabric: FabricSpec) -> tuple[tuple[float, Hops], ...]:
    """(share of the traffic, hops (from GPU, to GPU, side)) of each path of a pair of GPU numbers."""
    a, b = Gpu(*divmod(src, rails)), Gpu(*divmod(dst, rails))
    shares = policy_shares(fabric.chosen_policy, a, b, Fabric(fabric.kind, fabric.domains, rails))
    total = sum(share.weight for share in shares)
    return tuple(
        (
            share.weight / total,
            tuple(
                (x.domain * rails + x.rank, y.domain * rails + y.rank, side) for x, y, side in hops(share.path, a, b)
            ),
        )
        for share in shares
    )
