"""Built fabrics: everybody reaches everybody by the policy's path, and Mininet's own ways of asking work."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from railyard.core.host import NETNS_DIR
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces, ovs
from railyard.topologies.build.ovs import FORWARDING_NICENESS, PrivateSwitch
from tests.emulation.fabrics import at_best, build
from tests.unit.path_choices import CHOICES, own_path

pytestmark = pytest.mark.sandbox
SHOW_LINKS = ("ip", "-json", "link")


def expected_hops(policy: str, src: Gpu, dst: Gpu) -> list[Gpu]:
    """Return whom a packet visits."""
    if src.domain == dst.domain:
        return [dst]
    path = own_path(policy, src, dst)
    match path.kind:
        case "dr":
            return [Gpu(src.domain, dst.rank), dst]
        case "rd":
            return [Gpu(dst.domain, src.rank), dst]
        case _:
            return [dst]


@pytest.mark.parametrize(("kind", "policy"), CHOICES)
@pytest.mark.parametrize(("domains", "rails"), [(2, 2), (3, 2)])
def test_all_reach_all_by_the_policys_path(kind: str, policy: str, domains: int, rails: int) -> None:
    fabric = build(kind, domains, rails, policy=policy)
    assert fabric.net.pingAll(timeout="5") == 0
    for src in fabric.gpus:
        for dst in fabric.gpus:
            if src != dst:
                assert fabric.trace(src, dst) == expected_hops(policy, src, dst), f"{src.name} -> {dst.name}"
    if kind == "rail-optimized":
        crosses = own_path(policy, Gpu(0, 0), Gpu(1, 1)).kind == "spine"
        assert any(fabric.packets_to_spines().values()) == crosses


def test_fabric_is_a_mininet_network_and_leaves_nothing() -> None:
    fabric = build("rail-only", 2, 2)
    gpu = fabric.net.get("d0g1")
    assert gpu.IP() == "198.18.2.0"
    assert "ttl=63" in gpu.cmd("ping -c1 -W5", fabric.net.get("d1g0").IP())  # one GPU on the way
    assert gpu.popen(["hostname"]).wait() == 0
    assert [host.name for host in fabric.net.hosts] == ["d0g0", "d0g1", "d1g0", "d1g1"]
    assert len(fabric.net.links) == 8
    at_best(
        lambda: [float(message.split()[0]) for message in fabric.net.iperf((gpu, fabric.net.get("d1g1")), seconds=1)],
        lambda rates: 80 < rates[0] < 101 < 1000 * rates[1],  # received, sent
    )
    niceness = {os.getpriority(os.PRIO_PROCESS, switch.vswitchd_pid) for switch in fabric.net.ovs.values()}
    assert niceness == {FORWARDING_NICENESS}
    assert len(list(NETNS_DIR.iterdir())) == 4 + 2 + 2
    fabric.net.stop()
    assert list(NETNS_DIR.iterdir()) == []
    assert [path.name for path in Path("/proc").iterdir() if path.name.isdigit()] == ["1"]


@pytest.mark.parametrize(("rate", "own_queue"), [("1Mbit", True), ("100Mbit", False)])
def test_slow_hb_links_have_receive_queues_of_their_own(rate: str, own_queue: bool) -> None:
    """1.2 Gbit/s: several frames in a packet, which segmentation offload carries; 12 Mbit/s: single frames."""
    fabric = build("rail-only", 2, 2, rail_rate=rate)
    for node, interface in (("d1g0", "hb0"), ("hb1", "d1g0")):
        offloads = fabric.in_node(node, "ethtool", "-k", interface)
        assert ("\ttx-tcp-segmentation: off" in offloads) == own_queue
        assert ("\ngeneric-receive-offload: on" in offloads) == own_queue
    rail = fabric.in_node("d1g0", "ethtool", "-k", "rail0")
    assert "\ngeneric-receive-offload: off" in rail


def test_a_switch_starts_on_ports_that_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes their flags back as it takes them up, and would take back an UP that came in between."""
    seen: dict[str, bool] = {}
    start = PrivateSwitch.start

    def looked_at(switch: PrivateSwitch) -> None:
        flags = {link["ifname"]: link["flags"] for link in json.loads(namespaces.run(SHOW_LINKS))}
        seen[switch.name] = all("UP" in flags[interface] for interface in switch.ports)
        start(switch)

    monkeypatch.setattr(PrivateSwitch, "start", looked_at)
    fabric = build("rail-optimized", 2, 2)
    assert seen == {switch.name: True for switch in fabric.net.plan.switches}


def test_programs_of_a_build_depend_on_switches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the GPUs on as many switches take no further program, so 1,024 GPUs don't wait for thousands."""
    programs, run = Counter[str](), namespaces.run

    def counted(argv: Sequence[str], text: str = "", name: str = "") -> str:
        programs[argv[0]] += 1
        return run(argv, text, name)

    monkeypatch.setattr(namespaces, "run", counted)
    ovs.prepare()  # once, whatever is built then
    programs.clear()
    counts = []
    for domains in (2, 4):
        net = build("rail-only", domains, 2).net
        counts.append((programs.copy(), sum(len(switch.processes) for switch in net.ovs.values())))
        net.stop()
        programs.clear()
    assert counts[0] == counts[1]
    assert counts[0][0]["ovs-vsctl"] == 2  # one transaction for each switch
    assert counts[0][1] == 2 * 2
