"""Processes of a run that are killed, stopped, or paused for a second: each is named within `NAMED_S`, and no result
of it is ok.

d0g0, d0g1 ── hb0      d0gN, d1gN ── railN ── one fabric, one workload, one fault, with heartbeats and checks
"""

import importlib.util
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.emulation.fabrics import eventually
from tests.emulation.programs import Program, command_line
from tests.emulation.runs import ALL_TO_ALL, FABRIC, Stored, run_command, small_spec

LONG: Final = [{**ALL_TO_ALL, "duration": "4s"}]
GPUS: Final = small_spec(
    workloads=LONG,
    faults=[{"kind": "link-down", "target": "d0g1", "at": "1s", "repair": "3s"}],
    reroute=["on"],
    heartbeats={"period": "20ms"},
)
STEERED: Final = small_spec(
    fabrics=[{**FABRIC, "policy": "rd"}],
    workloads=LONG,
    routing={"policies": ["health"], "settle": "1s", "health": {"registry": "etcd"}},
    background=[{"rails": [0], "load": 0.5}],
)
RAILS: Final = small_spec(
    fabrics=[{"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "50Mbit"}]}],
    workloads=[{"kind": "allreduce", "sizes": ["4MB"], "policies": ["equal"]}],
)
PEERS: Final = {"kind": "allreduce", "sizes": ["64MB"]}  # ranks take some seconds: shorter ones end unnoticed
MPI: Final = {**RAILS, "workloads": [{**PEERS, "policies": ["mpi"]}]}
GLOO: Final = {**RAILS, "workloads": [{**PEERS, "policies": ["gloo"]}]}
DDP: Final = {**RAILS, "workloads": [{"kind": "ddp", "steps": 200}]}
TRAININGS: Final[dict[str, dict[str, Any]]] = {
    program: small_spec(
        workloads=[],
        trainings=[
            {
                "program": program,
                "steps": 120,
                "arguments": {"width": 512},
                "faults": [{"kind": "link-down", "target": "d1g0", "at": "1s", "repair": "2s"}],
            }
        ],
        reroute=["on"],
    )
    for program in ("gloo", "torchft", "mpi")
}
MARKERS: Final = {  # of a phase: a process that runs in it and not before
    "build": "ovsdb-server conf.db",
    "calibrate": "iperf3 -J -t 1 -O",
    "replay": "workloads.replay.worker",
    "background": "background.sender",
    "allreduce": "allreduce.engine.worker",
    "mpi": "mpirun --allow",
    "gloo": "engines.gloo",
    "training": "peers.training",
    "train": "training.scripts",  # with a fault, after the training without one
    "fault": "failure.probes.traffic",
    "end": "",  # when no process of these is left, and the run reads and writes what was measured
}
LIBRARIES: Final = {"mpi": "mpi4py", "gloo": "torch", "training": "torch", "train": "torchft"}
RUN_ITSELF: Final = "run_experiment.py run"  # the sandbox init, which is the first process of the run's own
NAMES: Final = {
    "ovs-vswitchd unix": "ovs-vswitchd of rail",
    "ovsdb-server conf.db": "ovsdb-server of rail",
    "controller_main": "the controller",
    "iperf3 -J": "iperf3 from",
    "iperf3 -s": "iperf3's server at",
    "workloads.replay.worker": "a replay worker",
    "failure.probes.traffic": "the traffic process",
    "connectivity.worker": "the connectivity worker",
    "heartbeat_main": "the heartbeat sender",
    "background.sender": "the background sender",
    "agents_main": "the agents",
    "etcd --data-dir": "etcd",
    "allreduce.engine.worker": "rank",
    "mpirun --allow": "mpi's launcher",
    "engines.mpi": "mpi: rank",
    "engines.gloo": "gloo: rank",
    "peers.training": "training: rank",
    "scripts.gloo": "gloo at",
    "scripts.torchft_groups": "torchft at",
    "scripts.lighthouse": "torchft at d0g0",
    "--tag-output": "mpi at d0g0",  # mpirun of a training
    "scripts.mpi": "mpi at",
    RUN_ITSELF: "the run's own process",
}
LAST: Final = ("scripts.mpi", "scripts.gloo", "scripts.torchft_groups", RUN_ITSELF)  # of which the last is meant
RANKS: Final = {"engines.mpi": 3, "engines.gloo": 2, "peers.training": 2}
"""Words of two ranks, and how many processes have them. The first is the launcher, which may be rank 0 itself."""
ACTIONS: Final = ("kill", "stop", "pause")
SWITCH: Final = ("ovs-vswitchd unix", "ovsdb-server conf.db", "controller_main")
CASES: Final = [
    *product([GPUS], ["build"], SWITCH, ACTIONS),
    *product([GPUS], ["calibrate"], [*SWITCH, "iperf3 -J", "iperf3 -s"], ACTIONS),
    *product([GPUS], ["replay"], [*SWITCH, "workloads.replay.worker"], ACTIONS),
    *product([GPUS], ["fault"], [*SWITCH, "failure.probes.traffic", "connectivity.worker", "heartbeat_main"], ACTIONS),
    *product([STEERED], ["background"], ["background.sender", "agents_main", "etcd --data-dir"], ACTIONS),
    *product([STEERED], ["background"], SWITCH, ACTIONS),
    *product([RAILS], ["build"], ["ovs-vswitchd unix", "ovsdb-server conf.db"], ACTIONS),
    *product([RAILS], ["calibrate"], ["ovs-vswitchd unix", "ovsdb-server conf.db", "iperf3 -J"], ACTIONS),
    *product([RAILS], ["allreduce"], ["ovs-vswitchd unix", "ovsdb-server conf.db"], ACTIONS),
    *product([RAILS], ["allreduce"], ["allreduce.engine.worker"], ACTIONS),
    *product([MPI], ["mpi"], ["mpirun --allow", "engines.mpi"], ACTIONS),
    *product([GLOO], ["gloo"], ["engines.gloo"], ACTIONS),
    *product([DDP], ["training"], ["peers.training"], ACTIONS),
    *product([TRAININGS["gloo"]], ["train"], ["scripts.gloo"], ACTIONS),
    *product([TRAININGS["torchft"]], ["train"], ["scripts.torchft_groups", "scripts.lighthouse"], ACTIONS),
    *product([TRAININGS["mpi"]], ["train"], ["--tag-output", "scripts.mpi"], ACTIONS),
    *product([GPUS], ["build", "calibrate", "replay", "fault", "end"], [RUN_ITSELF], ACTIONS),
]
USUAL: Final = [
    (GPUS, "build", "ovsdb-server conf.db", "kill"),
    (GPUS, "fault", "failure.probes.traffic", "stop"),
]
LISTENS: Final = "00010000"  # flags of a socket in /proc/net/unix
NAMED_S: Final = 5.0  # from the signal to the line that names the process
RUN_S: Final = 120.0
Case = tuple[dict[str, Any], str, str, str]


def label(value: object) -> str | None:
    return value.partition(" ")[0].removesuffix(".py").rpartition(".")[2] if isinstance(value, str) else ""


def found(program: Program, words: str) -> Iterator[psutil.Process]:
    """Yield the processes of a run whose command line has these words, when they have run for a moment."""
    for process in psutil.Process(program.process.pid).children(recursive=True):
        if words in " ".join(command_line(process)):
            yield process


def joined(program: Program, words: str) -> int:
    """Return how many ranks the run has accepted connections of: sockets with the name of the one they connect to.

    The kernel lists each in the network namespace where the rank was when it connected: the run's, or a node's.
    """
    accepted = set[str]()  # inodes
    for process in [*list(found(program, RUN_ITSELF))[-1:], *found(program, words)]:
        with suppress(OSError):
            for line in Path(f"/proc/{process.pid}/net/unix").read_text().splitlines():
                fields = line.split()
                if line.endswith("/ranks.sock") and fields[3] != LISTENS:
                    accepted.add(fields[6])
    return len(accepted)


def interrupt(program: Program, case: Case, folder: Path) -> None:
    """Wait for the phase, then kill, stop or pause a process."""
    _, phase, words, action = case
    if phase == "end":
        eventually(lambda: (folder / "out" / "results.csv").exists(), within_s=RUN_S)
    else:
        if phase == "train":
            program.await_text("no fault", RUN_S)
        eventually(lambda: bool(list(found(program, MARKERS[phase]))), within_s=RUN_S)
        time.sleep({"build": 0.05, "replay": 1.5, "background": 3.5, "fault": 1.5, "train": 3}.get(phase, 0.7))
    is_rank = words in RANKS
    eventually(lambda: len(list(found(program, words))) >= RANKS.get(words, 1), within_s=RUN_S)
    if is_rank:
        eventually(lambda: joined(program, words) >= GLOO["fabrics"][0]["nodes"], within_s=RUN_S)
        time.sleep(1)  # until their first operation
    victim = list(found(program, words))[-1 if is_rank or words in LAST else 0].pid
    os.kill(victim, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
    if action == "pause":
        time.sleep(1)
        os.kill(victim, signal.SIGCONT)


def check(case: Case, folder: Path) -> None:
    """Run, interrupt, and look at what the run says of it, and when.

    At the end everything is measured, so an interruption spoils no result. A killed run writes no summary.
    """
    spec, phase, words, action = case
    if phase in LIBRARIES and importlib.util.find_spec(LIBRARIES[phase]) is None:
        pytest.skip(f"needs {LIBRARIES[phase]}: script/bootstrap")
    with Program(
        run_command(spec, folder), is_new=words == RUN_ITSELF or words in RANKS
    ) as program:  # which is found by its arguments
        interrupt(program, case, folder)
        how = {"kill": "died", "stop": "(was|is) stopped", "pause": "was stopped"}[action]
        program.await_match(f"{re.escape(NAMES[words])}.* {how}", NAMED_S)
        status = program.end(RUN_S)
        died = words == RUN_ITSELF and action == "kill"
        assert status == 137 if died else status == 1 or (phase == "end" and status == 0), program.output
        assert "Traceback" not in program.output
    if (folder / "out" / "summary.json").exists() and phase != "end":
        summary = Stored(folder / "out").summary
        assert summary["verdict"] == "invalid" or (summary["failed"] and summary["verdict"] == "degraded"), summary


@pytest.mark.long
@pytest.mark.parametrize(("spec", "phase", "words", "action"), USUAL, ids=label)
def test_a_missing_process_is_named(spec: dict[str, Any], phase: str, words: str, action: str, tmp_path: Path) -> None:
    check((spec, phase, words, action), tmp_path)


@pytest.mark.parametrize(("spec", "phase", "words", "action"), [c for c in CASES if c not in USUAL], ids=label)
def test_each_process_in_each_phase_is_named(
    spec: dict[str, Any], phase: str, words: str, action: str, tmp_path: Path
) -> None:
    check((spec, phase, words, action), tmp_path)
