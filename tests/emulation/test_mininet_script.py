"""A script of stock Mininet in a sandbox: it runs unchanged, and leaves nothing on the machine.

h1 ── s2 ── s1 ── s3 ── h3        TreeTopo(depth=2, fanout=2), links of 10 Mbit/s by TCLink,
h2 ──╯             ╰─── h4        Mininet's reference controller
"""

import shutil
from pathlib import Path

import pytest

from tests.emulation.programs import RUN_EXPERIMENT, finished

SCRIPT = """
import sys
from functools import partial
from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Controller, OVSKernelSwitch
from mininet.topolib import TreeTopo

setLogLevel("output")
link = partial(TCLink, bw=10, delay="1ms")
net = Mininet(TreeTopo(depth=2, fanout=2), switch=OVSKernelSwitch, controller=Controller, link=link, waitConnected=True)
net.start()
lost = net.pingAll()
received, sent = net.iperf(seconds=1)
net.stop()
print("received", received, "arguments", *sys.argv[1:])
sys.exit(7 if lost == 0 else 8)
"""

CHAIN = """
import subprocess
import sys
from mininet.net import Mininet
from mininet.node import Controller
from mininet.topo import LinearTopo

net = Mininet(LinearTopo(k=17), controller=Controller, waitConnected=True)
net.start()
print("lost", net.ping([net["h1"], net["h17"]]))
socket = "import socket; s = socket.socket(2, 2); s.bind(('', 9)); s.settimeout(30); print(1, flush=True)"
program = f"{socket}; print(s.recv(9))"
receiver = net["h17"].popen([sys.executable, "-c", program], text=True)
receiver.stdout.readline()
net["h1"].cmd(f"echo -n datagram | timeout 5 bash -c 'cat >/dev/udp/{net['h17'].IP()}/9'")
print("received", receiver.stdout.read().strip())
net.stop()
print("controllers", subprocess.run(["pgrep", "-c", "testcontroller"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.skipif(
    shutil.which("ovs-testcontroller") is None, reason="no ovs-testcontroller: script/bootstrap mininet"
)
def test_script_of_stock_mininet_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "tree.py"
    script.write_text(SCRIPT)
    done = finished([*RUN_EXPERIMENT, "mininet", str(script), "one", "--two"], 120.0)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "*** Results: 0% dropped (12/12 received)" in done.stderr  # Mininet prints its own lines there
    rate = float(done.stdout.partition("received ")[2].split("received ")[-1].split()[0])
    assert 1 < rate < 10.5
    assert "arguments one --two" in done.stdout
    assert "Traceback" not in done.stderr


def test_script_that_is_not_there_is_bad_input() -> None:
    done = finished([*RUN_EXPERIMENT, "mininet", "nowhere.py"], 60.0)
    assert (done.returncode, done.stderr) == (2, "error: SCRIPT: 'nowhere.py' must be a Python file\n")


@pytest.mark.skipif(
    shutil.which("ovs-testcontroller") is None, reason="no ovs-testcontroller: script/bootstrap mininet"
)
def test_reference_controller_takes_more_than_16_switches(tmp_path: Path) -> None:
    script = tmp_path / "chain.py"
    script.write_text(CHAIN)
    done = finished([*RUN_EXPERIMENT, "mininet", str(script)], 120.0)
    assert done.stdout == "lost 0.0\nreceived b'datagram'\ncontrollers 0\n", done.stderr
