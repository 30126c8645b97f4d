"""iperf3 on a sample of every class of link, before anything is believed that ran over them."""

import json
import subprocess
from dataclasses import dataclass
from math import ceil
from typing import Final

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.plan import LinkClass

MIN_DURATION_S: Final = 2  # long against a shaper's burst of a millisecond
SEGMENTS: Final = 40  # of 64 KB: TCP hands down as much at once, so on a slow link fewer would be a coarse measure
OMIT_S: Final = 1  # iperf3 counts only after this: slow start is over then
WINDOW: Final = "208K"  # the most that an ordinary user gets; over three switches less than that leaves a link idle


@dataclass(frozen=True, slots=True)
class Sample:
    """A TCP flow over one link of a class. Rates are payload, bit/s: `expected` is the link's rate less headers."""

    link_class: LinkClass
    src: Gpu
    dst: Gpu
    expected_bps: float
    measured_bps: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.src.name} -> {self.dst.name}"


def samples(net: FabricNet) -> list[Sample]:
    """One flow a class, no two over the same link. A flow over a spine is bound by its rail, the slower of the two."""
    plan = net.plan
    payload = payload_fraction(plan.spec.mtu)
    rail, hb = plan.rail_link(Gpu(0, 0)).rate_bps * payload, plan.hb_bps * payload  # a flow uses one plane
    chosen = [Sample("hb", Gpu(0, 0), Gpu(0, 1), hb), Sample("rail", Gpu(1, 0), Gpu(0, 0), rail)]
    if plan.uplinks and any(share.path.kind == "spine" for share in plan.spec.paths(Gpu(0, 1), Gpu(1, 0))):
        uplink = min(rail, plan.uplink_bps * payload)
        chosen.append(Sample("uplink", Gpu(0, 1), Gpu(1, 0), uplink))
    return chosen


def seconds_for(rate_bps: float) -> int:
    """How long to measure a link of this rate; iperf3 takes whole seconds."""
    return max(MIN_DURATION_S, ceil(SEGMENTS * 65536 * 8 / rate_bps))


def calibrate(net: FabricNet) -> list[Sample]:
    """Measure all samples at once (3 s, more below 10 Mbit/s)."""
    chosen = samples(net)
    iperf_flows = [start_flow(s.src.name, s.dst.name, s.dst.ip, s.expected_bps) for s in chosen]
    return [
        Sample(s.link_class, s.src, s.dst, s.expected_bps, measured_bps(flow))
        for s, flow in zip(chosen, iperf_flows, strict=True)
    ]


IperfFlow = tuple["subprocess.Popen[str]", "subprocess.Popen[str]"]
"""iperf3's client and server."""


def start_flow(src: str, dst: str, ip: str, expected_bps: float) -> IperfFlow:
    """A TCP flow between two namespaces, to an address of the second; 3 s, more below 10 Mbit/s."""
    with namespaces.inside(dst):
        listen = ["iperf3", "-s", "-1", "--forceflush", "-B", ip]
        server_process = subprocess.Popen(listen, stdout=subprocess.PIPE, text=True)
    assert server_process.stdout
    server_process.stdout.readline()
    command = [
        "iperf3",
        "-J",
        "-O",
        str(OMIT_S),
        "-t",
        str(seconds_for(expected_bps)),
        "-w",
        WINDOW,
        "-C",
        "cubic",
        "-c",
        ip,
    ]
    with namespaces.inside(src):
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True), server_process


def measured_bps(flow: IperfFlow) -> float:
    """Payload, once it is over; 0 if nothing came."""
    client, server = flow
    report = json.loads(client.communicate()[0])
    received = report.get("end", {}).get("sum_received", {})
    if not received:
        server.kill()  # nobody came, and nobody will
    server.communicate()  # no packet of this is to be counted as one of the workload's
    return float(received.get("bits_per_second", 0.0))
