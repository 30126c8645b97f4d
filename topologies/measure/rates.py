"""Rates and latencies of links, measured by iperf3 before a run."""

import json
import select
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import closing, suppress
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.wait import POLL_S, poll, wait_until
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import LinkClass
from railyard.topologies.measure.counters import PortReader
from railyard.topologies.plan import Plan

# 100 jumbo frames, since at either end of the time one frame may count or not
MEASURED_BYTES: Final = 900_000
# for iperf3 to connect and to report, beside the time that it measures
TIMEOUT_S: Final = 30.0
PINGS: Final = 50
# longer than shapers take for the idle credit of the last one
PING_INTERVAL_S: Final = 2e-3
# iperf3 counts only after this: slow start is over then
OMIT_S: Final = 1
# the most that an ordinary user gets; over three switches less than that leaves a link idle
WINDOW: Final = "208K"
IPERF_PORT: Final = f"{5201:04X}"
# states of a connection in /proc/net/tcp
LISTEN = "0A"
TIME_WAIT = "06"
# a frame between two queues is in none of them, so a single look may miss it
STILL_LOOKS: Final = 3
# the longest queue of a slow rail; a workload is measured after that in any case
SETTLE_S: Final = 5.0
# iperf3 counts whole blocks; its own of 128 KB take a tenth of a second on a link of 10 Mbit/s
BLOCK: Final = "8K"
CALIBRATION: Final = f"-O {OMIT_S} -w {WINDOW} -l {BLOCK} -C cubic"


class Sample(NamedTuple):
    """A TCP flow over one link of a class. Rates are payload, bit/s: `expected` is the link's rate less headers."""

    link_class: LinkClass
    src: Gpu
    dst: Gpu
    expected_bps: float
    measured_bps: float = 0.0
    latency_s: float | None = None


def samples(net: FabricNet) -> list[Sample]:
    """Return one flow a class, no two over the same link. A flow over a spine is bound by its rail, the slower."""
    plan = net.plan
    payload = payload_fraction(plan.spec.mtu)
    # a flow uses one plane
    rail = plan.rail_link(Gpu(0, 0)).rate_bps * payload
    hb = plan.hb_bps * payload
    if plan.spec.definition.is_graph:
        return _graph_samples(plan, hb, payload)
    chosen = [Sample("hb", Gpu(0, 0), Gpu(0, 1), hb), Sample("rail", Gpu(1, 0), Gpu(0, 0), rail)]
    further_ranks = [rank for rank in range(plan.spec.rails) if plan.spec.rail_of(rank) != plan.spec.rail_of(0)]
    if not plan.uplinks or not further_ranks:
        return chosen
    over_spine = (Gpu(0, further_ranks[0]), Gpu(1, 0))
    if any(share.path.kind == "spine" for share in plan.spec.paths(*over_spine)):
        uplink = min(rail, plan.uplink_bps * payload)
        chosen.append(Sample("uplink", *over_spine, uplink))
    return chosen


def _graph_samples(plan: Plan, hb_bps: float, payload: float) -> list[Sample]:
    """Return one flow along a rail, and where domains have several GPUs one within a domain and one between rails."""
    chosen = list[Sample]()
    pairs: list[tuple[LinkClass, Gpu, Gpu]] = [("rail", Gpu(1, 0), Gpu(0, 0))]
    if plan.spec.rails > 1:
        chosen.append(Sample("hb", Gpu(0, 0), Gpu(0, 1), hb_bps))
        if any(share.path.kind == "spine" for share in plan.spec.paths(Gpu(0, 1), Gpu(1, 0))):
            pairs.append(("uplink", Gpu(0, 1), Gpu(1, 0)))
    graph = plan.graph
    for link_class, src, dst in pairs:
        used = graph.shares(graph.switch_of[src], graph.switch_of[dst])
        slowest = min((graph.uplinks[frozenset(uplink)] for uplink in used), default=1.0)
        chosen.append(Sample(link_class, src, dst, plan.rail_bps * min(1.0, slowest) * payload))
    return chosen


def calibration_s(rate_bps: float) -> int:
    """Return how long iperf3 is to measure a link of this rate: 1 s, more below 7 Mbit/s; it takes whole seconds."""
    return ceil(MEASURED_BYTES * 8 / rate_bps)


def calibrate(net: FabricNet) -> list[Sample]:
    """Measure the latency of all samples, one by one, then their rates at once (2 s, more below 7 Mbit/s)."""
    # one by one: traffic of another flow would delay the byte
    chosen = [s._replace(latency_s=latency_s(s.src, s.dst)) for s in samples(net)]
    flows = [start_flow(s.src.name, s.dst.name, s.dst.ip, calibration_s(s.expected_bps)) for s in chosen]
    measured = [s._replace(measured_bps=measured_bps(flow)) for s, flow in zip(chosen, flows, strict=True)]
    ends: set[str] = set()
    for sample in chosen:
        ends |= {sample.src.name, sample.dst.name}
    _settle(net, ends)
    return measured


def _settle(net: FabricNet, ends: Collection[str]) -> None:
    """Wait until no packet of iperf3 is under way: a port would count it as one of the workload's."""
    with closing(PortReader([*ends, *net.plan.dpids])) as reader:

        def is_still() -> bool:
            for ports in reader.read().values():
                if any(port.backlog_bytes for port in ports.values()):
                    return False
            # iperf3's server closes its connection before the last data comes, which its kernel answers with resets
            return not any(map(_has_iperf_connection, ends))

        for _ in range(STILL_LOOKS):
            poll(is_still, SETTLE_S)
            time.sleep(POLL_S)


def _has_iperf_connection(node: str) -> bool:
    with namespaces.inside(node):
        rows = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]]
    return any(IPERF_PORT in (row[1][-4:], row[2][-4:]) and row[3] not in (LISTEN, TIME_WAIT) for row in rows)


def latency_s(src: Gpu, dst: Gpu) -> float | None:
    """Return the median time of a byte over an idle path, one way, from sending to receiving it; None if one is lost.

    A single thread sends and receives, so there is one clock and no program on the way that answers.
    """
    times_s = []
    with namespaces.open_socket(dst.name) as receiver, namespaces.open_socket(src.name) as sender:
        receiver.bind((dst.ip, 0))
        receiver.settimeout(1.0)
        for _ in range(PINGS):
            time.sleep(PING_INTERVAL_S)
            start_ns = time.monotonic_ns()
            sender.sendto(b"x", receiver.getsockname())
            try:
                receiver.recv(1)
            except TimeoutError:
                return None
            times_s.append((time.monotonic_ns() - start_ns) / 1e9)
    return median(times_s)


def echo_latency_s(src: Gpu, dst: Gpu, port: int) -> float | None:
    """Return half of the median time of a byte to an echo at another machine's GPU and back; None if one is lost."""
    times_s = []
    with namespaces.open_socket(src.name) as sender:
        sender.settimeout(1.0)
        for _ in range(PINGS):
            time.sleep(PING_INTERVAL_S)
            start_ns = time.monotonic_ns()
            sender.sendto(b"x", (dst.ip, port))
            try:
                sender.recv(1)
            except TimeoutError:
                return None
            times_s.append((time.monotonic_ns() - start_ns) / 2e9)
    return median(times_s)


class IperfFlow(NamedTuple):
    """A running iperf3 flow. `within_s`: how long its client may take."""

    client: "subprocess.Popen[str]"
    server: "subprocess.Popen[str] | None"
    within_s: float


def start_flow(src: str, dst: str, ip: str, seconds: int, options: str = CALIBRATION) -> IperfFlow:
    """Start a TCP flow between two namespaces, to an address of the second, with these options of iperf3's client."""
    server = start_server(dst, ip)
    return start_client(src, dst, ip, seconds, server, options)


def start_server(node: str, ip: str) -> "subprocess.Popen[str]":
    """Start iperf3's server for one client at an address of a namespace; return when it listens."""
    with namespaces.inside(node):
        listen = ["iperf3", "-s", "-1", "--forceflush", "-B", ip]
        server = subprocess.Popen(listen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watch.add(f"iperf3's server at {node}", server.pid, may_exit=True)
    listening = select.poll()
    listening.register(server.stdout or -1, select.POLLIN)
    wait_until(lambda: listening.poll(0), f"iperf3's server at {node} to listen", TIMEOUT_S)
    return server


def start_client(
    src: str,
    dst: str,
    ip: str,
    seconds: int,
    server: "subprocess.Popen[str] | None" = None,
    options: str = CALIBRATION,
) -> IperfFlow:
    """Start a TCP flow to a server that listens; `server`: its process, unless another machine has that."""
    command = f"iperf3 -J -t {seconds} {options} -c {ip}"
    with namespaces.inside(src):
        client = subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch.add(f"iperf3 from {src} to {dst}", client.pid, may_exit=True)
    return IperfFlow(client, server, seconds + TIMEOUT_S)


def measured_bps(flow: IperfFlow) -> float:
    """Return the payload rate at the end; 0 if nothing arrived. RailyardError if iperf3 ends without a report."""
    report = report_of(flow)
    received = report.get("end", {}).get("sum_received", {})
    return float(received.get("bits_per_second", 0.0))


def report_of(flow: IperfFlow) -> dict[str, Any]:
    """Return the client's report, in which it names its own errors, when both have ended. RailyardError without it."""
    try:
        text = watch.communicate(flow.client, "iperf3", within_s=flow.within_s, statuses=(0, 1))
        report: dict[str, Any] = json.loads(text)
    except ValueError:
        raise RailyardError(f"iperf3 failed without a report: {' '.join(text.split())[-200:]}") from None
    finally:
        if flow.server and flow.client.returncode != 0:
            # no packet of this flow is to be counted as one of the workload's; `watch` would take this end for a death
            watch.expect_signal(flow.server.pid, signal.SIGKILL)
            flow.server.kill()
            flow.server.communicate()
        elif flow.server:
            with suppress(watch.ProcessMissing):
                watch.communicate(flow.server, "iperf3's server", statuses=range(256))
    return report
