"""Stock `mn` with our topologies, and our app as its remote controller."""

import re
import sys

import pytest

from railyard.topologies.build import shared_ovs
from tests.emulation.plain_mininet import mn, start_controller

pytestmark = pytest.mark.sandbox
LISTENS = "timeout 20 sh -c 'until ss -Hltn | grep -q :5201; do sleep 0.05; done'"  # a daemon's parent doesn't wait


@pytest.mark.parametrize(
    "topo", ["rail-only,2,2", "rail-optimized,2,2", "single-switch,2,2,policy=rd", "rail-only,2,2,optical=rail+hb"]
)
def test_stock_mininet_with_the_app_on_os_ken(topo: str) -> None:
    shared_ovs.start()
    start_controller([sys.executable, "-m", "railyard.controller.processes.openflow_main"])
    message = mn(topo, "pingall", f"d1g1 iperf3 -s -1 -D && {LISTENS}", "d0g0 iperf3 -t 1 -f m -c d1g1")
    assert "0% dropped (12/12 received)" in message
    received = re.search(r"([\d.]+) Mbits/sec +receiver", message)
    assert received is not None, message
    assert float(received[1]) > 1  # full-sized frames and their checksums arrive, not only pings
