"""The process that sends background load: `python -m railyard.workloads.background.sender`.

BackgroundJob, StartAt and Stop come in, in this order; Ready, Ready and Sent go out. Frame k of a flow is due when its
wave has been on for (k + phase) intervals.

No policy moves the load.
"""

import gc
import math
import random
import select
import socket
import struct
import time
from heapq import heapify, heapreplace
from typing import Final

from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Failed, Parent, Ready
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import ETHERNET
from railyard.workloads.background.flows import PORT, BackgroundFlow, BackgroundJob, Sent, StartAt, Stop
from railyard.workloads.background.spec import Wave

# What could not be sent for so long is given up: a link that was blocked gets no flood afterwards.
MAX_LATENESS_S: Final = 0.05


class Pacer:
    """Times in seconds. `phase`, in (0, 1), keeps flows from sending all at once. `sent`: frames so far."""

    def __init__(self, wave: Wave, interval_s: float, phase: float) -> None:
        self._wave = wave
        self._interval = interval_s
        self._phase = phase
        self._handled = self.sent = 0

    def next_due_s(self) -> float:
        """Return when the next frame is due, in s; infinite if no more will be."""
        return self._wave.time_for_on_s((self._handled + self._phase) * self._interval)

    def frames_due_by(self, at_s: float) -> int:
        """Return the number of frames that were due until then."""
        return math.floor(self._wave.on_s(at_s) / self._interval - self._phase) + 1

    def frames_to_send(self, now_s: float) -> int:
        """Return the number of frames to send now, once `next_due_s` has come: due, and not given up."""
        # the frame that is due by `next_due_s` may not be so by `frames_due_by`, to the last digit
        frames_due_by = max(self.frames_due_by(now_s), self._handled + 1)
        self._handled = max(self._handled, self.frames_due_by(now_s - MAX_LATENESS_S))
        return frames_due_by - self._handled

    def mark_sent(self, frames: int) -> None:
        """Count frames as sent."""
        self._handled += frames
        self.sent += frames


SEND_INTERVAL_S: Final = 0.002
# of a turn, at most: turns must not fall in step with the kernel's tick
JITTER: Final = 0.4
# of a socket: all that an ordinary user gets, on most kernels
SOCKET_BUFFER_BYTES: Final = 212_992
# a buffer holds some 40 frames of 9000 bytes, and the queue of a hot link far more
SOCKETS_PER_FLOW: Final = 16
IP_UDP: Final = 20 + 8
MAX_UDP: Final = 65_507
# <linux/udp.h>: the size into which the kernel cuts a long datagram
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
IP_PKTINFO: Final = 8  # <linux/in.h>, as the next one
IP_TRANSPARENT: Final = 19
GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2
_PACKET_INFO: Final = struct.Struct("@i4s4s")  # struct in_pktinfo: interface, source, destination


class _Source:
    def __init__(self, number: int, flow: BackgroundFlow, mtu: int) -> None:
        self.pacer = Pacer(flow.wave, (mtu + ETHERNET) * 8 / flow.bps, (number + 1) * GOLDEN_RATIO % 1)
        self._spread_over_spines = flow.path == "spine"
        self._size = mtu - IP_UDP
        # userspace switches take no datagrams that are yet to be cut
        self._batch = MAX_UDP // self._size if flow.device == "hb0" else 1
        with namespaces.inside(flow.src.name):
            self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS_PER_FLOW)]
        # A socket bound to a device takes only routes over that device, and one with SO_DONTROUTE only those on the
        # link itself, so routes that steer other traffic, over another device or by another GPU, don't apply. Where the
        # base policy has no such route, the kernel takes the destination to be on the device's link, where it is.
        for sock in self._sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, flow.device.encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            if self._spread_over_spines:
                sock.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
            if self._batch > 1:
                sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, self._size)
            sock.bind((flow.src.ip, 0))
            sock.connect((flow.dst.ip, PORT))
            sock.setblocking(False)
        self._payload = memoryview(bytes(self._size * self._batch))
        self._random = random.Random(number)

    def send(self, now_s: float) -> float:
        """Send what is due; when to do it again: a turn later if the kernel takes no more now."""
        frames_to_send = self.pacer.frames_to_send(now_s)
        while frames_to_send:
            frames = min(frames_to_send, self._batch)
            for _ in self._sockets:
                try:
                    self._sockets[0].sendmsg([self._payload[: frames * self._size]], self._source())
                    break
                except OSError:  # no room, or no link
                    self._sockets.append(self._sockets.pop(0))
            else:
                return now_s + SEND_INTERVAL_S
            self.pacer.mark_sent(frames)
            frames_to_send -= frames
        return self.pacer.next_due_s()

    def _source(self) -> list[tuple[int, int, bytes]]:
        """Return the control message that gives a frame across spines another source, in 10.0.0.0/8."""
        # a rail switch's group hashes addresses and not UDP ports, so only sources spread frames over its uplinks; no
        # interface has an address of this network
        if not self._spread_over_spines:
            return []
        address = bytes((10, *self._random.randbytes(3)))
        return [(socket.IPPROTO_IP, IP_PKTINFO, _PACKET_INFO.pack(0, address, bytes(4)))]


def open_sink(gpu: Gpu) -> socket.socket:
    """Open the destination of load: a socket that is never read, so that no ICMP error and no drop results."""
    with namespaces.inside(gpu.name):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    # or the kernel would cut what it is about to throw away
    sink.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sink.bind((gpu.ip, PORT))
    return sink


def _send_until_stop(sources: list[_Source], frame_bytes: int, parent: Parent, start_ns: int) -> list[tuple[int, int]]:
    """Send in turns of two milliseconds while something is on, until a command comes.

    Return the bytes that each flow requested and sent.
    """
    due_times = [(source.pacer.next_due_s(), n) for n, source in enumerate(sources)]
    heapify(due_times)
    while True:
        now = (time.monotonic_ns() - start_ns) / 1e9
        while due_times and due_times[0][0] <= now:
            number = due_times[0][1]
            heapreplace(due_times, (sources[number].send(now), number))
        turn_s = SEND_INTERVAL_S * random.uniform(1 - JITTER, 1 + JITTER)
        wake_at = max(now + turn_s, due_times[0][0] if due_times else math.inf)
        timeout_s = wake_at - (time.monotonic_ns() - start_ns) / 1e9
        if select.select([parent], [], [], max(0.0, timeout_s) if timeout_s < math.inf else None)[0]:
            now = (time.monotonic_ns() - start_ns) / 1e9
            pacers = [source.pacer for source in sources]
            return [(pacer.frames_due_by(now) * frame_bytes, pacer.sent * frame_bytes) for pacer in pacers]


def main() -> None:
    """Serve one job."""
    parent = Parent(BackgroundJob, StartAt, Stop)
    raise_open_file_limit()
    try:
        job = parent.receive()
        destinations = {flow.dst for flow in job.flows}
        sinks = [open_sink(gpu) for gpu in sorted(destinations)]
        sources = [_Source(n, flow, job.mtu) for n, flow in enumerate(job.flows)]
    except OSError as error:
        parent.send(Failed(why=f"sockets can't be opened: {error}"))
        return
    parent.send(Ready())
    start_ns = parent.receive().start_ns
    parent.send(Ready())
    gc.disable()
    parent.send(Sent(counts=_send_until_stop(sources, job.mtu + ETHERNET, parent, start_ns)))
    # open until now: they take what is sent
    del sinks


if __name__ == "__main__":
    main()
