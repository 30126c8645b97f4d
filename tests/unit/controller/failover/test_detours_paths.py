"""The choice of a path: it lives, it is the policy's own while that lives, and there is one wherever one can be."""

from collections import Counter
from itertools import combinations, permutations

import pytest

from railyard.controller.failover.detours import Broken, alternatives, usable
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path
from railyard.topologies.routing import next_hop
from tests.unit.broken_fabrics import plan
from tests.unit.path_choices import chosen_path


def test_ways_round_are_few_hops_first_and_each_rail_once() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 2)
    assert list(alternatives(src, dst, 4, "rail-only")) == [
        Path("rd", 0), Path("dr", 2), Path("drd", 3), Path("drd", 1),
    ]  # fmt: skip
    assert list(alternatives(src, dst, 4, "rail-optimized"))[2] == Path("spine", 0)
    assert [path.rail for path in alternatives(Gpu(0, 1), Gpu(1, 1), 4, "rail-only")] == [3, 2, 0]


@pytest.mark.parametrize(("size", "dead"), [((8, 4), 2), ((8, 8), 3)])
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


def test_dead_ends_of_a_path_count_and_dead_bystanders_do_not() -> None:
    src, dst = Gpu(0, 0), Gpu(1, 1)
    for dead, alive in [(Gpu(0, 1), False), (Gpu(1, 1), False), (Gpu(0, 0), True), (Gpu(1, 0), True)]:
        assert usable(Path("dr", 1), src, dst, Broken(links=frozenset({dead})), "rail-only") is alive
