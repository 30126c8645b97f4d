"""Machines for tests: network namespaces, each held by a process, that a bridge joins."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from railyard.core.wait import wait_until
from tests.emulation.programs import RUN_EXPERIMENT, Program

NETWORK = "10.99.7"
TOKEN = "a-token-of-these-tests"
PORT = 7911


class Machines:
    """Machine n has the address NETWORK.n at eth0; the first is number 1."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids

    def command(self, number: int, *argv: str) -> list[str]:
        """Return a command that runs on a machine."""
        return ["nsenter", f"--net=/proc/{self.pids[number - 1]}/ns/net", *argv]

    def output(self, number: int, *argv: str) -> str:
        """Run a program on a machine and return its output."""
        return subprocess.run(self.command(number, *argv), check=True, capture_output=True, text=True).stdout

    def program(self, number: int, *argv: str, token: str = TOKEN) -> Program:
        """Start a program on a machine, with a token for its runs."""
        return Program(argv, network_of=self.pids[number - 1], variables={"RAILYARD_TOKEN": token})

    def agent(self, number: int, *options: str, token: str = TOKEN) -> Program:
        """Start the agent of a machine, which joins the runs of machine 1."""
        join = ["agent", "--join", f"tcp://{NETWORK}.1:{PORT}", "--name", f"m{number}", *options]
        return self.program(number, *RUN_EXPERIMENT, *join, token=token)


@contextmanager
def machines(count: int, mtu: int = 9100) -> Iterator[Machines]:
    """Make machines, in the network namespace of this test's process."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(count)]
    found = Machines([holder.pid for holder in holders])
    try:
        _wait_for_namespaces(holders)
        subprocess.run(["ip", "link", "add", "underlay", "type", "bridge"], check=True)
        subprocess.run(["ip", "link", "set", "underlay", "mtu", str(mtu), "up"], check=True)
        for number, pid in enumerate(found.pids, 1):
            ends = f"machine{number} mtu {mtu} type veth peer name eth0 netns {pid} mtu {mtu}"
            subprocess.run(["ip", "link", "add", *ends.split()], check=True)
            subprocess.run(["ip", "link", "set", f"machine{number}", "master", "underlay", "up"], check=True)
            found.output(number, "ip", "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            found.output(number, "ip", "link", "set", "eth0", "up")
            found.output(number, "ip", "link", "set", "lo", "up")
        yield found
    finally:
        for number in range(1, count + 1):  # now: the kernel removes those of a namespace some time after its end
            subprocess.run(["ip", "link", "del", f"machine{number}"], check=False)
        for holder in holders:
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "del", "underlay"], check=False)


def _wait_for_namespaces(holders: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until each holder is `sleep`: it is in its namespace then."""
    for holder in holders:
        wait_until(partial(_is_sleep, holder.pid), "a machine of the test", 10.0)


def _is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
