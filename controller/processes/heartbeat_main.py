"""Heartbeats of all GPUs, a process: `python -m railyard.controller.processes.heartbeat_main`, by messages.py.

Half a period after each round was sent, all that has arrived is read, and heartbeat_detector.py decides what is silent.
A socket is bound to its device and has SO_DONTROUTE, so that no detour carries a heartbeat
(workloads/background/sender.py has the reason).
"""

import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from typing import Final

from railyard.controller.failover.heartbeat_detector import HeartbeatDetector, SilentComponents
from railyard.controller.processes import messages
from railyard.core.host import raise_open_file_limit
from railyard.core.worker import Parent
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import HEARTBEAT_PORT
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device

# the number of the round; the sender is known by its address
HEARTBEAT: Final = struct.Struct("!I")


class HeartbeatSender:
    """A socket for each interface of a GPU, and the thread that sends heartbeats."""

    def __init__(self, plan: Plan, period_s: float, multiplier: int, parent: Parent) -> None:
        self._detector = HeartbeatDetector(plan, multiplier)
        self._period_s = period_s
        self._parent = parent
        self._addresses = {gpu: (gpu.ip, HEARTBEAT_PORT) for gpu in plan.gpus}
        self._gpus = {address: gpu for gpu, (address, _) in self._addresses.items()}
        self._sockets = {place: _open(*place) for place in product(plan.gpus, plan.devices)}
        self._by_number = {sock.fileno(): (*where, sock) for where, sock in self._sockets.items()}
        self._epoll = select.epoll()
        for number in self._by_number:
            self._epoll.register(number, select.EPOLLIN)
        self._sent = self._received = 0
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Send and evaluate a round each period, forever."""
        reported = SilentComponents()
        due_s = time.monotonic()
        while True:
            # before a round is planned, so that what came late counts
            self._read()
            self._send()
            time.sleep(self._period_s / 2)
            self._read()
            silence = self._detector.evaluate()
            if silence != reported:
                self._parent.emit("silence", asdict(silence))
                reported = silence
            # what was missed is not made up for
            due_s = max(due_s + self._period_s, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))

    def cost(self) -> messages.HeartbeatCost:
        """Return the cost since the start."""
        seconds = time.monotonic() - self._began_s
        cpu_s = time.process_time() - self._began_cpu_s
        return messages.HeartbeatCost(sent=self._sent, received=self._received, cpu_s=cpu_s, seconds=seconds)

    def _send(self) -> None:
        number, heartbeats = self._detector.begin_round()
        data = HEARTBEAT.pack(number)
        for device, pairs in heartbeats.items():
            for src, dst in pairs:
                # no link: the others will find that nothing arrives
                with suppress(OSError):
                    self._sockets[src, device].sendto(data, self._addresses[dst])
                    self._sent += 1
        if number == 1:
            self._parent.emit("started", {})

    def _read(self) -> None:
        while ready := self._epoll.poll(0):
            for fd, _ in ready:
                dst, device, sock = self._by_number[fd]
                try:
                    data, (address, _) = sock.recvfrom(HEARTBEAT.size)
                except OSError:
                    # a pending error of the link
                    continue
                if len(data) < HEARTBEAT.size:
                    continue
                self._received += 1
                (number,) = HEARTBEAT.unpack(data)
                self._detector.receive(device, number, self._gpus[address], dst)


def _open(gpu: Gpu, device: Device) -> socket.socket:
    with namespaces.inside(gpu.name):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        sock.bind((gpu.ip, HEARTBEAT_PORT))
    sock.setblocking(False)
    return sock


def main() -> None:
    """Execute the parent's commands until it ends."""
    # an ordinary user may not
    with suppress(PermissionError):
        # real GPUs' agents have processors of their own, and don't queue behind the traffic
        os.nice(-15)
    raise_open_file_limit()
    parent = Parent(*messages.ToHeartbeats.__subclasses__())
    start = parent.receive()
    sender = HeartbeatSender(start.plan, start.period_s, start.multiplier, parent)
    threading.Thread(target=sender.run, name="heartbeats", daemon=True).start()
    # messages.ReadCost is all that follows
    for _ in parent:
        parent.send(sender.cost())


if __name__ == "__main__":
    main()
