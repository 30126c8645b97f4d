"""Heartbeats: silent parts are found, and only those, until they resume."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic_core import to_json

from railyard.controller.failover.heartbeat_detector import HeartbeatDetector, ProbeGroup, SilentComponents
from railyard.controller.processes.messages import SetSilence
from railyard.topologies.addresses import MAX_RAILS, Gpu
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from tests.unit.broken_fabrics import plan

MULTIPLIER = 3


@dataclass(frozen=True)
class Dead:
    """Ways up (from the GPU) and down (to it), whole GPUs, and the switch."""

    up: frozenset[Gpu] = frozenset()
    down: frozenset[Gpu] = frozenset()
    gpus: frozenset[Gpu] = frozenset()
    switch: bool = False

    def passes(self, src: Gpu, dst: Gpu) -> bool:
        return not (self.switch or src in self.up | self.gpus or dst in self.down | self.gpus)

    def expected(self, members: Iterable[Gpu]) -> frozenset[Gpu]:
        """The silent links; all if the switch is dead, or fewer than two links live."""
        everyone = frozenset(members)
        gone = (self.up | self.down | self.gpus) & everyone
        return everyone if self.switch or len(everyone - gone) < 2 else gone


def rank(members: int) -> list[Gpu]:
    return [Gpu(domain, 1) for domain in range(members)]


class Star:
    """A circle whose beats arrive as what is dead lets them."""

    def __init__(self, members: int, multiplier: int = MULTIPLIER) -> None:
        self.members = rank(members)
        self.group = ProbeGroup(self.members, multiplier)
        self.number = 0

    def play(self, rounds: int, dead: Dead) -> list[frozenset[Gpu]]:
        """Return what is silent after each round."""
        seen = []
        for _ in range(rounds):
            self.number += 1
            for src, dst in self.group.begin_round(self.number):
                if dead.passes(src, dst):
                    self.group.receive(self.number, src, dst)
            self.group.evaluate()
            seen.append(self.group.silent)
        return seen


sizes = st.integers(3, 9)


def deaths(members: int) -> st.SearchStrategy[Dead]:
    some = st.frozensets(st.sampled_from(rank(members)))
    return st.builds(Dead, up=some, down=some, gpus=some, switch=st.sampled_from([False, False, False, True]))


@given(data=st.data(), members=sizes, multiplier=st.integers(2, 5), before=st.integers(5, 20))
def test_with_two_living_links_exactly_the_dead_are_found(
    data: st.DataObject, members: int, multiplier: int, before: int
) -> None:
    dead = data.draw(deaths(members).filter(lambda d: d.switch or len(d.expected(rank(members))) < members))
    star = Star(members, multiplier)
    assert not any(star.play(before, Dead()))
    *early, found = star.play(multiplier, dead)
    assert not any(early)
    assert found == dead.expected(star.members)
    assert set(star.play(4 * multiplier, dead)) == {found}


@given(data=st.data(), members=sizes)
def test_any_state_is_found_and_its_repair_too(data: st.DataObject, members: int) -> None:
    star = Star(members)
    for _ in range(data.draw(st.integers(1, 5))):
        dead = data.draw(deaths(members))
        assert star.play(4 * MULTIPLIER, dead)[-1] == dead.expected(star.members)
        assert star.group.is_silent == (dead.expected(star.members) == frozenset(star.members))
    assert not star.play(MULTIPLIER + 1, Dead())[-1]


@given(data=st.data(), members=sizes)
def test_losses_below_the_multiplier_cause_no_alarm(data: st.DataObject, members: int) -> None:
    star = Star(members)
    for _ in range(data.draw(st.integers(1, 4))):
        assert not any(star.play(data.draw(st.integers(1, MULTIPLIER - 1)), data.draw(deaths(members))))
        assert not any(star.play(1, Dead()))


@given(data=st.data(), members=sizes)
def test_a_round_in_turn_proves_nothing(data: st.DataObject, members: int) -> None:
    """Someone is unheard because of its partner of that round alone, and then the switch stalls for a moment."""
    star = Star(members)
    star.play(data.draw(st.integers(3, 12)), Dead())
    one = frozenset({data.draw(st.sampled_from(star.members))})
    dead = data.draw(st.sampled_from([Dead(up=one), Dead(down=one), Dead(gpus=one)]))
    star.play(1, dead)
    assert not any(star.play(MULTIPLIER - 1, Dead(switch=True)))
    assert not any(star.play(10, Dead()))


def test_beats_of_long_ago_prove_no_life() -> None:
    star = Star(4)
    assert star.play(MULTIPLIER, Dead(gpus=frozenset({Gpu(2, 1)})))[-1] == {Gpu(2, 1)}
    for number in range(10, 10 + 2 * MULTIPLIER):
        for src, dst in star.group.begin_round(number):
            star.group.receive(1 if Gpu(2, 1) in (src, dst) else number, src, dst)
        star.group.evaluate()
    assert star.group.silent == {Gpu(2, 1)}


def test_late_beats_count_for_their_round() -> None:
    star = Star(4)
    for number in range(1, 20):
        heartbeats = star.group.begin_round(number)
        star.group.evaluate()  # nothing of this round is there yet
        assert not star.group.silent
        for src, dst in heartbeats:
            star.group.receive(number, src, dst)


@pytest.mark.parametrize("silent", [0, 1, 3])
def test_a_link_carries_two_beats_a_round(silent: int) -> None:
    dead = Dead(up=frozenset(rank(8)[:silent]), down=frozenset(rank(8)[:silent]))
    star = Star(8)
    star.play(10, dead)
    sent = star.group.begin_round(star.number + 1)
    assert len(sent) == 8 + silent  # a silent one is tried from and by a living one, beside the living ones' own
    for gpu in star.members:
        assert {a == gpu for a, _ in sent} == {b == gpu for _, b in sent} == {True, False}


@pytest.mark.parametrize(("members", "multiplier"), [(1, 3), (4, 1)])
def test_too_few_members_or_rounds_are_refused(members: int, multiplier: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        ProbeGroup(rank(members), multiplier)


def watched(
    kind: str,
    domains: int,
    rails: int,
    gpus: Iterable[Gpu] = (),
    links: Iterable[Gpu] = (),
    hb_links: Iterable[Gpu] = (),
    plane_1_links: Iterable[Gpu] = (),
) -> SilentComponents:
    """Return what a fabric's detector finds when these are dead, both ways."""
    detector = HeartbeatDetector(plan(kind, FABRIC_KINDS[kind].default_policy, domains, rails), MULTIPLIER)
    lost, hb_lost = {*gpus, *links}, {*gpus, *hb_links}
    for _ in range(2 * MULTIPLIER):
        number, heartbeats = detector.begin_round()
        for device, pairs in heartbeats.items():
            dead = {"hb0": hb_lost, "rail0": lost}.get(device, {*gpus, *plane_1_links})
            for src, dst in pairs:
                if not {src, dst} & dead:
                    detector.receive(device, number, src, dst)
        found = detector.evaluate()
    return found


def as_received(silent: SilentComponents) -> SilentComponents:
    """Return components that crossed from the heartbeat process to the controller, as JSON and as a message."""
    return SetSilence.model_validate({"silence": json.loads(to_json(asdict(silent)))}).silence


GONE = frozenset({Gpu(1, 2)})
OTHER = frozenset({Gpu(3, 0)})
SERVER = frozenset(Gpu(1, rank) for rank in range(4))
RANK_2 = frozenset(Gpu(domain, 2) for domain in range(4))
ALL_GPUS = frozenset(Gpu(domain, rank) for domain in range(2) for rank in range(2))
Silent = SilentComponents


@pytest.mark.parametrize(
    ("kind", "domains", "rails", "dead", "expected"),
    [
        ("rail-only", 4, 4, {"gpus": GONE}, Silent(links=GONE, gpus=GONE, hb_links=GONE)),
        ("rail-only", 4, 4, {"links": GONE}, Silent(links=GONE)),
        ("rail-only", 4, 4, {"hb_links": GONE}, Silent(hb_links=GONE)),
        # with two domains a silent GPU is not taken for its rail
        ("rail-only", 2, 4, {"gpus": GONE}, Silent(rails=frozenset({2}), gpus=GONE, hb_links=GONE)),
        ("rail-only", 2, 4, {"links": GONE}, Silent(rails=frozenset({2}))),
        # a server that crashes is its GPUs
        ("rail-only", 4, 4, {"gpus": SERVER}, Silent(links=SERVER, gpus=SERVER, hb_domains=frozenset({1}))),
        # on a single switch all GPUs are one group
        ("single-switch", 2, 2, {"links": {Gpu(1, 1)}}, Silent(links=frozenset({Gpu(1, 1)}))),
        ("single-switch", 2, 2, {"links": ALL_GPUS}, Silent(rails=frozenset({0}))),
        ("dual-plane", 4, 4, {"plane_1_links": GONE}, Silent(planes=frozenset({(Gpu(1, 2), 1)}))),
        (
            "dual-plane",
            4,
            4,
            {"links": OTHER, "plane_1_links": GONE},
            Silent(links=OTHER, planes=frozenset({(Gpu(1, 2), 1)})),
        ),
        # a GPU of several planes is silent if all its links are
        (
            "dual-plane",
            4,
            4,
            {"gpus": GONE},
            Silent(links=GONE, gpus=GONE, hb_links=GONE, planes=frozenset({(Gpu(1, 2), 1)})),
        ),
        ("dual-plane", 4, 4, {"links": GONE, "hb_links": GONE}, Silent(links=GONE, hb_links=GONE)),
        # a silent plane of a rail is its switch
        ("dual-plane", 4, 4, {"plane_1_links": RANK_2}, Silent(rails=frozenset({MAX_RAILS + 2}))),
    ],
)
def test_dead_components_are_named(
    kind: str, domains: int, rails: int, dead: dict[str, Iterable[Gpu]], expected: SilentComponents
) -> None:
    found = watched(kind, domains, rails, **dead)
    assert found == expected
    assert as_received(found) == found


@given(data=st.data(), domains=st.integers(3, 4), rails=st.integers(3, 4))
def test_silent_gpus_links_and_hb_links_are_distinguished(data: st.DataObject, domains: int, rails: int) -> None:
    """As long as two links of each rail and domain live."""
    some = st.frozensets(st.sampled_from([Gpu(d, g) for d in range(domains) for g in range(rails)]), max_size=4)
    gpus, links, hb_links = data.draw(some), data.draw(some), data.draw(some)
    lost, hb_lost = gpus | links, gpus | hb_links
    crowded = any(sum(gpu.rank == g for gpu in lost) > domains - 2 for g in range(rails))
    assume(not crowded)
    assume(not any(sum(gpu.domain == d for gpu in hb_lost) > rails - 2 for d in range(domains)))
    found = watched("rail-only", domains, rails, gpus, links, hb_links)
    assert found == SilentComponents(links=lost, gpus=lost & hb_lost, hb_links=hb_lost)
    assert as_received(found) == found
