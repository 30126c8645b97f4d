"""The example plugin docs/examples/leaf_spine.py on packets: a leaf's link to a spine is cut, flows use the other.

spine0 and spine1 join leaf0 (d0g0, d0g1), leaf1 (d1g0, d1g1) and leaf2 (d2g0, d2g1).
"""

from itertools import permutations
from pathlib import Path

import pytest

from railyard.core import plugins
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.oracle.reachability import bounds
from railyard.topologies.addresses import Pair
from tests.emulation.fabrics import Fabric, build
from tests.emulation.plugins import EXAMPLES, assert_recovered, recovery_spec, run_with_plugin

FAULTS_IN_TURN = (
    {"kind": "uplink-down", "target": "leaf0-spine1", "at": "500ms", "repair": "1s"},
    {"kind": "link-down", "target": "d0g0", "at": "2500ms", "repair": "1s"},
    {"kind": "rail-switch-crash", "target": "leaf1", "at": "4500ms", "repair": "1500ms"},
)
SPEC = recovery_spec({"kind": "leaf-spine"}, FAULTS_IN_TURN)


@pytest.mark.long
def test_plugin_graph_carries_traffic_and_recovers(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("leaf_spine.py", SPEC, tmp_path, slow)
    assert {fabric.kind for fabric in run.fabrics} == {"leaf-spine"}
    assert {link.link_class for link in run.links} == {"hb", "rail", "uplink"}
    assert_recovered(run, faults=3)


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
