"""Rates of connections by the kernel's counters, compared with what arrives."""

import socket
import threading
import time

import pytest

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import TcpRates
from tests.emulation.fabrics import at_best, build

pytestmark = [pytest.mark.sandbox, pytest.mark.quiet]
WINDOW = 36_000
RAIL_BPS = 20e6


def _pump(sender: socket.socket) -> None:
    while True:
        sender.sendall(bytes(65536))


def _drain(receiver: socket.socket, arrived: dict[str, int], dst: str) -> None:
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, WINDOW)
    while True:
        arrived[dst] += len(receiver.recv(65536))


def test_estimate_equals_arrivals_without_idle_connections() -> None:
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
    assert rates.read(src.name) == {near.ip: None, far.ip: None}

    def looked() -> dict[str, tuple[float, float]]:
        """Return by destination: bit/s that the estimate says, and that arrive."""
        begun, before, seen = time.monotonic(), dict(arrived), []
        for _ in range(20):
            time.sleep(0.1)
            seen.append(rates.read(src.name))
        took = time.monotonic() - begun
        assert all(found.keys() == arrived.keys() for found in seen)
        return {
            address: (sum(found[address] or 0.0 for found in seen) / len(seen), (count - before[address]) * 8 / took)
            for address, count in arrived.items()
        }

    def alike(found: dict[str, tuple[float, float]]) -> bool:
        return all(estimate == pytest.approx(really, rel=0.15) for estimate, really in found.values())

    found = at_best(looked, lambda found: alike(found) and sum(really for _, really in found.values()) > 0.8 * RAIL_BPS)
    assert found
    assert idle
