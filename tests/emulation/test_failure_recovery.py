"""Faults while traffic and probes run: what is seen of them, in which order, and that nothing is lost for good."""

import time
from statistics import median

import psutil
import pytest

from railyard.core.errors import CheckFailed
from railyard.core.records import IN_FLIGHT_NS
from railyard.experiments.run.session import built
from railyard.failure import active
from railyard.failure.active import is_active
from railyard.failure.analysis.evaluate import FaultRun
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.pairs import monitored_pairs
from railyard.failure.probes.traffic import Traffic, TrafficJob
from railyard.failure.scenario.run import run_script
from railyard.failure.script import Script, Timed
from railyard.results.runs.records import Run
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.emulation.fabrics import RAIL_BPS, Fabric, build, datapath, eventually, inject, repair
from tests.emulation.programs import command_line

pytestmark = pytest.mark.sandbox

AT_S, REPAIR_S = 0.6, 1.2
EACH: tuple[tuple[str, str], ...] = (
    ("link-down", "d0g1"),
    ("rail-switch-crash", "rail1"),
    ("gpu-crash", "d1g1"),
)
REBOOT = ("rail-switch-reboot", "rail1")

SILENT: tuple[tuple[str, str], ...] = (
    ("link-silent", "d0g1"),
    ("rail-switch-hang", "rail1"),
    ("gpu-hang", "d0g1"),
    ("hb-port-down", "d0g1"),
)
IMPAIRED: tuple[tuple[str, float], ...] = (("link-gray", 0.3), ("link-slow", 1.0), ("link-flapping", 1.0))
"""And the most of the probes sent meanwhile that are lost; a gray link loses 5% on average."""


TRIES = 3
HALT_BINS = 5  # of 20 ms each


def machine_halted(seen: FaultRun) -> bool:
    """Streams that the fault doesn't touch stood still, too: on a machine whose host has other guests, they took it."""
    others = [all_bps - hit for all_bps, hit in zip(seen.bps, seen.affected_bps, strict=True)]
    before = [bps for t, bps in zip(seen.t_ms, others, strict=True) if t < 0]
    after = [bps for t, bps in zip(seen.t_ms, others, strict=True) if t >= 0]
    least = 0.01 * median(before)
    return least > 0 and any(max(after[at : at + HALT_BINS]) < least for at in range(len(after) - HALT_BINS + 1))


class Broken:
    """A fabric as experiments build it, to break while traffic runs. It ends with the test's sandbox."""

    def __init__(self, kind: str, domains: int, rails: int, reroute: bool) -> None:
        plan = make_plan(parse_fabric({"kind": kind, "domains": domains, "rails": rails}), RAIL_BPS)
        self._built = built("fabric", plan, datapath(), reroute, Run("test", {}, {}, ""))
        self.session = self._built.__enter__()
        self.fabric = Fabric(self.session.net, self.session.controller)
        self.routes = self.fabric.routes()
        self.flows = {switch.name: self.fabric.flows(switch.name) for switch in plan.switches}

    def whats(self) -> list[str]:
        """Return what the controller has reported."""
        return [what for _, what, _ in self.session.events()]

    def by(self, kind: str, target: str, repair_s: float = REPAIR_S, is_rerouted: bool = False) -> FaultRun:
        """Break it and repair it. Again if the machine stood still, or was too busy to reroute before the repair."""
        net = self.fabric.net
        selection = monitored_pairs(Fault(kind, target), net.plan)
        for attempt in range(1, TRIES + 1):
            script = Script("", (Timed(Fault(kind, target), AT_S, attempt * repair_s),))
            seen = run_script(net, script, [selection], self.session.events).faults[0]
            if not machine_halted(seen) and not (is_rerouted and seen.recovery.first_packet_ms is None):
                break
            self.assert_whole()
        return seen

    def assert_whole(self) -> None:
        """Routes and flows as they were, and everybody reaches everybody."""
        eventually(lambda: self.fabric.routes() == self.routes)
        eventually(lambda: {switch: self.fabric.flows(switch) for switch in self.flows} == self.flows)
        eventually(self.fabric.all_arrive)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "side"), [("rail-only", 3), ("rail-optimized", 3)])
def test_rerouting_recovers_each_fault_before_its_repair(kind: str, side: int) -> None:
    """A switch that reboots is back by itself."""
    broken = Broken(kind, side, side, reroute=True)
    for fault, target in (*EACH, REBOOT) if kind == "rail-only" else EACH:
        ups = broken.whats().count("switch-up")
        is_rerouted = kind == "rail-only" or fault != "gpu-crash"  # on spines no other traffic crosses a GPU
        seen = broken.by(fault, target, is_rerouted=is_rerouted)
        assert seen.recovery.detect_ms is not None
        if is_rerouted:
            assert seen.recovery.first_packet_ms is not None, f"{fault}: {seen}"
            assert seen.recovery.primary_path_ms != 0, "there were detours to withdraw"
            assert seen.recovery.reroute_ms is not None
            assert seen.recovery.detect_ms < seen.recovery.reroute_ms
        else:
            assert (seen.recovery.source_side_probed, seen.recovery.far_side_probed) == (0, 0)
        assert (seen.recovery.lost_bytes, seen.recovery.connections_lost) == (0, 0), fault
        if (fault, target) == REBOOT:
            assert broken.whats().count("switch-up") > ups
        broken.assert_whole()


def assert_goodput_fell(seen: FaultRun) -> None:
    """Check the goodput of the affected streams before and during a fault of 1.2 s without rerouting."""
    by_time = dict(zip(seen.t_ms, seen.affected_bps, strict=True))
    before = [bps for ms, bps in by_time.items() if -400 < ms < 0]
    meanwhile = [bps for ms, bps in by_time.items() if 500 < ms < 1100]  # a busy process may read late
    assert sum(before) > 0
    assert meanwhile
    assert sum(meanwhile) == 0
    assert sum(seen.bps) > sum(seen.affected_bps)


def goodput_after_repair(seen: FaultRun) -> list[float]:
    """Return the goodput of the affected streams after a repair, bit/s."""
    repaired_ms = (seen.recovery.t_repair - seen.recovery.t_fault) / 1e6
    return [bps for ms, bps in zip(seen.t_ms, seen.affected_bps, strict=True) if ms > repaired_ms]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
def test_without_rerouting_traffic_waits_for_repair_losslessly(kind: str) -> None:
    """As the papers have it. TCP keeps what it has, and brings it when the way is back: goodput falls and returns."""
    broken = Broken(kind, 2, 2, reroute=False)
    for fault, target in EACH:
        if kind == "rail-optimized" and fault == "gpu-crash":
            continue  # no pair is cut off
        seen = broken.by(fault, target, repair_s=REPAIR_S if fault == "link-down" else 0.6)
        if (kind, fault) == ("rail-only", "link-down"):
            assert_goodput_fell(seen)
            for _ in range(TRIES):  # after a late repair, TCP's next attempt may come after the record's end
                if any(goodput_after_repair(seen)):
                    break
                seen = broken.by(fault, target)
            assert any(goodput_after_repair(seen))
        assert not seen.recovery.recovered
        assert seen.recovery.first_packet_ms is None
        assert (seen.recovery.detect_ms is not None, seen.recovery.reroute_ms) == (True, None)
        assert (seen.recovery.lost_bytes, seen.recovery.connections_lost) == (0, 0), fault
        broken.assert_whole()


@pytest.mark.long
def test_silent_cut_stays_until_its_repair_and_loses_nothing() -> None:
    broken = Broken("rail-only", 2, 2, reroute=False)
    for kind, target in SILENT:
        seen = broken.by(kind, target, repair_s=0.6)
        assert seen.recovery.first_packet_ms is None, kind
        assert seen.recovery.probes_lost > 0, kind
        assert (seen.recovery.lost_bytes, seen.recovery.connections_lost) == (0, 0), kind
        broken.assert_whole()


@pytest.mark.long
def test_impaired_link_still_carries_traffic() -> None:
    broken = Broken("rail-only", 2, 2, reroute=False)
    for kind, most in IMPAIRED:
        for attempt in range(1, TRIES + 1):  # TCP's attempts on a busy machine may all find a flapping link down
            seen = broken.by(kind, "d0g1", repair_s=attempt * REPAIR_S)
            lasted_ms = (seen.recovery.t_repair - seen.recovery.t_fault) / 1e6
            meanwhile = [bps for ms, bps in zip(seen.t_ms, seen.affected_bps, strict=True) if 0 < ms < lasted_ms]
            if sum(meanwhile) > 0:
                break
        assert sum(meanwhile) > 0, kind
        # without those after the repair: of a link that flapped, the kernel may report a carrier only a second later
        lost = seen.recovery.probes_lost - seen.recovery.probes_lost_after_repair
        assert lost <= most * 3 * (lasted_ms + IN_FLIGHT_NS / 1e6), kind  # with those that were in a queue at the fault
        assert seen.recovery.probes_lost > 0 or kind == "link-slow"  # whose queue may hold them all
        assert (seen.recovery.lost_bytes, seen.recovery.connections_lost) == (0, 0), kind
        broken.assert_whole()


def test_spine_and_server_crash_under_load_cut_no_other_gpu() -> None:
    broken = Broken("rail-optimized", 3, 2, reroute=True)
    crashes: tuple[tuple[str, str], ...] = (("spine-crash", "spine0"), ("server-crash", "hb1"))
    for kind, target in crashes:
        seen = broken.by(kind, target, is_rerouted=kind == "spine-crash")
        probed = seen.recovery.source_side_probed + seen.recovery.far_side_probed
        assert (seen.recovery.first_packet_ms is not None) == (probed > 0) == (kind == "spine-crash"), f"{kind}: {seen}"
        assert (seen.recovery.lost_bytes, seen.recovery.connections_lost) == (0, 0), kind
        broken.assert_whole()


def test_fault_that_changes_nothing_or_stays_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build("rail-only", 2, 2).net
    for fault in (Fault(kind, target) for kind, target in EACH):
        assert not is_active(net, fault)
        before = time.monotonic_ns()
        assert before < inject(net, fault) < time.monotonic_ns()
        assert is_active(net, fault)
        with pytest.raises(CheckFailed, match=f"{fault.kind} at {fault.target} can't be injected"):
            inject(net, fault)
        repair(net, fault)
        assert not is_active(net, fault)

    monkeypatch.setattr(active, "SYMPTOMS_TIMEOUT_S", 0.3)
    fault = Fault("link-down", "d0g1")
    monkeypatch.setattr(type(FAULTS["link-down"]), "inject", lambda *_: None)
    with pytest.raises(CheckFailed, match="link-down at d0g1 had no effect"):
        inject(net, fault)
    monkeypatch.undo()
    inject(net, fault)
    monkeypatch.setattr(type(FAULTS["link-down"]), "repair", lambda *_: None)
    with pytest.raises(CheckFailed, match="d0g1 is still active"):
        repair(net, fault)


def test_probes_have_their_time_of_arrival_if_read_late() -> None:
    src, dst = build("rail-only", 2, 2).gpus[::2]
    traffic = Traffic(TrafficJob(streams=(), probes=((src, dst),), stream_bytes_per_s=0.0))
    traffic.start()
    (process,) = (p for p in psutil.Process().children() if "failure.probes.traffic" in " ".join(command_line(p)))
    for act in (process.suspend, process.resume):
        time.sleep(0.6)
        act()
    time.sleep(0.3)
    (log,) = traffic.peek().probes
    traffic.stop(0.0)
    took_ns = [arrived - sent for sent, arrived in zip(log.sent_ns, log.arrived_ns, strict=True) if arrived >= 0]
    assert len(took_ns) > 300
    # when it goes on, it sends no more at once than fit a queue
    assert log.lost(0, log.sent_ns[-1] - IN_FLIGHT_NS) == []
    assert median(took_ns) < IN_FLIGHT_NS
    assert min(took_ns) > -50_000  # arrivals are stamped by another clock


def test_gpu_crash_ends_only_the_gpus_own_processes() -> None:
    fabric = build("rail-only", 2, 2)
    net = fabric.net
    ours, others = net.get("d0g1").popen("sleep 1000"), net.get("d0g0").popen("sleep 1000")
    eventually(lambda: [psutil.Process(p.pid).name() for p in (ours, others)] == ["sleep", "sleep"])
    inject(net, Fault("gpu-crash", "d0g1"))
    assert ours.wait(20) == -9
    assert others.poll() is None
    assert not fabric.arrives(Gpu(1, 1), Gpu(0, 1), wait_s=0.2)
    repair(net, Fault("gpu-crash", "d0g1"))
    eventually(lambda: fabric.arrives(Gpu(1, 1), Gpu(0, 1), 0.2))
