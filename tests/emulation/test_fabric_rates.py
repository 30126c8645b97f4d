"""Shapers on real links: TCP gets what the rate leaves for payload, on each class of link and in both directions."""

import json

import pytest

from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from tests.emulation.fabrics import Fabric, at_best, build

pytestmark = [pytest.mark.sandbox, pytest.mark.quiet, pytest.mark.long]
LINKS = [
    ("hb", Gpu(0, 0), Gpu(0, 1), 240_000_000),
    ("rail", Gpu(1, 0), Gpu(0, 0), 40_000_000),
    ("uplink", Gpu(1, 1), Gpu(0, 0), 20_000_000),
]


def tcp_bps(fabric: Fabric, src: Gpu, dst: Gpu) -> float:
    """Payload rate that arrives, bit/s, once the first second is over."""
    server = fabric.net.get(dst.name).popen("iperf3 -s -1 --forceflush")
    server.stdout.readline()
    report = json.loads(fabric.net.get(src.name).cmd(f"iperf3 -J -O 1 -t 1 -w 200K -l 8K -c {dst.ip}"))
    server.wait()
    return float(report["end"]["sum_received"]["bits_per_second"])


@pytest.mark.parametrize("back", [False, True])
def test_tcp_gets_the_payload_part_of_each_rate(back: bool) -> None:
    fabric = build(
        "rail-optimized", 2, 2, rail_rate="40Mbit", hb_rate="240Mbit", spines=1, oversubscription=4
    )  # fmt: skip
    for link, src, dst, rate_bps in LINKS:
        assert {e.rate_bps for e in fabric.net.plan.links if e.kind == link} == {rate_bps}
        ends = (dst, src) if back else (src, dst)
        expected = pytest.approx(rate_bps * payload_fraction(9000), rel=0.03)
        at_best(lambda ends=ends: tcp_bps(fabric, *ends), lambda measured, expected=expected: measured == expected)  # type: ignore[misc]
