"""The example plugin docs/examples/rail_spare.py on packets: a rail switch and a link fail, the spare takes over.

d0g0 d0g1    d1g0 d1g1    d2g0 d2g1      three HB domains; rail<g> joins d0g<g>, d1g<g>, d2g<g>; spare0 joins all
"""

import json
from pathlib import Path
from typing import Any

import pytest

from railyard.core import plugins
from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import Fabric, build
from tests.emulation.plugins import assert_recovered, run_with_plugin
from tests.emulation.programs import ROOT

SPEC: dict[str, Any] = {
    "name": "spare",
    "attempts": 1,
    "fabrics": [{"kind": "rail-spare", "domains": 3, "rails": 2, "rail_rate": "10Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "duration": "300ms"}],
    "scripts": [
        {
            "name": "two",
            "faults": [
                {"kind": "rail-switch-crash", "target": "rail1", "at": "500ms", "repair": "1500ms"},
                {"kind": "link-down", "target": "d0g0", "at": "3s", "repair": "1s"},
            ],
        }
    ],
    "reroute": ["on"],
}


@pytest.fixture
def rail_spare() -> None:
    """The plugin, in this process and in those that it starts."""
    plugins.load(ROOT / "docs/examples/rail_spare.py")


@pytest.mark.long
def test_plugin_fabric_carries_traffic_and_recovers(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("rail_spare.py", SPEC, tmp_path, slow)
    assert {fabric.kind for fabric in run.fabrics} == {"rail-spare"}
    assert_recovered(run, faults=2)


@pytest.mark.sandbox
@pytest.mark.usefixtures("rail_spare")
def test_spare_carries_nothing_until_a_rail_switch_dies() -> None:
    fabric = build("rail-spare", 3, 2)
    assert fabric.net.pingAll(timeout="5") == 0
    assert by_spare(fabric, Gpu(1, 0)) == 0
    fabric.net.ovs["rail0"].kill()
    fabric.await_event("rerouted")
    for src in fabric.gpus:
        for dst in fabric.gpus:
            assert src == dst or fabric.arrives(src, dst), f"{src.name} -> {dst.name}"
    assert fabric.trace(Gpu(0, 0), Gpu(1, 0)) == [Gpu(1, 0)]
    assert by_spare(fabric, Gpu(1, 0)) > 0
    assert by_spare(fabric, Gpu(1, 1)) == 0


def by_spare(fabric: Fabric, gpu: Gpu) -> int:
    """Packets that a GPU has received from the spare switch."""
    shown = json.loads(fabric.in_node(gpu.name, "ip", "-j", "-s", "link", "show", "rail1"))
    return int(shown[0]["stats64"]["rx"]["packets"])
