"""A program that puts itself into a sandbox, for test_sandbox.py: `python -m tests.emulation.sandboxed WHAT`."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from railyard.core.sandbox import init, launcher
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces


def look() -> int:
    """Say what there is in here, and change what a run may change."""
    subprocess.run(["ip", "link", "add", "veth-test", "type", "veth", "peer", "name", "veth-peer"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/dev/shm/railyard-test").touch()
    with tempfile.NamedTemporaryFile(delete=False) as scratch:
        seen = {
            "pid": os.getpid(),
            "uid": os.getuid(),
            "interfaces": sorted(name for _, name in socket.if_nameindex()),
            "run": sorted(path.name for path in Path("/run").iterdir()),
            "scratch": scratch.name,
            "cwd": str(Path.cwd()),
            "processes": sorted(path.name for path in Path("/proc").iterdir() if path.name.isdigit()),
            "lo": socket.create_server(("127.0.0.1", 0)).getsockname()[0],
            "d1g2": socket.gethostbyname("d1g2"),
        }
    print(json.dumps(seen), flush=True)
    return 5


def wait() -> int:
    """Wait until a signal comes; then take half a second to put things away, as a run does."""
    subprocess.Popen(["sleep", "1000"])
    try:
        print("waiting", flush=True)
        time.sleep(1000)
    except init.StoppedBySignal as stopped:
        time.sleep(0.5)
        print(f"put away after {stopped}", flush=True)
    return init.signal_exit_status() or 0


def stand() -> int:
    """Wait, with the namespace of one GPU."""
    namespaces.create(["d0g1"])
    return wait()


def main() -> int:
    if not init.inside():
        again = [sys.executable, "-m", "tests.emulation.sandboxed"]
        return launcher.enter(again, {"do": sys.argv[1]}, run=f"test {sys.argv[1]}-{os.getpid()}")
    task = init.prepare()
    init.add_hosts({"d1g2": Gpu(1, 2).ip})
    try:
        init.install_signal_handlers()
        return {"look": look, "stand": stand, "wait": wait}[task["do"]]()
    except init.StoppedBySignal as stopped:
        return stopped.exit_status


if __name__ == "__main__":
    sys.exit(main())
