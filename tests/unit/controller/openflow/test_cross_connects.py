"""Cross-connects of an optical switch: fibres move, and frames pass both ways without a loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.openflow.optical import (
    LinkState,
    after_moves,
    cross_connects,
    find_moved,
    link_state_changes,
)
from railyard.topologies.addresses import NETWORK_PORT_OFFSET

FIBRES = (1, 2, 3, 65)
PORTS = tuple(port for fibre in FIBRES for port in (fibre, fibre + NETWORK_PORT_OFFSET))
STRAIGHT = {fibre: fibre + NETWORK_PORT_OFFSET for fibre in FIBRES}
ROUNDS = 8  # a port's change takes one to reach the other, and one to be answered

moves = st.dictionaries(st.sampled_from(FIBRES), st.sampled_from(sorted(STRAIGHT.values()))).filter(
    lambda m: len(set(m.values())) == len(m)
)


def test_untouched_all_goes_straight_through() -> None:
    assert cross_connects(PORTS, {}) == STRAIGHT
    assert cross_connects([1, 2, 2 + NETWORK_PORT_OFFSET], {}) == {2: 2 + NETWORK_PORT_OFFSET}


def test_fibre_of_a_spare_replaces_the_failed_fibre() -> None:
    place = 2 + NETWORK_PORT_OFFSET
    crossed = cross_connects(PORTS, {3: place})
    assert crossed == {
        1: 1 + NETWORK_PORT_OFFSET,
        3: place,
        65: 65 + NETWORK_PORT_OFFSET,
    }  # fibre 2 and place 3 are dark
    assert STRAIGHT.items() ^ crossed.items() == {(2, place), (3, place), (3, 3 + NETWORK_PORT_OFFSET)}


@given(steps=st.lists(moves, max_size=4))
def test_moves_give_each_network_side_one_fibre_in_the_flows(steps: list[dict[int, int]]) -> None:
    moved: dict[int, int] = {}
    for step in steps:
        moved = after_moves(moved, step)
        crossed = cross_connects(PORTS, moved)
        assert len(set(crossed.values())) == len(crossed)
        assert all(crossed[fibre] == place for fibre, place in step.items())
        both_ways = [*crossed.items(), *((place, fibre) for fibre, place in crossed.items())]
        assert cross_connects(PORTS, find_moved(both_ways)) == crossed
    assert cross_connects(PORTS, after_moves(moved, STRAIGHT)) == STRAIGHT


def test_two_fibres_to_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match="one place"):
        after_moves({}, {1: 2 + NETWORK_PORT_OFFSET, 3: 2 + NETWORK_PORT_OFFSET})


def settle(crossed: dict[int, int], far: dict[int, bool], disabled: set[int]) -> set[int]:
    """The ports that are dark once nothing changes any more. `far`: whether the far end of each port's cable is on."""
    for _ in range(ROUNDS):
        todo = link_state_changes(crossed, lights(far, disabled))
        if not todo:
            return disabled
        disabled = (disabled | {p for p, lit in todo.items() if not lit}) - {p for p, lit in todo.items() if lit}
    raise AssertionError(f"still changing: {todo}")


def lights(far: dict[int, bool], disabled: set[int]) -> dict[int, LinkState]:
    return {port: LinkState(port in disabled, far[port] and port not in disabled) for port in PORTS}


@given(
    start=st.sets(st.sampled_from(PORTS)),
    moved=moves,
    events=st.lists(st.tuples(st.sampled_from(PORTS), st.booleans()), max_size=12),
)
def test_both_sides_of_a_cross_connect_get_one_link_state(
    start: set[int], moved: dict[int, int], events: list[tuple[int, bool]]
) -> None:
    crossed, far, disabled = cross_connects(PORTS, moved), dict.fromkeys(PORTS, True), start
    for port, on in events:
        far[port] = on
        disabled = settle(crossed, far, disabled)
    for port in PORTS:  # all is well again
        far[port] = True
        disabled = settle(crossed, far, disabled)
    disabled = settle(crossed, far, disabled)
    used = {port for pair in crossed.items() for port in pair}
    assert disabled == set(PORTS) - used
    for pair in crossed.items():
        for port, other in (pair, pair[::-1]):
            cut = settle(crossed, {**far, port: False}, disabled)
            assert cut == disabled | {other}  # the other's far end sees no light, and nothing else changes


def test_a_carrier_that_has_not_come_yet_is_no_loss() -> None:
    fibre, place = 1, 1 + NETWORK_PORT_OFFSET
    just_lit = {fibre: LinkState(False, True), place: LinkState(False, False, is_stable=False)}
    assert link_state_changes({fibre: place}, just_lit) == {}
    assert link_state_changes({fibre: place}, {**just_lit, place: LinkState(False, False)}) == {fibre: False}


def test_ports_under_cabling_keep_their_light() -> None:
    assert link_state_changes({}, {1: LinkState(False, True)}) == {}
    assert link_state_changes({}, {1: LinkState(False, True), 1 + NETWORK_PORT_OFFSET: LinkState(True, False)}) == {
        1: False
    }
