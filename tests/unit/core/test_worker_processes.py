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


PROBE = Probe(number=1, pairs=[], awaited=frozenset(), send_s=0.0, timeout_s=0.01, within_s=1.0)
REPLAY = Job(gpus=(), local_gpus=frozenset(), tasks=(), seed=1, windows=windows_for_links(10**9, 10**8, 9000))


@pytest.mark.parametrize(
    ("module", "requests", "reply"),
    [
        (
            "workloads.background.sender",
            [BackgroundJob(flows=(), mtu=9000), StartAt(start_ns=0), Stop()],
            Sent(counts=[]),
        ),
        ("failure.connectivity.worker", [Open(gpus=()), PROBE], Answered(pairs=frozenset(), in_time=True)),
        ("workloads.replay.worker", [REPLAY, Connect(), Go(start_ns=0, deadline_ns=2**62)], None),
    ],
)
def test_a_worker_serves_a_job_without_gpus(module: str, requests: list[Message], reply: Message | None) -> None:
    worker = Worker(f"railyard.{module}", "it", Ready, Sent, Answered, Delivered, Outcome)
    try:
        for request in requests[:-1]:
            worker.ask(request, Ready)
        worker.send(requests[-1])
        answer = worker.receive_any()
        while isinstance(answer, Delivered):
            answer = worker.receive_any()
        if reply is None:
            assert isinstance(answer, Outcome)
            assert answer.ended_ns == {}
        else:
            assert answer == reply
    finally:
        worker.end()


def test_a_prober_of_no_pairs_reaches_all() -> None:
    with Prober([]) as prober:
        assert prober.reaches_all(since_ns=0)
        assert prober.stop() == []


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
