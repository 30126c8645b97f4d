"""`capture RUN LINK`: record the packets of a live link in a pcap file, and summarise them.

A child process enters the run and captures with scapy into an unnamed file; the file that the user asked for is written
out here, with the credentials of its folder's owner, so the run never has access to that folder.
"""

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput, RailyardError, unknown_name_hint
from railyard.core.host import PROJECT
from railyard.core.safe_files import write_file
from railyard.core.units import format_size
from railyard.experiments.commands import ps
from railyard.experiments.commands.options import LiveRunName, console, plain_table
from railyard.experiments.run import folder
from railyard.topologies.addresses import gpu_of_ip

MAX_FLOWS: Final = 20
"""Rows of the table; all flows are in the file."""
SNAP_BYTES: Final = 65_535


def command(
    run: LiveRunName,
    link: Annotated[
        str, typer.Argument(metavar="LINK", help="An end of a link: d0g1:rail0 at a GPU, rail1:d0g1 at its switch.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: RUN-NODE-INTERFACE.pcap).")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to capture; Ctrl-C ends it earlier.")] = 5,
) -> int:
    """Capture the packets of a live link: write a pcap file, and print packets, bytes, flows and protocols."""
    chosen = ps.choose(run, ps.find())
    node, interface = split_link(link, ps.nodes_up(chosen), chosen.name)
    path = out or Path(f"{chosen.name}-{node}-{interface}.pcap")
    with TemporaryFile() as sink:
        status = _capture_in_run(chosen, node, [interface, f"{seconds:g}", link], sink.fileno())
        sink.seek(0)
        pcap = sink.read()
    if status:
        return status
    with folder.reporting_path_errors("--out", path):
        write_file(path, pcap)
    print_summary(summarise(read(path)), link, console())
    print(path)
    return 0


def split_link(link: str, nodes: Sequence[str], run: str) -> tuple[str, str]:
    """Return (node, interface) of `d0g1:rail0`. BadInput for an unknown node, or no interface."""
    node, _, interface = link.partition(":")
    if not interface or "/" in interface:
        raise BadInput("LINK", link, "must be NODE:INTERFACE, such as d0g1:rail0, or rail1:d0g1 at the switch")
    if node not in nodes:
        raise BadInput("LINK", link, unknown_name_hint(node, nodes).replace("known", f"a node of {run}", 1))
    return node, interface


def _capture_in_run(run: ps.LiveRun, node: str, arguments: Sequence[str], out_fd: int) -> int:
    """Capture in a child process that becomes `main` in the run's namespaces; return its exit status."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(out_fd, 1)
            argv = [sys.executable, "-m", "railyard.experiments.commands.capture", *arguments]
            ps.exec_in_run(run, argv, {"PYTHONPATH": str(PROJECT)}, node)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 0)
        except RailyardError as error:
            print("error:", error, file=sys.stderr)
            os._exit(error.exit_status)
        finally:
            os._exit(1)
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child too, which then ends
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        signal.signal(signal.SIGINT, previous)


def main(arguments: Sequence[str]) -> int:
    """Capture on an interface of this namespace: INTERFACE SECONDS LINK. The pcap goes to stdout."""
    from scapy.arch.linux import L2ListenSocket
    from scapy.layers import inet  # noqa: F401 (makes Ethernet and IP known to scapy)
    from scapy.sendrecv import sniff
    from scapy.utils import PcapWriter

    interface, seconds, link = arguments
    node = link.partition(":")[0]
    names = [f"{node}:{name}" for _, name in socket.if_nameindex()]
    if link not in names:
        raise BadInput("LINK", link, unknown_name_hint(link, names))
    with PcapWriter(sys.stdout.buffer, linktype=1, nano=True) as writer, L2ListenSocket(iface=interface) as source:
        writer.write_header(None)
        sniff(opened_socket=source, timeout=float(seconds), store=False, prn=writer.write)
    return 0


@dataclass
class Summary:
    """Totals of a capture. A flow is (source, destination, protocol, source port, destination port)."""

    packets: int = 0
    bytes: int = 0
    seconds: float = 0.0
    protocols: Counter[str] = field(default_factory=Counter)
    flow_packets: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)
    flow_bytes: Counter[tuple[str, str, str, str, str]] = field(default_factory=Counter)


def read(path: Path) -> list[Any]:
    """Return the packets of a pcap file."""
    from scapy.layers import inet  # noqa: F401 (makes Ethernet and IP known to scapy)
    from scapy.utils import PcapReader

    with PcapReader(str(path)) as packets:
        return list(packets)


def summarise(packets: Iterable[Any]) -> Summary:
    """Count scapy packets by protocol and flow; sizes are those on the wire."""
    found = Summary()
    times: list[float] = []
    for packet in packets:
        size = packet.wirelen or len(packet)
        flow = flow_of(packet)
        found.packets += 1
        found.bytes += size
        found.protocols[flow[2]] += 1
        found.flow_packets[flow] += 1
        found.flow_bytes[flow] += size
        times.append(float(packet.time))
    if times:
        found.seconds = max(times) - min(times)
    return found


def flow_of(packet: Any) -> tuple[str, str, str, str, str]:
    """Return the flow of a scapy packet; addresses of GPUs become their names."""
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.layers.l2 import Ether

    if IP not in packet:
        protocol = packet.lastlayer().name if packet.payload else "Ethernet"
        return packet[Ether].src, packet[Ether].dst, protocol, "", ""
    ip = packet[IP]
    for layer in (TCP, UDP):
        if layer in ip:
            return _name(ip.src), _name(ip.dst), layer.__name__, str(ip[layer].sport), str(ip[layer].dport)
    return _name(ip.src), _name(ip.dst), ip.payload.name or str(ip.proto), "", ""


def _name(address: str) -> str:
    try:
        return gpu_of_ip(address).name
    except ValueError:
        return address


def print_summary(summary: Summary, link: str, out: Console) -> None:
    """Print the totals, the packets of each protocol, and the largest flows."""
    rate = f", {8 * summary.bytes / summary.seconds / 1e6:.3g} Mbit/s" if summary.seconds else ""
    protocols = ", ".join(f"{name} {count:,}" for name, count in summary.protocols.most_common())
    totals = f"{summary.packets:,} packets, {format_size(summary.bytes, 3)}{rate}, {len(summary.flow_bytes):,} flows"
    out.print(f"{link}: {totals}" + (f"; {protocols}" if protocols else ""), highlight=False)
    if not summary.packets:
        return
    numbers = ("PACKETS", "BYTES", "SHARE")
    table = plain_table("FROM", "TO", "PROTOCOL", "PORTS", *numbers, right=numbers)
    for flow, size in summary.flow_bytes.most_common(MAX_FLOWS):
        src, dst, protocol, sport, dport = flow
        ports = f"{sport} > {dport}" if sport else ""
        share = f"{100 * size / summary.bytes:.3g}%"
        table.add_row(src, dst, protocol, ports, f"{summary.flow_packets[flow]:,}", format_size(size, 3), share)
    out.print(table)
    if len(summary.flow_bytes) > MAX_FLOWS:
        out.print(f"{len(summary.flow_bytes) - MAX_FLOWS:,} more flows in the file", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RailyardError as error:
        print("error:", error, file=sys.stderr)
        sys.exit(error.exit_status)
