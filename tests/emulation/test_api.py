"""Fabrics from a script: measurements, faults, programs, errors, and what is left when the script ends or is killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pytest_regressions.data_regression import DataRegressionFixture

import railyard as ry
from railyard.core.host import usable_cores
from railyard.core.sandbox import run_queue
from railyard.experiments.api.machine import TURN
from railyard.experiments.measures.workloads.spec import labelled_workloads, workloads_of
from railyard.experiments.spec.loading import load_any
from railyard.results.analysis.comparison import MIN_VALUES, RowKey, Values, compare, values_of
from tests.emulation.fabrics import eventually
from tests.emulation.programs import Program, assert_as_before, machine_state
from tests.emulation.runs import EXAMPLES, overrides, run_experiment, small_spec, written

KEYS = {"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "20Mbit", "hb_rate": "200Mbit"}
SPEC = ry.FabricSpec(**KEYS)  # type: ignore[arg-type]
pytestmark = pytest.mark.fabric(**KEYS, scope="module")
SCRIPT = """
import railyard as ry, time
nets = [ry.fabric(ry.FabricSpec(domains=2, rails=2, rail_rate="20Mbit")) for _ in range({count})]
nets[0].processes("d0g0").popen(["sleep", "1000"])
print("up", flush=True)
time.sleep(1000)
"""
FORKING_SCRIPT = """
import os, time, railyard as ry
net = ry.fabric(ry.FabricSpec(domains=2, rails=2, rail_rate="20Mbit"))
if os.fork() == 0:
    time.sleep(6)
    os._exit(0)
print("up", flush=True)
time.sleep(1000)
"""
QUEUED_SCRIPT = "import railyard as ry; ry.run('idle', out='out')"
RANK = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    accepted = [server.accept()[0] for _ in range(size - 1)]
    print(sorted(int(sock.makefile().readline()) for sock in accepted))
while rank:
    try:
        socket.create_connection(address).sendall(b"%d\\n" % rank)
        break
    except OSError:
        time.sleep(0.05)
"""
CUT_RAIL = "ip link set rail0 down"
SHOW_RAIL = "ip link show rail0"
WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "ping from an unknown GPU": lambda fabric: fabric.ping("d0g9", "d1g0"),
    "command on an unknown GPU": lambda fabric: fabric.exec("d0g9", "true"),
    "unknown command": lambda fabric: fabric.exec("d0g0", ["no-such-program"]),
    "fault at an unknown GPU": lambda fabric: fabric.fault("link-down", "d9g9"),
    "unknown fault": lambda fabric: fabric.fault("link-dwon", "d0g1"),
    "unknown model": lambda fabric: fabric.run(ry.Gpt(model="nope")),
    "workload by its name": lambda fabric: fabric.run("all-to-all"),
    "no repeats": lambda fabric: fabric.run(ry.AllToAll(), repeats=0),
    "no pings": lambda fabric: fabric.ping("d0g0", "d1g0", count=0),
    "fault with a time": lambda fabric: fabric.fault("link-down", "d0g0", at="1s"),
    "rate that is a set": lambda fabric: fabric.fault("link-slow", "d0g0", rate={1}),
    "program with an open quotation": lambda fabric: fabric.processes("d0g0").popen("echo 'a"),
    "program with a wrong stdout": lambda fabric: fabric.processes("d0g0").popen(["true"], stdout=999),
    "program in a file": lambda fabric: fabric.processes("d0g0").popen("true", cwd="/dev/null/nowhere"),
    "ranks at a switch": lambda fabric: fabric.ranks(["true"], gpus=["rail0"]),
    "ranks at a number": lambda fabric: fabric.ranks(["true"], gpus=5),
    "ranks at a GPU that is no list": lambda fabric: fabric.ranks(["true"], gpus="d0g0"),
}


def test_ping_and_iperf_cross_the_fabric(fabric: ry.Fabric) -> None:
    ping = fabric.ping("d0g1", "d1g0")
    assert ping
    assert ping.received == 3
    assert 0 < fabric.iperf("d0g0", "d1g0") < 20e6


def test_command_runs_in_the_network_of_its_gpu(fabric: ry.Fabric) -> None:
    done = fabric.exec("d0g1", "ip -o addr; hostname")
    assert fabric.addresses["d0g1"] in done.stdout
    assert done.stdout.splitlines()[-1] == "d0g1"
    assert fabric.exec("d0g1", "ls /proc/self/fd").stdout.split() == ["0", "1", "2", "3"]  # 3: the folder itself
    assert fabric.exec("rail0", ["ovs-vsctl", "show"]).returncode == 0
    assert fabric.exec("d0g0", "exit 7").returncode == 7
    with pytest.raises(subprocess.CalledProcessError):
        fabric.exec("d0g0", "exit 7", check=True)


def test_workload_has_predictions_and_a_verdict(fabric: ry.Fabric) -> None:
    found = fabric.run(ry.AllToAll(bytes="400KB"), repeats=2)
    times = found.results[(found.results.metric == "completion_time") & (found.results.phase == "")]
    assert list(times["repeat"]) == [0, 1]
    assert found.predicted
    assert found.predicted > 0
    assert found.verdict in ("ok", "degraded", "invalid")
    assert all(check.passed for check in found.checks if "byte" in check.name)


def test_fault_is_rerouted_and_repaired(fabric: ry.Fabric) -> None:
    with fabric.fault("link-down", "d0g1") as fault:
        assert len(run_queue.tickets()) == 1
        assert "NO-CARRIER" in fabric.exec("d0g1", SHOW_RAIL).stdout
        recovery = fault.recovery
        assert fabric.ping("d0g1", "d1g1")
        during = fabric.run(ry.AllToAll(bytes="100KB"))
    assert recovery.recovered
    assert recovery.detect_ms is not None
    assert recovery.first_packet_ms is not None
    assert during.predicted is None
    assert fault.recovery.primary_path_ms is not None
    assert "NO-CARRIER" not in fabric.exec("d0g1", SHOW_RAIL).stdout
    assert list(fault.results.recoveries.fault) == ["link-down"]
    assert run_queue.tickets() == []


def test_faults_that_overlap_are_probed_on_ports_of_their_own(fabric: ry.Fabric) -> None:
    first = fabric.fault("link-down", "d0g0")
    with fabric.fault("link-down", "d0g1") as second:
        first.repair()
        with fabric.fault("link-down", "d1g1") as third:  # its probes need a free port; rail 0 is whole
            assert third.recovery.target == "d1g1"
        assert second.recovery.target == "d0g1"


def test_program_has_pipes_signals_and_an_exit_status(fabric: ry.Fabric) -> None:
    code = "import sys; print(sys.stdin.readline().strip(), file=sys.stderr); print('done')"
    with fabric.processes("d1g0").popen(["python", "-c", code], stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.communicate("hello\n", timeout=30) == ("done\n", "hello\n")
    assert process.returncode == 0
    with fabric.processes("d1g0").popen("sleep 4711") as sleeper:
        assert sleeper.poll() is None
        for timeout in (0.05, -1.0):
            with pytest.raises(subprocess.TimeoutExpired):
                sleeper.wait(timeout)
        sleeper.terminate()
        assert sleeper.wait(10) == -signal.SIGTERM
    with fabric.processes("d1g0").popen(["sh", "-c", "sleep 4711 & sleep 4711"]) as parent:
        pass
    assert parent.returncode == -signal.SIGKILL
    eventually(lambda: "sleep 4711" not in fabric.exec("d1g0", "ps -e -o args").stdout)  # SIGKILL takes a moment


def test_ranks_know_each_other(ranks: ry.MakeRanks) -> None:
    started = ranks(["python", "-c", RANK], stdout=subprocess.PIPE)
    assert [rank.wait(60) for rank in started] == [0, 0, 0, 0]
    assert started[0].stdout is not None
    assert started[0].stdout.read() == "[1, 2, 3]\n"


def test_fault_of_the_fixture_lasts_until_repaired(fabric: ry.Fabric, fault: ry.MakeFault) -> None:
    cut = fault("link-down", "d1g0")
    with pytest.raises(ry.CheckFailed, match="link-down at d1g0"):
        fault("link-down", "d1g0")
    assert "NO-CARRIER" in fabric.exec("d1g0", SHOW_RAIL).stdout
    results = cut.repair()
    assert list(results.recoveries.target) == ["d1g0"]
    assert [event.what for event in results.analysis.run.events if event.source == "fault"] == ["link-down", "repair"]
    fault("link-down", "d1g0")  # the fixture repairs it


def test_bad_input_names_field_and_value(fabric: ry.Fabric, data_regression: DataRegressionFixture) -> None:
    messages = {}
    for case, call in WRONG_CALLS.items():
        with pytest.raises(ry.BadInput) as caught:
            call(fabric)
        messages[case] = str(caught.value)
    assert fabric.ping("d0g0", "d1g0"), "the fabric is of use afterwards"
    data_regression.check(messages)


def test_interrupted_workload_leaves_a_usable_fabric(fabric: ry.Fabric) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            fabric.run(ry.AllToAll(duration="60s"))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert fabric.ping("d0g0", "d1g0")


def test_two_fabrics_side_by_side_and_a_closed_one(fabric: ry.Fabric) -> None:
    before = machine_state()
    with ry.fabric(SPEC) as closed:
        closed.fault("link-down", "d1g0")  # which has its turn until the fabric is closed
        closed.exec("d0g0", CUT_RAIL)
        assert fabric.ping("d0g0", "d1g0")
        assert fabric.addresses == closed.addresses
        assert closed.ping("d0g1", "d1g1")
        assert "<svg" in closed._repr_html_()
    assert_as_before(before, 2.0)
    assert not TURN.is_held
    for refused in (lambda: closed.ping("d0g1", "d1g1"), lambda: closed.exec("d0g0", "true")):
        with pytest.raises(ry.RailyardError, match="has ended"):
            refused()


def test_definitions_of_plugins_work_on_a_fabric() -> None:
    """Kinds of a fabric, of a workload and of a fault, of which the sandbox loads the same files."""
    for name in ("leaf_spine", "broadcast", "rail_brownout"):
        ry.load_plugin(EXAMPLES / f"{name}.py")
    broadcast = getattr(ry, "Broadcast")(bytes="100KB", root="d1g0")  # noqa: B009 - type checkers don't know it
    with ry.fabric(ry.FabricSpec(kind="leaf-spine", domains=2, rails=2, rail_rate="20Mbit", hb_rate="200Mbit")) as net:
        assert net.exec("leaf1", ["ovs-vsctl", "show"]).returncode == 0
        assert net.ping("d0g0", "d1g1")
        found = net.run(broadcast)
        with net.fault("rail-brownout", "leaf1"):
            assert net.iperf("d0g0", "d1g0") < 4e6
        assert net.iperf("d0g0", "d1g0") > 8e6
    assert set(found.results.workload) == {"broadcast"}
    assert all(check.passed for check in found.checks if "byte" in check.name)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_script_leaves_nothing(number: signal.Signals, count: int) -> None:
    before = machine_state()
    with Program([sys.executable, "-c", SCRIPT.format(count=count)]) as program:
        program.await_text("up", 120)
        program.process.send_signal(number)
        program.process.wait(10)
    assert_as_before(before, 2.0)


def test_forked_child_does_not_keep_the_sandbox() -> None:
    before = machine_state()
    with Program([sys.executable, "-c", FORKING_SCRIPT]) as program:
        program.await_text("up", 120)
        program.process.kill()
        program.process.wait(10)
        assert_as_before(before, 4.0)


def test_experiment_returns_its_tables_and_a_scripts_figures(fabric: ry.Fabric, tmp_path: Path) -> None:
    workload = {"kind": "collective", "collective": "all-to-all", "bytes": "400KB"}
    spec = written(small_spec(fabrics=[KEYS], workloads=[workload]), tmp_path)
    with TURN:  # the run of a script that has its turn doesn't wait for it
        found = ry.run(spec, overrides={"repeats": 2, "attempts": 1}, out=tmp_path / "out")
    assert found.folder == tmp_path / "out"
    assert set(found.results["repeat"]) == {0, 1}
    assert ry.load(tmp_path / "out").results.equals(found.results)
    with pytest.raises(ry.BadInput, match="is not empty"):
        ry.run(spec, out=tmp_path / "out")
    with pytest.raises(ry.BadInput, match="repeats: 0 must be 1 or more"):
        ry.run(spec, overrides={"repeats": 0}, out=tmp_path / "other")
    script = fabric.run(ry.AllToAll(bytes="400KB"), repeats=2)
    assert found.predicted == script.predicted
    assert list(found.results.metric) == list(script.results.metric)


def test_run_waits_for_other_runs_and_says_so(tmp_path: Path) -> None:
    at_once = run_queue.runs_at_once(usable_cores(), psutil.virtual_memory().total)
    with ExitStack() as others:
        for number in range(at_once):
            others.enter_context(run_queue.turn(f"run {number}", at_once))
        with Program([sys.executable, "-c", QUEUED_SCRIPT], cwd=tmp_path) as script:
            script.await_text("(no_queue=True starts at once)", 60)
            script.process.send_signal(signal.SIGINT)
            script.end(30)
    assert script.output.startswith("place 1 in the queue")
    assert run_queue.tickets() == []


@pytest.mark.alone
def test_figures_of_a_script_equal_the_command_lines(tmp_path: Path) -> None:
    """Of the four collectives of `collectives`, compared as two runs of the command line are. A variant:
    test_experiment_returns_its_tables_and_a_scripts_figures has the same predictions and metrics.
    """
    changes = ["rail_rate=20Mbit", "hb_rate=200Mbit", "duration=1s"]
    command = run_experiment("collectives", tmp_path, *overrides(*changes))
    spec, of_script = load_any("collectives", changes), dict[RowKey, Values]()
    with ry.fabric(spec.gpu_fabrics[0], seed=spec.seed) as net:
        for label, workload in labelled_workloads(spec):
            for key, values in values_of(net.run(workload, spec.repeats).analysis.run).items():
                of_script[replace(key, where=replace(key.where, workload=label))] = values
    of_command = values_of(command.run)
    assert of_script.keys() == of_command.keys()
    rows = compare([of_command], [of_script], limit=0.05).rows
    for row in rows:
        print(row.key.label, row.key.metric, row.n_a, row.n_b, row.median_a, row.median_b, row.interval, row.verdict)
    assert [row for row in rows if row.verdict in ("slower", "faster")] == []
    whole = [row for row in rows if (row.key.metric, row.key.phase) == ("completion_time", "")]
    assert len(whole) == len(workloads_of(spec))
    if few := [row.reason for row in whole if min(row.n_a, row.n_b) < MIN_VALUES]:
        pytest.skip(few[0])
    assert {row.verdict for row in whole} == {"same"}
