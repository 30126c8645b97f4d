"""Heartbeats of all GPUs, a process: `python -m railyard.controller.processes.heartbeat_main`, a line of JSON in for a
command, one out for an event. What is silent is decided in heartbeats.py.

Half a period after each round was sent, all that has arrived is read, and judged. A socket is bound to its device and
has SO_DONTROUTE, so that no detour moves a beat (workloads/background/sender.py has why).

In: {"do": "beat", "plan": {...}, "period": s, "multiplier": n}; {"do": "hang", "gpu": name} and "wake", for a GPU whose
agent is to say and hear nothing; {"do": "cost"}.
Out: "beating" after the first round; "silence" with all that is silent whenever that changes; "cost".
"""

import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from railyard.controller.failover.heartbeat_detector import Beat, Silence, Watch
from railyard.core.events import Tell
from railyard.core.process_limits import allow_open_files
from railyard.topologies.addresses import Gpu, gpu_of_name
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import BEATS_PORT
from railyard.topologies.plan import Plan
from railyard.topologies.routing import Device

BEAT: Final = struct.Struct("!I")  # the number of the round; who sends it is its address


class Hearts:
    """Two sockets a GPU, and the thread that beats."""

    def __init__(self, plan: Plan, period_s: float, multiplier: int, tell: Tell) -> None:
        self._watch = Watch(plan, multiplier)
        self._period_s, self._tell = period_s, tell
        self._addresses = {gpu: (gpu.ip, BEATS_PORT) for gpu in plan.gpus}
        self._gpus = {gpu.ip: gpu for gpu in plan.gpus}
        self._sockets: dict[tuple[Gpu, Device], socket.socket] = {}
        self._arrivals = select.epoll()
        self._by_number: dict[int, tuple[Gpu, Device, socket.socket]] = {}
        for gpu in plan.gpus:
            for device in ("rail0", "hb0"):
                sock = _open(gpu, device)
                self._sockets[gpu, device] = sock
                self._by_number[sock.fileno()] = (gpu, device, sock)
                self._arrivals.register(sock, select.EPOLLIN)
        self._sent = self._heard = 0
        self._began_s = time.monotonic()
        self.hung: frozenset[Gpu] = frozenset()  # from the next round on
        self._hung_now = self.hung

    def beat(self) -> None:
        """For ever."""
        told, due_s = Silence(), time.monotonic()
        while True:
            self._read()  # before a round is planned, so that what came late counts
            self._send()
            _sleep_until(time.monotonic() + self._period_s / 2)
            self._read()
            silence = self._watch.judge()
            if silence != told:
                self._tell("silence", silence.as_dict())
                told = silence
            due_s = max(due_s + self._period_s, time.monotonic())  # what was missed is not made up for
            _sleep_until(due_s)

    def tell_cost(self) -> None:
        """What was sent and heard, and what this process spent."""
        spent = {"sent": self._sent, "heard": self._heard, "cpu_s": time.process_time()}
        self._tell("cost", spent | {"seconds": time.monotonic() - self._began_s})

    def _send(self) -> None:
        self._hung_now = self.hung
        number, rail_beats, hb_beats = self._watch.begin()
        data = BEAT.pack(number)
        self._send_by("rail0", rail_beats, data)
        self._send_by("hb0", hb_beats, data)
        if number == 1:
            self._tell("beating", {})

    def _send_by(self, device: Device, beats: Iterable[Beat], data: bytes) -> None:
        for src, dst in beats:
            if src not in self._hung_now:
                with suppress(OSError):  # no link: that is what silence is
                    self._sockets[src, device].sendto(data, self._addresses[dst])
                    self._sent += 1

    def _read(self) -> None:
        while ready := self._arrivals.poll(0):
            for fd, _ in ready:
                dst, device, sock = self._by_number[fd]
                try:
                    data, (address, _) = sock.recvfrom(BEAT.size)
                except OSError:  # an error of the link that was waiting to be told
                    continue
                if dst in self._hung_now or len(data) < BEAT.size:
                    continue
                self._heard += 1
                hear = self._watch.hear_rail if device == "rail0" else self._watch.hear_hb
                (number,) = BEAT.unpack(data)
                hear(number, self._gpus[address], dst)


def _open(gpu: Gpu, device: Device) -> socket.socket:
    with namespaces.inside(gpu.name):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        sock.bind((gpu.ip, BEATS_PORT))
    sock.setblocking(False)
    return sock


def _sleep_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


class _Process:
    """Commands in, events out."""

    def __init__(self) -> None:
        self._tell = Tell()
        self._hearts: Hearts | None = None

    def obey(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "beat":
                plan = Plan.from_dict(command["plan"])
                self._hearts = Hearts(plan, command["period"], command["multiplier"], self._tell)
                threading.Thread(target=self._hearts.beat, name="hearts", daemon=True).start()
            case "hang" if self._hearts:
                self._hearts.hung |= {gpu_of_name(command["gpu"])}
            case "wake" if self._hearts:
                self._hearts.hung -= {gpu_of_name(command["gpu"])}
            case "cost" if self._hearts:
                self._hearts.tell_cost()


def main() -> None:
    with suppress(PermissionError):  # an ordinary user may not
        os.nice(-15)  # real GPUs' agents have processors of their own, and don't queue behind the traffic
    allow_open_files()
    process = _Process()
    for line in sys.stdin:
        process.obey(json.loads(line))


if __name__ == "__main__":
    main()
