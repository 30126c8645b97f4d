"""Conclusions from what a machine has, and one look at the machine that runs the tests."""

import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from railyard.core import provenance
from railyard.core.errors import MissingRequirement
from railyard.core.host import (
    CONGESTION_CONTROLS,
    OTHER_PROGRAMS,
    OVS_PROGRAMS,
    PEER_LIBRARIES,
    USER_NAMESPACE_OPTIONS,
    Capability,
    Machine,
    capabilities,
    datapath_choice,
    detect,
    require,
)
from railyard.core.installation import PROJECT
from railyard.experiments import cli
from railyard.experiments.commands import doctor

# A machine with everything; each test takes something away.
FULL = Machine(
    root=True,
    sandbox_error="",
    user_namespaces=True,
    apparmor_restricts=False,
    tun_error="",
    tun_for_all=True,
    programs={name: f"/usr/bin/{name}" for name in OVS_PROGRAMS + OTHER_PROGRAMS},
    ovs_version="3.1.0",
    kernel="6.1.0-28-amd64",
    kernel_modules=True,
    kernel_datapath=True,
    qdiscs=frozenset({"htb", "tbf", "ingress", "netem", "fq", "fq_codel", "red", "prio"}),
    numgen=True,
    egress_hook=True,
    mptcp=True,
    libraries=frozenset(PEER_LIBRARIES),
    congestion_controls=frozenset(CONGESTION_CONTROLS),
    cores=2,
    cpu_model="a CPU",
    memory_bytes=8 * 10**9,
    disk_free_bytes=50 * 10**9,
)


def without(*names: str) -> Machine:
    return replace(FULL, programs={k: v for k, v in FULL.programs.items() if k not in names})


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (
            replace(FULL, sandbox_error="unshare failed: Operation not permitted"),
            "this machine lacks namespaces (unshare failed: Operation not permitted); "
            "in a container: docker run --privileged ...",
        ),
        (
            replace(FULL, root=False, sandbox_error="refused"),
            "this machine lacks namespaces (refused); use sudo, or: sudo sysctl user.max_user_namespaces=10000",
        ),
        (
            replace(FULL, root=False, sandbox_error="refused", apparmor_restricts=True),
            "this machine lacks namespaces (refused); "
            "use sudo, or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            without("ovs-vswitchd", "ovs-vsctl"),
            "this machine lacks Open vSwitch (no ovs-vswitchd, ovs-vsctl); sudo script/bootstrap",
        ),
        (
            replace(FULL, root=False, tun_error="Permission denied"),
            "this machine lacks /dev/net/tun (Permission denied); use sudo, or: sudo chmod 666 /dev/net/tun",
        ),
        (
            replace(FULL, kernel_datapath=False, tun_error="No such file or directory"),
            "this machine lacks /dev/net/tun (No such file or directory); "
            "sudo modprobe tun; in a container: docker run --device /dev/net/tun ...",
        ),
        (without("tc"), "this machine lacks util-linux, iproute2 (no tc); sudo script/bootstrap"),
        (without("mnexec"), "this machine lacks mnexec (no mnexec); sudo script/bootstrap"),
        (without("ethtool"), "this machine lacks ethtool (no ethtool); sudo script/bootstrap"),
        (without("iperf3"), "this machine lacks iperf3 (no iperf3); sudo script/bootstrap"),
        (
            replace(FULL, qdiscs=frozenset()),
            "this machine lacks qdisc htb; "
            "sudo modprobe sch_htb (Ubuntu: first sudo apt-get install linux-modules-extra-$(uname -r))",
        ),
    ],
)
def test_missing_required_program_gives_one_line(machine: Machine, message: str) -> None:
    with pytest.raises(MissingRequirement) as caught:
        require(machine)
    assert str(caught.value) == message
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    "machine",
    [
        FULL,
        replace(FULL, root=False),
        replace(FULL, tun_error="Permission denied"),  # the kernel datapath needs no tap
        replace(FULL, user_namespaces=False),  # root needs none
        replace(FULL, qdiscs=frozenset({"htb"}), numgen=False, mptcp=False, congestion_controls=frozenset()),
        without("etcd", "nft", "mpirun"),
        replace(FULL, libraries=frozenset()),
    ],
)
def test_missing_optional_program_is_no_error(machine: Machine) -> None:
    require(machine)


@pytest.mark.parametrize(
    ("machine", "choice", "why"),
    [
        (FULL, "system", "the kernel has the openvswitch module"),
        (replace(FULL, root=False), "netdev-tso", "the openvswitch module needs root; userspace with TSO"),
        (
            replace(FULL, kernel_datapath=False),
            "netdev-tso",
            "the kernel has no openvswitch module loaded; userspace with TSO",
        ),
        (
            replace(FULL, kernel_datapath=False, ovs_version="2.13.8"),
            "netdev",
            "the kernel has no openvswitch module loaded; "
            "Open vSwitch 2.13.8 has no userspace TSO (2.14 and later have)",
        ),
        (
            replace(FULL, kernel_datapath=False, kernel="4.18.0-553.el8"),
            "netdev",
            "the kernel has no openvswitch module loaded; "
            "Linux 4.18.0-553.el8 loses segments under userspace TSO (4.19 and later don't)",
        ),
        (replace(FULL, kernel_datapath=False, kernel="10.2", ovs_version="2.14"), "netdev-tso", None),
    ],
)
def test_the_datapath_is_the_fastest_that_is_there(machine: Machine, choice: str, why: str | None) -> None:
    chosen, reason = datapath_choice(machine)
    assert chosen == choice
    assert why is None or reason == why


def test_needs_of_an_ordinary_user_are_shown_to_root_too() -> None:
    [row] = [
        row for row in every(replace(FULL, tun_for_all=False, apparmor_restricts=True)) if row.name == "no root needed"
    ]
    assert not row.found
    assert row.remedy == "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; sudo chmod 666 /dev/net/tun"


def test_all_is_found_on_a_machine_with_everything() -> None:
    assert [row.name for row in every(FULL) if not row.found] == []


def every(machine: Machine) -> list[Capability]:
    return [row for rows in capabilities(machine).values() for row in rows]


def table(machine: Machine, packets_per_s: float | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    provenance.print_machine(machine, console, packets_per_s)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_doctor_shows_missing_programs_and_how_to_install() -> None:
    text = table(replace(FULL, qdiscs=FULL.qdiscs - {"netem"}, kernel_modules=False), 47_900.0)
    lines = text.splitlines()
    [at] = [number for number, line in enumerate(lines) if "qdisc netem" in line]
    assert lines[at] == "  no  qdisc netem"
    assert lines[at + 1] == "      rules out: delay, jitter"
    assert lines[at + 2].startswith("      get it by: boot a kernel with modules")
    assert "47,900 packets/s" in text
    assert text.endswith("Runs work here, as root. Datapath: system (the kernel has the openvswitch module).\n")


def test_json_of_doctor_has_every_printed_fact(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "detect", lambda: without("iperf3"))
    assert cli.main(["doctor", "--json", "--class", "12"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["class"]["students"], found["packets_per_s"]) == (False, 12, None)
    absent = [row for rows in found["capabilities"].values() for row in rows if not row["found"]]
    assert [row["name"] for row in absent] == ["iperf3"]
    assert absent[0]["remedy"] in found["problem"]


def test_doctor_ends_with_the_obstacle() -> None:
    text = table(without("iperf3"), None)
    assert "not measured" in text
    assert text.endswith("Nothing runs here yet: this machine lacks iperf3 (no iperf3); sudo script/bootstrap\n")


def test_this_machine_has_what_every_linux_has() -> None:
    machine = detect()
    assert machine.root == (os.geteuid() == 0)
    assert machine.cores >= 1
    assert min(machine.memory_bytes, machine.disk_free_bytes) > 0
    assert "reno" in machine.congestion_controls  # built into every kernel
    assert len(every(machine)) >= 20


def test_detection_leaves_no_interface() -> None:
    """In a network namespace of its own, since other programs may make interfaces in this one."""
    unshare = ["unshare", *([] if os.geteuid() == 0 else USER_NAMESPACE_OPTIONS), "--net"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    argv = [*unshare, sys.executable, "-c", "from tests.unit.core import test_machine; test_machine.print_interfaces()"]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == after


def print_interfaces() -> None:
    """Print those of this namespace, before and after detection."""
    for use in (lambda: None, detect):
        use()
        print([name for _, name in socket.if_nameindex()])


@pytest.mark.parametrize(
    ("machine", "absent"),
    [
        (FULL, {}),
        (replace(FULL, libraries=frozenset({"mpi4py", "torchft"})), {"PyTorch": "sudo script/bootstrap gloo"}),
        (without("mpirun"), {"Open MPI": "sudo script/bootstrap mpi"}),
        (replace(FULL, libraries=frozenset({"torch", "mpi4py"})), {"torchft": "sudo script/bootstrap torchft"}),
        (replace(FULL, libraries=frozenset({"torch", "torchft"})), {"Open MPI": "sudo script/bootstrap mpi"}),
    ],
)
def test_engines_to_compare_with_are_found_as_a_whole(machine: Machine, absent: dict[str, str]) -> None:
    lacking = {row.name: row.remedy for row in every(machine) if not row.found}
    assert lacking == absent
