"""An app of a user's decides forwarding (`--controller`): its frames arrive whole, and a run says whose app it was.

        s1
      /    \\
    s2      s3          the example of docs/mininet-users.md, with its learning switch
   /  \\    /  \\
  h1  h2  h3  h4
"""

import socket
from pathlib import Path
from typing import Any

import pytest

from railyard.controller.processes.clients import ControllerProcess
from railyard.core.host import Datapath
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.loading import load_any
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from tests.emulation.fabrics import datapath, eventually
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, finished
from tests.emulation.runs import Stored, overrides

EXAMPLES = Path(ROOT) / "docs/examples/mininet"
TOPO = f"{EXAMPLES}/two_racks.py:TwoRacks"
SENT = b"x" * 50_000
ERROR = "ZeroDivisionError: division by zero"


def raising_app(folder: Path) -> Path:
    """The example's learning switch, which raises an exception at its third frame."""
    source = (EXAMPLES / "learning_switch.py").read_text()
    first_line = "        message, datapath = event.msg, event.msg.datapath\n"
    raising = "        self.frames = getattr(self, 'frames', 0) + 1\n        if self.frames == 3:\n            1 / 0\n"
    assert first_line in source
    app = folder / "raises_once.py"
    app.write_text(source.replace(first_line, raising + first_line))
    return app


def built(forwarding: Datapath, user_app: str, events: list[tuple[str, dict[str, Any]]]) -> FabricNet:
    """Build the example's fabric. Nothing needs to be stopped: the test's sandbox ends with it."""
    (fabric,) = load_any("topology", topo=f"{TOPO},bw=50").gpu_fabrics
    controller = ControllerProcess(False, lambda ns, what, detail: events.append((what, detail)), user_app=user_app)
    net = FabricNet(nominal_plan(fabric), forwarding, controller, backups=False)
    net.start()
    return net


def assert_connection_carries(net: FabricNet, src: str, dst: str) -> None:
    """Send bytes over TCP from a GPU to another, which has sent nothing yet."""
    address = net.plan.addresses[dst]
    with namespaces.inside(dst):
        listener = socket.create_server((address, 0))
    with listener, namespaces.inside(src):
        sender = socket.create_connection(listener.getsockname(), timeout=20.0)
        receiver = listener.accept()[0]
    with sender, receiver:
        sender.sendall(SENT)
        receiver.settimeout(20.0)
        assert b"".join(_received(receiver)) == SENT


def _received(receiver: socket.socket) -> list[bytes]:
    parts = list[bytes]()
    while sum(map(len, parts)) < len(SENT):
        parts.append(receiver.recv(len(SENT)))
        assert parts[-1], "the connection ended"
    return parts


@pytest.mark.sandbox
def test_flooded_frames_arrive_after_an_exception_too(tmp_path: Path) -> None:
    events = list[tuple[str, dict[str, Any]]]()
    net = built(datapath(), str(raising_app(tmp_path)), events)
    assert_connection_carries(net, "d0g0", "d2g0")  # each switch floods the first frame, through the controller
    eventually(lambda: "app-failed" in dict(events))
    assert dict(events)["app-failed"]["text"].endswith(ERROR)


@pytest.mark.sandbox
def test_switches_in_userspace_without_tso_carry_tcp() -> None:
    net = built("netdev", "", [])
    assert_connection_carries(net, "d0g0", "d2g0")


def test_run_delivers_all_bytes_and_names_the_exception(tmp_path: Path) -> None:
    app = raising_app(tmp_path)
    argv = [*RUN_EXPERIMENT, "run", "--topo", f"{TOPO},bw=10", "--controller", str(app), "--out", str(tmp_path / "out")]
    done = finished([*argv, *overrides("attempts=1", "workloads.*.duration=200ms", "faults=[]")], 240.0)
    stored = Stored(tmp_path / "out", done.stdout + done.stderr)
    assert "Traceback" not in stored.output
    stored.assert_no_byte_is_missing()
    assert str(app) in stored.text("provenance.json")
    assert stored.summary["headline"]["controller"]["app"] == app.name
    assert (stored.folder / "controller" / app.name).read_text() == app.read_text()
    assert app.name in done.stdout
    for text in (str(stored.summary["headline"]["controller"]["messages"]), done.stdout):
        assert ERROR in text
