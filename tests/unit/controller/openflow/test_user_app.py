"""A user's OpenFlow app (`--controller`): files that are refused, events, and that it alone forwards."""

import json
import logging
import operator
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.controller.openflow.user_app import AppLog, app_class
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.loading import command_line, load_any
from railyard.topologies.graph import Cable, FabricGraph, Network
from tests.unit.messages import messages

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "docs/examples/mininet/learning_switch.py"
IMPORTS = "from ryu.base import app_manager\nfrom ryu.ofproto import ofproto_v1_0, ofproto_v1_3\n"


A = f"{IMPORTS}class A(app_manager.RyuApp):\n"
BAD_FILES = {
    "no app": "x = 1\n",
    "exception": "x = 1\nraise OSError(2, 'gone')\n",
    "no module": "import ryu.nothing\n",
    "OpenFlow 1.0": f"{A}    OFP_VERSIONS = [ofproto_v1_0.OFP_VERSION]\n",
    "two apps": f"{A}    pass\nclass B(app_manager.RyuApp):\n    pass\n",
}


def test_messages_of_files_and_experiments(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    file = tmp_path / "app.py"

    def load(content: str) -> None:
        file.write_text(content)
        app_class(str(file))

    # the switches of these need flows of Railyard
    optical = ["fabrics.0.optical={layers: [rail]}"]
    experiments = {
        "replacements": partial(load_any, "optical-replacement", controller=EXAMPLE),
        "optical switches": partial(load_any, "collectives", optical, controller=EXAMPLE),
    }
    texts = messages(load, BAD_FILES) | messages(operator.call, experiments)
    for case, text in texts.items():
        texts[case] = text.replace(str(file), "FILE").replace(str(EXAMPLE), "FILE")
    data_regression.check(texts)


def test_app_of_ryu_is_one_of_os_ken(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    base = "class Base(app_manager.RyuApp):\n    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]\n"
    file.write_text(f"{IMPORTS}{base}class Mine(Base):\n    pass\n")
    app = app_class(str(file))
    assert [each.__name__ for each in app.__mro__[:3]] == ["Mine", "Base", "OSKenApp"]
    assert app.__mro__[2].__module__ == "os_ken.base.app_manager"


def record_of(text: str, level: int = logging.WARNING, name: str = "Mine") -> logging.LogRecord:
    """A record of a logger."""
    return logging.LogRecord(name, level, "app.py", 1, text, (), None)


def test_repeated_message_is_an_event_at_powers_of_ten() -> None:
    events = list[dict[str, Any]]()
    log = AppLog(Path("app.py"), lambda what, detail: events.append(detail))
    for _ in range(123):
        log.handle(record_of("port\nunknown"))
    log.handle(record_of("of Railyard", name="RailyardApp"))
    log.handle(record_of("Traceback: a closed connection", name="os_ken.lib.hub"))
    assert [(event["text"], event["times"]) for event in events] == [("port unknown", n) for n in (1, 10, 100)]


def test_number_of_different_messages_is_bounded() -> None:
    events = list[str]()
    log = AppLog(Path("app.py"), lambda what, detail: events.append(what))
    for number in range(500):
        log.handle(record_of(f"message {number}"))
    assert len(events) == 100


def test_experiment_has_the_app_by_its_absolute_path(tmp_path: Path) -> None:
    spec = load_any("collectives", controller=EXAMPLE)
    assert spec.resolved()["controller"] == str(EXAMPLE)
    assert "controller" not in load_any("collectives").resolved()
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\ncontroller: app.py\nfabrics: [{kind: rail-only}]\nworkloads: [{kind: collective}]\n")
    assert load_any(str(file), ["workloads.0.collective=all-to-all"]).controller == str(tmp_path / "app.py")
    assert f"--controller {EXAMPLE}" in command_line("collectives", controller=EXAMPLE)["repeat"]


def test_loop_means_that_an_app_chooses_paths() -> None:
    switches = ("s1", "s2", "s3")
    cables = (Cable("d0g0", "s1"), Cable("d1g0", "s3"), Cable("s1", "s2"), Cable("s2", "s3"))
    assert not FabricGraph(Network(switches, cables)).has_loops
    assert FabricGraph(Network(switches, (*cables, Cable("s1", "s3")))).has_loops
    (fabric,) = load_any("collectives").gpu_fabrics
    assert not nominal_plan(fabric).graph.has_loops


class FakeSwitch:
    """A switch's end of OpenFlow 1.3: it answers what a controller asks at the start, and sends frames to it."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._send(0, b"")

    def _send(self, kind: int, body: bytes, number: int = 0) -> None:
        self._socket.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), number) + body)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def frame(self, port: int, src: int, dst: int) -> None:
        """Send a frame without a flow, which came in by a port."""
        data = dst.to_bytes(6, "big") + src.to_bytes(6, "big") + b"\x08\x00" + bytes(50)
        match = struct.pack("!HHHBBI4x", 1, 12, 0x8000, 0, 4, port)
        self._send(10, struct.pack("!IHBBQ", 0xFFFFFFFF, len(data), 0, 0, 0) + match + bytes(2) + data)

    def next(self, *kinds: int) -> tuple[int, bytes]:
        """Return the next message of one of these kinds: 13 sends a frame out, 14 changes flows."""
        while True:
            _, kind, length, number = struct.unpack("!BBHI", self._read(8))
            body = self._read(length - 8)
            if kind == 5:
                self._send(6, struct.pack("!QIBBHII", 0x5000, 0, 254, 0, 0, 0, 0), number)
            elif kind == 18:
                self._send(19, body[:2] + bytes(6), number)
            elif kind in kinds:
                return kind, body

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data))
        return data


@pytest.fixture
def server(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A controller with the example as an app of Ryu, which raises at its third frame."""
    source = EXAMPLE.read_text().replace("os_ken", "ryu").replace("OSKenApp", "RyuApp")
    line = "        message, datapath = event.msg, event.msg.datapath\n"
    raising = "        if event.msg.match['in_port'] == 3:\n            raise KeyError('third')\n"
    assert line in source
    (tmp_path / "app.py").write_text(source.replace(line, raising + line))
    argv = [sys.executable, "-m", "tests.unit.controller.openflow.user_app_server", str(tmp_path / "app.py")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_app_alone_forwards_and_goes_on_after_an_exception(server: "subprocess.Popen[str]") -> None:
    """Its table-miss flow is not deleted, no flow of Railyard's is added, and the exception is an event."""
    assert server.stdout
    with closing(FakeSwitch(int(server.stdout.readline()))) as switch:
        kind, flow = switch.next(13, 14)
        assert (kind, struct.unpack("!H", flow[22:24])) == (14, (0,))  # of priority 0, to the controller
        switch.frame(1, 0xA, 0xB)
        assert switch.next(13, 14)[0] == 13  # flooded
        switch.frame(3, 0xC, 0xA)
        what, detail = json.loads(server.stdout.readline())
        assert (what, detail["file"], detail["times"]) == ("app-failed", "app.py", 1)
        assert detail["text"].endswith("KeyError: 'third'")
        assert detail["text"].startswith("line ")
        switch.frame(2, 0xB, 0xA)
        assert [switch.next(13, 14)[0], switch.next(13, 14)[0]] == [14, 13]  # a flow to the learnt port, then the frame


def test_example_of_the_page_is_the_file() -> None:
    assert f"```python\n{EXAMPLE.read_text()}```\n" in (ROOT / "docs/mininet-users.md").read_text()
