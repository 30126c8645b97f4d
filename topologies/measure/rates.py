"""Rates that are measured before a run: of links, by iperf3, and of packets that this machine carries through switches.

The second is TCP over a small fabric without limits, one full frame a packet. Segmentation offload is switched off for
it, since many slow flows, as a run has them, look like that to a switch. Senders, switch and receivers share the cores
as they do in a run.
"""

import json
import select
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.core import watch
from railyard.core.errors import RailyardError
from railyard.core.host import Datapath, usable_cores
from railyard.core.host_load import CpuClock
from railyard.core.wait import POLL_S, poll, wait_until
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet
from railyard.topologies.build.shaping import ETHERNET, max_gso_segments, payload_fraction
from railyard.topologies.fabric_kinds import LinkClass
from railyard.topologies.measure.counters import PortReader
from railyard.topologies.plan import Plan
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import MIN_RAIL_BPS, FabricSpec

MEASURED_BYTES: Final = 900_000  # 100 jumbo frames: at either end of the time one may count or not
TIMEOUT_S: Final = 30.0  # for iperf3 to connect and to report, beside the time that it measures
PINGS: Final = 50
PING_INTERVAL_S: Final = 2e-3  # longer than shapers take for the idle credit of the last one
OMIT_S: Final = 1  # iperf3 counts only after this: slow start is over then
WINDOW: Final = "208K"  # the most that an ordinary user gets; over three switches less than that leaves a link idle
IPERF_PORT: Final = f"{5201:04X}"
LISTEN, TIME_WAIT = "0A", "06"  # states of a connection in /proc/net/tcp
STILL_LOOKS: Final = 3  # a frame between two queues is in none
SETTLE_S: Final = 5.0  # the longest queue of a slow rail; a workload is measured after that in any case
BLOCK: Final = "8K"  # iperf3 counts whole blocks; its own of 128 KB take a tenth of a second on a link of 10 Mbit/s
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
    rail, hb = plan.rail_link(Gpu(0, 0)).rate_bps * payload, plan.hb_bps * payload  # a flow uses one plane
    chosen = [Sample("hb", Gpu(0, 0), Gpu(0, 1), hb), Sample("rail", Gpu(1, 0), Gpu(0, 0), rail)]
    if plan.uplinks and any(share.path.kind == "spine" for share in plan.spec.paths(Gpu(0, 1), Gpu(1, 0))):
        uplink = min(rail, plan.uplink_bps * payload)
        chosen.append(Sample("uplink", Gpu(0, 1), Gpu(1, 0), uplink))
    return chosen


def calibration_s(rate_bps: float) -> int:
    """Return how long iperf3 is to measure a link of this rate: 1 s, more below 7 Mbit/s; it takes whole seconds."""
    return ceil(MEASURED_BYTES * 8 / rate_bps)


def calibrate(net: FabricNet) -> list[Sample]:
    """Measure the latency of all samples, one by one, then their rates at once (2 s, more below 7 Mbit/s)."""
    chosen = [s._replace(latency_s=latency_s(s.src, s.dst)) for s in samples(net)]
    flows = [start_flow(s.src.name, s.dst.name, s.dst.ip, calibration_s(s.expected_bps)) for s in chosen]
    measured = [s._replace(measured_bps=measured_bps(flow)) for s, flow in zip(chosen, flows, strict=True)]
    _settle(net, {gpu.name for s in chosen for gpu in (s.src, s.dst)})
    return measured


def _settle(net: FabricNet, ends: Collection[str]) -> None:
    """Wait until no packet of iperf3 is under way: a port would count it as one of the workload's.

    iperf3's server closes its connection before the last data comes, which its kernel answers with resets.
    """
    with closing(PortReader([*ends, *(switch.name for switch in net.plan.switches)])) as reader:

        def is_still() -> bool:
            waiting = any(port.backlog_bytes for ports in reader.read().values() for port in ports.values())
            return not waiting and not any(map(_has_iperf_connection, ends))

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
    found = []
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
            found.append((time.monotonic_ns() - start_ns) / 1e9)
    return median(found)


def echo_latency_s(src: Gpu, dst: Gpu, port: int) -> float | None:
    """Return half of the median time of a byte to an echo at another machine's GPU and back; None if one is lost."""
    found = []
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
            found.append((time.monotonic_ns() - start_ns) / 2e9)
    return median(found)


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
    report = _report(flow)
    received = report.get("end", {}).get("sum_received", {})
    return float(received.get("bits_per_second", 0.0))


def _report(flow: IperfFlow) -> dict[str, Any]:
    """Return the client's report, in which it names its own errors, when both have ended. RailyardError without it."""
    try:
        text = watch.communicate(flow.client, "iperf3", within_s=flow.within_s, statuses=(0, 1))
        report: dict[str, Any] = json.loads(text)
    except ValueError:
        raise RailyardError(f"iperf3 failed without a report: {' '.join(text.split())[-200:]}") from None
    finally:
        if (
            flow.server and flow.client.returncode != 0
        ):  # else no packet of this is to be counted as one of the workload's
            watch.expect_signal(flow.server.pid, signal.SIGKILL)
            flow.server.kill()
        with suppress(watch.ProcessMissing):
            if flow.server:
                watch.communicate(flow.server, "iperf3's server", statuses=range(256))
    return report


UNSHAPED_BPS: Final = 20_000_000_000
SECONDS: Final = 1
WINDOWS: Final = 8  # in which CPU time and frames are counted; the dearest quarter of them doesn't count
STEPS: Final = (1, 2, 5)  # rates that people like to read
SHARE: Final = 0.13
"""Of the capacity that `auto` uses for rails; the rest is for acknowledgements, and for frames that come singly.

Shaped links hand a switch one frame at a time, and each wakes it: a frame costs 3 to 6 times as much as those of
`measure`, which come many at once. 16 GPUs at 20 Mbit/s, 4,400 frames/s, keep 0.6 to 0.75 of two cores busy that carry
35,800 by `measure`. At 50 Mbit/s they keep 0.85 to 1.0 busy, also of two cores that carry 65,000, as 30 GPUs do at 20
Mbit/s, 8,300 frames/s (2026-11-24).
"""
FURTHER_SWITCH: Final = 0.7
"""CPU time of a further switch on a frame's path, in that of the first with sender and receiver: in an all-to-all of 64
GPUs switches take 1.20 of the 1.75 cores that are busy (2026-11-24)."""
HB_SHARE: Final = 0.6  # for HB domains, which most collectives fill while rails are idle
HB_COST: Final = 1 / 3
"""CPU time of a packet through an HB domain's bridge, in that of a frame through a userspace switch, both with sender
and receiver: median 17.8 and 53.3 us in 25 windows of 0.1 s, lower quartile 14.2 and 50.5 us (2026-11-23)."""
MAX_RAIL_BPS: Final = 1_000_000_000


def measure(datapath: Datapath, controller: FabricController) -> float:
    """Return the full frames a second that cross a switch if all cores do nothing else. Takes 3 s, in a sandbox.

    It is the cores over the CPU time of a frame, in which no other program's time is counted: beside these a run isn't
    slowed down in advance, it is judged. Of some short windows it is the third quartile.
    """
    spec = FabricSpec.model_validate({"kind": "rail-only", "domains": 2, "rails": 2})
    net = FabricNet(Plan(spec, UNSHAPED_BPS, UNSHAPED_BPS), datapath, controller)
    net.start()
    try:
        flows = list[IperfFlow]()
        for rank in range(spec.rails):
            with namespaces.inside(f"d0g{rank}"):
                namespaces.run(["ethtool", "-K", "rail0", "tso", "off", "gso", "off"])
            flows.append(start_flow(f"d0g{rank}", f"d1g{rank}", Gpu(1, rank).ip, SECONDS, "-w 128K"))
        clock, spent = CpuClock(), list[tuple[float, int]]()
        for _ in range(WINDOWS + 1):
            time.sleep(SECONDS / (WINDOWS + 2))
            spent.append((clock.own_s(), sum(_received_bytes(f"d1g{rank}", "rail0") for rank in range(spec.rails))))
        reports = [_report(flow) for flow in flows]
    finally:
        net.stop()
    for error in (report["error"] for report in reports if "error" in report):
        raise RailyardError(f"what this machine carries could not be measured: iperf3: {error}")
    cost_s = frame_cost_s(spent, spec.mtu)
    if cost_s is None:
        raise RailyardError("what this machine carries could not be measured: too few frames arrived in a second")
    return usable_cores() / cost_s


def frame_cost_s(spent: Sequence[tuple[float, int]], mtu: int) -> float | None:
    """Return the CPU time of a full frame, the third quartile of windows; None if that one had none.

    `spent`: CPU seconds, and bytes received, until the beginning and the end of each window.
    """
    costs = []
    for (cpu_s, received), (later_cpu_s, later) in pairwise(spent):
        frames = (later - received) / (mtu + ETHERNET)
        costs.append((later_cpu_s - cpu_s) / frames if frames else inf)
    cost_s = sorted(costs)[int(0.75 * len(costs))]
    return cost_s if 0 < cost_s < inf else None


def _received_bytes(node: str, interface: str) -> int:
    with namespaces.inside(node):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    found = {name.strip(): row.split() for name, _, row in (line.partition(":") for line in lines)}
    return int(found[interface][0])


def frames_needed(spec: FabricSpec, rail_bps: int) -> float:
    """Return the frames a second when every link that goes through a switch is full, as if each passed one switch.

    With spines half of the rails' frames are taken to change rails, which makes one switch three. Optical switches are
    passed twice, at the sender and at the receiver, be it one or two, and in the HB layer by frames that pass no other.
    """
    layers = spec.optical.layers if spec.optical else ()
    switches = 1 + FURTHER_SWITCH * ((1 if spec.spine_count else 0) + 2 * ("rail" in layers))
    if "hb" in layers:
        switches += (1 + FURTHER_SWITCH) * _hb_ratio(spec)
    return spec.gpus * rail_bps / 8 / (spec.mtu + ETHERNET) * switches


def _hb_ratio(spec: FabricSpec) -> float:
    """Return C_F/C_S: of the rates that are given, else of the platform."""
    hb, rail = spec.hb_rate, spec.rail_rate
    return hb / rail if isinstance(hb, int) and isinstance(rail, int) else PLATFORMS[spec.platform].ratio


def hb_packets_needed(spec: FabricSpec, rail_bps: int) -> float:
    """Return the packets a second through HB domains when every HB link is full.

    The NIC of a slow link hands on single frames: at 60 Mbit/s it sends as many packets as at 180 Mbit/s.
    """
    hb_bps = round(rail_bps * _hb_ratio(spec))
    packet = max_gso_segments(hb_bps, spec.mtu) * (spec.mtu + ETHERNET)
    return spec.gpus * hb_bps / 8 / packet


def max_rail_bps(spec: FabricSpec, frames_per_s: float) -> float:
    """Return the rail rate at which the switches would take all of the machine."""
    return frames_per_s / frames_needed(spec, 1)


def fits(spec: FabricSpec, rail_bps: int, frames_per_s: float) -> bool:
    """Return whether `auto` may choose a rate: full rails, and full HB domains, leave enough of the machine."""
    hb_frames = HB_COST * hb_packets_needed(spec, rail_bps)
    return frames_needed(spec, rail_bps) <= SHARE * frames_per_s and hb_frames <= HB_SHARE * frames_per_s


def auto_rail_bps(specs: list[FabricSpec], frames_per_s: float) -> int:
    """Return one rail rate for fabrics to compare: 1, 2 or 5 times a power of ten, the highest that fits each."""
    rates = [step * 10**power for power in range(6, 10) for step in STEPS]
    fitting = [r for r in rates if r <= MAX_RAIL_BPS and all(fits(spec, r, frames_per_s) for spec in specs)]
    return max(fitting, default=MIN_RAIL_BPS)
