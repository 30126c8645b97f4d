"""Bytes that the ports of a fabric count while jobs run, beside those that the routes of the jobs say."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isclose
from typing import Final

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.links import direction, ends_of, port_name, rates_of
from railyard.experiments.measures.jobs.records import JobPort
from railyard.results.theory.fluid.routes import Port, routes_of
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.measure.counters import TRAFFIC, PortReader
from railyard.topologies.plan import Plan
from railyard.workloads.combined import CombinedSchedule

SHARE_ALLOWED: Final = 0.05
"""Of a port's bytes: its headers, if frames are joined, and the acknowledgements of what is sent the other way."""
CONNECTION_BYTES: Final = 2_000
"""Of each connection that crosses a port in either direction: frames by which it begins and ends."""
CONTROL_BYTES: Final = 10_000
"""Of each port: connections of the interval before that end late."""
_SENT: Final = TRAFFIC.index("tx_bytes")


def counted_ports(plan: Plan) -> list[Port]:
    """Return both directions of each HB link and rail link, and of all uplinks of each switch that GPUs attach to."""
    ports: list[Port] = []
    for is_out in (True, False):
        ports += [Port(gpu, "hb", is_out) for gpu in plan.hosts]
        ports += [Port(name, "rail", is_out) for name in plan.nics or plan.hosts]
        ports += [Port(switch.name, "uplink", is_out) for switch in plan.switches_of("rail", "leaf")]
    return [port for port in ports if ends_of(port, plan)]


class PortCounters:
    """Counters of a running fabric. Not to be shared by threads."""

    def __init__(self, plan: Plan) -> None:
        self._ends = {port: ends_of(port, plan) for port in counted_ports(plan)}
        nodes: set[str] = set()
        for ends in self._ends.values():
            nodes.update(end.node for end in ends)
        self._reader = PortReader(sorted(nodes))

    def read(self) -> dict[Port, int]:
        """Return the bytes that have left each port since the fabric was built."""
        stats = self._reader.read()
        sent: dict[Port, int] = {}
        for port, ends in self._ends.items():
            sent[port] = sum(stats[end.node][end.interface].traffic[_SENT] for end in ends)
        return sent

    def close(self) -> None:
        """Close its sockets."""
        self._reader.close()


@dataclass
class RoutedTraffic:
    """Traffic that routes put on a port.

    `data`, `answered`: bytes, with headers, of transfers that cross it, and of those whose acknowledgements do.
    `connections`: of both. `jobs`: to which they belong, by number.
    """

    data: float = 0.0
    answered: float = 0.0
    connections: int = 0
    jobs: set[int] = field(default_factory=set)

    @property
    def allowed(self) -> float:
        """The bytes by which a counter may differ from `data`."""
        return SHARE_ALLOWED * (self.data + self.answered) + CONNECTION_BYTES * self.connections + CONTROL_BYTES


@dataclass(frozen=True)
class JobRoutes:
    """Routes of jobs on a fabric, and the traffic that they put on ports."""

    jobs: CombinedSchedule
    plan: Plan

    @cached_property
    def traffic(self) -> dict[Port, RoutedTraffic]:
        """The traffic of each counted port, without those at which a hash decides how many bytes they carry."""
        ports = {port: RoutedTraffic() for port in counted_ports(self.plan)}
        for is_answer in (False, True):
            for port, pair, share in self._crossings(is_answer):
                if port not in ports:
                    continue
                # a part of a flow's bytes is what is expected of a hash, which puts all of them on one path
                if not isclose(share, 1.0):
                    del ports[port]
                    continue
                self._add(ports[port], pair, is_answer)
        return ports

    def _add(self, traffic: RoutedTraffic, pair: tuple[int, int], is_answer: bool) -> None:
        """Add the transfers of a pair to the traffic of a port that they, or their acknowledgements, cross."""
        size = self.jobs.schedule.matrix[pair] / payload_fraction(self.plan.spec.mtu)
        if is_answer:
            traffic.answered += size
        else:
            traffic.data += size
        traffic.connections += self._connections[pair]
        traffic.jobs.add(self.jobs.job_of_gpu[pair[0]])

    @cached_property
    def _connections(self) -> Counter[tuple[int, int]]:
        """The number of connections of each pair: one for each stripe."""
        columns = self.jobs.schedule.columns
        ends = np.column_stack((columns.src, columns.dst, columns.stripe))[~columns.is_compute]
        stripes = np.unique(ends, axis=0)
        return Counter((src, dst) for src, dst, _ in stripes.tolist())

    def _crossings(self, is_answer: bool) -> Iterator[tuple[Port, tuple[int, int], float]]:
        """Yield the counted ports of each pair, with the share of its bytes there.

        `is_answer`: of its acknowledgements, which take the path back.
        """
        pairs = list(self.jobs.schedule.matrix)
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        if is_answer:
            ends = ends[:, ::-1]
        spec = self.plan.spec
        routes = routes_of(ends[:, 0], ends[:, 1], rates_of(self.plan), spec)
        shares: defaultdict[tuple[Port, int], float] = defaultdict(float)
        flow, place = np.nonzero(routes.shares)
        crossed = routes.crossed[flow, place].tolist()
        parts = routes.shares[flow, place].tolist()
        for number, port, part in zip(flow.tolist(), crossed, parts, strict=True):
            for counted in _counted(routes.ports[port]):
                shares[counted, number] += part
        for (port_counted, number), share in shares.items():
            yield port_counted, pairs[number], share


def _counted(port: Port) -> tuple[Port, ...]:
    """Return the counted ports of which a port is a part: all uplinks of the switch, and of that at the far end."""
    if port.side != "uplink":
        return (port,)
    at_node = Port(port.node, "uplink", port.is_out)
    if not port.far:
        return (at_node,)
    return (at_node, Port(port.far, "uplink", not port.is_out))


def port_records(interval: IntervalId, mode: str, counted: Mapping[Port, int], routes: JobRoutes) -> Iterator[JobPort]:
    """Yield a row for each port whose bytes the routes of jobs say. `counted`: bytes of each port in the interval."""
    names = [job.name for job in routes.jobs.jobs]
    for port, traffic in routes.traffic.items():
        yield JobPort(
            interval=interval,
            mode=mode,
            link=port_name(port),
            direction=direction(port),
            jobs=", ".join(names[number] for number in sorted(traffic.jobs)),
            counted_bytes=counted[port],
            expected_bytes=round(traffic.data),
            allowed_bytes=round(traffic.allowed),
        )
