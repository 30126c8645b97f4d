"""Stock `mn` in a test's sandbox, with a machine's usual single Open vSwitch, and a controller on 127.0.0.1:6653."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from railyard.topologies.build import namespaces
from railyard.topologies.build.shared_ovs import RUNDIR
from tests.emulation.fabrics import eventually

ROOT = Path(__file__).resolve().parents[2]
LISTENS_S = 60.0
MN_S = 120
# typed first: Mininet's own waitConnected takes seconds, and then the flows may not be there yet
WAIT_FOR_FLOWS = (
    "sh timeout 60 sh -c 'for switch in $(ovs-vsctl list-br); do"
    " until ovs-ofctl -O OpenFlow13 dump-flows $switch | grep -q cookie; do sleep 0.05; done; done'"
)


def start_controller(argv: Sequence[str]) -> "subprocess.Popen[str]":
    """Start it in the project's folder, and return when it listens. Its output is in /run/controller.log."""
    log = Path("/run/controller.log")
    with log.open("w") as file:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=file, text=True)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        return ":6653" in namespaces.run(["ss", "-Hltn"])

    eventually(listens, LISTENS_S)
    return process


def mn(topo: str, *commands: str) -> str:
    """Run `mn` on a topology of ours, type these commands, and return its output."""
    # after a failure mn deletes the logs there, whosever
    namespaces.run(["mount", "-n", "-o", "bind,ro", "/tmp", "/tmp"])
    argv = [Path(sys.executable).with_name("mn"), "--custom", "topologies/mininet_topos.py", "--topo", topo]
    argv += ["--controller", "remote,ip=127.0.0.1", "--switch", "ovs,datapath=user"]
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=ROOT,
        input="".join(f"{command}\n" for command in (WAIT_FOR_FLOWS, *commands)),
        env={**os.environ, "TMPDIR": "/run"},
        capture_output=True,
        text=True,
        timeout=MN_S,
        check=False,
    )
    if done.returncode:
        files = [*Path("/run").glob("*.log"), *RUNDIR.glob("*.log")]
        logs = "".join(f"\n== {log}\n{log.read_text()[-4000:]}" for log in sorted(files))
        pytest.fail(done.stdout + done.stderr + logs)
    return done.stdout + done.stderr
