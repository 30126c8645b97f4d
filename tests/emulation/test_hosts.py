"""One fabric over several machines, which are network namespaces here:

machine 1 (run, controller) ── eth0 ── bridge ── eth0 ── machine 2 (agent), machine 3 (agent)
"""

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

import railyard
from railyard.core.wait import wait_until
from railyard.core.watch import ProcessMissing
from railyard.topologies.build.machine_part import Underlay, guarded
from tests.emulation.machines import NETWORK, TOKEN, Machines, machines
from tests.emulation.programs import RUN_EXPERIMENT, Program, command_line
from tests.emulation.runs import ALL_TO_ALL, FABRIC, Stored, run_command, small_spec

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
DIED = rf"machine [23] \(m2, {NETWORK}\.2\) died"
ON_MACHINE_2 = rf"on machine 2 \(m2, {NETWORK}\.2\)"
SWITCH_DIED = rf"ovs-vswitchd of rail1 {ON_MACHINE_2} died \(signal 9\)"
UNDERLAY = {"interface": "eth0", "wait": "20s"}
LOAD = {**ALL_TO_ALL, "algorithm": "two-phase", "duration": "400ms"}
WIDE = {**FABRIC, "domains": 4, "rail_rate": "5Mbit"}
SMALL = small_spec(fabrics=[WIDE], workloads=[LOAD], hosts=3, underlay=UNDERLAY)
LONG = [{**LOAD, "duration": "20s"}]


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
    argv = run_command(SMALL | keys, folder, "--no-queue", *options)
    return stack.enter_context(three.program(1, *argv))


def start_agent(three: Machines, stack: ExitStack, number: int, *options: str, token: str = TOKEN) -> Program:
    """Start the agent of a machine."""
    return stack.enter_context(three.agent(number, *options, token=token))


def processes(agent: Program, module: str) -> list[psutil.Process]:
    """Return the processes of a module that an agent has started."""
    children = psutil.Process(agent.process.pid).children(recursive=True)
    return [child for child in children if module in command_line(child)]


def addresses(stored: Stored) -> list[str]:
    """Return the addresses of a run's machines in their order."""
    return [machine["address"] for machine in json.loads(stored.text("provenance.json"))["machines"]]


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
        agents[1].await_match("running now: .*: another run", 20.0)
        other.process.kill()
    status = run.end(RUN_S)
    assert status in (0, 1), run.output  # 1: beside other tests the machine may be too busy to be believed
    stored = Stored(tmp_path / "out")
    assert stored.run.measured("completion_time")
    assert stored.run.measured("clock_uncertainty")
    (underlay,) = stored.run.measured("underlay_bytes")
    assert underlay.ratio is not None
    assert 1.0 <= underlay.ratio < 1.1, underlay  # acknowledgements and control come on top
    stored.assert_no_byte_is_missing()
    stored.assert_ports_counted_every_byte()
    first, *joined = addresses(stored)
    assert [first, *sorted(joined)] == [f"{NETWORK}.{n}" for n in (1, 2, 3)]  # in the order in which they joined
    assert [agent.end(20.0) for agent in agents] == [0, 0]
    check_nothing_left(three)


@pytest.mark.parametrize("how", ["part", "agent", "silent"])
def test_a_machine_that_dies_ends_the_run_and_leaves_nothing(
    three: Machines, stack: ExitStack, tmp_path: Path, how: str
) -> None:
    agents = [start_agent(three, stack, 2), start_agent(three, stack, 3)]
    run = start(three, stack, tmp_path, {"workloads": LONG})
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
    run.await_match(DIED, 5.0)
    assert run.end(30.0) == 1, run.output
    ended_s = time.monotonic() - killed
    print(f"{how}: ended after {ended_s:.1f} s")
    assert ended_s < 5.0
    assert re.search(f"^error: {DIED}", run.output, re.MULTILINE), run.output
    assert Stored(tmp_path / "out").run.links  # what was measured before
    for agent in agents:
        agent.process.send_signal(signal.SIGTERM)
        agent.end(20.0)
    check_nothing_left(three)


def test_process_missing_elsewhere_is_named_within_5_s(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """On machine 2 the part is stopped, a replay worker killed, one of the next interval stopped, a switch killed."""
    agent = start_agent(three, stack, 2, "--once")
    run = start(three, stack, tmp_path, {"workloads": LONG, "repeats": 3, "hosts": 2})
    ended = set[int]()

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
    run.await_match(rf"the run's own process {ON_MACHINE_2} was stopped for ", 5.0)
    worker.send_signal(signal.SIGKILL)
    run.await_match(rf"a replay worker {ON_MACHINE_2} died \(signal 9\)", 5.0)
    replay().send_signal(signal.SIGSTOP)
    run.await_match(rf"a replay worker {ON_MACHINE_2} was stopped for ", 5.0)
    replay()
    processes(agent, "ovs-vswitchd")[0].send_signal(signal.SIGKILL)
    run.await_match(SWITCH_DIED, 5.0)
    assert run.end(30.0) == 1, run.output
    assert Stored(tmp_path / "out").verdicts("repeat") == dict.fromkeys(range(3), "invalid")
    check_nothing_left(three)


def test_cut_between_machines_recovers_as_on_a_machine(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """The GPU is on machine 2, its rail switch on machine 1."""
    fabric = {**WIDE, "rails": 4}
    faults = [{"kind": "link-down", "target": "d2g0", "at": "700ms", "repair": "2s"}]
    keys = {"workloads": [], "fabrics": [fabric], "faults": faults, "heartbeats": "off", "reroute": "on", "hosts": 2}
    for attempt in range(3):  # a busy machine may not be back at its rate when the fault is repaired
        agent = start_agent(three, stack, 2, "--once")
        folder = tmp_path / str(attempt)
        folder.mkdir()
        run = start(three, stack, folder, keys)
        assert run.end(RUN_S) in (0, 1), run.output
        stored = Stored(folder / "out")
        (row,) = stored.rows("recovery.csv")
        assert agent.end(20.0) == 0
        if row["recovered"] == "yes":
            break
    assert row["recovered"] == "yes", row
    assert all(float(row[step]) > 0 for step in ("detect_ms", "decided_ms", "reroute_ms")), row
    assert float(row["far_side_ms"]) >= 0, row  # 0: a busy machine sent no probe while the path was down
    assert (row["connections_lost"], row["lost_bytes"]) == ("0", "0")
    assert [reason for reason in stored.summary["reasons"] if "carried" in reason] == []
    assert {event.what for event in stored.run.events} >= {"port-down", "rerouted", "port-up"}
    assert stored.run.measured("clock_uncertainty")
    check_nothing_left(three)


def test_a_fabric_after_a_dead_switch_delivers_every_byte(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    """Machine 2 has switch rail1 of the first fabric; the next fabric has two switches for each rail."""
    agent = start_agent(three, stack, 2, "--once")
    fabrics = [WIDE, WIDE | {"kind": "dual-plane"}]
    keys = {"fabrics": fabrics, "workloads": [LOAD | {"duration": "2s"}], "hosts": 2}
    run = start(three, stack, tmp_path, keys)
    wait_until(lambda: processes(agent, REPLAY), "the replay", RUN_S)
    (switch,) = (process for process in processes(agent, "ovs-vswitchd") if process.name() == "ovs-vswitchd")
    switch.send_signal(signal.SIGKILL)
    run.await_match(SWITCH_DIED, 5.0)
    assert run.end(RUN_S) == 1, run.output
    stored = Stored(tmp_path / "out")
    assert stored.verdicts("fabric")["rail-only"] == "invalid"
    (reason,) = (reason for reason in stored.summary["reasons"] if "rail1 on machine 2" in reason)
    assert reason.startswith("invalid: rail-only, "), reason
    stored.assert_no_byte_is_missing()
    assert "dual-plane" in {row.fabric for row in stored.run.measured("completion_time")}
    assert agent.end(20.0) == 0
    check_nothing_left(three)


def test_workers_of_a_dask_cluster_start_the_agents(
    three: Machines, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
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
        machines_of_run = json.loads(Stored(tmp_path / "out").text("provenance.json"))["machines"]
        assert [machine["name"] for machine in machines_of_run] == keys["hosts"]
        soon = {"underlay": UNDERLAY | {"wait": "2s"}}
        for hosts, lacking in ((4, "2 other machines"), (["m1", "m9"], "0 other machines")):
            folder = tmp_path / str(hosts)
            folder.mkdir()
            run = start(three, stack, folder, soon | {"hosts": hosts}, "--on", SCHEDULER, "--insecure")
            assert run.end(RUN_S) == 3
            assert run.output.splitlines()[-1].startswith(f"error: --on: {SCHEDULER} "), run.output
            assert f" {lacking}, " in run.output
    check_nothing_left(three)


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
    line = refusal(run)
    assert line.startswith(f"error: hosts: m2 ({NETWORK}.2) has Railyard 9.9, this machine {railyard.__version__}")
    assert agent.end(10.0) == 2


def refusal(run: Program) -> str:
    """Return the last line of a run that ended since it lacked machines."""
    assert run.end(RUN_S) == 3
    return run.output.strip().splitlines()[-1]


def test_a_machine_that_is_not_named_is_refused(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    agent = start_agent(three, stack, 2)
    line = refusal(start(three, stack, tmp_path, {"hosts": ["m1", "m3"]}))
    assert line.startswith(f"error: hosts: m2 ({NETWORK}.2) ")
    assert ": m1, m3 " in line
    assert agent.end(10.0) == 2
    assert "refuses this machine" in agent.output


def test_too_few_machines_and_another_token_end_in_one_line(three: Machines, stack: ExitStack, tmp_path: Path) -> None:
    stranger = start_agent(three, stack, 2, token="another-token-of-these")
    line = refusal(start(three, stack, tmp_path, {"underlay": UNDERLAY | {"wait": "4s"}}))
    assert line.startswith("error: hosts: 1 of 3 machines")
    assert "(1 callers " in line
    assert stranger.end(10.0) == 2
    assert "another token" in stranger.output


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
            with pytest.raises(ProcessMissing, match=r"\(nft\) died \(signal 9\)"):
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
