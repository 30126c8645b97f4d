"""Example plugins of docs/examples while parts of their fabrics fail: every pair recovers, and no byte is lost.

rail-only with policy split     three HB domains, rail<g> joins d0g<g>, d1g<g> and d2g<g>
rail-spare                      the same, and spare0 joins all GPUs
leaf-spine                      spine0 and spine1 join leaf0 (d0g0, d0g1), leaf1 (d1g0, d1g1) and leaf2 (d2g0, d2g1)
"""

import json
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from railyard.core import plugins
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.oracle.reachability import bounds
from railyard.results.runs.records import GoodputTrace
from railyard.topologies.addresses import Gpu, Pair
from tests.emulation.fabrics import Fabric, build
from tests.emulation.runs import EXAMPLES, run_experiment, small_spec

PLUGINS = ("split_policy.py", "rail_spare.py")
SIDES: dict[str, Any] = {"domains": 3, "rail_rate": "9Mbit"}
FABRICS = [{"kind": "rail-only", "rails": 3, "policy": "split", **SIDES}, {"kind": "rail-spare", "rails": 2, **SIDES}]
LEAF_SPINE = {"kind": "leaf-spine", "rails": 2, **SIDES}
BROWNOUT: dict[str, Any] = {
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "20Mbit", "hb_rate": "80Mbit"}],
    "workloads": [],
    "faults": [{"kind": "rail-brownout", "target": "rail1", "rate": 0.04, "repair": "3s"}],
    "scripts": [{"name": "random", "random_faults": {"count": 2, "mix": {"rail-brownout": 1}, "group_share": 0}}],
}


def recovery_spec(fabrics: list[dict[str, Any]], *faults: tuple[str, str, str, str]) -> dict[str, Any]:
    """Return an experiment with an all-to-all and a script of faults: kind, target, when and for how long."""
    script = [dict(zip(("kind", "target", "at", "repair"), fault, strict=True)) for fault in faults]
    return small_spec(fabrics=fabrics, scripts=[{"name": "faults", "faults": script}], reroute=["on"])


@pytest.mark.long
def test_policy_and_fabric_of_plugins_recover(tmp_path: Path) -> None:
    faults = (("link-down", "d0g1", "500ms", "1s"), ("rail-switch-crash", "rail1", "2500ms", "1500ms"))
    stored = run_experiment(recovery_spec(FABRICS, *faults), tmp_path, plugins=PLUGINS)
    policies = {fabric.kind: fabric.policy for fabric in stored.run.fabrics}
    assert policies == {"rail-only": "split", "rail-spare": "dr"}
    stored.assert_recovered(faults=4)


@pytest.mark.long
def test_graph_of_a_plugin_recovers(tmp_path: Path) -> None:
    """A variant: the links of this fabric are cut below."""
    faults = (
        ("uplink-down", "leaf0-spine1", "500ms", "1s"),
        ("link-down", "d0g0", "2500ms", "1s"),
        ("rail-switch-crash", "leaf1", "4500ms", "1500ms"),
    )
    stored = run_experiment(recovery_spec([LEAF_SPINE], *faults), tmp_path, plugins=["leaf_spine.py"])
    assert {link.link_class for link in stored.run.links} == {"hb", "rail", "uplink"}
    stored.assert_recovered(faults=3)


def delivered(fabric: Fabric) -> set[Pair]:
    """The pairs between which a packet arrives."""
    return {pair for pair in permutations(fabric.gpus, 2) if fabric.arrives(*pair)}


@pytest.mark.sandbox
def test_cut_link_of_a_leaf_is_rerouted_as_the_oracle_says() -> None:
    plugins.load(EXAMPLES / "leaf_spine.py")  # for the processes that the fabric starts, too
    fabric = build("leaf-spine", 3, 2)
    every_pair = set(permutations(fabric.gpus, 2))
    assert delivered(fabric) == every_pair
    cut = Fault("uplink-down", "leaf0-spine1")
    definition = FAULTS["uplink-down"]
    definition.inject(fabric.net, cut.target, cut.parameters)
    fabric.await_event("port-down")
    assert all(definition.symptoms(fabric.net, cut.target, cut.parameters))
    assert bounds(fabric.net.plan, [cut]).lower.reachable == every_pair
    assert delivered(fabric) == every_pair
    definition.repair(fabric.net, cut.target, cut.parameters)
    fabric.await_event("port-up")
    assert delivered(fabric) == every_pair


@pytest.mark.sandbox
def test_spare_carries_nothing_until_a_rail_switch_dies() -> None:
    plugins.load(EXAMPLES / "rail_spare.py")
    fabric = build("rail-spare", 3, 2)
    assert fabric.net.pingAll(timeout="5") == 0
    assert by_spare(fabric, Gpu(1, 0)) == 0
    fabric.net.ovs["rail0"].kill()
    fabric.await_event("rerouted")
    assert delivered(fabric) == set(permutations(fabric.gpus, 2))
    assert fabric.trace(Gpu(0, 0), Gpu(1, 0)) == [Gpu(1, 0)]
    assert by_spare(fabric, Gpu(1, 0)) > 0
    assert by_spare(fabric, Gpu(1, 1)) == 0


def by_spare(fabric: Fabric, gpu: Gpu) -> int:
    """Packets that a GPU has received from the spare switch."""
    shown = json.loads(fabric.in_node(gpu.name, "ip", "-j", "-s", "link", "show", "rail1"))
    return int(shown[0]["stats64"]["rx"]["packets"])


def goodput(trace: GoodputTrace, since_ms: float, until_ms: float) -> float:
    return median(bps for ms, bps in zip(trace.t_ms, trace.affected_bps, strict=True) if since_ms <= ms < until_ms)


@pytest.mark.long
def test_fault_of_a_plugin_slows_a_rail_down_until_its_repair(tmp_path: Path) -> None:
    stored = run_experiment(small_spec(**BROWNOUT, reroute=["on"]), tmp_path, plugins=["rail_brownout.py"])
    alone, *drawn = stored.run.rows(RECOVERIES)
    assert (alone.target, alone.lost_bytes, alone.connections_lost) == ("rail1", 0, 0)
    assert {(row.fault, row.script) for row in drawn} == {("rail-brownout", "random")}
    assert len(drawn) == 2
    (trace,) = (trace for trace in stored.run.rows(GOODPUT) if not trace.script)
    during = goodput(trace, 1000, trace.repair_ms)
    assert during < goodput(trace, -400, 0) / 2
    assert goodput(trace, trace.repair_ms + 500, trace.repair_ms + 1200) > during
    assert [check.mismatches for check in stored.run.rows(CONNECTIVITY_CHECKS) if check.mismatch_count] == []
