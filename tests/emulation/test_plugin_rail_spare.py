"""The example plugin docs/examples/rail_spare.py on packets: a rail switch and a link fail, the spare takes over.

d0g0 d0g1    d1g0 d1g1    d2g0 d2g1      three HB domains; rail<g> joins d0g<g>, d1g<g>, d2g<g>; spare0 joins all
"""

import json
from pathlib import Path

import pytest

from railyard.core import plugins
from railyard.topologies.addresses import Gpu
from tests.emulation.fabrics import Fabric, build
from tests.emulation.plugins import EXAMPLES, assert_recovered, recovery_spec, run_with_plugin

FAULTS_IN_TURN = (
    {"kind": "rail-switch-crash", "target": "rail1", "at": "500ms", "repair": "1500ms"},
    {"kind": "link-down", "target": "d0g0", "at": "3s", "repair": "1s"},
)
SPEC = recovery_spec({"kind": "rail-spare"}, FAULTS_IN_TURN)


@pytest.mark.long
def test_plugin_fabric_carries_traffic_and_recovers(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("rail_spare.py", SPEC, tmp_path, slow)
    assert {fabric.kind for fabric in run.fabrics} == {"rail-spare"}
    assert_recovered(run, faults=2)


@pytest.mark.sandbox
def test_spare_carries_nothing_until_a_rail_switch_dies() -> None:
    plugins.load(EXAMPLES / "rail_spare.py")  # for the processes that the fabric starts, too
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
