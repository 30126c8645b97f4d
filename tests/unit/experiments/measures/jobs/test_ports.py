"""Bytes of ports by the routes of jobs: links, shared NICs, all uplinks of a switch; and what counters may say."""

from collections.abc import Iterator
from typing import Any

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.ports import (
    CONNECTION_BYTES,
    CONTROL_BYTES,
    SHARE_ALLOWED,
    JobRoutes,
    RoutedTraffic,
    port_records,
)
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.theory.fluid.routes import Port
from railyard.topologies.build.shaping import payload_fraction

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "bytes": "100KB"}
WIRE_BYTES = 3 * 100_000 / payload_fraction(9000)
"""What each of two GPUs sends in three iterations."""


def job(name: str, *gpus: str) -> dict[str, Any]:
    return {"name": name, "workload": SEND, "domains": 2, "rails": 1, "gpus": list(gpus)}


def routes(*jobs: dict[str, Any], **fabric: Any) -> JobRoutes:
    fabric = {"kind": "rail-only", "domains": 3, "rails": 2, **fabric}
    spec = parse({"name": "x", "fabrics": [fabric], "jobs": list(jobs)})
    plan = nominal_plan(spec.gpu_fabrics[0])
    return JobRoutes(planned_jobs(spec, 0, plan).combined, plan)


# by dr, d0g0 reaches d1g1 over the rail link of d0g1, and d1g1 reaches d0g0 over that of d1g0
CROSSING = routes(job("crossing", "d0g0", "d1g1"))


def used(job_routes: JobRoutes) -> dict[Port, RoutedTraffic]:
    return {port: traffic for port, traffic in job_routes.traffic.items() if traffic.jobs}


def test_forwarded_bytes_are_expected_at_the_links_of_others() -> None:
    data = {port for port, traffic in used(CROSSING).items() if traffic.data}
    assert data == {
        Port("d0g0", "hb", True), Port("d0g1", "hb", False), Port("d0g1", "rail", True), Port("d1g1", "rail", False),
        Port("d1g1", "hb", True), Port("d1g0", "hb", False), Port("d1g0", "rail", True), Port("d0g0", "rail", False),
    }  # fmt: skip
    # the data of one direction and the acknowledgements of the other one take the same links
    assert {port for port, traffic in CROSSING.traffic.items() if traffic.answered} == data
    assert CROSSING.traffic[Port("d0g1", "rail", True)].data == pytest.approx(WIRE_BYTES)


def test_ports_beside_the_routes_may_carry_control_traffic() -> None:
    idle = CROSSING.traffic[Port("d2g0", "rail", True)]
    assert (idle.data, idle.connections, idle.allowed) == (0, 0, CONTROL_BYTES)


def test_allowed_bytes_grow_with_traffic_and_connections() -> None:
    allowed = CROSSING.traffic[Port("d0g1", "rail", True)].allowed
    assert allowed == pytest.approx(SHARE_ALLOWED * 2 * WIRE_BYTES + 2 * CONNECTION_BYTES + CONTROL_BYTES)


def test_gpus_of_a_nic_count_together() -> None:
    shared = routes(job("a", "d0g0", "d1g0"), job("b", "d0g1", "d1g1"), gpus_per_nic=2)
    traffic = shared.traffic[Port("d0n0", "rail", True)]
    assert traffic.data == pytest.approx(2 * WIRE_BYTES)
    assert traffic.jobs == {0, 1}


@pytest.mark.parametrize(("kind", "switch"), [("rail-optimized", "rail0"), ("clos", "leaf0")])
def test_hashed_uplinks_of_a_switch_count_together(kind: str, switch: str) -> None:
    hashed = routes(job("a", "d0g0", "d1g1"), kind=kind, spines=2)
    uplinks = [port for port in hashed.traffic if port.side == "uplink"]
    assert {port.node for port in uplinks} == {end.node for end in (link.a for link in hashed.plan.uplinks)}
    for is_out in (True, False):
        assert hashed.traffic[Port(switch, "uplink", is_out)].data == pytest.approx(WIRE_BYTES)


class HalfHashed(JobRoutes):
    """Routes on which each rail link has half of a flow, as far as is known before a hash."""

    def _crossings(self, is_answer: bool) -> Iterator[tuple[Port, tuple[int, int], float]]:
        for port, pair, share in super()._crossings(is_answer):
            yield port, pair, share / 2 if port.side == "rail" else share


def test_ports_whose_bytes_a_hash_decides_are_left_out() -> None:
    certain = HalfHashed(CROSSING.jobs, CROSSING.plan).traffic
    missing = CROSSING.traffic.keys() - certain.keys()
    assert missing == {port for port in used(CROSSING) if port.side == "rail"}


def test_records_have_counters_beside_the_routes() -> None:
    counted = dict.fromkeys(CROSSING.traffic, 0)
    port = Port("d0g1", "rail", True)
    counted[port] = 310_000
    rows = {(row.link, row.direction): row for row in port_records(IntervalId("f"), "alone", counted, CROSSING)}
    row = rows["d0g1 rail", "out"]
    assert (row.jobs, row.counted_bytes, row.expected_bytes) == ("crossing", 310_000, round(WIRE_BYTES))
    assert row.off_bytes < row.allowed_bytes
    assert rows["d2g0 rail", "out"].jobs == ""
