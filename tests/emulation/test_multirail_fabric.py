"""A multi-rail fabric on real packets: which way they go, how fast, and what is left when a NIC or a switch is dead.

n0    n1    n2    n3
|+----|+----|+----|+---- rail1 (sharp, 100 Mbit/s) ---- agg1
+-----+-----+-----+----- rail0 (tcp, 50 Mbit/s)
"""

import json
import select
import socket
import struct
import subprocess
from itertools import permutations

import psutil
import pytest
from pyroute2 import IPRoute

from railyard.core.host import NETNS_DIR
from railyard.failure.faults import Fault
from railyard.topologies.build import namespaces
from railyard.topologies.build.ovs import OVS_DIR
from railyard.topologies.measure.counters import PortReader
from railyard.topologies.multirail.commands import CONTROL_TOS
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import Nic, parse_multirail
from tests.emulation.fabrics import WAIT_S as LONG_S
from tests.emulation.fabrics import at_best, datapath, eventually, inject, repair

pytestmark = pytest.mark.sandbox
WAIT_S = 0.2
SOL_MPTCP, MPTCP_INFO = 284, 1  # <linux/mptcp.h>
SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>
RAILS = (0, 1)


def has_carrier(node: str, rail: int) -> bool:
    """Return whether a node's NIC has a carrier."""
    with namespaces.inside(node), IPRoute() as netlink:
        link = netlink.get_links(index=socket.if_nametoindex(f"rail{rail}"))[0]
    return bool(link.get("operstate") == "UP")


def built() -> MultirailNet:
    rails = [{"kind": "tcp", "rate": "50Mbit"}, {"kind": "sharp", "rate": "100Mbit"}]
    net = MultirailNet(make_multirail_plan(parse_multirail({"kind": "multi-rail", "rails": rails})), datapath())
    net.start()
    return net


def udp(nic: Nic) -> socket.socket:
    """A socket that is bound to a NIC by its address."""
    with namespaces.inside(nic.namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((nic.ip, 0))
    return sock


def arrives(src: Nic, dst: Nic, wait_s: float = WAIT_S) -> bool:
    """Return whether a datagram gets from one NIC's address to another's."""
    with udp(src) as sender, udp(dst) as sink:
        try:
            sender.sendto(b"?", sink.getsockname())
        except OSError:
            return False  # no route
        return bool(select.select([sink], [], [], wait_s)[0]) and sink.recvfrom(8)[1][0] == src.ip


def deaf(net: MultirailNet, rail: int) -> set[tuple[str, str]]:
    """Return who doesn't hear whom on a rail: (speaker, listener)."""
    pairs = permutations(net.plan.nics_on(rail), 2)
    return {(src.namespace, dst.namespace) for src, dst in pairs if not arrives(src, dst)}


def all_hear(net: MultirailNet, rail: int) -> bool:
    return not deaf(net, rail)


def cut_off(net: MultirailNet, name: str, rail: int) -> set[tuple[str, str]]:
    """Return what `deaf` says if one is cut off from all others."""
    others = {nic.namespace for nic in net.plan.nics_on(rail)} - {name}
    return {(name, other) for other in others} | {(other, name) for other in others}


def test_packet_leaves_by_the_nic_of_its_source_address() -> None:
    net = built()
    reader = PortReader(net.plan.hosts)

    def sent() -> dict[tuple[str, str], int]:
        return {(node, nic): stats.traffic[3] for node, nics in reader.read().items() for nic, stats in nics.items()}

    for rail in RAILS:
        for src, dst in permutations(range(4), 2):
            before = sent()
            assert arrives(Nic(rail, src), Nic(rail, dst), LONG_S)
            more = {nic: count - before[nic] for nic, count in sent().items() if count != before[nic]}
            assert more == {(f"n{src}", f"rail{rail}"): 1}
    eventually(lambda: all_hear(net, 1))  # the aggregator too
    assert not arrives(Nic(0, 0), Nic(1, 1))


def test_each_rail_carries_its_rate_while_all_are_full() -> None:
    net = built()
    at_best(
        lambda: [received / net.plan.payload_bps(rail) for rail, received in enumerate(received_at_once())],
        lambda shares: all(0.8 < share < 1.03 for share in shares),
    )


def received_at_once() -> list[float]:
    """Bit/s of payload by rail, of connections from n0 to n1 on all of them."""
    servers, clients = [], []
    with namespaces.inside("n1"):
        for rail in RAILS:
            command = ["iperf3", "-s", "-1", "--forceflush", "-B", Nic(rail, 1).ip]
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for server in servers:
        assert server.stdout is not None
        assert any("Server listening" in line for line in server.stdout)
    with namespaces.inside("n0"):
        for rail in RAILS:
            command = ["iperf3", "-J", "-O", "1", "-t", "1", "-c", Nic(rail, 1).ip]
            clients.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    reported = [json.loads(client.communicate()[0]) for client in clients]
    for server in servers:
        server.communicate()
    return [report["end"]["sum_received"]["bits_per_second"] for report in reported]


def assert_cut_off_until_repair(net: MultirailNet, fault: Fault, rail: int, name: str, keeps_carrier: bool) -> None:
    """A fault at a node's NIC cuts it off from all others on its rail, and only there."""
    inject(net, fault)
    eventually(lambda: has_carrier(name, rail) == keeps_carrier)
    assert has_carrier("n0", rail)
    assert has_carrier(name, 1 - rail)
    eventually(lambda: deaf(net, rail) == cut_off(net, name, rail))
    eventually(lambda: all_hear(net, 1 - rail))
    repair(net, fault)
    eventually(lambda: has_carrier(name, rail))
    eventually(lambda: all_hear(net, rail))


def test_fault_at_a_nic_cuts_off_that_nic_until_its_repair() -> None:
    net = built()
    assert_cut_off_until_repair(net, Fault("link-down", "tcp0 of n1"), 0, "n1", keeps_carrier=False)
    assert_cut_off_until_repair(net, Fault("link-silent", "sharp1 of n2"), 1, "n2", keeps_carrier=True)


def assert_other_rail_is_whole(net: MultirailNet, fault: Fault, rail: int, forwards: bool) -> None:
    """A fault at a rail leaves carriers as they are and the other rail whole; after its repair, this one is too."""
    inject(net, fault)
    assert has_carrier("n0", rail)
    assert forwards or not arrives(Nic(rail, 0), Nic(rail, 1))
    eventually(lambda: all_hear(net, 1 - rail))
    repair(net, fault)
    eventually(lambda: all_hear(net, rail))


def test_fault_at_a_rail_leaves_the_other_rail_whole() -> None:
    net = built()
    assert_other_rail_is_whole(net, Fault("rail-switch-crash", "rail0"), 0, forwards=False)
    assert_other_rail_is_whole(net, Fault("rail-switch-hang", "rail1"), 1, forwards=False)
    assert_other_rail_is_whole(net, Fault("link-slow", "tcp0 of n1"), 0, forwards=True)
    assert_other_rail_is_whole(net, Fault("link-gray", "tcp0 of n1"), 0, forwards=True)


def test_a_control_message_passes_the_data_that_waits() -> None:
    built()
    with udp(Nic(0, 0)) as data, udp(Nic(0, 0)) as control, udp(Nic(0, 1)) as data_sink, udp(Nic(0, 1)) as control_sink:
        control.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, CONTROL_TOS)
        for sink in (data_sink, control_sink):
            sink.settimeout(5)
            sink.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

        def arrived(sink: socket.socket) -> tuple[int, int]:
            """(s, ns) by the kernel's clock."""
            seconds, nanoseconds = struct.unpack("=qq", sink.recvmsg(9000, 64)[1][0][2])
            return seconds, nanoseconds

        def overtakes() -> bool:
            for _ in range(10):  # 14 ms of the rail
                data.sendto(bytes(8900), data_sink.getsockname())
            control.sendto(b"!", control_sink.getsockname())
            return arrived(control_sink) < max(arrived(data_sink) for _ in range(10))

        eventually(overtakes)  # at once, unless this process was kept waiting between two lines


def more_subflows(sock: socket.socket) -> int:
    """Return how many a connection has beyond the first: the first byte of struct mptcp_info."""
    return sock.getsockopt(SOL_MPTCP, MPTCP_INFO, 64)[0]


def test_stock_mptcp_connection_has_a_subflow_on_each_rail() -> None:
    net = built()
    if not net.has_mptcp:
        pytest.skip("no MPTCP")
    with namespaces.inside("n1"):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
        listener.bind(("0.0.0.0", 0))
        listener.listen()
    with namespaces.inside("n0"):
        caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    with listener, caller:
        caller.connect((Nic(0, 1).ip, listener.getsockname()[1]))
        called, _ = listener.accept()
        with called:
            caller.sendall(b"?")
            assert called.recv(1) == b"?"
            eventually(lambda: [more_subflows(end) for end in (caller, called)] == [1, 1])
            reader = PortReader(["n0"])

            def each_carries() -> bool:
                """Once some more was sent: how much of it goes by which rail is the kernel's choice."""
                for _ in range(50):
                    caller.sendall(bytes(60_000))
                    called.recv(60_000, socket.MSG_WAITALL)
                stats = reader.read()["n0"]
                return all(stats[f"rail{rail}"].traffic[1] > 300_000 for rail in RAILS)

            eventually(each_carries)


def test_mininet_has_the_nodes_and_nothing_is_left_at_the_end() -> None:
    net = built()
    assert [host.name for host in net.hosts] == ["n0", "n1", "n2", "n3"]
    assert {switch.name for switch in net.switches} == {"rail0", "rail1", "agg1"}
    assert net.get("n2").IP("rail1") == "198.18.1.3"
    assert net.pingAll(timeout="5") == 0
    assert net.iperf(seconds=1)[0].endswith("Mbits/sec")
    assert psutil.Process().children()
    net.stop()
    assert not psutil.Process().children()
    for folder in (NETNS_DIR, OVS_DIR):
        assert not {path.name for path in folder.iterdir()} & set(net.plan.namespaces)
