"""Forwarding policies: what is derived from a rule agrees with it, and what can't be one is refused."""

import os
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path as File
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.failover.detours import detours
from railyard.core import plugins
from railyard.core.plugins import BadDefinition
from railyard.topologies.addresses import Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS, FabricKind
from railyard.topologies.forwarding import (
    FORWARDING_POLICIES,
    Fabric,
    ForwardingPolicy,
    Path,
    Share,
    Shares,
    hops,
    path_of,
)
from railyard.topologies.plan import Plan, make_plan
from railyard.topologies.policies.spine import Spine
from railyard.topologies.spec import parse_fabric
from tests.unit.broken_fabrics import Truth, as_reported, single_faults
from tests.unit.fake_kernel import FakeKernel
from tests.unit.messages import messages
from tests.unit.path_choices import CHOICES, gpu_hops

EXAMPLES = File(__file__).parents[3] / "docs/examples"
Steps = tuple[tuple[Gpu, Gpu, str], ...]


class Both(ForwardingPolicy):
    """A quarter of the flows by dr, the rest by rd."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Shares:
        return Share(path_of("dr", dst.rank)), Share(path_of("rd", src.rank), 3)


class ThirdRail(ForwardingPolicy):
    """By the rail after the destination's where that is a third one."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        rail = (dst.rank + 1) % fabric.rails
        return path_of("dr", dst.rank) if rail == src.rank else path_of("drd", rail)


@pytest.fixture(scope="module", autouse=True)
def more_policies() -> Iterator[None]:
    """Policies beside the built-in ones: the example plugin, one that spreads, and one by third rails."""
    name = plugins.ENVIRONMENT
    before = os.environ.get(name)
    plugin = plugins.load(EXAMPLES / "split_policy.py")
    FORWARDING_POLICIES.add("both", Both())
    FORWARDING_POLICIES.add("third", ThirdRail())
    yield
    for policy in ("both", "third", "split"):
        FORWARDING_POLICIES.remove(policy)
    del plugins._loaded[plugin.path]
    os.environ.pop(name)
    if before is not None:
        os.environ[name] = before


ALL = [*CHOICES, *((kind, policy) for kind in ("rail-only", "rail-optimized") for policy in ("split", "both", "third"))]


def plan_of(kind: str, policy: str, domains: int, rails: int) -> Plan:
    return make_plan(parse_fabric({"kind": kind, "policy": policy, "domains": domains, "rails": rails}), 10**8)


def steps_of(kernel: FakeKernel, src: Gpu, dst: Gpu) -> Steps | None:
    """The GPU-to-GPU steps that the route tables give."""
    walked = kernel.walk(src, dst)
    if walked is None:
        return None
    stops = [*(hop.gpu for hop in walked), dst]
    return tuple((hop.gpu, stops[n + 1], "hb" if hop.device == "hb0" else "rail") for n, hop in enumerate(walked))


@given(choice=st.sampled_from(ALL), domains=st.integers(2, 4), rails=st.integers(3, 4), flow=st.integers(0, 5))
def test_route_tables_follow_the_policys_rule(choice: tuple[str, str], domains: int, rails: int, flow: int) -> None:
    plan = plan_of(*choice, domains, rails)
    joined = FABRIC_KINDS[choice[0]].joins_rails
    kernel = FakeKernel(plan, lambda a, b: joined or a.rank == b.rank, choice=flow)
    for src, dst in permutations(plan.gpus, 2):
        allowed = {tuple(map(tuple, hops(share.path, src, dst))) for share in plan.spec.paths(src, dst)}
        assert steps_of(kernel, src, dst) in allowed


@given(choice=st.sampled_from(ALL), domains=st.integers(2, 4), rails=st.integers(3, 4))
def test_expected_traffic_follows_the_policys_rule(choice: tuple[str, str], domains: int, rails: int) -> None:
    plan = plan_of(*choice, domains, rails)
    for (i, src), (j, dst) in permutations(enumerate(plan.gpus), 2):
        found = gpu_hops(i, j, rails, plan.spec)
        assert sum(share for share, _ in found) == pytest.approx(1)
        steps = {tuple((plan.gpus[a], plan.gpus[b], side) for a, b, side in path) for _, path in found}
        assert steps == {tuple(map(tuple, hops(share.path, src, dst))) for share in plan.spec.paths(src, dst)}


@pytest.mark.parametrize(("kind", "policy"), ALL[len(CHOICES) :])
def test_failover_of_any_policy_reaches_all_connected_gpus(kind: str, policy: str) -> None:
    plan = plan_of(kind, policy, 3, 4)
    for fault in single_faults(plan):
        truth, found = Truth(plan, fault), detours(plan, as_reported(plan, fault))
        dark = frozenset(gpu for gpu in plan.gpus if any(gpu.name in cable for cable in fault.cables))
        extra = {gpu: list(routes.values()) for gpu, routes in found.items()}
        for flow in range(2):
            kernel = FakeKernel(plan, truth.carries, dark, choice=flow, extra=extra)
            for src, dst in permutations(plan.gpus, 2):
                if src.domain != dst.domain and truth.joined(plan, src, dst):
                    assert kernel.walk(src, dst) is not None, f"{fault}: {src.name} -> {dst.name}"


class NoRule(ForwardingPolicy):
    """Lacks its rule."""


class WrongRail(ForwardingPolicy):
    """Names a rail that a dr path can't cross."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        return Path("dr", src.rank)


class Raises(ForwardingPolicy):
    """Has a slip in its rule."""

    def path(self, src: Gpu, dst: Gpu, fabric: Fabric) -> Path:
        return Path("dr", [0][dst.rank])


class NoUplink(Spine):
    """Numbers an uplink below 0."""

    def uplink(self, rank: int, dst: Gpu, fabric: Fabric) -> int:
        return -1


POLICIES: dict[str, Any] = {
    "negative uplink": NoUplink(),
    "no rule": NoRule(),
    "wrong rail": WrongRail(),
    "rule that raises": Raises(),
    "no policy": object(),
}


class NoPolicy(FabricKind):
    """Lacks its default policy."""


class WrongPolicy(FabricKind):
    """Has no spines for its policy."""

    default_policy = "spine"


KINDS: dict[str, FabricKind] = {"no default policy": NoPolicy(), "default policy that does not fit": WrongPolicy()}


def test_incomplete_definition_is_refused_with_the_reason(data_regression: DataRegressionFixture) -> None:
    raised = messages(lambda policy: FORWARDING_POLICIES.add("mine", policy), POLICIES, BadDefinition)
    raised |= messages(lambda kind: FABRIC_KINDS.add("mine", kind), KINDS, BadDefinition)
    assert "mine" not in FORWARDING_POLICIES
    assert "mine" not in FABRIC_KINDS
    data_regression.check(raised)
