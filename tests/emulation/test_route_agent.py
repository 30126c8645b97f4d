"""Routes that change while packets flow: one next hop or several, back and forth, and what a kernel refuses.

d0g0 --hb0--> d0g1, d0g2        d1g0 --hb0--> d1g1, d1g2        each also on its rail: d0g0 --rail0--> d1g0
"""

import errno
import json
import socket
import threading
from typing import Any

import pytest

from railyard.controller.agent.route_agent import RouteAgent
from railyard.topologies.addresses import Gpu
from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import TRAFFIC, PortReader
from railyard.topologies.plan import make_plan
from railyard.topologies.routing import Hop, Route, host_prefix
from railyard.topologies.spec import parse_fabric
from tests.emulation.fabrics import Fabric, build

pytestmark = pytest.mark.sandbox

SRC, DST = Gpu(0, 0), Gpu(1, 1)
METRIC = 15
FLOWS = 24  # all on one of two next hops: once in 8 million runs
LINKS = "".join(
    f"link add {name} type veth peer name {name}-end\nlink set {name} up\nlink set {name}-end up\n"
    for name in ("hb0", "rail0")
)
BYTES = 6_000_000  # each time; half a second


def by_dr(dst: Gpu) -> Route:
    return Route(host_prefix(dst), (Hop("hb0", Gpu(0, 1)),), metric=METRIC)


def by_rd(dst: Gpu) -> Route:
    return Route(host_prefix(dst), (Hop("rail0", Gpu(1, 0)),), metric=METRIC)


def by_both(dst: Gpu) -> Route:
    return Route(host_prefix(dst), (Hop("hb0", Gpu(0, 1)), Hop("rail0", Gpu(1, 0))), metric=METRIC)


def agent_of(fabric: Fabric) -> RouteAgent:
    agent = RouteAgent(fabric.net.plan)
    agent.learn_interfaces()
    return agent


def ends(src: Gpu, dst: Gpu) -> tuple[socket.socket, socket.socket]:
    """A TCP connection: the end at src, the end at dst."""
    with namespaces.inside(dst.name):
        listener = socket.create_server((dst.ip, 0))
    with listener, namespaces.inside(src.name):
        near = socket.create_connection(listener.getsockname(), timeout=20)
        far, _ = listener.accept()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    far.settimeout(20)
    return near, far


def sent_by(reader: PortReader, what: str) -> dict[str, int]:
    """Return by interface: what d0g0 has sent so far."""
    return {name: port.traffic[TRAFFIC.index(what)] for name, port in reader.read()[SRC.name].items()}


def growth(before: dict[str, int], after: dict[str, int]) -> tuple[int, int]:
    """Of hb0 and of rail0."""
    return after["hb0"] - before["hb0"], after["rail0"] - before["rail0"]


def there(gpu: Gpu) -> list[dict[str, Any]]:
    with namespaces.inside(gpu.name):
        found: list[dict[str, Any]] = json.loads(namespaces.run(["ip", "-j", "route", "show", "proto", "99"]))
    return found


def test_connection_survives_changes_of_its_number_of_next_hops() -> None:
    fabric = build("rail-only", 2, 3)
    agent, reader, before = agent_of(fabric), PortReader([SRC.name]), fabric.routes()
    near, far = ends(SRC, DST)
    data = bytes(range(251)) * (BYTES // 251)
    received = bytearray()
    turns: list[Route] = [by_dr(DST), by_both(DST), by_rd(DST), by_both(DST)]
    rounds: list[int] = []
    start, changes = sent_by(reader, "tx_bytes"), 0

    def receive() -> None:
        while part := far.recv(1 << 16):
            received.extend(part)

    def send() -> None:
        while not rounds or changes <= 2 * len(turns):
            near.sendall(data)
            rounds.append(len(data))
        near.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=receive), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    while threads[0].is_alive():
        assert agent.change(SRC, [], [turns[changes % len(turns)]]) == 1
        assert len(there(SRC)) == 1  # replaced, not added
        changes += 1
        threads[0].join(0.01)
    threads[1].join()
    assert bytes(received) == data * len(rounds)
    assert changes > 2 * len(turns)
    assert min(growth(start, sent_by(reader, "tx_bytes"))) > BYTES / 20  # it did go both ways
    for route in (by_both(DST), by_dr(DST)):  # whatever is there goes by prefix and metric
        agent.change(SRC, [], [by_both(DST)])
        assert agent.change(SRC, [route], []) == 1
        assert fabric.routes() == before


def test_flows_spread_over_next_hops_and_each_keeps_its_hop() -> None:
    fabric = build("rail-only", 2, 3)
    agent, reader = agent_of(fabric), PortReader([SRC.name])
    agent.change(SRC, [], [by_both(DST)])
    used = set()
    for _ in range(FLOWS):
        near, far = ends(SRC, DST)
        before = sent_by(reader, "tx_packets")
        for _ in range(20):
            near.send(b"?")
            assert far.recv(16) == b"?"
        packets = growth(before, sent_by(reader, "tx_packets"))
        assert max(packets) >= 20
        assert min(packets) < 5, packets  # an earlier flow may have had to repeat one
        used.add(packets.index(max(packets)))
    assert used == {0, 1}


def test_each_next_hop_reaches_the_destination() -> None:
    fabric = build("rail-only", 2, 3)
    agent = agent_of(fabric)
    peer = Gpu(1, 0)  # on d0g0's own rail
    hops = (Hop("rail0", weight=3), Hop("hb0", Gpu(0, 1), weight=2), Hop("hb0", Gpu(0, 2), weight=256))
    agent.change(SRC, [], [by_both(DST), Route(host_prefix(peer), hops, metric=METRIC)])
    message = next(entry for entry in there(SRC) if entry["dst"] == peer.ip)
    assert (message["metric"], message["prefsrc"]) == (METRIC, SRC.ip)
    hops_shown = [(hop["dev"], hop.get("gateway"), hop["weight"], hop["flags"]) for hop in message["nexthops"]]
    assert hops_shown == [
        ("rail0", None, 3, []),
        ("hb0", Gpu(0, 1).ip, 2, ["onlink"]),
        ("hb0", Gpu(0, 2).ip, 256, ["onlink"]),
    ]
    assert ways(fabric, DST) == {(Gpu(0, 1), DST), (Gpu(1, 0), DST)}
    even = Route(host_prefix(peer), (Hop("rail0"), Hop("hb0", Gpu(0, 1))), metric=METRIC)
    agent.change(SRC, [], [even])
    assert ways(fabric, peer) == {(peer,), (Gpu(0, 1), Gpu(1, 1), peer)}


def ways(fabric: Fabric, dst: Gpu) -> set[tuple[Gpu, ...] | None]:
    """The GPUs that flows from d0g0 visit."""
    # once more, since the kernel limits how many ICMP errors it sends: a lost answer says nothing of the route
    traces = (fabric.trace(SRC, dst) or fabric.trace(SRC, dst) for _ in range(FLOWS))
    return {None if trace is None else tuple(trace) for trace in traces}


def test_refused_route_is_named_and_others_are_installed() -> None:
    plan = make_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2}), 10**8)
    namespaces.create([gpu.name for gpu in plan.gpus])
    for gpu in plan.gpus:
        with namespaces.inside(gpu.name):
            namespaces.run(["ip", "-batch", "-"], f"{LINKS}addr add {gpu.ip}/32 dev lo\n")
    agent = RouteAgent(plan)
    agent.learn_interfaces()
    good = [Route(host_prefix(Gpu(2 + i, 1)), (Hop("hb0", Gpu(0, 1)),), metric=METRIC) for i in range(298)]
    bad = [Route(host_prefix(Gpu(2 + i, 0)), (Hop("hb0", SRC),), metric=METRIC) for i in range(2)]  # the source itself
    mixed = [*good[:10], bad[0], *good[10:200], bad[1], *good[200:]]
    outcome = agent.change_all({SRC: ([], mixed), Gpu(0, 1): ([], []), Gpu(1, 0): ([good[0]], good[:1])})
    assert outcome.done == 299
    assert outcome.refused.keys() == {SRC}
    assert outcome.refused[SRC].errno == errno.EINVAL
    assert str(outcome.refused[SRC]) == f"[Errno 22] d0g0: route to {bad[0].prefix}: Invalid argument (and 1 more)"
    installed = {entry["dst"] for entry in there(SRC)}
    assert installed == {route.prefix.removesuffix("/32") for route in good}
    assert len(there(Gpu(1, 0))) == 1  # what was put took the place of what was to go
    with pytest.raises(OSError, match=r"d0g0: route .*: Invalid argument$"):
        agent.change(SRC, good[:3], [bad[1]])
    absent = [Route(host_prefix(Gpu(512 + i, 1)), (Hop("hb0"),), metric=METRIC) for i in range(500)]
    assert agent.change(SRC, absent + good, []) == 798  # more errors than a receive buffer holds
    assert there(SRC) == []
    assert agent.change(SRC, [], good[:1]) == 1  # and no answer is left over
