"""The engine in a fabric, as far as no fabric is needed: where everybody is, what rails cost, what a rank reports."""

import pytest

from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce.balancing.costs import paper_rail
from railyard.workloads.allreduce.balancing.policy import make_planner
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport, latencies_s
from railyard.workloads.allreduce.engine.worker import run_operations
from railyard.workloads.allreduce.engine_kind import PORT, layout, placement, predicted_s, rails_of
from tests.unit.workloads.allreduce.multirail_net import on_all

RAILS = [{"kind": "tcp", "rate": "100Mbit"}, {"kind": "sharp", "rate": "50Mbit", "setup": "5us", "cpu": 0}]
PLAN = make_multirail_plan(parse_multirail({"kind": "multi-rail", "nodes": 3, "rails": RAILS, "scale": 20}))


def test_rails_have_payload_rates_and_the_papers_defaults() -> None:
    tcp, sharp = rails_of(PLAN)
    assert tcp.rate == pytest.approx(100e6 / 8 * payload_fraction(PLAN.spec.mtu))
    assert tcp.setup_s == paper_rail("tcp").setup_s
    assert tcp.cpu_s_per_byte == pytest.approx(20 * paper_rail("tcp").cpu_s_per_byte)
    assert (sharp.name, sharp.cpu_s_per_byte) == ("sharp1", 0.0)
    assert sharp.setup_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("rates", "weights"),
    [
        ({"tcp": "auto", "glex": "auto"}, (100, 128)),
        ({"tcp": "auto", "sharp": "auto"}, (50, 50)),
        ({"tcp": "100Mbit", "glex": "50Mbit"}, (2, 1)),
        ({"tcp": "60Mbit", "glex": "auto"}, (2.664, 5.029)),  # one that is given, and one that moves as much to scale
    ],
)
@pytest.mark.parametrize("dilation", [1, 10])
def test_mrib_uses_nominal_rates(rates: dict[str, str], weights: tuple[float, float], dilation: int) -> None:
    described = [{"kind": kind, "rate": rate} for kind, rate in rates.items()]
    scale = {} if any(rate.endswith("bit") for rate in rates.values()) else {"scale": 50}
    spec = parse_multirail({"kind": "multi-rail", "nodes": 4, "rails": described, **scale})
    rails, sent = rails_of(make_multirail_plan(spec).dilated(dilation)), 2**22
    parts = [part.length / sent for part in make_planner("mrib", rails, 4).plan(sent, 1)]
    assert parts == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-3)
    by_hand = "weights:" + ":".join(str(round(1000 * weight)) for weight in weights)
    assert predicted_s("mrib", rails, 4, sent) == pytest.approx(predicted_s(by_hand, rails, 4, sent), rel=1e-3)


def test_layout_and_placement_have_each_nodes_nics() -> None:
    where = layout(PLAN)
    assert where.nodes[1] == tuple((f"198.18.1.{node + 1}", PORT) for node in range(3))
    assert where.aggregators == (None, ("198.18.1.254", PORT))
    assert (placement(PLAN, 2).namespace, placement(PLAN, 2).devices) == ("n2", ("rail0", "rail1"))
    assert placement(PLAN, None, 1).namespace == "agg1"


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "all_gather", "broadcast"])
def test_report_has_a_row_per_operation_and_counts_errors(collective: str) -> None:
    asked = Operations(collective, "int32", 12_000, count=4, seed=5, check=True)

    def body(group: Group) -> tuple[RankReport, RankReport]:
        other = Operations(collective, "int32", 12_000, count=1, seed=5 + group.rank, check=True)
        return run_operations(group, asked), run_operations(group, other)

    out = on_all("tcp tcp", 2, body)
    reports = [first for first, _ in out]
    assert [report.wrong for report in reports] == [0, 0]
    assert [report.errors for report in reports] == [[], []]
    for report in reports:
        assert [len(rows) for rows in (report.starts_ns, report.ends_ns, report.shares, report.rail_seconds)] == [4] * 4
        assert all(share > 0 for row in report.shares for share in row)
        assert report.copies["result"] > 0
        times, moved = zip(*report.rail_bytes_over_time, strict=True)
        assert list(times) == sorted(times)
        assert [sorted(column) for column in zip(*moved, strict=True)] == [list(c) for c in zip(*moved, strict=True)]
    assert len(latencies_s(reports)) == 4
    assert sum(report.wrong for _, report in out) > 1000  # ranks that don't agree on the seed don't agree on the sum
