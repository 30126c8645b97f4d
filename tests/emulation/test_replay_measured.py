"""Measurements beside a replay: TCP segments and losses, and TCP timers that are restored."""

from pathlib import Path

import pytest

from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.namespaces import MAX_RTO_US, RTO_MIN, TCP_SETTINGS, relaxed_tcp_timers
from railyard.topologies.measure.counters import count
from tests.emulation.fabrics import Fabric, build, eventually

pytestmark = pytest.mark.sandbox

SIZE = 500_000

# TCP sends its last segment again when an acknowledgement waits for a busy machine: nothing was lost then.
TAIL_PROBES = 4


def send(fabric: Fabric, src: Gpu, dst: Gpu) -> None:
    (connection,) = fabric.connect(src, dst, 1)
    connection.settimeout(1.0)
    sent = 0
    while sent < SIZE:  # there is no reader: the rest stays in the kernel's buffers
        try:
            sent += connection.send(bytes(65536))
        except TimeoutError:
            return


def settings_of(gpu: Gpu) -> dict[str, str]:
    known = [key for key in TCP_SETTINGS if Path("/proc/sys", key).exists()]
    with namespaces.inside(gpu.name):
        return {key: Path("/proc/sys", key).read_text().strip() for key in known}


def test_bytes_lost_at_a_cut_link_count_as_retransmitted() -> None:
    fabric = build("rail-only", 2, 2, reroute=False, backups=False)
    (connection,) = fabric.connect(Gpu(0, 1), Gpu(1, 1), 1)
    before = count(fabric.net)
    fabric.set_link(Gpu(1, 1), "down")  # the far one: the sender sees its carrier, and tries
    connection.send(bytes(1000))
    eventually(lambda: (count(fabric.net) - before).retransmits > 0)


def test_whole_links_lose_no_segment_and_restore_timers() -> None:
    fabric = build("rail-only", 2, 2)
    names = [gpu.name for gpu in fabric.gpus]
    before, counted = settings_of(Gpu(0, 1)), count(fabric.net)
    with relaxed_tcp_timers(names):
        send(fabric, Gpu(0, 1), Gpu(1, 1))
    spent = count(fabric.net) - counted
    assert spent.segments > 3
    assert spent.drops == 0
    assert spent.retransmits <= TAIL_PROBES
    with relaxed_tcp_timers(names):
        meanwhile = settings_of(Gpu(0, 1))
    assert meanwhile == {key: str(TCP_SETTINGS[key]) for key in before}
    assert meanwhile != before
    with relaxed_tcp_timers(names, longest_queue_s=2.5):
        assert settings_of(Gpu(0, 1)).get(RTO_MIN) in (None, "2500000")
    with relaxed_tcp_timers(names, longest_queue_s=1e4):
        assert settings_of(Gpu(0, 1)).get(RTO_MIN) in (None, str(MAX_RTO_US))
    assert settings_of(Gpu(0, 1)) == before
    with pytest.raises(KeyboardInterrupt), relaxed_tcp_timers(names):
        raise KeyboardInterrupt
    assert settings_of(Gpu(0, 1)) == before
