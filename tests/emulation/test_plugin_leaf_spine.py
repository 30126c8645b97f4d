"""The example plugin docs/examples/leaf_spine.py on packets: a leaf's link to a spine is cut, flows use the other.

spine0 and spine1 join leaf0 (d0g0, d0g1), leaf1 (d1g0, d1g1) and leaf2 (d2g0, d2g1).
"""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from railyard.core import plugins
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.oracle.reachability import bounds
from railyard.topologies.addresses import Pair
from tests.emulation.fabrics import Fabric, build
from tests.emulation.plugins import assert_recovered, run_with_plugin
from tests.emulation.programs import ROOT

SPEC: dict[str, Any] = {
    "name": "leaves",
    "attempts": 1,
    "fabrics": [{"kind": "leaf-spine", "domains": 3, "rails": 2, "rail_rate": "10Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "duration": "300ms"}],
    "scripts": [
        {
            "name": "three",
            "faults": [
                {"kind": "uplink-down", "target": "leaf0-spine1", "at": "500ms", "repair": "1s"},
                {"kind": "link-down", "target": "d0g0", "at": "2500ms", "repair": "1s"},
                {"kind": "rail-switch-crash", "target": "leaf1", "at": "4500ms", "repair": "1500ms"},
            ],
        }
    ],
    "reroute": ["on"],
}


@pytest.fixture
def leaf_spine() -> None:
    """The plugin, in this process and in those that it starts."""
    plugins.load(ROOT / "docs/examples/leaf_spine.py")


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
@pytest.mark.usefixtures("leaf_spine")
def test_cut_link_of_a_leaf_is_rerouted_as_the_oracle_says() -> None:
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
