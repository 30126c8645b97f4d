"""One fabric over several machines, which are network namespaces here:

machine 1 (run, controller) ── eth0 ── bridge ── eth0 ── machine 2 (agent), machine 3 (agent)
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import railyard
from railyard.core.wait import wait_until
from railyard.core.watch import ProcessMissing
from railyard.topologies.build.machine_part import Underlay, guarded
from tests.emulation.machines import NETWORK, TOKEN, Machines, machines
from tests.emulation.programs import RUN_EXPERIMENT, Program, assert_as_before, command_line, machine_state

RUN_S = 120.0
REPLAY = "railyard.workloads.replay.worker"
SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), (sys.argv[2], 47911))"
RECEIVE = """import socket
sock = socket.socket(type=socket.SOCK_DGRAM)
sock.bind(("", 47911))
sock.settimeout(60)
print("listening", flush=True)
found = set()
while len(found) < {}:
    found.add(sock.recv(9).decode())
print(*sorted(found))
"""
HAVE_A_TURN = """import time
from railyard.core.sandbox import run_queue
with run_queue.turn("another run", 1):
    print("begun", flush=True)
    time.sleep(60)
"""
OTHER_VERSION = """import sys, railyard
railyard.__version__ = "9.9"
from railyard.experiments import cli
sys.exit(cli.main())
"""
DASK = f"{sys.executable.rpartition('/')[0]}/dask"
LATE_S = 6.0  # the second worker starts after the run has asked for workers
SCHEDULER = f"tcp://{NETWORK}.1:8786"
WORKER_OPTIONS = ("--nthreads", "1", "--no-dashboard", "--resources", "railyard=1")
SMALL: dict[str, Any] = {
    "name": "small",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 2, "rail_rate": "5Mbit"}],
    "workloads": [{"kind": "collective", "collective": "all-to-all", "algorithm": "two-phase", "duration": "400ms"}],
    "hosts": 3,
    "underlay": {"interface": "eth0", "wait": "20s"},
}


@pytest.fixture(scope="module")
def three() -> Iterator[Machines]:
    with machines(3) as found:
        yield found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Programs that end with the test."""
    with ExitStack() as found:
        yield found


def start(three: Machines, stack: ExitStack, folder: Path, keys: dict[str, Any], *options: str) -> Program:
    """Start a run on machine 1."""
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL | keys))
    argv = [*RUN_EXPERIMENT, "run", str(folder / "small.yaml"), "--no-queue", "--out", str(folder / "out"), *options]
    return stack.enter_context(three.program(1, *argv))


def start_agent(three: Machines, stack: ExitStack, number: int, *options: str, token: str = TOKEN) -> Program:
    """Start the agent of a machine."""
    return stack.enter_context(three.agent(number, *options, token=token))


def processes(agent: Program, module: str) -> list[psutil.Process]:
    """Return the processes of a module that an agent has started."""
    children = psutil.Process(agent.process.pid).children(recursive=True)
    return [child for child in children if module in command_line(child)]


def check_nothing_left(three: Machines) -> None:
    """No tunnel and no rule is left on any machine."""
    for number in (1, 2, 3):
        assert "vxlan" not in three.output(number, "ip", "-d", "link")
        assert three.output(number, "nft", "list", "tables") == ""


def test_collectives_over_three_machines_deliver_every_byte(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """Another run has machine 3 at first: its agent joins after that."""
    with three.program(3, sys.executable, "-c", HAVE_A_TURN) as other:
        other.await_text("begun", 10.0)
        agents = [start_agent(three, stack, 2, "--once"), start_agent(three, stack, 3, "--once")]
        run = start(three, stack, tmp_path, {})
        agents[1].await_match("place 1 in the queue, running now: .*: another run", 20.0)
        other.process.kill()
    status = run.end(RUN_S)
    assert status in (0, 1), run.output  # 1: beside other tests the machine may be too busy to be believed
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert {row["metric"] for row in rows} >= {"completion_time", "clock_uncertainty", "underlay_bytes"}
    (underlay,) = (row for row in rows if row["metric"] == "underlay_bytes")
    assert 1.0 <= float(underlay["ratio"]) < 1.1, underlay  # acknowledgements and control come on top
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert not [reason for reason in summary["reasons"] if "delivered" in reason or "ports counted" in reason]
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    addresses = [machine["address"] for machine in provenance["machines"]]
    assert addresses[0] == f"{NETWORK}.1"
    assert sorted(addresses) == [f"{NETWORK}.{n}" for n in (1, 2, 3)]  # in the order in which they joined
    assert [agent.end(20.0) for agent in agents] == [0, 0]
    check_nothing_left(three)


@pytest.mark.parametrize("how", ["part", "agent", "silent"])
def test_a_machine_that_dies_ends_the_run_and_leaves_nothing(
    three: Machines, stack: ExitStack, tmp_path: Path, how: str
) -> None:
    before = machine_state()
    agents = [start_agent(three, stack, 2), start_agent(three, stack, 3)]
    long = [{**SMALL["workloads"][0], "duration": "20s"}]
    run = start(three, stack, tmp_path, {"workloads": long})
    run.await_match(r"calibrating links  2 links", RUN_S)
    wait_until(lambda: processes(agents[0], REPLAY), "the replay", RUN_S)
    part = processes(agents[0], REPLAY)[0].parent()
    assert part
    if how == "silent":
        set_link("machine2", "down")
        stack.callback(set_link, "machine2", "up")
    else:
        os.kill(part.pid if how == "part" else agents[0].process.pid, signal.SIGKILL)
    killed = time.monotonic()
    run.await_match(rf"machine [23] \(m2, {NETWORK}\.2\) died", 5.0)
    named_s = time.monotonic() - killed
    assert run.end(30.0) == 1, run.output
    ended_s = time.monotonic() - killed
    print(f"{how}: named after {named_s:.1f} s, the run ended after {ended_s:.1f} s")
    assert ended_s < 5.0
    assert re.search(rf"^error: machine [23] \(m2, {NETWORK}\.2\) died", run.output, re.MULTILINE), run.output
    assert json.loads((tmp_path / "out" / "run.json").read_text())["links"]  # what was measured before
    for agent in agents:
        agent.process.send_signal(signal.SIGTERM)
        agent.end(20.0)
    check_nothing_left(three)
    stack.close()
    assert_as_before(before)


def test_process_missing_elsewhere_is_named_within_5_s(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """On machine 2 the part is stopped, a replay worker killed, one of the next interval stopped, a switch killed."""
    agent = start_agent(three, stack, 2, "--once")
    long = [{**SMALL["workloads"][0], "duration": "20s"}]
    run = start(three, stack, tmp_path, {"workloads": long, "repeats": 3, "hosts": 2})
    where, ended = rf"on machine 2 \(m2, {NETWORK}\.2\)", set[int]()

    def replay() -> psutil.Process:
        """Return a replay worker of the next interval."""
        first, *_ = wait_until(lambda: [p for p in processes(agent, REPLAY) if p.pid not in ended], "the replay", RUN_S)
        time.sleep(1.0)
        ended.update(process.pid for process in processes(agent, REPLAY))
        return first

    worker = replay()
    part = worker.parent()
    assert part
    part.send_signal(signal.SIGSTOP)
    run.await_match(rf"the run's own process {where} was stopped for ", 5.0)
    worker.send_signal(signal.SIGKILL)
    run.await_match(rf"a replay worker {where} died \(signal 9\)", 5.0)
    replay().send_signal(signal.SIGSTOP)
    run.await_match(rf"a replay worker {where} was stopped for ", 5.0)
    replay()
    processes(agent, "ovs-vswitchd")[0].send_signal(signal.SIGKILL)
    run.await_match(rf"ovs-vswitchd of rail1 {where} died \(signal 9\)", 5.0)
    assert run.end(30.0) == 1, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    verdicts = {interval["repeat"]: interval["verdict"] for interval in summary["intervals"]}
    assert verdicts == dict.fromkeys(range(3), "invalid"), summary
    check_nothing_left(three)


def test_cut_between_machines_recovers_as_on_a_machine(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """The GPU is on machine 2, its rail switch on machine 1."""
    fabric = {"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "5Mbit"}
    faults = [{"kind": "link-down", "target": "d2g0", "at": "700ms", "repair": "2s"}]
    keys = {"workloads": [], "fabrics": [fabric], "faults": faults, "heartbeats": "off", "reroute": "on", "hosts": 2}
    for attempt in range(3):  # a busy machine may not be back at its rate when the fault is repaired
        agents = [start_agent(three, stack, 2, "--once")]
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run = start(three, stack, folder, keys)
        assert run.end(RUN_S) in (0, 1), run.output
        out = folder / "out"
        (row,) = csv.DictReader((out / "recovery.csv").read_text().splitlines())
        assert [agent.end(20.0) for agent in agents] == [0]
        if row["recovered"] == "yes":
            break
    assert row["recovered"] == "yes", row
    assert all(float(row[step]) > 0 for step in ("detect_ms", "decided_ms", "reroute_ms")), json.dumps(row)
    assert float(row["far_side_ms"]) >= 0, row  # 0: a busy machine sent no probe while the path was down
    assert int(row["connections_lost"]) == 0
    assert int(row["lost_bytes"]) == 0
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert {event["what"] for event in events} >= {"port-down", "rerouted", "port-up"}
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    assert "clock_uncertainty" in {row["metric"] for row in rows}
    summary = json.loads((out / "summary.json").read_text())
    assert not [reason for reason in summary["reasons"] if "did not recover" in reason or "carried" in reason], summary
    check_nothing_left(three)


def test_a_fabric_after_a_dead_switch_delivers_every_byte(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """Machine 2 has switch rail1 of the first fabric; the next fabric has two switches for each rail."""
    agent = start_agent(three, stack, 2, "--once")
    (first,), (load,) = SMALL["fabrics"], SMALL["workloads"]
    keys = {"fabrics": [first, first | {"kind": "dual-plane"}], "workloads": [load | {"duration": "3s"}], "hosts": 2}
    run = start(three, stack, tmp_path, keys)
    wait_until(lambda: processes(agent, REPLAY), "the replay", RUN_S)
    (switch,) = (process for process in processes(agent, "ovs-vswitchd") if process.name() == "ovs-vswitchd")
    switch.send_signal(signal.SIGKILL)
    run.await_match(rf"ovs-vswitchd of rail1 on machine 2 \(m2, {NETWORK}\.2\) died \(signal 9\)", 5.0)
    assert run.end(RUN_S) == 1, run.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    verdicts = {interval["fabric"]: interval["verdict"] for interval in summary["intervals"]}
    assert verdicts["rail-only"] == "invalid", summary
    (reason,) = (reason for reason in summary["reasons"] if "rail1 on machine 2" in reason)
    assert reason.startswith("invalid: rail-only, "), summary
    found = summary["headline"]["bytes"]
    assert found["delivered_bytes"] == found["asked_bytes"] > 0, summary
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert "dual-plane" in {row["fabric"] for row in rows if row["metric"] == "completion_time"}
    assert agent.end(20.0) == 0
    check_nothing_left(three)


def test_workers_of_a_dask_cluster_start_the_agents(
    three: Machines, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
    before = machine_state()
    with ExitStack() as cluster:

        def start_dask(number: int, *argv: str) -> None:
            cluster.enter_context(three.program(number, DASK, *argv, token=""))

        start_dask(1, "scheduler", "--host", f"{NETWORK}.1", "--no-dashboard")
        start_dask(2, "worker", SCHEDULER, "--name", "m2", *WORKER_OPTIONS)
        keys = {"hosts": ["m1", "m3", "m2"]}
        run = start(three, stack, tmp_path, keys, "--on", SCHEDULER, "--insecure")
        time.sleep(LATE_S)
        start_dask(3, "worker", SCHEDULER, "--name", "m3", *WORKER_OPTIONS)
        assert run.end(RUN_S) in (0, 1), run.output
        provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
        assert [machine["name"] for machine in provenance["machines"]] == keys["hosts"]
        soon = {"underlay": SMALL["underlay"] | {"wait": "2s"}}
        (tmp_path / "more").mkdir()
        run = start(three, stack, tmp_path / "more", soon | {"hosts": 4}, "--on", SCHEDULER, "--insecure")
        assert run.end(RUN_S) == 3
        line = f"error: --on: {SCHEDULER} has workers on 2 other machines, and hosts needs 3"
        assert run.output.splitlines()[-1].startswith(line), run.output
        (tmp_path / "other").mkdir()
        run = start(three, stack, tmp_path / "other", soon | {"hosts": ["m1", "m9"]}, "--on", SCHEDULER, "--insecure")
        assert run.end(RUN_S) == 3
        line = f"error: --on: {SCHEDULER} has workers on 0 other machines of m9, and hosts needs 1"
        assert run.output.splitlines()[-1].startswith(line), run.output
    check_nothing_left(three)
    assert_as_before(before)


def set_link(name: str, *state: str) -> None:
    """Set the underlay's end of a machine's cable up or down, or change its MTU."""
    subprocess.run(["ip", "link", "set", name, *state], check=True)


def test_doctor_checks_all_machines_and_their_underlay(three: Machines, stack: ExitStack) -> None:
    for number in (2, 3):
        start_agent(three, stack, number, "--once")  # which doctor is no run for
    argv = (*RUN_EXPERIMENT, "doctor", "--hosts", "3", "--underlay", "eth0")
    with three.program(1, *argv) as doctor:
        assert doctor.end(60.0) == 0, doctor.output
    lines = doctor.output.splitlines()
    assert sum(bool(re.match(r"machine [23]: m[23], .*, clock known to \d+ us$", line)) for line in lines) == 2, lines
    set_link("machine2", "mtu", "1500")
    stack.callback(set_link, "machine2", "mtu", "9100")
    with three.program(1, *argv) as doctor:
        assert doctor.end(60.0) == 3, doctor.output
    assert re.search(
        rf"^error: hosts: packets of 9100 bytes don't reach machine [23] \(m2, {NETWORK}\.2\)", doctor.output, re.M
    )
    check_nothing_left(three)


def test_an_agent_of_another_version_is_refused(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    join = ["agent", "--join", f"tcp://{NETWORK}.1:7911", "--name", "m2"]
    agent = stack.enter_context(three.program(2, sys.executable, "-c", OTHER_VERSION, *join))
    run = start(three, stack, tmp_path, {"hosts": 2})
    assert run.end(RUN_S) == 3
    line = f"error: hosts: m2 ({NETWORK}.2) has Railyard 9.9, this machine {railyard.__version__}: install the same on"
    assert run.output.strip().splitlines()[-1].startswith(line), run.output
    assert agent.end(10.0) == 2


def test_a_machine_that_is_not_named_is_refused(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    agent = start_agent(three, stack, 2)
    run = start(three, stack, tmp_path, {"hosts": ["m1", "m3"]})
    assert run.end(RUN_S) == 3
    line = f"error: hosts: m2 ({NETWORK}.2) is none of the machines of this run: m1, m3"
    assert run.output.strip().splitlines()[-1].startswith(line), run.output
    assert agent.end(10.0) == 2
    assert "refuses this machine: is none of the machines" in agent.output


def test_too_few_machines_and_another_token_end_in_one_line(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    stranger = start_agent(three, stack, 2, token="another-token-of-these")
    run = start(three, stack, tmp_path, {"underlay": {"interface": "eth0", "wait": "4s"}})
    assert run.end(RUN_S) == 3
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("error: hosts: 1 of 3 machines are there after 4s (1 callers had another token)"), run.output
    assert stranger.end(10.0) == 2
    assert "the other end has another token" in stranger.output


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"underlay": {"interface": "eth7"}}, "underlay.interface: 'eth7' has no IPv4 address here; those with one: "),
        ({"hosts": 5}, "hosts: 5 must be 4 or less"),
    ],
)
def test_bad_keys_end_in_one_line(
    three: Machines, stack: ExitStack, tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    run = start(three, stack, tmp_path, keys)
    assert run.end(RUN_S) == 2
    assert run.output.startswith(f"error: {line}"), run.output


def test_tunnel_packets_from_elsewhere_are_dropped(three: Machines) -> None:
    here = Underlay(0, (f"{NETWORK}.1", f"{NETWORK}.2"), "eth0", 47_911, 0)
    with Path(f"/proc/{three.pids[0]}/ns/net").open() as net:

        def received(count: int) -> str:
            """Return what first comes from so many machines; both send until then, since UDP may lose a packet."""
            argv = three.command(1, "python3", "-c", RECEIVE.format(count))
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as receiver:
                assert receiver.stdout
                receiver.stdout.readline()
                deadline = time.monotonic() + 60
                while receiver.poll() is None:
                    if time.monotonic() > deadline:
                        receiver.kill()
                    three.output(3, "python3", "-c", SEND, "foreign", f"{NETWORK}.1")
                    three.output(2, "python3", "-c", SEND, "peer", f"{NETWORK}.1")
                return receiver.stdout.read().strip()

        with guarded(here, net.fileno()):
            assert received(1) == "peer"
            (owner,) = (child for child in psutil.Process().children() if child.name() == "nft")
            owner.kill()
            with pytest.raises(ProcessMissing, match=r"the guard of tunnels \(nft\) died \(signal 9\)"):
                wait_until(lambda: False, "its end", 10.0)
        assert received(2) == "foreign peer"
    check_nothing_left(three)


@pytest.mark.parametrize("user", [[], ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]])
def test_sockets_of_a_machine_send_nothing_to_tunnels(three: Machines, user: list[str]) -> None:
    there = Underlay(1, (f"{NETWORK}.1", f"{NETWORK}.2"), "eth0", 47_911, 0)
    argv = three.command(2, *user, "/usr/bin/python3", "-c", SEND, "forged", f"{NETWORK}.1")
    with Path(f"/proc/{three.pids[1]}/ns/net").open() as net, guarded(there, net.fileno()):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "PermissionError: [Errno 1] Operation not permitted" in done.stderr
    subprocess.run(argv, check=True)
