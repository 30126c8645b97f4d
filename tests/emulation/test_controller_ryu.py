"""The same app file under Ryu 4.34 itself: `ryu-manager controller/openflow/app.py`, with stock Mininet's switches."""

from pathlib import Path

import pytest

from railyard.controller.openflow.flows import tables_of
from railyard.topologies.addresses import RAIL_DPID, UPLINK_PORT, Gpu
from railyard.topologies.build import shared_ovs
from tests.emulation.plain_mininet import mn, start_controller
from tests.emulation.ryu_venv import CannotMake, ryu_manager


@pytest.fixture(scope="module")
def manager() -> Path:
    """Made outside of the sandbox, which has no network."""
    try:
        return ryu_manager()
    except CannotMake as error:
        pytest.skip(str(error))


@pytest.mark.sandbox
def test_ryu_manager_runs_the_app(manager: Path) -> None:
    shared_ovs.start()
    start_controller([str(manager), "controller/openflow/app.py"])
    message = mn("rail-optimized,2,2,optical=rail", "pingall", "sh ovs-ofctl -O OpenFlow13 --no-stats dump-flows rail0")
    assert "0% dropped (12/12 received)" in message
    wanted = tables_of(RAIL_DPID, {1: True, 2: True, UPLINK_PORT: True, UPLINK_PORT + 1: True}).flows
    assert message.count("cookie=0x5261696c") == len(wanted) == 3
    for gpu, port in ((Gpu(0, 0), 1), (Gpu(1, 0), 2)):
        assert f"dl_dst={gpu.mac('rail')} actions=output:{port}" in message
    assert "actions=group:1" in message
    assert "Traceback" not in Path("/run/controller.log").read_text()
