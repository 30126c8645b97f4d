"""Collective of one communicator: its ring in the order of its GPUs, its bytes, and what is refused."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.results.theory.predict import predict_schedule
from railyard.topologies.spec import parse_fabric
from railyard.workloads.schedule import Schedule, payload_rates
from railyard.workloads.spec import build, parse_workload

FABRIC = parse_fabric({"kind": "rail-only", "domains": 3, "rails": 2})
RAIL_BPS, HB_BPS = 20_000_000, 240_000_000


def schedule_of(**keys: Any) -> Schedule:
    data = {"kind": "collective", "collective": "all-reduce", "bytes": "6MB", **keys}
    return build(parse_workload(data), FABRIC, RAIL_BPS, HB_BPS, "workloads.0").schedule


def test_a_ring_sends_its_bytes_to_the_next_of_its_gpus() -> None:
    schedule = schedule_of(gpus=["d0g0", "d0g1", "d2g1"])
    ring_bytes = 2 * 2 * 6_000_000 // 3
    assert schedule.matrix == {(0, 1): ring_bytes, (1, 5): ring_bytes, (5, 0): ring_bytes}


def test_an_all_to_all_sends_between_all_pairs_of_its_gpus() -> None:
    schedule = schedule_of(collective="all-to-all", gpus=["d0g0", "d1g1", "d2g0"], bytes="1MB")
    assert schedule.matrix == dict.fromkeys([(0, 3), (3, 4), (4, 0), (0, 4), (3, 0), (4, 3)], 1_000_000)


def test_a_duration_is_that_of_the_rings_slowest_hop() -> None:
    schedule = schedule_of(gpus=["d0g0", "d0g1", "d2g1", "d2g0"], bytes=None, duration="2s")
    rates = payload_rates(HB_BPS, RAIL_BPS, FABRIC.mtu)
    assert predict_schedule(schedule, rates, FABRIC)["all-reduce"] == pytest.approx(2.0, rel=1e-3)
    hb_ring = schedule_of(gpus=["d0g0", "d0g1"], bytes="24MB")
    assert predict_schedule(hb_ring, rates, FABRIC)["all-reduce"] == pytest.approx(24e6 / rates.hb, rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"gpus": ["d0g0", "d9g0"]}, "workloads.0.gpus.1"),
        ({"gpus": ["d0g0"]}, "workload.gpus"),
        ({"gpus": ["d0g0", "d0g0"]}, "workload.gpus"),
        ({"gpus": ["d0g0", "d1g0"], "algorithm": "hierarchical"}, "workload.gpus"),
    ],
)
def test_gpus_that_form_no_communicator_are_refused(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as raised:
        schedule_of(**keys)
    assert str(raised.value).startswith(f"{field}: ")
