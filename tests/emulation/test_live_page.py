"""The live page of a running fabric: what a click changes on packets, and what a browser shows of it.

         hb0                 hb1
        /   \\               /   \\
     d0g0   d0g1         d1g0   d1g1       a cut at d0g1 moves its traffic from rail1 to rail0,
      |       \\            /      |        through d0g0 and d1g0
     rail0 ----\\----------/     rail1
"""

import http.client
import json
import re
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture

import railyard as ry
from railyard.core.records import Recovered
from railyard.experiments.live import recorded
from tests.emulation.fabrics import eventually
from tests.emulation.programs import RUN_EXPERIMENT, Program
from tests.emulation.runs import Stored, run_command, small_spec
from tests.unit.browser import WIDTHS, assert_accessible, assert_fits, chromium, opened

__all__ = ["chromium"]

FABRIC = {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "20Mbit"}
WORKLOAD = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "1s"}
CUT = {"kind": "link-down", "target": "d0g1"}
OTHER_PAIR = "d0g0 d1g1"
WRONG_CLICKS: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown fault": ("inject", {"kind": "link-dwn", "target": "d0g1"}),
    "unknown GPU": ("inject", {"kind": "link-down", "target": "d9g9"}),
    "rate of 2": ("inject", {"kind": "link-slow", "target": "d0g1", "rate": 2}),
    "repair without a fault": ("repair", CUT),
    "unknown action": ("explode", CUT),
}
URL = r"http://(127\.0\.0\.1):(\d+)(/\S+/)"
BUILT_S = 60.0
SOON_S = 10.0
CLICKS = 7
CLICK_TO_TRAFFIC_MS = 500


def received_part(connection: socket.socket) -> bytes:
    """Return what was received next; nothing once the page has ended."""
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


class Page:
    """A page's server as a browser sees it: the last message of each kind, and the controls."""

    def __init__(self, output: str) -> None:
        """`output`: a text with the page's address."""
        found = re.search(URL, output)
        assert found, output
        self.host, self.port, self.path = found[1], int(found[2]), found[3]
        self.url = f"http://{self.host}:{self.port}{self.path}"
        self.last: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.paths: dict[str, list[dict[str, Any]]] = defaultdict(list)
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, do: str, **fault: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer to a click."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        body = json.dumps({"do": do, **fault})
        connection.request("POST", f"{self.path}control", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def path_of(self, src: str, dst: str) -> dict[str, Any]:
        """Return the page's answer about a pair."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        connection.request("GET", f"{self.path}path?src={src}&dst={dst}")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def link(self, a: str, kind: str = "rail") -> dict[str, int]:
        """Return the last sample of a GPU's link."""
        number = next(
            i for i, link in enumerate(self.last["fabric"]["links"]) if (link["a"], link["kind"]) == (a, kind)
        )
        columns = ("up", "to", "from", "queue", "drops")
        return {name: column[number] for name, column in zip(columns, self.last["sample"]["links"], strict=True)}

    def _read(self) -> None:
        with socket.create_connection((self.host, self.port)) as connection:
            connection.sendall(f"GET {self.path}events HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n\r\n".encode())
            received = b""
            while part := received_part(connection):
                *messages, received = (received + part).split(b"\n\n")
                for message in messages:
                    if found := re.search(rb"event: (\w+)\ndata: (.*)", message):
                        kind, data = found[1].decode(), json.loads(re.sub(rb"\r\n[0-9a-f]+\r\n", b"", found[2]))
                        self.last[kind] = data
                        self.events += [data] if kind == "event" else []
                        for pair, path in (data["paths"] if kind == "paths" else {}).items():
                            self.paths[pair].append(path)


@contextmanager
def shell_with_page(folder: Path, *options: str) -> Iterator[tuple[Program, Page]]:
    """A shell on the fabric, its page, and a flow from d0g1 to d1g1."""
    file = folder / "two.yaml"
    file.write_text(yaml.safe_dump({"name": "two", "fabrics": [FABRIC], "workloads": [WORKLOAD]}))
    with Program([*RUN_EXPERIMENT, "shell", str(file), "--live", "control", *options]) as shell:
        shell.await_match("Mininet's CLI", BUILT_S)
        page = Page(shell.output)
        shell.type("d1g1 iperf3 -s -D")
        # on a busy machine the server may not listen yet, and then the client ends at once
        shell.type("d0g1 until iperf3 -t 300 -c d1g1 > /dev/null 2>&1 ; do sleep 0.2; done &")
        eventually(lambda: "sample" in page.last and page.link("d0g1")["to"] > 100, BUILT_S)
        yield shell, page


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Page, Path]]:
    folder = tmp_path_factory.mktemp("live")
    script = folder / "clicks.yaml"
    with shell_with_page(folder, "--save-script", str(script)) as (shell, page):
        yield shell, page, script


def test_a_click_moves_traffic_to_another_rail_and_back(live: tuple[Program, Page, Path]) -> None:
    """The page has the path of a pair, each change of one, the fault and its first packet as events."""
    _, page, script = live
    page.events.clear()
    eventually(lambda: page.paths[OTHER_PAIR] and page.path_of("d0g1", "d1g1")["gpus"] == ["d0g1", "d1g1"], SOON_S)
    before = len(page.paths[OTHER_PAIR])
    status, answer = page.ask("inject", **CUT)
    assert (status, answer["active"]) == (200, [CUT])
    eventually(lambda: not page.link("d0g1")["up"] and page.link("d0g0")["to"] > 100, SOON_S)
    eventually(lambda: page.path_of("d0g1", "d1g1")["gpus"] == ["d0g1", "d0g0", "d1g0", "d1g1"], SOON_S)
    eventually(lambda: len(page.paths[OTHER_PAIR]) > before, SOON_S)
    eventually(lambda: "first-packet" in [event["what"] for event in page.events], SOON_S)
    assert page.ask("repair", **CUT)[1]["active"] == []
    eventually(lambda: page.link("d0g1")["up"] and page.link("d0g1")["to"] > 100, SOON_S)
    eventually(lambda: page.path_of("d0g1", "d1g1")["gpus"] == ["d0g1", "d1g1"], SOON_S)
    eventually(lambda: page.paths[OTHER_PAIR][-1] == page.paths[OTHER_PAIR][before - 1], SOON_S)
    assert {"inject", "port-down", "repair", "port-up"} <= {event["what"] for event in page.events}
    fault, packet = (next(e for e in page.events if e["what"] == what) for what in ("inject", "first-packet"))
    assert packet["detail"].items() >= CUT.items()
    after_ms = (packet["ns"] - fault["ns"]) / 1e6
    assert after_ms == pytest.approx(packet["detail"]["ms"], abs=1)
    assert 0 <= after_ms < 1000 * SOON_S
    (saved,) = yaml.safe_load(script.read_text())["scripts"]
    assert saved["faults"][-1].items() >= CUT.items()
    assert "--live" not in page.last["run"]["command"]


def test_a_saved_script_is_an_experiment(live: tuple[Program, Page, Path]) -> None:
    _, page, script = live
    page.ask("inject", kind="link-slow", target="d1g0", rate=0.5)
    assert page.ask("repair", kind="link-slow", target="d1g0", rate=0.5)[0] == 200
    with Program([*RUN_EXPERIMENT, "dry-run", str(script)]) as program:
        assert program.end(60) == 0, program.output
    assert "link-slow" in program.output


def test_a_wrong_click_is_answered_in_one_line(
    live: tuple[Program, Page, Path], data_regression: DataRegressionFixture
) -> None:
    answers = {case: live[1].ask(do, **fault) for case, (do, fault) in WRONG_CLICKS.items()}
    assert {status for status, _ in answers.values()} == {400}
    data_regression.check({case: answer["error"] for case, (_, answer) in answers.items()})


def test_every_fault_kind_can_be_clicked(live: tuple[Program, Page, Path]) -> None:
    _, page, _ = live
    for fault in page.last["fabric"]["faults"]:
        if fault["kind"] in ("link-down", "link-gray", "gpu-hang", "rail-switch-hang"):
            one = {"kind": fault["kind"], "target": fault["targets"][0]}
            status, answer = page.ask("inject", **one)
            assert status == 200, answer
            (active,) = answer["active"]
            assert page.ask("repair", **active)[0] == 200


def texts_of_processes() -> Iterator[tuple[str, str]]:
    """Yield the arguments and the variables of every process."""
    for process in psutil.process_iter(["pid", "cmdline", "environ"]):
        for name in ("cmdline", "environ"):
            yield f"{name} of {process.info['pid']}", str(process.info[name])


def test_a_measured_run_with_a_click_is_interactive(tmp_path: Path) -> None:
    spec = small_spec(fabrics=[FABRIC], workloads=[WORKLOAD])
    with Program(run_command(spec, tmp_path, "--live", "control")) as program:
        program.await_match(URL, BUILT_S)
        page = Page(program.output)
        eventually(lambda: bool(page.last.get("fabric")), BUILT_S)
        assert page.ask("inject", kind="link-slow", target="d0g1", rate=0.5)[0] == 200
        token = page.path.strip("/")
        assert not [name for name, text in texts_of_processes() if token in text], "any user reads arguments"
        assert program.end(120) == 1, program.output
    stored = Stored(tmp_path / "out")
    files = [path for path in stored.folder.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == []
    assert stored.summary["interactive"]
    assert len(stored.failed_checks()) == len(stored.summary["checks"])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((page.host, page.port))
    recorded_data = defaultdict(list)
    for message in stored.lines(recorded.RECORD):
        recorded_data[message["kind"]].append(message["data"])
    assert max(max(sample["links"][1]) for sample in recorded_data["sample"]) > 100, "no traffic recorded"
    assert "inject" in {event["what"] for event in recorded_data["event"]}
    assert any("all-to-all" in step["text"] for step in recorded_data["step"])
    phases = [phase["names"] for phase in recorded_data["phase"]]
    assert next(names for names in phases if names)[0].endswith("all-to-all")
    assert phases[-1] == []
    assert any("d0g1 d1g1" in paths["paths"] for paths in recorded_data["paths"])
    assert recorded.PAGE in stored.text("report.html")
    assert (stored.folder / recorded.PAGE).exists()


def test_a_policy_and_a_workload_can_be_started(live: tuple[Program, Page, Path]) -> None:
    _, page, _ = live
    status, answer = page.ask("start", what="policy", text="health-best")
    assert (status, answer["running"]) == (200, ["policy"]), answer
    status, answer = page.ask("start", what="workload", text=yaml.safe_dump(WORKLOAD))
    assert (status, answer["running"]) == (200, ["policy", "workload"]), answer
    eventually(lambda: page.link("d0g0", "hb")["to"] > 10 and "health" in page.last, SOON_S)
    for what in ("workload", "policy"):
        assert page.ask("stop", what=what)[0] == 200
    eventually(lambda: page.link("d0g0", "hb")["to"] == 0, SOON_S)


@pytest.mark.fabric(**FABRIC, live="control")
def test_a_script_fabric_has_a_page(fabric: ry.Fabric) -> None:
    with ry.timing() as before:
        fabric.ping("d0g0", "d1g0")
    page = Page(fabric.live_url)
    with fabric.fault("link-down", "d1g1") as fault:
        eventually(lambda: fault.recovery.first_packet_ms is not None, SOON_S)
    eventually(lambda: "repair" in [event["what"] for event in page.events], SOON_S)
    seen = {event["what"]: event["detail"] for event in page.events}
    assert seen["inject"] == seen["repair"] == {"kind": "link-down", "target": "d1g1"}
    eventually(lambda: "first-packet" in [event["what"] for event in page.events], SOON_S)
    with fabric.fault("link-slow", "d1g1") as slow:
        assert slow.recovery.recovered is Recovered.UNAFFECTED
    # a fault that cut no packets off has an event too
    shown = {"kind": "link-slow", "target": "d1g1", "ms": 0.0}
    eventually(lambda: ("first-packet", shown) in [(event["what"], event["detail"]) for event in page.events], SOON_S)
    status, answer = page.ask("inject", **CUT)
    assert (status, answer["command"]) == (200, "fault1 = net.fault('link-down', 'd0g1')")
    with ry.timing() as after:
        fabric.ping("d0g0", "d1g0")
    assert [results.analysis.run.is_interactive for results in (*before, *after)] == [False, True]
    assert not after[0].passed


def test_the_page_shows_that_a_click_is_worked_on(live: tuple[Program, Page, Path], chromium: Any) -> None:
    """Until the answer: on the button, and in a live region. A named workload can be chosen and changed."""
    _, page, _ = live
    with opened(chromium, page.url) as tab:
        tab.get_by_role("button", name="link d1g0 rail0 to rail0").dispatch_event("click")
        button = tab.get_by_role("button", name="Inject link-gray")
        button.click()  # it is confirmed by test frames
        tab.get_by_text("Working: inject link-gray at d1g0").wait_for()
        assert tab.locator("button[aria-busy]").count() > 0
        tab.get_by_text("Done: inject link-gray at d1g0").wait_for()
        assert tab.locator("button[aria-busy]").count() == 0
        tab.get_by_role("button", name="Repair link-gray", exact=True).click()
        tab.get_by_text("Done: repair link-gray at d1g0").wait_for()
        tab.locator("#workload select").select_option("all-gather, ring")
        field = tab.locator("#workload textarea")
        assert "algorithm: ring" in field.input_value()
        field.fill("kind: transfers")
        assert tab.locator("#workload select").input_value() == "", "it is as typed"


def test_time_zero_is_the_runs_in_every_browser(live: tuple[Program, Page, Path], chromium: Any) -> None:
    _, page, _ = live
    page.events.clear()
    page.ask("inject", **CUT)
    page.ask("repair", **CUT)
    eventually(lambda: "port-up" in [event["what"] for event in page.events], SOON_S)
    texts = []
    for _ in range(2):
        with opened(chromium, page.url) as tab:
            tab.get_by_text("carrier of d0g1 again").first.wait_for()
            texts.append(tab.locator("#events li:has-text('repaired') time").first.text_content())
    repairs = [event for event in page.events if event["what"] == "repair"]
    assert texts == [f"{(repairs[-1]['ns'] - page.last['run']['begin_ns']) / 1e9:.3f} s"] * 2


def listeners(process: psutil.Process) -> set[tuple[Any, ...]]:
    """Addresses of the machine at which a process or what it started accepts connections."""
    own = {process.pid, *(child.pid for child in process.children(recursive=True))}
    found = [one for one in psutil.net_connections("inet") if one.pid in own and one.status == psutil.CONN_LISTEN]
    return {tuple(one.laddr) for one in found}


def test_the_page_is_the_only_listener(live: tuple[Program, Page, Path]) -> None:
    shell, page, _ = live
    assert listeners(psutil.Process(shell.process.pid)) == {(page.host, page.port)}


def test_the_page_is_accessible_at_every_width(live: tuple[Program, Page, Path], chromium: Any) -> None:
    for width, scheme in zip(WIDTHS, ("dark", "light", "dark"), strict=True):  # live/test_recorded.py has the rest
        check_page(chromium, live[1].url, width, scheme)


def check_page(chromium: Any, url: str, width: int, scheme: str) -> None:
    with opened(chromium, url, viewport={"width": width, "height": 900}, color_scheme=scheme) as tab:
        tab.get_by_role("button", name="link d0g1 rail0 to rail1").dispatch_event("click")
        tab.get_by_role("button", name="Inject link-down").wait_for()
        tab.locator("#src").fill("d0g1")
        tab.locator("#dst").fill("d1g1")
        tab.get_by_text("packets: d0g1").wait_for()
        assert_fits(tab, width)
        assert_accessible(tab)


@pytest.mark.alone
def test_traffic_on_another_rail_is_seen_soon_after_a_click(live: tuple[Program, Page, Path], chromium: Any) -> None:
    """Time from a click in the page until its drawing shows traffic on rail 0, ms."""
    measure = """async () => {
        const line = document.querySelector('[aria-label="link d0g0 rail0 to rail0"] line:not(.hit)');
        const begin = performance.now();
        [...document.querySelectorAll("#actions button")].find((b) => b.textContent === "Inject link-down").click();
        while (parseFloat(line.style.strokeWidth || 1) < 1.2) await new Promise(requestAnimationFrame);
        return performance.now() - begin;
    }"""
    with opened(chromium, live[1].url) as tab:
        tab.get_by_role("button", name="link d0g1 rail0 to rail1").dispatch_event("click")
        tab.get_by_role("button", name="Inject link-down").wait_for()
        times = []
        for _ in range(CLICKS):
            eventually(lambda: live[1].link("d0g0")["to"] == 0 and live[1].link("d0g1")["to"] > 100, SOON_S)
            time.sleep(0.5)
            times.append(tab.evaluate(measure))
            live[1].ask("repair", **CUT)
            tab.get_by_role("button", name="Inject link-down").wait_for()
    print(f"click to traffic: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms")
    assert statistics.median(times) <= CLICK_TO_TRAFFIC_MS, times
