"""`capture`: names of links, and the summary of a pcap file that scapy made."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import wrpcap

from railyard.core.errors import RailyardError
from railyard.experiments.commands import capture
from railyard.experiments.commands.capture import print_summary, read, split_link
from railyard.topologies.addresses import Gpu
from railyard.topologies.multirail.spec import Nic
from tests.unit.messages import messages


def raw_pcap(linktype: int, count: int = 1) -> bytes:
    """A file of packets of zeros."""
    head = struct.pack("=IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, linktype)
    return head + (struct.pack("=IIII", 1, 0, 60, 60) + b"\0" * 60) * count


NODES = ["d0g0", "d0g1", "hb0", "rail1"]


def test_link_is_a_node_and_an_interface() -> None:
    assert split_link("d0g1:rail0", NODES, "run") == ("d0g1", "rail0")
    assert split_link("rail1:d0g1", NODES, "run") == ("rail1", "d0g1")


def test_bad_link_is_one_line(data_regression: DataRegressionFixture) -> None:
    cases = {link: link for link in ("d0g1", "d0g1:../x", "d9g1:rail0")}
    data_regression.check(messages(lambda link: split_link(link, NODES, "run"), cases))


def test_summary_counts_flows_protocols_and_wire_bytes(tmp_path: Path) -> None:
    src, dst = Gpu(0, 1), Gpu(1, 1)
    frames = [
        Ether() / IP(src=src.ip, dst=dst.ip) / TCP(sport=5000, dport=6000) / (b"x" * 946),
        Ether() / IP(src=src.ip, dst=dst.ip) / TCP(sport=5000, dport=6000) / (b"x" * 946),
        Ether() / IP(src=dst.ip, dst=src.ip) / UDP(sport=7, dport=8) / (b"x" * 58),
        Ether() / ARP(),
    ]
    for n, frame in enumerate(frames):
        frame.time = 100.0 + n
    wrpcap(str(tmp_path / "a.pcap"), frames)
    packets = read((tmp_path / "a.pcap").read_bytes())
    assert [*packets.iloc[0]] == ["d0g1", "d1g1", "TCP", "5000 > 6000", 1000, 100.0]
    console = Console(width=120)
    with console.capture() as shown:
        print_summary(packets, "d0g1:rail0", console)
    assert shown.get().startswith("d0g1:rail0: 4 packets, 2.14KB, 0.00571 Mbit/s, 3 flows; TCP 2, UDP 1, ARP 1\n")
    assert "5000 > 6000" in shown.get()


def test_first_packet_is_read_by_a_program_without_scapy_yet(tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "a.pcap"), [Ether() / IP(src=Gpu(0, 1).ip, dst=Gpu(1, 1).ip) / UDP(sport=1, dport=2)])
    code = f"""
from pathlib import Path
from railyard.experiments.commands.capture import read
print(*read(Path({str(tmp_path / "a.pcap")!r}).read_bytes()).iloc[0][["src", "dst", "protocol"]])
"""
    argv, project = [sys.executable, "-c", code], Path(__file__).parents[4]
    assert subprocess.run(argv, cwd=project, capture_output=True, text=True, check=True).stdout == "d0g1 d1g1 UDP\n"


def test_empty_capture_has_no_table(tmp_path: Path) -> None:
    console = Console(width=120)
    wrpcap(str(tmp_path / "a.pcap"), [])
    with console.capture() as shown:
        print_summary(read((tmp_path / "a.pcap").read_bytes()), "d0g1:rail0", console)
    assert shown.get() == "d0g1:rail0: 0 packets, 0B, 0 flows\n"


def test_nodes_of_a_multi_rail_fabric_are_named(tmp_path: Path) -> None:
    nics = [Nic(1, 0), Nic(1, 2), Nic(1, None)]
    pairs = [(nics[0], nics[1]), (nics[1], nics[2])]
    frames = [Ether(src=a.mac, dst=b.mac) / IP(src=a.ip, dst=b.ip) / UDP(sport=1, dport=2) for a, b in pairs]
    wrpcap(str(tmp_path / "a.pcap"), frames)
    packets = read((tmp_path / "a.pcap").read_bytes())
    assert [*zip(packets["src"], packets["dst"], strict=True)] == [("n0", "n2"), ("n2", "agg1")]


@pytest.mark.parametrize(
    "pcap", [b"", b"x" * 100, b"\x1f\x8b" + b"\0" * 100, b"\xd4\xc3\xb2\xa1", raw_pcap(101), raw_pcap(9999)]
)
def test_file_that_is_no_capture_is_one_line(pcap: bytes) -> None:
    """Another user's run may send anything to root."""
    with pytest.raises(RailyardError) as caught:
        read(pcap)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_summary_is_of_so_many_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_PACKETS", 2)
    assert len(read(raw_pcap(1, 5))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_users_run_writes_no_more_than_asked(tmp_path: Path) -> None:
    code = f"""
import os
from railyard.core.safe_files import account_of
from railyard.core.sandbox.entry import Entry, run
entry = Entry(os.getpid(), os.pidfd_open(os.getpid()), account_of(65534), {{}})
os.dup2(os.open({str(tmp_path / "sink")!r}, os.O_RDWR | os.O_CREAT), 1)
command = ["sh", "-c", "ulimit -f unlimited; exec head -c 9000000 /dev/zero"]
raise SystemExit(run(entry, "it", command, None, {{}}, 5000))
"""
    project = Path(__file__).parents[4]
    found = subprocess.run([sys.executable, "-c", code], cwd=project, stderr=subprocess.DEVNULL, check=False)
    assert found.returncode
    assert (tmp_path / "sink").stat().st_size == 5000
