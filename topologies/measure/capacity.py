"""Measurement of what this machine carries, before a run: the CPU time of packets through emulated switches.

A packet through emulated switches costs CPU time. How much depends on how many come at once: where links are shaped, a
frame comes singly and wakes every process on its way, and costs several times as much as one of many. `auto` rates are
chosen by the former, `measure_costs`; a given rate is refused only if the machine couldn't carry it even if frames came
many at once, `measure_batched`. Both are TCP over a small fabric. Senders, switches and receivers share the cores as
they do in a run; what other programs take at that moment says nothing of the measurement to come, and doesn't count.
"""

import selectors
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise, product
from math import inf
from pathlib import Path
from typing import Final

from railyard.core.errors import RailyardError
from railyard.core.host import Datapath, usable_cores
from railyard.core.host_load import CpuClock
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricController, FabricNet
from railyard.topologies.build.shaping import ETHERNET, max_gso_segments
from railyard.topologies.capacity import Capacity
from railyard.topologies.measure.rates import IperfFlow, report_of, start_flow
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec

GRID: Final = (2, 2)  # domains and rails of the fabric that is measured on
# 2,800 frames a second of 4 GPUs: more than half of what a run has on two cores
RAIL_BPS: Final = 50_000_000
# two frames in a packet: HB domains of rails of 1 to 20 Mbit/s have one to three
HB_BPS: Final = 180_000_000
SECONDS: Final = 0.3  # for each cost
# until a flow is at the rate of its links, and its last frame gone
SETTLE_S: Final = 0.1
# a machine that others keep busy may have no time for a flow in one of them
ATTEMPTS: Final = 5
BUFFER_BYTES: Final = 256 << 10
# SO_LINGER: a connection that is closed ends at once
_RESET: Final = struct.pack("ii", 1, 0)
_Flow = tuple[Gpu, Gpu]


def measure_costs(datapath: Datapath, controller: FabricController) -> Capacity:
    """Return what this machine carries of packets that come singly. Takes 2.5 s, in a sandbox.

    Each cost is the CPU time of the run's own processes while links are full, less what they take without traffic.
    """
    domains, rails = GRID
    spec = FabricSpec.model_validate({"kind": "rail-optimized", "domains": domains, "rails": rails, "policy": "spine"})
    net = FabricNet(Plan(spec, RAIL_BPS, HB_BPS), datapath, controller)
    frame = spec.mtu + ETHERNET
    packet = max_gso_segments(HB_BPS, spec.mtu) * frame
    net.start()
    try:
        for _ in range(ATTEMPTS):
            # to the next domain, to the next domain and rail, and to the next rail
            measured = [_cores_and_bytes(_shifted_flows(*shift)) for shift in ((1, 0), (1, 1), (0, 1))]
            idle, _ = _cores_and_bytes(())
            if all(bytes_per_s and cores > idle for cores, bytes_per_s in measured):
                break
        else:
            raise RailyardError("what this machine carries could not be measured: too few frames arrived")
    finally:
        net.stop()
    costs_s = []
    for (cores, bytes_per_s), size in zip(measured, (frame, frame, packet), strict=True):
        costs_s.append((cores - idle) * size / bytes_per_s)
    frame_s, across_s, within_s = costs_s
    # a frame to another rail passes two switches more
    return Capacity(float(usable_cores()), frame_s, max(0.0, across_s - frame_s) / 2, within_s)


def _shifted_flows(further_domains: int, further_rails: int) -> list[_Flow]:
    """Return a flow from each GPU to the one that is so many domains and rails further."""
    domains, rails = GRID
    flows: list[_Flow] = []
    for domain, rank in product(range(domains), range(rails)):
        dst = Gpu((domain + further_domains) % domains, (rank + further_rails) % rails)
        flows.append((Gpu(domain, rank), dst))
    return flows


def _cores_and_bytes(flows: Iterable[_Flow]) -> tuple[float, float]:
    """Return the cores that the run's processes keep busy while these flows send, and the bytes/s that arrive."""
    clock = CpuClock()
    arrived = 0
    with _connections(flows) as (senders, receivers), selectors.DefaultSelector() as ready:
        data = bytes(BUFFER_BYTES)
        buffer = bytearray(BUFFER_BYTES)
        for sockets, event in ((senders, selectors.EVENT_WRITE), (receivers, selectors.EVENT_READ)):
            for sock in sockets:
                ready.register(sock, event)
        start_s = time.monotonic() + SETTLE_S
        samples = list[tuple[float, float, int]]()
        for until_s in (start_s, start_s + SECONDS):
            while (remaining_s := until_s - time.monotonic()) > 0:
                for key, event in ready.select(remaining_s):
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if event == selectors.EVENT_WRITE:
                        end.send(data)
                    else:
                        arrived += end.recv_into(buffer)
            samples.append((time.monotonic(), clock.own_s(), arrived))
    (begin_s, before_s, first), (end_s, after_s, last) = samples
    return (after_s - before_s) / (end_s - begin_s), (last - first) / (end_s - begin_s)


@contextmanager
def _connections(flows: Iterable[_Flow]) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """Yield the sending and the receiving end of a connection for each flow; closing them discards what waits."""
    senders = list[socket.socket]()
    receivers = list[socket.socket]()
    with ExitStack() as opened:
        for src, dst in flows:
            with namespaces.open_socket(dst.name, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
                listener.bind((dst.ip, 0))
                listener.listen()
                sender = opened.enter_context(namespaces.open_socket(src.name, socket.SOCK_STREAM))
                sender.connect(listener.getsockname())
                receivers.append(opened.enter_context(closing(listener.accept()[0])))
                senders.append(sender)
        for sock in (*senders, *receivers):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        yield senders, receivers


UNSHAPED_BPS: Final = 20_000_000_000
BATCHED_SECONDS: Final = 1
# CPU time and frames are counted in each; the dearest quarter of them does not count
WINDOWS: Final = 8


def measure_batched(datapath: Datapath, controller: FabricController) -> Capacity:
    """Return what this machine carries of full frames that come many at once. Takes 3 s, in a sandbox.

    It is TCP without limits, one full frame a packet, as segmentation offload is switched off. Of some short windows it
    is the third quartile.
    """
    spec = FabricSpec.model_validate({"kind": "rail-only", "domains": 2, "rails": 2})
    net = FabricNet(Plan(spec, UNSHAPED_BPS, UNSHAPED_BPS), datapath, controller)
    net.start()
    try:
        flows = list[IperfFlow]()
        for rank in range(spec.rails):
            with namespaces.inside(f"d0g{rank}"):
                namespaces.run(["ethtool", "-K", "rail0", "tso", "off", "gso", "off"])
            flows.append(start_flow(f"d0g{rank}", f"d1g{rank}", Gpu(1, rank).ip, BATCHED_SECONDS, "-w 128K"))
        clock = CpuClock()
        spent = list[tuple[float, int]]()
        for _ in range(WINDOWS + 1):
            time.sleep(BATCHED_SECONDS / (WINDOWS + 2))
            received = sum(_received_bytes(f"d1g{rank}", "rail0") for rank in range(spec.rails))
            spent.append((clock.own_s(), received))
        reports = [report_of(flow) for flow in flows]
    finally:
        net.stop()
    for report in reports:
        if "error" in report:
            raise RailyardError(f"what this machine carries could not be measured: iperf3: {report['error']}")
    cost_s = frame_cost_s(spent, spec.mtu)
    if cost_s is None:
        raise RailyardError("what this machine carries could not be measured: too few frames arrived in a second")
    return Capacity(float(usable_cores()), batched_s=cost_s)


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
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[0])
    raise KeyError(interface)
