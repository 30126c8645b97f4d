"""Each fault kind alone: it takes effect, changes traffic as stated, and leaves nothing after its repair."""

import signal
import socket
import threading
import time

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
    eventually(lambda: all_hear(fabric))


def all_hear(fabric: Fabric) -> bool:
    return all(fabric.arrives(src, dst, WAIT_S) for src in fabric.gpus for dst in fabric.gpus if src != dst)


def arrive(fabric: Fabric, src: Gpu, dst: Gpu, wait_s: float) -> int:
    """Of so many packets, how many arrive."""
    return sum(fabric.arrives(src, dst, wait_s) for _ in range(PINGS))


def assert_cut(fabric: Fabric, *pairs: tuple[Gpu, Gpu]) -> None:
    """In none of these pairs the second hears anything of the first; in all others it hears everything."""
    for src in fabric.gpus:
        for dst in (gpu for gpu in fabric.gpus if gpu != src):
            expected, wait_s = (0, WAIT_S) if (src, dst) in pairs else (PINGS, LONG_S)
            assert arrive(fabric, src, dst, wait_s) == expected, f"{src.name} -> {dst.name}"


def test_a_silent_link_loses_all_both_ways_and_keeps_its_carrier() -> None:
    fabric, fault = bare(), Fault("link-silent", A.name)
    before = state(fabric)
    inject(fabric.net, fault)
    assert is_up(End(A.name, "rail0"))
    assert is_up(End("rail1", A.name))
    assert_cut(fabric, *BY_RAIL_1)
    assert "port-down" not in fabric.whats()
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


@pytest.mark.parametrize("loss", [0.2, 0.5])
def test_a_gray_link_loses_its_share_at_random_both_ways(loss: float) -> None:
    fabric, fault = bare(), Fault.of("link-gray", A.name, loss=loss)
    before = state(fabric)
    inject(fabric.net, fault)
    count = 500
    for lost in zip(*lost_frames(fabric.net.plan.rail_link(A), [100] * (count // 100)), strict=True):
        assert sum(lost) == pytest.approx(loss * count, abs=5 * (count * loss * (1 - loss)) ** 0.5)
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


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
    fabric, fault = bare(), Fault.of("link-slow", A.name, rate=0.1)
    before = state(fabric)
    inject(fabric.net, fault)
    for node, interface in ((A.name, "rail0"), ("rail1", A.name)):
        assert "rate 10Mbit ceil 10Mbit" in fabric.in_node(node, "tc", "class", "show", "dev", interface)
    size = 100_000  # 80 ms at 10 Mbit/s, 8 at 100
    assert seconds_for(fabric, size) > 0.06
    assert_cut(fabric)
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


def test_link_flapping_ends_with_the_link_up_after_its_repair() -> None:
    fabric, fault = bare(), Fault.of("link-flapping", A.name, period="0.1s")
    before = state(fabric)
    inject(fabric.net, fault)
    eventually(lambda: min(fabric.whats().count(what) for what in ("port-down", "port-up")) >= 3)
    repair(fabric.net, fault)
    eventually(lambda: fabric.whats().count("port-down") == fabric.whats().count("port-up"))
    eventually(lambda: is_quiet(fabric))  # events from before the repair may arrive after it
    assert_left_nothing(fabric, before)


def is_quiet(fabric: Fabric) -> bool:
    """Return whether no event comes for the time of several flaps."""
    reported = len(fabric.whats())
    time.sleep(0.5)
    return len(fabric.whats()) == reported


def test_a_slowly_flapping_link_is_seen_to_flap_and_ends_at_once() -> None:
    fabric, fault = bare(), Fault.of("link-flapping", A.name, period="1.0s")
    inject(fabric.net, fault)
    begun = time.monotonic()
    repair(fabric.net, fault)
    assert time.monotonic() - begun < 10
    assert is_up(End(A.name, "rail0"))


def test_link_down_for_good_is_no_flapping_link() -> None:
    fabric = bare()
    inject(fabric.net, Fault("link-down", A.name))
    assert not is_active(fabric.net, Fault.of("link-flapping", A.name, period="0.1s"))


def test_hb_port_down_cuts_the_domain_but_not_the_rail() -> None:
    fabric, fault = bare(), Fault("hb-port-down", A.name)
    before = state(fabric)
    inject(fabric.net, fault)
    assert_cut(fabric, (A, Gpu(0, 0)), (Gpu(0, 0), A), (Gpu(0, 0), B), (A, Gpu(1, 0)))
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


def test_hung_rail_switch_drops_all_but_keeps_its_connection() -> None:
    fabric, fault = bare(), Fault("rail-switch-hang", "rail1")
    before = state(fabric)
    inject(fabric.net, fault)
    assert_cut(fabric, *BY_RAIL_1)
    assert fabric.whats()[-1] != "switch-down"
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


def test_a_rail_switch_reboots_by_itself() -> None:
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


def test_repair_of_a_reboot_waits_for_the_switch() -> None:
    fabric, fault = bare(), Fault.of("rail-switch-reboot", "rail1", down="0.4s")
    at_ns = inject(fabric.net, fault)
    repair(fabric.net, fault)
    assert time.monotonic_ns() - at_ns >= 0.4e9
    assert not is_active(fabric.net, fault)


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
        eventually(lambda: all_hear(fabric))
        repair(fabric.net, fault)
        fabric.await_event(up)
        assert_left_nothing(fabric, before)


def test_hung_gpu_forwards_nothing_and_keeps_its_carrier() -> None:
    fabric, fault = bare(), Fault("gpu-hang", A.name)
    before = state(fabric)
    ours, others = fabric.net.get("d0g1").popen("sleep 1000"), fabric.net.get("d0g0").popen("sleep 1000")
    eventually(lambda: [psutil.Process(p.pid).name() for p in (ours, others)] == ["sleep", "sleep"])
    inject(fabric.net, fault)
    assert is_up(End(A.name, "rail0"))
    assert is_up(End(A.name, "hb0"))
    assert_cut(fabric, *((a, b) for a in fabric.gpus for b in fabric.gpus if A in (a, b)), (Gpu(0, 0), B))
    assert psutil.Process(ours.pid).status() == psutil.STATUS_STOPPED
    assert psutil.Process(others.pid).status() != psutil.STATUS_STOPPED
    assert "port-down" not in fabric.whats()
    repair(fabric.net, fault)
    assert psutil.Process(ours.pid).status() != psutil.STATUS_STOPPED
    for process in (ours, others):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert_left_nothing(fabric, before)


def test_two_hung_gpus_of_a_domain_are_repaired_separately() -> None:
    fabric = bare(rails=3)
    before = state(fabric)
    first, second = Fault("gpu-hang", "d0g0"), Fault("gpu-hang", "d0g1")
    inject(fabric.net, first)
    inject(fabric.net, second)
    repair(fabric.net, first)
    assert not is_active(fabric.net, first)
    assert is_active(fabric.net, second)
    repair(fabric.net, second)
    assert_left_nothing(fabric, before)


def test_a_crashed_server_takes_its_whole_domain_and_no_other() -> None:
    fabric, fault = bare(domains=3), Fault("server-crash", "hb1")
    before = state(fabric)
    ours, others = fabric.net.get("d1g0").popen("sleep 1000"), fabric.net.get("d0g0").popen("sleep 1000")
    eventually(lambda: [psutil.Process(p.pid).name() for p in (ours, others)] == ["sleep", "sleep"])
    inject(fabric.net, fault)
    assert ours.wait(20) == -signal.SIGKILL
    assert others.poll() is None
    others.kill()
    others.wait()
    dead = {Gpu(1, 0), Gpu(1, 1)}
    assert_cut(fabric, *((a, b) for a in fabric.gpus for b in fabric.gpus if {a, b} & dead))
    repair(fabric.net, fault)
    assert_left_nothing(fabric, before)


def test_each_kind_fails_loudly_without_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "SYMPTOMS_TIMEOUT_S", 0.3)
    net = bare("rail-optimized").net
    for kind, target in FAULT_TARGETS.items():
        monkeypatch.setattr(type(FAULTS[kind]), "inject", lambda *_: None)
        with pytest.raises(CheckFailed, match=f"{kind} at {target} had no effect"):
            inject(net, Fault(kind, target))
