"""What connections deliver, by the kernel's estimate, beside what arrives."""

import socket
import threading
import time

import pytest

from tests.emulation.fabrics import build
from topologies import namespaces
from topologies.addresses import Gpu
from topologies.tcprates import TcpRates

pytestmark = pytest.mark.capsule
WINDOW = 36_000
RAIL_BPS = 20e6


def _pump(sender: socket.socket) -> None:
    while True:
        sender.sendall(bytes(65536))


def _drain(receiver: socket.socket, arrived: dict[str, int], dst: str) -> None:
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, WINDOW)
    while True:
        arrived[dst] += len(receiver.recv(65536))


def test_the_estimate_is_what_arrives_and_idle_connections_are_left_out() -> None:
    fabric = build("rail-only", 3, 2, rail_rate="20Mbit", hb_rate="40Mbit")
    src, near, far = Gpu(0, 0), Gpu(1, 0), Gpu(2, 0)
    rates = TcpRates([src.name])
    arrived = {near.ip: 0, far.ip: 0}
    idle = fabric.connect(src, Gpu(0, 1), 1)
    for dst in (near, far):
        with namespaces.inside(dst.name):
            listener = socket.create_server((dst.ip, 0))
        with namespaces.inside(src.name):
            sender = socket.create_connection(listener.getsockname())
        draining = (listener.accept()[0], arrived, dst.ip)
        threading.Thread(target=_drain, args=draining, daemon=True).start()
        threading.Thread(target=_pump, args=(sender,), daemon=True).start()
    time.sleep(0.5)
    begun, before, seen = time.monotonic(), dict(arrived), []
    assert rates.read(src.name) == {near.ip: None, far.ip: None}
    for _ in range(20):
        time.sleep(0.1)
        seen.append(rates.read(src.name))
    took = time.monotonic() - begun
    assert idle
    assert all(found.keys() == arrived.keys() for found in seen)
    for address, count in arrived.items():
        really = (count - before[address]) * 8 / took
        assert sum(found[address] or 0.0 for found in seen) / len(seen) == pytest.approx(really, rel=0.15)
    assert sum(arrived.values()) - sum(before.values()) > 0.8 * RAIL_BPS / 8 * took
