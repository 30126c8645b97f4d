"""The choice of a path: it lives, it is the policy's own while that lives, and there is one wherever one can be."""

from collections import Counter
from itertools import chain, combinations, permutations

import pytest

from railyard.controller.failover.detours import Broken, alternatives, usable
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.plan import Plan
from railyard.topologies.routing import next_hop
from tests.unit.broken_fabrics import Truth, as_reported, double_faults, plan, single_faults
from tests.unit.path_choices import CHOICES, chosen_path, own_path


def crosses(truth: Truth, path: Path, src: Gpu, dst: Gpu) -> bool:
    """Does the network carry this path's step over the NIC network?"""
    if path.kind == "spine":
        return truth.carries(src, dst)
    return truth.carries(Gpu(src.domain, path.rail), Gpu(dst.domain, path.rail))


def check_choices(fabric: Plan, srcs: list[Gpu]) -> int:
    """Compare choose() with graph search over all single and double faults; the number of pairs with no path."""
    spec, without = fabric.spec, 0
    for fault in chain(single_faults(fabric), double_faults(fabric)):
        truth, broken = Truth(fabric, fault), as_reported(fabric, fault)
        for src in srcs:
            for dst in (gpu for gpu in fabric.gpus if gpu.domain != src.domain):
                path = chosen_path(fabric.spec.chosen_policy, src, dst, broken, spec.rails, spec.kind)
                assert (path is not None) == truth.joined(fabric, src, dst), f"{fault}: {src.name} -> {dst.name}"
                without += path is None
                if path is not None:
                    assert crosses(truth, path, src, dst)
                    own = own_path(fabric.spec.chosen_policy, src, dst)
                    assert path == own or not crosses(truth, own, src, dst)
    return without


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize(("domains", "rails"), [(2, 2), (2, 3), (3, 2), (2, 4), (3, 3)])
def test_living_path_is_found_wherever_the_graph_has_a_path(kind: str, policy: str, domains: int, rails: int) -> None:
    fabric = plan(kind, policy, domains, rails)
    without = check_choices(fabric, [gpu for gpu in fabric.gpus if gpu.domain == 0])
    assert without > 0 or rails > 2  # two rails and two faults leave a pair without; so that branch was tried


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize(("domains", "rails"), [(4, 4), (3, 4), (4, 3), (4, 2)])
def test_the_same_in_larger_fabrics_from_two_corners(kind: str, policy: str, domains: int, rails: int) -> None:
    fabric = plan(kind, policy, domains, rails)
    check_choices(fabric, [fabric.gpus[0], fabric.gpus[-1]])


@pytest.mark.parametrize("spines", [1, 3])
def test_one_spine_or_three(spines: int) -> None:
    fabric = plan("rail-optimized", "spine", 2, 3, spines=spines)
    check_choices(fabric, list(fabric.gpus))


def test_ways_round_are_few_hops_first_and_each_rail_once() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 2)
    assert list(alternatives(src, dst, 4, "rail-only")) == [
        Path("rd", 0), Path("dr", 2), Path("drd", 3), Path("drd", 1),
    ]  # fmt: skip
    assert list(alternatives(src, dst, 4, "rail-optimized"))[2] == Path("spine", 0)
    assert [path.rail for path in alternatives(Gpu(0, 1), Gpu(1, 1), 4, "rail-only")] == [3, 2, 0]


def test_detours_of_a_dead_rail_share_the_other_rails() -> None:
    broken = Broken(rails=frozenset({0}))
    paths = [
        chosen_path("dr", Gpu(d, 0), Gpu(e, 0), broken, 4, "rail-only") for d in range(6) for e in range(6) if d != e
    ]
    rails = [path.rail for path in paths if path]
    assert {rail: rails.count(rail) for rail in set(rails)} == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize(("size", "dead"), [((8, 4), 2), ((8, 8), 2), ((8, 8), 3), ((16, 8), 3)])
def test_pairs_of_several_dead_rails_share_the_living_ones(size: tuple[int, int], dead: int) -> None:
    """Of n pairs on k rails no rail has more than a fifth above n / k, and every GPU sends some by another."""
    domains, rails = size
    for gone in combinations(range(rails), dead):
        loads = Counter[int]()
        for rank in gone:
            for d, e in permutations(range(domains), 2):
                path = chosen_path("dr", Gpu(d, rank), Gpu(e, rank), Broken(rails=frozenset(gone)), rails, "rail-only")
                assert path is not None
                loads[path.rail] += 1
        assert len(loads) == rails - dead
        assert max(loads.values()) <= 1.2 * loads.total() / len(loads)


@pytest.mark.parametrize(
    ("path", "hop"),
    [
        (Path("dr", 1), ("hb0", Gpu(0, 1))),
        (Path("rd", 0), ("rail0", Gpu(1, 0))),
        (Path("drd", 2), ("hb0", Gpu(0, 2))),
        (Path("spine", 0), ("rail0", None)),
    ],
)
def test_the_sources_next_hop_makes_the_path(path: Path, hop: tuple[str, Gpu | None]) -> None:
    assert next_hop(path, Gpu(0, 0), Gpu(1, 1)) == hop


@pytest.mark.parametrize(
    ("path", "ports"),
    [
        (Path("spine", 0), set()),
        (Path("dr", 1), {Gpu(0, 0), Gpu(0, 1)}),
        (Path("rd", 0), {Gpu(1, 0), Gpu(1, 1)}),
        (Path("drd", 2), {Gpu(0, 0), Gpu(0, 2), Gpu(1, 2), Gpu(1, 1)}),
    ],
)
def test_path_is_unusable_with_exactly_its_own_dead_hb_ports(path: Path, ports: set[Gpu]) -> None:
    src, dst = Gpu(0, 0), Gpu(1, 1)
    fabric = plan("rail-optimized", "spine", 2, 3)
    for gpu in fabric.gpus:
        assert usable(path, src, dst, Broken(hb=frozenset({gpu})), "rail-optimized") is (gpu not in ports)


def test_dead_hb_port_gives_the_other_order_of_hops() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 1)
    assert chosen_path("dr", src, dst, Broken(hb=frozenset({src})), 3, "rail-only") == Path("rd", 0)
    assert chosen_path("rd", src, dst, Broken(hb=frozenset({dst})), 3, "rail-only") == Path("dr", 1)
    assert chosen_path("dr", src, dst, Broken(hb=frozenset({src, dst})), 3, "rail-only") is None


def test_policies_leave_a_domain_and_a_rail_to_themselves() -> None:
    assert own_path("rd", Gpu(0, 0), Gpu(0, 1)) == Path("d", 0)
    assert own_path("dr", Gpu(0, 0), Gpu(1, 0)) == Path("r", 0)


def test_dead_ends_of_a_path_count_and_dead_bystanders_do_not() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 1)
    for dead, alive in [(Gpu(0, 1), False), (Gpu(1, 1), False), (Gpu(0, 0), True), (Gpu(1, 0), True)]:
        assert usable(Path("dr", 1), src, dst, Broken(links=frozenset({dead})), "rail-only") is alive
