"""Passes of validation: no link is in two pairs at once, every link is tested twice, and slow partners don't count."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.failure.diagnosis.groups import GpuLink
from railyard.failure.diagnosis.validation import RING, LinkPair, link_ratios, ring_passes, rings, second_tests
from tests.unit.failure.diagnosis.test_groups import plan_of


@given(st.integers(3, 20))
def test_each_link_meets_both_neighbours_once(count: int) -> None:
    ring = [GpuLink("hb", gpu) for gpu in range(count)]
    passes = ring_passes(ring)
    assert len(passes) == 2 + count % 2
    for pairs in passes:
        links = [link for pair in pairs for link in pair]
        assert len(set(links)) == len(links)
    tested = {frozenset(pair) for pairs in passes for pair in pairs}
    assert tested == {frozenset((ring[n], ring[(n + 1) % count])) for n in range(count)}


def test_few_links_of_a_rail_get_partners() -> None:
    plan = plan_of(domains=4, rails=2)
    compared, ring = rings([GpuLink("rail", 7)], plan)
    assert len(ring) == len(compared) == RING
    assert {link.gpu % 2 for link in ring} == {1}
    assert {link.gpu % 2 for link in compared} == {0}


def test_link_is_as_good_as_its_best_pair() -> None:
    a, b, c = (GpuLink("rail", gpu) for gpu in (0, 2, 4))
    ratios = link_ratios({LinkPair(a, b): 2.0, LinkPair(b, c): 1.0, LinkPair(c, a): 2.0})
    assert ratios == {a: 2.0, b: 1.0, c: 1.0}


def test_links_of_a_busy_machine_are_compared_with_each_other() -> None:
    a, b, c = (GpuLink("hb", gpu) for gpu in (0, 1, 2))
    assert link_ratios({LinkPair(a, b): 3.0, LinkPair(b, c): 1.5, LinkPair(c, a): 3.0}) == {a: 2.0, b: 1.0, c: 1.0}
    # of a single pair, nothing else says whether it is slow
    assert link_ratios({LinkPair(a, b): 1.5}) == {a: 1.5, b: 1.5}


def test_several_slow_links_are_tested_again_with_healthy_ones() -> None:
    ratios = {GpuLink("rail", 0): 2.0, GpuLink("rail", 2): 2.0, GpuLink("rail", 4): 1.0, GpuLink("rail", 1): 2.0}
    # the only link of rail 1 has no healthy partner
    passes = second_tests(ratios, 1.07, rails=2)
    healthy = GpuLink("rail", 4)
    assert passes == [[LinkPair(GpuLink("rail", 0), healthy)], [LinkPair(GpuLink("rail", 2), healthy)]]
