"""Keys `hosts` and `underlay`: what can't be on several machines is refused in one line, before anything is built."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.records import IntervalId
from railyard.core.sandbox import launcher, run_queue
from railyard.experiments.machines import agent
from railyard.experiments.machines.agent import parse_join
from railyard.experiments.machines.cluster import Cluster
from railyard.experiments.machines.joining import mtu_problem
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.parsing import parse
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.limits import CLOCKS, UNDERLAY
from railyard.results.runs.records import CLOCK_UNCERTAINTY, UNDERLAY_BYTES, Measurement, Run
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec
from tests.unit.messages import messages

FABRIC = {"kind": "rail-only", "domains": 4, "rails": 2}
CUT = {"kind": "link-down", "target": "d0g1"}
RANDOM = {"name": "random", "random_faults": {"count": 3}}
LOAD = {"kind": "collective", "collective": "all-to-all", "algorithm": "direct", "duration": "1s"}


def spec(**keys: Any) -> ExperimentSpec:
    """Return an experiment on two machines, with other keys."""
    data = {"name": "x", "fabrics": [FABRIC], "workloads": [LOAD], "hosts": 2, "underlay": {"interface": "eth0"}}
    return parse(data | keys)


def test_an_experiment_is_for_one_machine_by_default() -> None:
    assert spec().hosts == 2
    assert spec(hosts=["a", "b", "c"]).machine_count == 3
    assert parse(spec(hosts=["a", "b"]).resolved()) == spec(hosts=["a", "b"])
    plain = parse({"name": "x", "fabrics": [FABRIC], "workloads": [LOAD]})
    assert plain.hosts == 1
    assert parse(spec().resolved()) == spec()


MULTI_RAIL = {"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "auto"}] * 2}
WRONG: dict[str, dict[str, Any]] = {
    "no interface": {"underlay": {}},
    "more machines than domains": {"hosts": 5},
    "no machine": {"hosts": 0},
    "underlay of one machine": {"hosts": 1},
    "machine named twice": {"hosts": ["a", "b", "a"]},
    "one name": {"hosts": "a"},
    "more names than domains": {"hosts": ["a", "b", "c", "d", "e"]},
    "heartbeats": {"faults": [CUT]},
    "fault of one machine": {"faults": [CUT | {"kind": "link-silent"}], "heartbeats": "off"},
    "random faults of any kind": {"scripts": [RANDOM], "heartbeats": "off"},
    "routing": {"routing": {"policies": ["dr"]}},
    "spines": {"fabrics": [FABRIC | {"kind": "rail-optimized"}]},
    "optical switches": {"fabrics": [FABRIC | {"optical": {}}]},
    "name of no interface": {"underlay": {"interface": "a/b"}},
    "port of the system": {"underlay": {"interface": "eth0", "port": 80}},
    "nodes with several rails": {"fabrics": [MULTI_RAIL], "workloads": [{"kind": "allreduce", "sizes": ["1MB"]}]},
}


def test_experiment_that_needs_one_machine_is_refused(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda keys: spec(**keys), WRONG))


@pytest.mark.parametrize("text", ["10.0.0.1:7911", "tcp://10.0.0.1", "tcp://:7911", "tcp://h:0", "tcp://h:x", ""])
def test_an_address_to_join_has_host_and_port(text: str) -> None:
    with pytest.raises(BadInput, match=r"^--join: "):
        parse_join(text)
    assert parse_join("tcp://10.0.0.1:7911") == ("10.0.0.1", 7911)


def test_the_headers_of_a_tunnel_have_to_fit_the_underlay() -> None:
    assert mtu_problem("eth0", 9050, spec()) == ""
    assert "tunnels need 9050" in mtu_problem("eth0", 9049, spec())


@pytest.mark.parametrize(("uncertainty_s", "verdict"), [(100e-6, "ok"), (101e-6, "degraded")])
def test_clocks_that_are_apart_degrade_an_interval(uncertainty_s: float, verdict: str) -> None:
    run = Run("x", {}, {}, "")
    run.measurements.append(Measurement(IntervalId("f", "w"), "", CLOCK_UNCERTAINTY, uncertainty_s, "s"))
    found = [finding for finding in judge(run).evidence if finding.limit is CLOCKS]
    assert [finding.verdict for finding in found] == [verdict]


@pytest.mark.parametrize(
    ("sent", "predicted", "verdict"),
    [(11e6, 10e6, "ok"), (13e6, 10e6, "degraded"), (1e6, 10e6, "degraded"), (3e5, 1e5, "ok")],
)
def test_other_traffic_between_machines_degrades_an_interval(sent: float, predicted: float, verdict: str) -> None:
    run = Run("x", {}, {}, "")
    run.measurements.append(Measurement(IntervalId("f", "w"), "", UNDERLAY_BYTES, sent, "B", predicted))
    found = [finding for finding in judge(run).evidence if finding.limit is UNDERLAY]
    assert [finding.verdict for finding in found] == [verdict]


def test_fabrics_of_a_run_have_tunnels_of_their_own() -> None:
    """The kernel may remove those of a fabric after the next one is built."""
    cluster = Cluster(None, -1, None, {})  # type: ignore[arg-type]
    cluster.others.append(None)  # type: ignore[arg-type]
    plan = make_plan(FabricSpec.model_validate(FABRIC | {"rail_rate": "5Mbit"}), 5_000_000)
    first, second, third = (cluster.place(plan) for _ in range(3))
    assert len(first.tunnels) == 4
    assert [one.earlier_tunnels for one in (first, second, third)] == [0, 4, 8]


def test_an_agent_waits_for_no_host_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(number: int) -> None:
        def fail(*_: object) -> None:
            raise socket.gaierror(number, "")

        monkeypatch.setattr(socket, "getaddrinfo", fail)

    with pytest.raises(BadInput, match=r"^--join: 'tcp://a\.\.b:1' "):
        agent.check_host("tcp://a..b:1", "a..b")
    answer(socket.EAI_NONAME)
    with pytest.raises(BadInput, match="m9 is none"):
        agent.check_host("tcp://m9:1", "m9")
    answer(socket.EAI_AGAIN)
    agent.check_host("tcp://m9:1", "m9")


def test_an_agent_waits_for_its_turn_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "turn", partial(run_queue.turn, prefix=f"railyard-test-{uuid4().hex[:8]}"))
    with agent._turn("one", 1, inf):
        with pytest.raises(MissingRequirement, match="other runs "):
            agent._turn("two", 1, time.monotonic() + 0.1).__enter__()
        with agent._turn("three", 2, time.monotonic() + 0.1):
            pass


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_as_the_program_ends_is_noticed(when: str) -> None:
    """One that comes before the end is passed on too: here to a program that ends by it, with 0."""
    noticed, passed_on = list[int](), list[int]()
    signals = launcher.Signals(on_stop=noticed.append)
    with signals, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        stdin = program.stdin
        assert stdin

        def pass_on(number: int) -> None:
            passed_on.append(number)
            stdin.close()

        if when == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            stdin.close()
        assert signals.wait(program, pass_on) == 0
        if when == "after":
            os.kill(os.getpid(), signal.SIGTERM)
        assert passed_on == ([signal.SIGTERM] if when == "before" else [])
    assert noticed == [signal.SIGTERM]


def test_signal_without_effect_is_forwarded_again() -> None:
    """Here the first has none, as one that comes directly before the program reads its input."""
    forwarded = list[int]()
    signals = launcher.Signals()
    with signals, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        stdin = program.stdin
        assert stdin

        def forward(number: int) -> None:
            forwarded.append(number)
            if len(forwarded) == 2:
                stdin.close()

        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(program, forward, is_repeated=True) == 0
    assert forwarded == [signal.SIGTERM, signal.SIGTERM]


@pytest.mark.parametrize("number", launcher.STOP_SIGNALS)
@pytest.mark.parametrize("is_check", [False, True])
def test_an_agent_that_is_stopped_as_its_part_ends_goes(
    number: int, is_check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = [number]

    def entered(*_: object, on_stop: Callable[[int], None], **__: object) -> int:
        assert stops, "the agent took part once more"
        on_stop(stops.pop())
        return 0

    monkeypatch.setattr(launcher, "enter", entered)
    monkeypatch.setattr(agent, "authenticate", lambda *_, **__: None)
    monkeypatch.setattr(agent, "read_line", lambda _: {"experiment": "x", "machine": 2, "is_check": is_check})
    monkeypatch.setattr(agent, "about_machine", lambda *_: {})
    monkeypatch.setattr(agent, "require", lambda _: None)
    monkeypatch.setattr(agent, "read_token", lambda: b"token")
    monkeypatch.setattr(run_queue, "turn", partial(run_queue.turn, prefix=f"railyard-test-{uuid4().hex[:8]}"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        assert agent.serve(f"tcp://127.0.0.1:{server.getsockname()[1]}", "m2", once=False) == 128 + number


def test_an_agent_runs_no_file_of_its_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is root's, and the folder may be any user's."""
    (tmp_path / "psutil.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(agent, "authenticate", lambda *_, **__: None)
    monkeypatch.setattr(agent, "read_line", lambda _: {"experiment": "x", "machine": 2})

    def entered(argv: list[str], *_: object, folder: Path | None = None, **__: object) -> int:
        return subprocess.run(argv, cwd=folder, capture_output=True, check=False).returncode

    monkeypatch.setattr(launcher, "enter", entered)
    monkeypatch.setattr(agent, "about_machine", lambda *_: {})
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        assert agent._take_part(sock, ("127.0.0.1", 1), b"token", "it") == 1  # it is in no sandbox
