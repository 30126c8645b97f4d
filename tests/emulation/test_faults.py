"""Each fault kind alone: it takes effect, changes traffic as stated, and leaves nothing after its repair."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations

import psutil
import pytest

from railyard.core.errors import CheckFailed
from railyard.failure import active
from railyard.failure.active import is_active
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.faults.support.links import is_up, lost_frames
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.fabric_kinds import End
from tests.emulation.fabrics import WAIT_S as LONG_S
from tests.emulation.fabrics import Fabric, build, eventually, inject, repair

pytestmark = pytest.mark.sandbox

PINGS = 2
WAIT_S = 0.2  # for what is not to come
A, B = Gpu(0, 1), Gpu(1, 1)  # of one rail: A's cable is what breaks
FAULT_TARGETS: dict[str, str] = {  # a cable each: what was prepared at one is left there by a fault that fails
    "link-silent": "d0g1",
    "link-gray": "d1g1",
    "link-slow": "d0g1",
    "link-flapping": "d0g1",
    "hb-port-down": "d0g1",
    "hb-port-slow": "d0g1",
    "rail-switch-hang": "rail1",
    "rail-switch-reboot": "rail1",
    "spine-crash": "spine0",
    "gpu-hang": "d1g0",
    "server-crash": "hb1",
}
BY_RAIL_1 = ((A, B), (B, A), (Gpu(0, 0), B), (Gpu(1, 0), A))  # policy dr: by the destination's rail


def bare(kind: str = "rail-only", domains: int = 2, rails: int = 2) -> Fabric:
    """Without rerouting, so that the effect of a fault itself can be seen."""
    return build(kind, domains, rails, reroute=False, backups=False)


def state(fabric: Fabric) -> dict[str, str]:
    """What a fault may leave behind, of every node: interfaces and their groups, rules, shapers, routes, processes."""
    found = {}
    for node in fabric.net.node_names:
        for argv in (
            ["ip", "-o", "link"],
            ["nft", "list", "ruleset"],
            ["tc", "class", "show"],
            ["ip", "route", "show", "table", "all"],
            ["ip", "neigh"],
            ["bridge", "fdb"],
        ):
            message = fabric.in_node(node, *argv).replace("state UNKNOWN", "state UP")  # a bridge is, at first
            found[f"{node}: {' '.join(argv)}"] = "\n".join(sorted(message.splitlines()))
    processes = psutil.process_iter(["status"])  # one that ends meanwhile is left out
    found["stopped"] = str([p.pid for p in processes if p.info["status"] == psutil.STATUS_STOPPED])
    found["threads"] = str(sorted(t.name for t in threading.enumerate()))
    return found


def assert_left_nothing(fabric: Fabric, before: dict[str, str]) -> None:
    """As it was, and everybody reaches everybody."""

    def differences() -> list[str]:
        return [f"{key}: {was}\nis {now}" for key, now in state(fabric).items() if (was := before[key]) != now]

    deadline = time.monotonic() + 20
    while found := differences():
        assert time.monotonic() < deadline, "\n".join(found)
    eventually(lambda: fabric.all_arrive(WAIT_S))


def assert_cut(fabric: Fabric, *pairs: tuple[Gpu, Gpu]) -> None:
    """In none of these pairs the second hears anything of the first; in all others it hears everything."""
    for src, dst in permutations(fabric.gpus, 2):
        expected, wait_s = (0, WAIT_S) if (src, dst) in pairs else (PINGS, LONG_S)
        arrived = sum(fabric.arrives(src, dst, wait_s) for _ in range(PINGS))
        assert arrived == expected, f"{src.name} -> {dst.name}"


@contextmanager
def broken(fabric: Fabric, fault: Fault) -> Iterator[None]:
    """Have a fault while entered; then it has left nothing."""
    before = state(fabric)
    inject(fabric.net, fault)
    yield
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


@contextmanager
def sleeping(fabric: Fabric, *gpus: str) -> Iterator[list[psutil.Process]]:
    """Run `sleep` on these GPUs."""
    started = [fabric.net.get(gpu).popen("sleep 1000") for gpu in gpus]
    processes = [psutil.Process(process.pid) for process in started]
    eventually(lambda: {process.name() for process in processes} == {"sleep"})
    yield processes
    for process in started:
        process.kill()
        process.wait()


def test_silent_faults_lose_packets_and_keep_carriers() -> None:
    fabric = bare()
    for fault, cut in (
        (Fault("link-silent", A.name), BY_RAIL_1),
        (Fault("rail-switch-hang", "rail1"), BY_RAIL_1),
        (Fault("hb-port-down", A.name), ((A, Gpu(0, 0)), (Gpu(0, 0), A), (Gpu(0, 0), B), (A, Gpu(1, 0)))),
    ):
        with broken(fabric, fault):
            assert is_up(End(A.name, "rail0"))
            assert is_up(End("rail1", A.name))
            assert_cut(fabric, *cut)
    assert not {"port-down", "switch-down"} & set(fabric.whats())


@pytest.mark.parametrize("loss", [0.2, 0.5])
def test_a_gray_link_loses_its_share_at_random_both_ways(loss: float) -> None:
    fabric, count = bare(), 500
    with broken(fabric, Fault.of("link-gray", A.name, loss=loss)):
        for lost in zip(*lost_frames(fabric.net.plan.rail_link(A), [100] * (count // 100)), strict=True):
            assert sum(lost) == pytest.approx(loss * count, abs=5 * (count * loss * (1 - loss)) ** 0.5)


def seconds_for(fabric: Fabric, size: int) -> float:
    """Return how long that many bytes take from A to B over one TCP connection, until the last has been read."""
    with namespaces.inside(B.name):
        listener = socket.create_server((B.ip, 0))
    with listener, namespaces.inside(A.name):
        near = socket.create_connection(listener.getsockname(), timeout=LONG_S)
        far, _ = listener.accept()
    far.settimeout(LONG_S)
    with near, far:
        begun = time.monotonic()
        sender = threading.Thread(target=near.sendall, args=(bytes(size),))
        sender.start()
        while size:
            received = far.recv(size)
            assert received, f"{size} bytes are missing"
            size -= len(received)
        seconds = time.monotonic() - begun
        sender.join()
        return seconds


def test_slow_link_carries_its_share_until_its_repair() -> None:
    fabric = bare()
    with broken(fabric, Fault.of("link-slow", A.name, rate=0.1)):
        for node, interface in ((A.name, "rail0"), ("rail1", A.name)):
            assert "rate 10Mbit ceil 10Mbit" in fabric.in_node(node, "tc", "class", "show", "dev", interface)
        assert seconds_for(fabric, 100_000) > 0.06  # 80 ms at 10 Mbit/s, 8 at 100
        assert_cut(fabric)
    left_mbit = fabric.net.plan.hb_bps // 10**7
    with broken(fabric, Fault.of("hb-port-slow", A.name, rate=0.1)):
        for node, interface in ((A.name, "hb0"), ("hb0", A.name)):
            assert f"rate {left_mbit}Mbit ceil {left_mbit}Mbit" in fabric.in_node(
                node, "tc", "class", "show", "dev", interface
            )


def test_flapping_link_is_up_after_its_repair() -> None:
    fabric, flapping = bare(), Fault.of("link-flapping", A.name, period="0.1s")
    before = state(fabric)
    inject(fabric.net, flapping)
    eventually(lambda: min(fabric.whats().count(what) for what in ("port-down", "port-up")) >= 3)
    repair(fabric.net, flapping)
    eventually(lambda: fabric.whats().count("port-down") == fabric.whats().count("port-up"))
    eventually(lambda: is_quiet(fabric))  # events from before the repair may arrive after it
    assert_left_nothing(fabric, before)
    slowly = Fault.of("link-flapping", A.name, period="1.0s")
    inject(fabric.net, slowly)
    begun = time.monotonic()
    repair(fabric.net, slowly)
    assert time.monotonic() - begun < 10
    assert is_up(End(A.name, "rail0"))
    inject(fabric.net, Fault("link-down", A.name))
    assert not is_active(fabric.net, flapping)


def is_quiet(fabric: Fabric) -> bool:
    """Return whether no event comes for the time of several flaps."""
    reported = len(fabric.whats())
    time.sleep(0.5)
    return len(fabric.whats()) == reported


def test_a_rail_switch_reboots_by_itself_and_its_repair_waits() -> None:
    fabric, fault = bare(), Fault.of("rail-switch-reboot", "rail1", down="3.0s")
    before, flows = state(fabric), fabric.flows("rail1")
    at_ns = inject(fabric.net, fault)
    assert is_active(fabric.net, fault)
    assert not fabric.arrives(A, B, 0.1)
    eventually(lambda: not is_active(fabric.net, fault))
    assert time.monotonic_ns() - at_ns >= 3e9
    fabric.await_event("switch-up")
    eventually(lambda: fabric.flows("rail1") == flows)
    eventually(lambda: fabric.arrives(A, B, WAIT_S))
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)
    short = Fault.of("rail-switch-reboot", "rail1", down="0.4s")
    at_ns = inject(fabric.net, short)
    repair(fabric.net, short)
    assert time.monotonic_ns() - at_ns >= 0.4e9
    assert not is_active(fabric.net, short)


def test_a_dead_spine_or_uplink_is_left_out_and_taken_back() -> None:
    fabric = bare("rail-optimized", 2, 2)
    before = state(fabric)
    for kind, target, down, up in (
        ("spine-crash", "spine0", "switch-down", "switch-up"),
        ("uplink-down", "rail1-spine1", "port-down", "port-up"),
    ):
        fault = Fault(kind, target)
        inject(fabric.net, fault)
        fabric.await_event(down)
        eventually(lambda: fabric.all_arrive(WAIT_S))
        repair(fabric.net, fault)
        fabric.await_event(up)
        assert_left_nothing(fabric, before)


def test_hung_gpus_forward_nothing_until_their_repairs() -> None:
    fabric = bare()
    before = state(fabric)
    with sleeping(fabric, "d0g1", "d0g0") as (hung, running):
        inject(fabric.net, Fault("gpu-hang", A.name))
        assert is_up(End(A.name, "rail0"))
        assert is_up(End(A.name, "hb0"))
        assert_cut(fabric, *(pair for pair in permutations(fabric.gpus, 2) if A in pair), (Gpu(0, 0), B))
        assert hung.status() == psutil.STATUS_STOPPED
        assert running.status() != psutil.STATUS_STOPPED
        assert "port-down" not in fabric.whats()
        inject(fabric.net, Fault("gpu-hang", "d0g0"))
        assert running.status() == psutil.STATUS_STOPPED
        repair(fabric.net, Fault("gpu-hang", A.name))
        assert hung.status() != psutil.STATUS_STOPPED
        assert not is_active(fabric.net, Fault("gpu-hang", A.name))
        assert is_active(fabric.net, Fault("gpu-hang", "d0g0"))
        repair(fabric.net, Fault("gpu-hang", "d0g0"))
    assert_left_nothing(fabric, before)


def test_a_crashed_server_takes_its_whole_domain_and_no_other() -> None:
    fabric = bare(domains=3)
    dead = {Gpu(1, 0), Gpu(1, 1)}
    with sleeping(fabric, "d1g0", "d0g0") as (ended, running), broken(fabric, Fault("server-crash", "hb1")):
        assert ended.wait(20) == -signal.SIGKILL
        assert running.is_running()
        assert_cut(fabric, *(pair for pair in permutations(fabric.gpus, 2) if set(pair) & dead))


def test_each_kind_fails_loudly_without_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "SYMPTOMS_TIMEOUT_S", 0.3)
    net = bare("rail-optimized").net
    for kind, target in FAULT_TARGETS.items():
        monkeypatch.setattr(type(FAULTS[kind]), "inject", lambda *_: None)
        with pytest.raises(CheckFailed, match=f"{kind} at {target} had no effect"):
            inject(net, Fault(kind, target))
