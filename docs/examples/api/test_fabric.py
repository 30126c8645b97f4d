"""A user's tests: a fabric for all of them, a workload within its prediction, and the recovery from a fault."""

import pytest

import railyard as ry

pytestmark = pytest.mark.fabric(kind="rail-only", domains=2, rails=2, rail_rate="20Mbit", scope="module")


def test_all_to_all_takes_its_predicted_time(fabric: ry.Fabric) -> None:
    found = fabric.run(ry.AllToAll(bytes="1MB"))
    assert found.ratio is not None
    with ry.timing(found):
        assert found.ratio < 1.2


def test_link_down_is_rerouted(fabric: ry.Fabric) -> None:
    with fabric.fault("link-down", "d0g1") as fault:
        assert fabric.ping("d0g1", "d1g1")
        assert fault.recovery.recovered
        with ry.timing():
            assert (fault.recovery.reroute_ms or 0) < 1000
