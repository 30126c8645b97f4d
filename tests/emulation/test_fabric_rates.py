"""Shapers on real links: TCP gets what the rate leaves for payload, on each class of link and in both directions."""

import pytest

import railyard as ry
from railyard.topologies.build.shaping import payload_fraction
from tests.emulation.fabrics import at_best

RATES = {"rail_rate": "40Mbit", "hb_rate": "240Mbit", "spines": 1, "oversubscription": 4}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.fabric(kind="rail-optimized", domains=2, rails=2, **RATES, scope="module"),
]


@pytest.mark.parametrize(
    ("src", "dst", "rate_bps"),
    [("d0g0", "d0g1", 240_000_000), ("d0g0", "d1g0", 40_000_000), ("d0g0", "d1g1", 20_000_000)],
    ids=["hb", "rail", "uplink"],
)
@pytest.mark.parametrize("back", [False, True])
def test_tcp_gets_the_payload_part_of_the_rate(
    fabric: ry.Fabric, src: str, dst: str, rate_bps: int, back: bool
) -> None:
    ends = (dst, src) if back else (src, dst)
    expected = pytest.approx(rate_bps * payload_fraction(9000), rel=0.03)
    at_best(lambda: fabric.iperf(*ends), lambda measured: measured == expected)
