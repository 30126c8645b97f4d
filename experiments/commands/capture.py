"""`capture RUN LINK`: record the packets of a live link in a pcap file, and summarise them.

A child process enters the run and captures with scapy into an unnamed file; the file that the user asked for is written
out here, with the credentials of its folder's owner, so the run never has access to that folder.
"""

import io
import os
import socket
import struct
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from railyard.core.errors import BadInput, RailyardError, print_error, unknown_name_hint
from railyard.core.installation import PROJECT, module_command
from railyard.core.safe_files import write_file
from railyard.core.units import format_size
from railyard.experiments.commands import ps
from railyard.experiments.live_run_options import LiveRunName
from railyard.experiments.options import console, plain_table, shows_progress
from railyard.experiments.run import folder
from railyard.topologies.addresses import gpu_of_ip
from railyard.topologies.multirail.spec import nic_of_mac

PURPOSE = "Look into a live run"

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES: Final = 256_000_000  # of the file, which is in memory before it is written
MAX_PACKET: Final = 1 << 20
MAX_PACKETS: Final = 1_000_000  # of the summary
PCAP: Final = tuple(bytes.fromhex(magic) for magic in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1"))
MAX_FLOWS: Final = 20  # rows of the table; all flows are in the file
FLOW: Final = ["src", "dst", "protocol", "ports"]  # columns that identify a flow


def command(
    run: LiveRunName,
    link: Annotated[
        str, typer.Argument(metavar="LINK", help="An end of a link: d0g1:rail0 at a GPU, rail1:d0g1 at its switch.")
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write (default: RUN-NODE-INTERFACE.pcap).")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to capture; Ctrl-C ends it earlier.")] = 5,
) -> int:
    """Capture the packets of a live link: write a pcap file, and print packets, bytes, flows and protocols."""
    chosen, nodes = ps.choose_up(run)
    node, interface = split_link(link, nodes, chosen.name)
    path = out or Path(f"{chosen.name}-{node}-{interface}.pcap")
    argv = module_command("railyard.experiments.commands.capture", interface, f"{seconds:g}", link)
    with TemporaryFile() as sink:
        stdout = os.dup(1)
        # the child writes the pcap to its stdout
        os.dup2(sink.fileno(), 1)
        try:
            status = ps.run_inside(chosen, argv, {"PYTHONPATH": str(PROJECT)}, node, MAX_BYTES + MAX_PACKET)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
        sink.seek(0)
        pcap = sink.read()
    if status:
        return status
    with folder.reporting_path_errors("--out", path):
        write_file(path, pcap)
    packets = shows_progress(read)(pcap)
    print_summary(packets, link, console())
    if len(packets) == MAX_PACKETS:
        print(f"the summary is of the first {MAX_PACKETS:,} packets", file=sys.stderr)
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

        def is_full(_: object = None) -> bool:
            return sys.stdout.buffer.tell() > MAX_BYTES

        sniff(opened_socket=source, timeout=float(seconds), store=False, prn=writer.write, stop_filter=is_full)
        if is_full():
            print(f"the capture ended early: it has {format_size(MAX_BYTES)}", file=sys.stderr)
    return 0


def read(pcap: bytes) -> "pd.DataFrame":
    """Return a row for each packet of a pcap file: src, dst, protocol, ports, bytes on the wire, time in s.

    Addresses of GPUs, and of nodes with several rails, become their names. `ports`: `source > destination`. Of the
    first `MAX_PACKETS`. RailyardError for what is no pcap file of Ethernet: another user's run may send anything.
    """
    import pandas as pd
    from scapy.error import Scapy_Exception
    from scapy.layers import inet  # noqa: F401 (makes IP known to scapy before the first packet is read)
    from scapy.layers.l2 import Dot3, Ether
    from scapy.utils import PcapReader

    rows = list[tuple[object, ...]]()
    if pcap[:4] not in PCAP:
        raise RailyardError("what the run sent is no capture")
    try:
        with PcapReader(io.BytesIO(pcap)) as packets:
            for packet in islice(packets, MAX_PACKETS):
                if not isinstance(packet, Ether | Dot3):
                    raise RailyardError("the run sent no packets of Ethernet")
                rows.append(_row(packet))
    except (Scapy_Exception, EOFError, ValueError, struct.error) as error:
        raise RailyardError(f"what the run sent can't be read as packets: {str(error)[:80]}") from error
    return pd.DataFrame(rows, columns=[*FLOW, "bytes", "time"])


def _row(packet: Any) -> tuple[object, ...]:
    from scapy.layers.inet import IP, TCP, UDP

    link = packet
    ports = ""
    if IP in packet:
        ip = packet[IP]
        protocol = ip.payload.name or str(ip.proto)
        for layer in (TCP, UDP):
            if layer in ip:
                protocol = layer.__name__
                ports = f"{ip[layer].sport} > {ip[layer].dport}"
        ends = _node_name(ip.src, link.src), _node_name(ip.dst, link.dst)
    else:
        protocol = packet.lastlayer().name if packet.payload else "Ethernet"
        ends = (link.src, link.dst)
    return (*ends, protocol, ports, packet.wirelen or len(packet), float(packet.time))


def _node_name(ip: str, mac: str) -> str:
    """Return the name of a GPU by its address, or of a node of a multi-rail fabric, where MACs are end to end."""
    if nic := nic_of_mac(mac):
        return nic.namespace
    try:
        return gpu_of_ip(ip).name
    except ValueError:
        return ip


def print_summary(packets: "pd.DataFrame", link: str, out: Console) -> None:
    """Print the totals, the packets of each protocol, and the largest flows."""
    flows = packets.groupby(FLOW, sort=False)["bytes"].agg(["size", "sum"])
    total = int(packets["bytes"].sum())
    seconds = packets["time"].max() - packets["time"].min()
    totals = f"{link}: {len(packets):,} packets, {format_size(total, 3)}"
    if seconds > 0:
        totals += f", {8 * total / seconds / 1e6:.3g} Mbit/s"
    totals += f", {len(flows):,} flows"
    protocols = [f"{name} {count:,}" for name, count in packets["protocol"].value_counts().items()]
    if protocols:
        totals += f"; {', '.join(protocols)}"
    out.print(totals, highlight=False)
    if not total:
        return
    numbers = ("PACKETS", "BYTES", "SHARE")
    table = plain_table("FROM", "TO", "PROTOCOL", "PORTS", *numbers, right=numbers)
    for flow, count, size in flows.nlargest(MAX_FLOWS, "sum").itertuples():
        table.add_row(*flow, f"{count:,}", format_size(size, 3), f"{100 * size / total:.3g}%")
    out.print(table)
    if len(flows) > MAX_FLOWS:
        out.print(f"{len(flows) - MAX_FLOWS:,} more flows in the file", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RailyardError as error:
        sys.exit(print_error(str(error), error.exit_status))
