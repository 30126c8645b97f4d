"""Fabrics with optical circuit switches: what may be asked for, and each place behind a fibre of its own."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.openflow.optical import network_sides_in
from railyard.controller.processes.clients import ControllerProcess, moves_by_switch
from railyard.failure.faults import Impact, cable
from railyard.failure.oracle.reachability import Survivors
from railyard.topologies.addresses import (
    NETWORK_PORT_OFFSET,
    OPTICAL_DPID,
    Gpu,
    gpu_at,
    gpu_of_optical_port,
    gpu_port,
    network_port,
    role_of,
)
from railyard.topologies.build import shaping
from railyard.topologies.capacity import rails_cores
from railyard.topologies.fabric_kinds import LAYERS, Layer
from railyard.topologies.plan import Plan, make_plan, read_active_plan, write_active_plan
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.background.flows import BackgroundFlow, flows_of, reserved_bps
from railyard.workloads.background.spec import BackgroundSpec
from tests.unit.messages import messages

MBIT = 10**6
LAST_PORT = 0xFEFF
BOTH: tuple[tuple[Layer, ...], ...] = (("rail",), ("hb",), LAYERS)


def plan(kind: str = "rail-only", domains: int = 3, rails: int = 3, layers: tuple[Layer, ...] = ("rail",)) -> Plan:
    spec = {"kind": kind, "domains": domains, "rails": rails, "optical": {"layers": list(layers)}}
    return make_plan(parse_fabric(spec), 100 * MBIT)


plans = st.builds(
    plan, st.sampled_from(["rail-only", "rail-optimized"]), st.integers(2, 6), st.integers(2, 6), st.sampled_from(BOTH)
)


WRONG: dict[str, dict[str, Any]] = {
    "no layers": {"optical": {"layers": []}},
    "unknown layer": {"optical": {"layers": ["spine"]}},
    "layer named twice": {"optical": {"layers": ["hb", "hb"]}},
    "switching in 0.9 ms": {"optical": {"switching_time": "0.9ms"}},
    "switching in 11 s": {"optical": {"switching_time": "11s"}},
    "unknown key": {"optical": {"light": "1s"}},
    "single switch": {"kind": "single-switch", "optical": {}},
    "65 rails": {"rails": 65, "optical": {}},
    "255 domains": {"domains": 255, "optical": {}},
}


def test_bad_input_is_answered_in_one_line(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda changes: parse_fabric({"kind": "rail-only", **changes}), WRONG))


def test_defaults_are_filled_in_and_a_stored_plan_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optical = parse_fabric({"kind": "rail-only", "optical": {}}).optical
    assert optical is not None
    assert (optical.layers, optical.switching_time) == (("rail",), 0.01)
    both = plan(layers=LAYERS)
    monkeypatch.setattr("railyard.topologies.plan.PLAN_FILE", tmp_path / "plan.json")
    write_active_plan(both)
    assert read_active_plan() == both


def optical_of(asked: tuple[Layer, ...], layer: Layer, gpu: Gpu) -> str:
    """The optical switch that the docs give: by domain with layer rail alone, else by layer."""
    if asked == ("rail",):
        return f"ocs{gpu.domain}"
    return "ocs0" if layer == "rail" else "ocs1"


@given(fabric=plans)
def test_fibre_and_trunk_of_each_gpu_reach_its_network_side(fabric: Plan) -> None:
    asked = fabric.spec.optical.layers if fabric.spec.optical else ()
    without = fabric.electrical
    for gpu in fabric.gpus:
        for layer in LAYERS:
            (direct,) = without.cables(gpu, layer)
            own, *rest = fabric.cables(gpu, layer)
            assert [own, *rest][-1].b == direct.b
            assert own.a == direct.a
            assert len(rest) == (layer in asked)
            for trunk in rest:
                assert own.b.node == trunk.a.node == optical_of(asked, layer, gpu)
                assert (own.b.port, trunk.a.port) == (gpu_port(gpu), network_port(gpu))
                assert trunk.rate_bps == own.rate_bps == direct.rate_bps
    used = sorted({optical_of(asked, layer, gpu) for layer in asked for gpu in fabric.gpus})
    optics = [s for s in fabric.switches if s.role == "optical"]
    assert [s.name for s in optics] == used
    assert [s.dpid for s in optics] == [OPTICAL_DPID + int(name.removeprefix("ocs")) for name in used]
    assert all(role_of(s.dpid) == ("optical", s.index) for s in optics)
    assert without.trunks == ()


@given(fabric=plans)
def test_no_end_of_a_cable_is_used_twice(fabric: Plan) -> None:
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    assert len({(end.node, end.interface) for end in ends}) == len(ends)
    ports = [(end.node, end.port) for end in ends if end.port is not None]
    assert len(set(ports)) == len(ports)
    assert all(len(end.interface) <= 15 for end in ends)
    switches = {switch.name for switch in fabric.switches}
    assert all((end.port is not None) == (end.node in switches) for end in ends)


@given(domain=st.integers(0, 253), rank=st.integers(0, 63))
def test_optical_port_gives_its_gpu_and_no_occupant(domain: int, rank: int) -> None:
    gpu = Gpu(domain, rank)
    assert gpu_of_optical_port(gpu_port(gpu)) == gpu_of_optical_port(network_port(gpu)) == gpu
    assert 1 <= gpu_port(gpu) < NETWORK_PORT_OFFSET < network_port(gpu) <= LAST_PORT
    assert gpu_at(0x4001, gpu_port(gpu)) is None
    assert gpu_at(0x4000, network_port(gpu)) is None
    assert (role_of(0x4000), role_of(0x4001)) == (("optical", 0), ("optical", 1))


@given(fabric=plans, data=st.data())
def test_move_is_made_by_the_switch_that_has_both_sides(fabric: Plan, data: st.DataObject) -> None:
    fibre, place = data.draw(st.sampled_from(fabric.gpus)), data.draw(st.sampled_from(fabric.gpus))
    layers = tuple(fabric.optics)
    cables = [(fabric.cables(fibre, layer)[0].b, fabric.cables(place, layer)[1].a) for layer in layers]
    if any(near.node != far.node for near, far in cables):
        assert layers == ("rail",)
        assert fibre.domain != place.domain
        with pytest.raises(ValueError, match=f"at ocs{fibre.domain}, and .* at ocs{place.domain}"):
            moves_by_switch(fabric, {fibre.name: place.name}, layers)
        return
    dpids = {switch.name: switch.dpid for switch in fabric.switches}
    assert moves_by_switch(fabric, {fibre.name: place.name}, layers) == {
        dpids[near.node]: {near.port: far.port} for near, far in cables
    }


def test_network_side_enabled_in_one_layer_counts_as_enabled() -> None:
    left, lit = NETWORK_PORT_OFFSET + 2, NETWORK_PORT_OFFSET + 3
    affected_ports = {OPTICAL_DPID: {2: False, left: False, lit: True}, OPTICAL_DPID + 1: {left: False, lit: False}}
    assert network_sides_in(affected_ports) == {Gpu(0, 1): False, Gpu(0, 2): True}


def test_moves_go_to_their_domains_switches_or_to_each_layers() -> None:
    moves = {"d0g2": "d0g1", "d2g0": "d2g2"}
    by_domain = {OPTICAL_DPID: {3: NETWORK_PORT_OFFSET + 2}, OPTICAL_DPID + 2: {129: NETWORK_PORT_OFFSET + 131}}
    assert moves_by_switch(plan(), moves, ["rail"]) == by_domain
    every = {3: NETWORK_PORT_OFFSET + 2, 129: NETWORK_PORT_OFFSET + 131}
    both = plan(layers=LAYERS)
    assert moves_by_switch(both, moves, LAYERS) == {OPTICAL_DPID: every, OPTICAL_DPID + 1: every}
    assert moves_by_switch(both, moves, ["hb"]) == {OPTICAL_DPID + 1: every}
    assert moves_by_switch(both, {"d2g1": "d0g1"}, ["rail"]) == {OPTICAL_DPID: {130: NETWORK_PORT_OFFSET + 2}}


MOVES: dict[str, tuple[dict[str, str], list[Layer]]] = {
    "two fibres to a place": ({"d0g2": "d0g1", "d0g0": "d0g1"}, ["rail"]),
    "place that is no GPU": ({"d0g2": "rail1"}, ["rail"]),
    "unknown place": ({"d0g2": "d3g1"}, ["rail"]),
    "layer without optical switches": ({"d0g2": "d0g1"}, ["hb"]),
    "place at another switch": ({"d0g2": "d0g1", "d1g2": "d0g2"}, ["rail"]),
}


def test_moves_that_no_switch_can_make_are_refused(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda case: moves_by_switch(plan(), *case), MOVES, ValueError))


def test_impossible_move_is_refused_at_once() -> None:
    controller = ControllerProcess()
    with pytest.raises(ValueError, match="optical layers are \\(\\)"):
        controller.cross_connect({"d0g2": "d0g1"})
    controller._plan = plan()
    with pytest.raises(ValueError, match="d1g1's fibre"):
        controller.cross_connect({"d1g1": "d0g1"})
    with pytest.raises(ValueError, match="optical layers are \\('rail',\\)"):
        controller.cross_connect({"d0g2": "d0g1"}, ["hb"])


def test_frames_pass_an_optical_switch_at_either_end() -> None:
    def passages(kind: str, *layers: Layer) -> float:
        optics = {"optical": {"layers": list(layers)}} if layers else {}
        bare = FabricSpec(kind="rail-only")
        with_optics, without = parse_fabric({"kind": kind, **optics}), rails_cores(bare, 100 * MBIT, 1.0, 0.4)
        return rails_cores(with_optics, 100 * MBIT, 1.0, 0.4) / without

    assert passages("rail-only", "rail") == pytest.approx(1 + 2 * 0.4)
    assert passages("rail-optimized", "rail") == pytest.approx(1 + 3 * 0.4)
    assert passages("rail-only", "hb") == pytest.approx(1 + (1 + 0.4) * 12)  # A100: C_F/C_S = 12


@pytest.mark.parametrize("layers", BOTH)
def test_optical_switch_joins_only_cross_connected_gpus(layers: tuple[Layer, ...]) -> None:
    fabric = plan(layers=layers)
    dead = Impact(cables=frozenset({cable("d0g1", "rail1")}), nodes=frozenset({"rail2"}))
    with_optics, without = Survivors(fabric, dead), Survivors(fabric.electrical, dead)
    assert with_optics.reachable == without.reachable
    assert (Gpu(0, 2), Gpu(1, 2)) in without.connected  # by other rails
    assert with_optics.max_bps(Gpu(0, 1), Gpu(1, 1)) == without.max_bps(Gpu(0, 1), Gpu(1, 1))


@pytest.mark.parametrize("layers", BOTH)
def test_heartbeats_and_background_get_shares_of_every_cable(layers: tuple[Layer, ...]) -> None:
    fabric = plan(domains=2, rails=2, layers=layers)
    every = {end for link in fabric.links for end in (link.a, link.b)}
    assert shaping.ends(fabric) == every
    spec = BackgroundSpec.model_validate({"rails": [1], "load": 0.5})
    flows: list[BackgroundFlow] = list(flows_of(spec, fabric))
    cables = [link for gpu in fabric.gpus if gpu.rank == 1 for link in fabric.cables(gpu, "rail")]
    found = reserved_bps(fabric, flows)
    assert found == {end: pytest.approx(50 * MBIT) for link in cables for end in (link.a, link.b)}
