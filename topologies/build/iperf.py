"""`Mininet.iperf` on iperf3: Mininet's own waits for a report on its telnet probe, which iperf no longer prints."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from railyard.core.errors import RailyardError
from railyard.topologies.build.mininet_import import without_setuptools

with without_setuptools():
    from mininet.log import output

# the first frame over 80 switches with a reactive controller takes seconds on two cores
CONNECT_MS: Final = 30_000


def iperf(
    net: Any,
    hosts: Sequence[Any] | None = None,
    l4Type: str = "TCP",  # noqa: N803 (Mininet's name)
    udpBw: str = "10M",  # noqa: N803
    seconds: int = 5,
    **_: object,
) -> list[str]:
    """Print and return the throughput from the first host to the second, as `99.1 Mbits/sec`.

    `net`: a Mininet. `l4Type`: TCP or UDP.
    `udpBw`: the rate at which UDP is sent, as iperf3 has it.
    `seconds`: how long. Returns [received, sent]; with UDP [udpBw, received, sent], as Mininet does. RailyardError if
    iperf3 fails.
    """
    client, server = hosts or (net.hosts[0], net.hosts[-1])
    output(f"*** Iperf: testing {l4Type} bandwidth between {client.name} and {server.name}\n")
    server_process = server.popen("iperf3 -s -1 --forceflush")
    server_process.stdout.readline()
    protocol = f"-u -b {udpBw}" if l4Type == "UDP" else ""
    timeout = f"--connect-timeout {CONNECT_MS}"
    report = json.loads(client.cmd(f"iperf3 -J -t {seconds} {protocol} {timeout} -c {server.IP()}"))
    # it waits for good if the client's arguments were refused
    server_process.terminate()
    server_process.wait()
    received, sent = _rates(report)
    result = [f"{rate / 1e6:.1f} Mbits/sec" for rate in (received, sent)]
    if l4Type == "UDP":
        result.insert(0, udpBw)
    output(f"*** Results: {result}\n")
    return result


def _rates(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the rates in bit/s, received and sent, of iperf3's JSON report. RailyardError if it reports an error."""
    if "error" in report:
        raise RailyardError(f"iperf3: {report['error']}")
    received = report["end"]["sum_received"]["bits_per_second"]
    sent = report["end"]["sum_sent"]["bits_per_second"]
    return received, sent
