"""A brain that takes over from one that is gone: it waits for its switches, finds what is in force, and changes what
differs.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.controller.failover.detours import Broken, Detours, changes, detours
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.openflow.app import SwitchEvent
from railyard.topologies.addresses import RAIL_DPID, Gpu
from railyard.topologies.routing import Route
from tests.unit.broken_fabrics import plan
from tests.unit.controller.failover.test_manager import Lab, flat, rail_only

NOTHING = Broken()
DEAD_LINK = Broken(links=frozenset({Gpu(0, 1)}))


def resumed(found: Broken = NOTHING, reroute: bool = True) -> Lab:
    """A lab whose failover manager finds these detours in the kernels, before any event."""
    lab = Lab(rail_only(), reroute)
    left = detours(lab.plan, found)
    lab.router.table = {(gpu, prefix): route for gpu, routes in left.items() for prefix, route in routes.items()}
    lab.manager.resume(left)
    return lab


def test_resume_waits_for_all_switches_and_keeps_right_routes() -> None:
    lab = resumed()
    assert lab.manager.pending == {"rail0", "rail1", "rail2"}
    lab.switch(RAIL_DPID, up=True)
    lab.switch(RAIL_DPID + 1, up=True)
    assert lab.reported == []
    assert lab.manager.pending == {"rail2"}
    lab.switch(RAIL_DPID + 2, up=True)
    assert lab.reported == [("controller-resumed", {"switches": 3})]
    assert not lab.router.calls
    assert lab.manager.pending == set()


def test_resume_keeps_the_detours_of_earlier_faults() -> None:
    lab = resumed(DEAD_LINK)
    lab.up[RAIL_DPID + 1].discard(1)
    lab.connect()
    assert lab.reported == [("controller-resumed", {"switches": 3}), ("port-down", {"switch": "rail1", "port": "d0g1"})]
    assert not lab.router.calls
    lab.port(RAIL_DPID + 1, 1, up=True)
    assert lab.router.table == {}


@pytest.mark.parametrize(
    ("before", "is_cut", "events"),
    [
        (NOTHING, True, ["controller-resumed", "port-down", "decided", "rerouted"]),
        (DEAD_LINK, False, ["controller-resumed", "decided", "rerouted"]),
    ],
)
def test_resume_reroutes_what_changed_in_its_absence(before: Broken, is_cut: bool, events: list[str]) -> None:
    lab = resumed(before)
    if is_cut:
        lab.up[RAIL_DPID + 1].discard(1)
    lab.connect()
    assert lab.whats() == events
    assert lab.router.table == flat(lab)
    assert bool(lab.router.table) == is_cut


def test_late_switch_counts_as_dead_until_connected() -> None:
    lab = resumed()
    lab.switch(RAIL_DPID, up=True)
    lab.switch(RAIL_DPID + 2, up=True)
    lab.manager.finish_resume()
    assert lab.reported[:2] == [("controller-resumed", {"switches": 2}), ("switch-down", {"switch": "rail1"})]
    assert lab.manager.state.broken == Broken(rails=frozenset({1}))
    assert lab.router.table == flat(lab) != {}
    reported = len(lab.reported)
    lab.manager.finish_resume()  # the wait is over: once more is nothing
    assert len(lab.reported) == reported
    lab.switch(RAIL_DPID + 1, up=True)
    assert lab.router.table == {}


def test_last_silence_counts_from_the_start() -> None:
    lab = resumed(Broken(rails=frozenset({1})))
    lab.manager.on_heartbeats(SilentComponents(rails=frozenset({1})))
    lab.connect()
    assert lab.whats() == ["silent", "controller-resumed"]
    assert not lab.router.calls


def test_silence_received_while_resuming_counts() -> None:
    lab = resumed()
    lab.switch(RAIL_DPID + 1, up=True)
    lab.port(RAIL_DPID + 1, 1, up=False)
    lab.switch(RAIL_DPID, up=True)
    lab.switch(RAIL_DPID + 2, up=True)
    lab.switch(RAIL_DPID + 2, up=False)
    lab.switch(RAIL_DPID + 2, up=True)
    assert lab.manager.state.broken == DEAD_LINK
    assert lab.router.table == flat(lab)


def test_reroute_off_changes_nothing() -> None:
    lab = resumed(DEAD_LINK, reroute=False).connect()
    assert lab.whats() == ["controller-resumed"]
    assert not lab.router.calls


def test_another_gpu_in_a_place_gets_its_detours() -> None:
    lab = Lab(rail_only())
    newcomer = Gpu(1, 0)
    lab.manager.on_gpu_replaced(newcomer)
    assert not lab.router.calls, "before the fabric is whole"
    lab.connect()
    lab.port(RAIL_DPID + 1, 1, up=False)
    wanted = dict(lab.router.table)
    lab.router.crash(newcomer)
    lab.router.dead.clear()
    lab.manager.on_gpu_replaced(newcomer)
    assert lab.router.table == wanted
    assert {gpu for gpu, _, _ in lab.router.calls[-1:]} == {newcomer}


links = st.frozensets(st.sampled_from([Gpu(d, g) for d, g in product(range(3), range(3))]), max_size=3)
rails = st.frozensets(st.integers(0, 2), max_size=1)
states = st.builds(Broken, links=links, rails=rails)


@given(before=states, now=states)
def test_resume_changes_only_differing_routes(before: Broken, now: Broken) -> None:
    fabric = plan("rail-only", "dr", 3, 3)
    lab, left, wanted = resumed(before), detours(fabric, before), detours(fabric, now)
    for gpu in now.links:
        lab.up[RAIL_DPID + gpu.rank].discard(gpu.domain + 1)
    for rank in {0, 1, 2} - now.rails:
        lab.manager.on_event(
            SwitchEvent("switch-up", RAIL_DPID + rank, 0, up_ports=frozenset(lab.up[RAIL_DPID + rank]))
        )
    lab.manager.finish_resume()
    assert table_of(lab) == wanted
    assert {gpu: (gone, put) for gpu, gone, put in lab.router.calls} == changes(left, wanted)


def table_of(lab: Lab) -> Detours:
    found: dict[Gpu, dict[str, Route]] = {}
    for (gpu, prefix), route in lab.router.table.items():
        found.setdefault(gpu, {})[prefix] = route
    return found
