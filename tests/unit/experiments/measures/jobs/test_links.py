"""Links that jobs cross: the pairs that are served in turn at each, and who shared which when."""

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.links import link_records, measured_uses, pairs_by_end, rates_of
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.failure.faults import Impact, cable
from railyard.results.theory.fluid.jobs import predict_jobs
from railyard.results.theory.fluid.outage import dead_parts
from railyard.topologies.addresses import Gpu, Pair
from railyard.topologies.fabric_kinds import End

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "bytes": "100KB"}
# by dr, d0g0 reaches d1g1 over the rail link of d0g1, and d1g1 reaches d0g0 over that of d1g0
JOBS = [
    {"name": "crossing", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g0", "d1g1"]},
    {"name": "straight", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g1", "d2g1"]},
    {"name": "far", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d2g0", "d3g0"]},
]
SPEC = parse({"name": "x", "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 2}], "jobs": JOBS})
PLAN = nominal_plan(SPEC.gpu_fabrics[0])
PLANNED = planned_jobs(SPEC, 0, PLAN)


def test_links_with_forwarded_traffic_beside_other_have_queues() -> None:
    ends = pairs_by_end(PLANNED.combined.schedule, PLAN)
    crossing = (Gpu(0, 0), Gpu(1, 1))
    assert ends == {
        End("d0g1", "rail0"): [crossing, (Gpu(0, 1), Gpu(2, 1))],
    }


def test_acknowledgements_do_not_wait_behind_forwarded_traffic() -> None:
    # d3g1 answers d2g0 over the rail link of d3g0, as d3g1 sends to d0g0
    gpus = ["d2g0", "d3g1", "d0g0"]
    ring = {"name": "ring", "workload": SEND, "domains": 3, "rails": 1, "gpus": gpus}
    spec = parse({"name": "x", "fabrics": [{"kind": "rail-only", "domains": 4, "rails": 2}], "jobs": [ring]})
    ends = pairs_by_end(planned_jobs(spec, 0, PLAN).combined.schedule, PLAN)
    assert ends[End("d3g0", "rail0")] == [(Gpu(3, 1), Gpu(0, 0))]


def test_detours_have_queues_beside_other_traffic() -> None:
    dead = dead_parts(Impact(cables=frozenset({cable("d2g0", "rail0")})), PLAN)
    assert dead is not None
    ends = pairs_by_end(PLANNED.combined.schedule, PLAN, [dead])
    # d2g0 then reaches d3g0 over rail 1, by the link that has traffic of its own
    assert ends[End("d2g1", "rail0")] == [(Gpu(2, 1), Gpu(0, 1)), (Gpu(2, 0), Gpu(3, 0))]
    assert ends.keys() > pairs_by_end(PLANNED.combined.schedule, PLAN).keys()


def test_sharing_follows_the_measured_times() -> None:
    jobs = PLANNED.combined
    prediction = predict_jobs(jobs, rates_of(PLAN), PLAN.spec)
    spans = {}
    for number in (~jobs.schedule.columns.is_compute).nonzero()[0].tolist():
        # the first job sends in the first two seconds, the others from the second one on
        start_s = float(jobs.job_of_task[number] > 0)
        spans[number] = (start_s, start_s + 2)
    links, sharings = link_records(IntervalId("f"), measured_uses(prediction.together, spans, jobs), jobs)
    shared = [(row.link, row.direction, row.job, row.shared_with) for row in links if row.shared_s]
    assert shared == [
        ("d0g1 rail", "out", "crossing", "straight"),
        ("d0g1 rail", "out", "straight", "crossing"),
    ]
    assert [row.shared_s for row in links if row.shared_s] == pytest.approx([1.0, 1.0])
    assert [(row.jobs, row.start_s, row.end_s) for row in sharings] == [("crossing, straight", 1.0, 2.0)]
    sent = sum(row.bytes for row in links if row.link == "d0g1 rail" and row.direction == "out")
    assert sent == sum(size for (src, _), size in jobs.schedule.matrix.items() if src in (0, 1))


def test_forwarded_and_local_jobs_get_half_a_link_each() -> None:
    times = {times.name: times.slow_down for times in predict_jobs(PLANNED.combined, rates_of(PLAN), PLAN.spec).times}
    assert times == {"crossing": pytest.approx(2), "straight": pytest.approx(2), "far": pytest.approx(1)}


def spine_fabric_ends(kind: str) -> dict[End, list[Pair]]:
    """The queues of two jobs that cross the spines of a fabric: one each way, over both spines."""
    jobs = [
        {"name": "a", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d0g0", "d1g1"]},
        {"name": "b", "workload": SEND, "domains": 2, "rails": 1, "gpus": ["d2g0", "d3g1"]},
    ]
    fabric = {"kind": kind, "domains": 4, "rails": 2, "spines": 2}
    spec = parse({"name": "x", "fabrics": [fabric], "jobs": jobs})
    plan = nominal_plan(spec.gpu_fabrics[0])
    return pairs_by_end(planned_jobs(spec, 0, plan).combined.schedule, plan)


def test_jobs_that_meet_at_uplinks_are_served_in_turn_there() -> None:
    ends = spine_fabric_ends("rail-optimized")
    away = [(Gpu(0, 0), Gpu(1, 1)), (Gpu(2, 0), Gpu(3, 1))]
    back = [(Gpu(1, 1), Gpu(0, 0)), (Gpu(3, 1), Gpu(2, 0))]
    by_name = {(end.node, end.interface): pairs for end, pairs in ends.items()}
    assert by_name == {
        ("rail0", "spine0"): away, ("rail0", "spine1"): away, ("spine0", "rail1"): away, ("spine1", "rail1"): away,
        ("rail1", "spine0"): back, ("rail1", "spine1"): back, ("spine0", "rail0"): back, ("spine1", "rail0"): back,
    }  # fmt: skip


def test_jobs_on_leaves_of_their_own_share_no_uplink() -> None:
    assert spine_fabric_ends("clos") == {}


def test_acknowledgements_pass_forwarded_traffic_at_a_nic() -> None:
    # d3g2 answers d2g0 over the NIC of d3g0, as d3g2 sends to d0g0
    gpus = ["d2g0", "d3g2", "d0g0"]
    ring = {"name": "ring", "workload": SEND, "domains": 3, "rails": 1, "gpus": gpus}
    fabric = {"kind": "rail-only", "domains": 4, "rails": 4, "gpus_per_nic": 2}
    spec = parse({"name": "x", "fabrics": [fabric], "jobs": [ring]})
    plan = nominal_plan(spec.gpu_fabrics[0])
    ends = pairs_by_end(planned_jobs(spec, 0, plan).combined.schedule, plan)
    assert ends[End("d3n0", "rail0")] == [(Gpu(3, 2), Gpu(0, 0))]
