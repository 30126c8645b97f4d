"""Worker processes of the project: each serves a job without GPUs, which needs no namespaces."""

import subprocess
import sys

import pytest

from railyard.controller.processes import messages
from railyard.core.errors import RailyardError
from railyard.core.worker import Message, Ready, Worker
from railyard.failure.connectivity.worker import Answered, Open, Probe
from railyard.failure.probes.replacement import Prober
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.workloads.background.flows import BackgroundJob, Sent, StartAt, Stop
from railyard.workloads.replay.job import Connect, Delivered, Go, Job, Outcome, windows_for_links
from tests.unit.broken_fabrics import plan

PLAN = plan("rail-only", "dr", 2, 2)


def test_traffic_of_no_pairs_has_an_empty_log() -> None:
    traffic = Traffic(TrafficJob(streams=(), probes=(), stream_bytes_per_s=1.0))
    traffic.start()
    log = traffic.stop(drain_s=0.0)
    assert (log.sent, log.broken, log.probes) == ({}, {}, [])


def test_background_of_no_flows_sends_nothing() -> None:
    sender = Worker("railyard.workloads.background.sender", "the background sender", Ready, Sent)
    try:
        sender.ask(BackgroundJob(flows=(), mtu=9000), Ready)
        sender.ask(StartAt(start_ns=0), Ready)
        assert sender.ask(Stop(), Sent).counts == []
    finally:
        sender.end()


def test_a_connectivity_check_of_no_gpus_has_no_pairs() -> None:
    worker = Worker("railyard.failure.connectivity.worker", "the connectivity worker", Ready, Answered)
    try:
        worker.ask(Open(gpus=()), Ready)
        for _ in range(2):
            probe = Probe(number=1, pairs=[], awaited=frozenset(), send_s=0.0, timeout_s=0.01, within_s=1.0)
            answered = worker.ask(probe, Answered)
            assert answered.pairs == frozenset()
    finally:
        worker.end()


def test_a_prober_of_no_pairs_reaches_all() -> None:
    with Prober([]) as prober:
        assert prober.reaches_all(since_ns=0)
        assert prober.stop() == []


def test_a_replay_worker_plays_an_empty_job() -> None:
    windows = windows_for_links(10**9, 10**8, 9000)
    job = Job(gpus=(), local_gpus=frozenset(), tasks=(), seed=1, windows=windows)
    worker = Worker("railyard.workloads.replay.worker", "a replay worker", Ready, Delivered, Outcome)
    try:
        worker.ask(job, Ready)
        worker.ask(Connect(), Ready)
        worker.send(Go(start_ns=0, deadline_ns=2**62))
        while not isinstance(message := worker.receive_any(), Outcome):
            pass
        assert message.ended_ns == {}
    finally:
        worker.end()


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("heartbeat_main", messages.StartHeartbeats(plan=PLAN, period_s=1.0, multiplier=3)),
        ("controller_main", messages.ConnectController(plan=PLAN, reroute=True, sockets=(), resume=False)),
        ("agents_main", messages.ConnectAgents(plan=PLAN)),
    ],
)
def test_a_process_without_its_fabric_dies_with_the_reason(module: str, command: Message) -> None:
    process = Worker(f"railyard.controller.processes.{module}", "it", on_event=lambda *_: None, awaited=("connected",))
    try:
        process.send(command)
        with pytest.raises(RailyardError, match=r"^it died: .*d0g0"):
            process.await_events({"connected"})
    finally:
        process.end()


def test_processes_of_an_interval_import_no_library_for_numbers() -> None:
    """A run starts some of each, so that the imports of one are paid many times."""
    modules = [
        "railyard.workloads.replay.worker",
        "railyard.workloads.background.sender",
        "railyard.failure.connectivity.worker",
        "railyard.failure.probes.traffic",
        "railyard.controller.processes.heartbeat_main",
    ]
    program = f"import {', '.join(modules)}, sys; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "pandas", "networkx", "psutil", "mininet"} & set(imported.split())
