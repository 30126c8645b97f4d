"""Conclusions from what a machine has, and one look at the machine that runs the tests."""

import io
import itertools
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from pytest_regressions.file_regression import FileRegressionFixture
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


LACKING = {
    "root without namespaces": replace(FULL, sandbox_error="unshare failed: Operation not permitted"),
    "user without namespaces": replace(FULL, root=False, sandbox_error="refused"),
    "user under AppArmor": replace(FULL, root=False, sandbox_error="refused", apparmor_restricts=True),
    "no Open vSwitch": without("ovs-vswitchd", "ovs-vsctl"),
    "tun not for users": replace(FULL, root=False, tun_error="Permission denied"),
    "no tun": replace(FULL, kernel_datapath=False, tun_error="No such file or directory"),
    "no tc": without("tc"),
    "no mnexec": without("mnexec"),
    "no ethtool": without("ethtool"),
    "no iperf3": without("iperf3"),
    "no htb": replace(FULL, qdiscs=frozenset()),
}
DATAPATHS = {
    "root": FULL,
    "user": replace(FULL, root=False),
    "no module": replace(FULL, kernel_datapath=False),
    "old Open vSwitch": replace(FULL, kernel_datapath=False, ovs_version="2.13.8"),
    "old kernel": replace(FULL, kernel_datapath=False, kernel="4.18.0-553.el8"),
    "kernel of two digits": replace(FULL, kernel_datapath=False, kernel="10.2", ovs_version="2.14"),
}


def test_missing_requirements_and_datapaths(data_regression: DataRegressionFixture) -> None:
    texts: dict[str, dict[str, str]] = {"requirements": {}, "datapaths": {}}
    for case, machine in LACKING.items():
        with pytest.raises(MissingRequirement) as caught:
            require(machine)
        assert caught.value.exit_status == 3
        texts["requirements"][case] = str(caught.value)
    for case, machine in DATAPATHS.items():
        texts["datapaths"][case] = ": ".join(datapath_choice(machine))
    data_regression.check(texts)


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


def every(machine: Machine) -> list[Capability]:
    return [row for rows in capabilities(machine).values() for row in rows]


def table(machine: Machine, packets_per_s: float | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    provenance.print_machine(machine, console, packets_per_s)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_doctor_shows_all_facts(file_regression: FileRegressionFixture) -> None:
    text = table(replace(FULL, qdiscs=FULL.qdiscs - {"netem"}, kernel_modules=False), 47_900.0)
    not_ready = table(without("iperf3"), None)
    file_regression.check(f"{text}\n...\n{''.join(not_ready.splitlines(keepends=True)[-4:])}")


def test_json_of_doctor_has_every_fact(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "detect", lambda: without("iperf3"))
    assert cli.main(["doctor", "--json", "--class", "12"]) == 3
    facts = json.loads(capsys.readouterr().out)
    assert (facts["runs"], facts["class"]["students"], facts["packets_per_s"]) == (False, 12, None)
    rows = itertools.chain.from_iterable(facts["capabilities"].values())
    (absent,) = (row for row in rows if not row["found"])
    assert absent["name"] == "iperf3"
    assert absent["remedy"] in facts["problem"]


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
        pytest.skip("no network namespace here")
    program = f"from {__name__} import print_interfaces; print_interfaces()"
    done = subprocess.run(
        [*unshare, sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
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
        # what an ordinary user needs is shown to root too
        (
            replace(FULL, tun_for_all=False, apparmor_restricts=True),
            {
                "no root needed": "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; "
                "sudo chmod 666 /dev/net/tun"
            },
        ),
    ],
)
def test_absent_capabilities_have_a_remedy(machine: Machine, absent: dict[str, str]) -> None:
    assert {row.name: row.remedy for row in every(machine) if not row.found} == absent
