"""Heartbeats on packets: silent faults are found in time, rerouted and cleared again, without false alarms.

4 domains of 4 GPUs, rail-only:

    d0g0 ── rail0 ── d1g0, d2g0, d3g0        d0g0 ── hb0 ── d0g1, d0g2, d0g3        and so on
"""

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from railyard.controller.failover.detours import Broken
from railyard.controller.failover.heartbeat_detector import SilentComponents
from railyard.controller.processes import messages
from railyard.controller.processes.clients import HeartbeatProcess
from railyard.failure.faults import Fault
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.build.shaping import disable_lanes, ends, lanes_enabled
from railyard.workloads.background.flows import flows_of, reserved
from railyard.workloads.background.spec import BackgroundSpec
from tests.emulation.fabrics import Fabric, build, eventually, inject, repair
from tests.unit.path_choices import chosen_path

pytestmark = pytest.mark.sandbox
PERIOD_S, MULTIPLIER = 0.08, 3  # not an experiment's 20 ms: beside other tests, one may come 60 ms late
FOUND_S = 5.0
WHO = Gpu(1, 2)
DROP = """table netdev dead {{
 chain in {{ type filter hook ingress device {0} priority -500; drop; }}
 chain out {{ type filter hook egress device {0} priority -500; drop; }}
}}"""
Reported = list[tuple[int, str, dict[str, Any]]]


class Watched:
    """A fabric with heartbeats, which report to its controller. `reported`: the events of both."""

    def __init__(self, period_s: float = PERIOD_S, **more: Any) -> None:
        self.fabric = build("rail-only", 4, 4, **more)
        self.reported: Reported = []
        self.heartbeat_process = HeartbeatProcess(self.fabric.net.plan, period_s, MULTIPLIER, self._hear)
        eventually(lambda: self.is_at_peace(0.3))

    def _hear(self, ns: int, what: str, detail: dict[str, Any]) -> None:
        self.reported.append((ns, what, detail))
        if what == "silence":
            self.fabric.controller.on_heartbeats(detail)

    def silences(self) -> list[tuple[int, SilentComponents]]:
        return [
            (ns, messages.SetSilence.model_validate({"silence": detail}).silence)
            for ns, what, detail in list(self.reported)
            if what == "silence"
        ]

    def is_at_peace(self, seconds: float) -> bool:
        """Return whether nothing is reported as silent for this long."""
        is_still, found = self.is_still(seconds), self.silences()
        return is_still and (not found or found[-1][1] == SilentComponents())

    def assert_told_after(self, act: Callable[[], object], expected: SilentComponents) -> None:
        """Act; heartbeats report it soon, and then nothing else: a false alarm of a busy machine is withdrawn."""
        known = len(self.silences())
        act()

        def is_told() -> bool:
            return bool(found := self.silences()[known:]) and found[-1][1] == expected

        eventually(is_told, FOUND_S)
        eventually(lambda: is_told() and self.is_still(10 * PERIOD_S))

    def is_still(self, seconds: float) -> bool:
        """Return whether nothing changes for so long."""
        known = len(self.silences())
        time.sleep(seconds)
        return len(self.silences()) == known

    def assert_found_and_gone_round(
        self, kill: Callable[[], object], mend: Callable[[], object], expected: SilentComponents, broken: Broken
    ) -> None:
        """It alone; every pair that has a path gets through; and all is as before once it is mended."""
        fabric, before = self.fabric, self.fabric.routes()
        known = fabric.whats().count("rerouted")
        self.assert_told_after(kill, expected)
        fabric.await_event("rerouted", times=known + 1)
        assert_all_get_through(fabric, broken, without=expected.gpus)
        self.assert_told_after(mend, SilentComponents())
        fabric.await_event("rerouted", times=known + 2)
        eventually(lambda: fabric.routes() == before)


def assert_all_get_through(fabric: Fabric, broken: Broken, without: frozenset[Gpu]) -> None:
    spec, policy = fabric.net.plan.spec, fabric.net.plan.spec.chosen_policy
    for src in (gpu for gpu in fabric.gpus if gpu not in without):
        for dst in (gpu for gpu in fabric.gpus if gpu.domain != src.domain and gpu not in without):
            assert chosen_path(policy, src, dst, broken, spec.rails, spec.kind) is not None
            eventually(lambda src=src, dst=dst: fabric.arrives(src, dst, 0.3))  # type: ignore[misc]


def drop_all(fabric: Fabric, gpu: Gpu) -> None:
    """Everything at a GPU's rail link, both ways: at its switch's end, and the carrier stays."""
    end = fabric.net.plan.rail_link(gpu).b
    with namespaces.inside(end.node):
        namespaces.run(["nft", "-f", "-"], DROP.format(end.interface))


def drop_none(fabric: Fabric, gpu: Gpu) -> None:
    fabric.in_node(fabric.net.plan.rail_link(gpu).b.node, "nft", "delete", "table", "netdev", "dead")


def test_silent_parts_are_found_rerouted_and_found_repaired() -> None:
    """A link, a rail switch and a GPU that hang, and at last a GPU that dies."""
    lab = Watched()
    lab.assert_found_and_gone_round(
        lambda: drop_all(lab.fabric, WHO),
        lambda: drop_none(lab.fabric, WHO),
        SilentComponents(links=frozenset({WHO})),
        Broken(links=frozenset({WHO})),
    )
    reported = iter(lab.fabric.whats())  # in this order; a busy machine may cause further events
    assert all(what in reported for what in ("silent", "decided", "rerouted", "resumed", "decided", "rerouted"))
    switch = lab.fabric.net.ovs["rail2"]
    lab.assert_found_and_gone_round(
        lambda: switch.signal(signal.SIGSTOP),
        lambda: switch.signal(signal.SIGCONT),
        SilentComponents(rails=frozenset({2})),
        Broken(rails=frozenset({2})),
    )
    who, hang = frozenset({WHO}), Fault("gpu-hang", WHO.name)
    silent = SilentComponents(links=who, gpus=who, hb_links=who)
    lab.assert_told_after(lambda: inject(lab.fabric.net, hang), silent)
    lab.assert_told_after(lambda: repair(lab.fabric.net, hang), SilentComponents())

    def kill() -> None:
        with namespaces.inside(WHO.name):
            namespaces.run(["ip", "-batch", "-"], "link set rail0 down\nlink set hb0 down\n")

    known = lab.fabric.whats().count("rerouted")
    lab.assert_told_after(kill, silent)
    lab.fabric.await_event("rerouted", times=known + 1)
    assert_all_get_through(lab.fabric, Broken(links=who), without=who)


def stream_everywhere(fabric: Fabric, seconds: int) -> None:
    """Four TCP connections from every GPU to the next domain's of its rail, as fast as they go."""
    domains = fabric.net.plan.spec.domains
    servers = {gpu: in_background(gpu, "-s", "-1", "--forceflush") for gpu in fabric.gpus}
    for server in servers.values():
        assert server.stdout is not None
        server.stdout.readline()  # it listens
    for gpu in fabric.gpus:
        in_background(gpu, "-P", "4", "-t", str(seconds), "-c", Gpu((gpu.domain + 1) % domains, gpu.rank).ip)


def in_background(gpu: Gpu, *words: str) -> subprocess.Popen[bytes]:
    with namespaces.inside(gpu.name):
        return subprocess.Popen(["iperf3", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.alone
@pytest.mark.parametrize("rail_rate", ["10Mbit", "100Mbit"])  # long queues, and much to do for the cores
def test_full_tcp_load_on_all_rails_causes_no_false_alarm(rail_rate: str) -> None:
    lab = Watched(0.02, rail_rate=rail_rate, hb_rate="200Mbit")
    stream_everywhere(lab.fabric, seconds=60)
    # other processes may delay heartbeats now and then
    assert any(lab.is_at_peace(4) for _ in range(6))
    if rail_rate == "10Mbit":  # without a lane a queue is taken for death
        known = len(lab.silences())
        disable_lanes(lab.fabric.net.plan)  # takes a while: some are blamed before it is through
        eventually(lambda: len(lab.silences()) > known)


def classes(fabric: Fabric) -> dict[tuple[str, str], str]:
    """Return the classes and filters of shapers, by node and interface."""
    found = {}
    for end in ends(fabric.net.plan):
        message = [fabric.in_node(end.node, "tc", what, "show", "dev", end.interface) for what in ("class", "filter")]
        found[end.node, end.interface] = "".join(message)
    return found


def test_reserved_share_exists_only_while_heartbeats_are_sent() -> None:
    fabric = build("rail-only", 3, 2)
    plan, before = fabric.net.plan, classes(fabric)
    heartbeat_process = HeartbeatProcess(plan, PERIOD_S, MULTIPLIER)
    open_lanes = classes(fabric)
    assert all("htb 1:30 root" in message and "flowid 1:30" in message for message in open_lanes.values())
    spec = BackgroundSpec.model_validate({"rails": [0], "load": 0.5})
    with reserved(plan, flows_of(spec, plan)):
        meanwhile = classes(fabric)
        assert all("htb 1:30 root" in message and "flowid 1:30" in message for message in meanwhile.values())
        assert sum("1:20" in message for message in meanwhile.values()) == 6  # both ends of rail 0's links
    assert classes(fabric) == open_lanes
    heartbeat_process.stop()
    assert not lanes_enabled()
    assert classes(fabric) == before
