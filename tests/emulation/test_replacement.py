"""A GPU or a server fails for good under a running job: an idle GPU, by optical switches or past spines, or a spare
domain takes over.

ocs<d> between domain d's GPUs and rails    d0g0 d0g1 (d0g2)      idle-gpu: d0g2 becomes d0g1
                                            d1g0 d1g1 (d1g2)
rail-optimized, and one rail more           the same              idle-gpu: the tasks of d0g1 go to d0g2
rail-optimized, and one domain more         d0 d1 (d2)            small-domain: those of d0 go to d2
rail-only, and one domain more              d0 d1 d2 (d3)         server: those of d1 go to d3
"""

from typing import Any

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.replacement.job import replacement_job
from railyard.experiments.measures.replacement.measure import ReplacementMeasure
from railyard.experiments.measures.replacement.records import REPLACEMENTS, Replacement
from railyard.experiments.measures.replacement.run import run_replacement
from railyard.experiments.measures.replacement.spec import with_spares
from railyard.experiments.run.session import built
from railyard.experiments.spec.parsing import parse
from railyard.results.runs.records import INJECTED_LATE, Run
from railyard.topologies.plan import make_plan
from tests.emulation.fabrics import datapath

pytestmark = pytest.mark.sandbox

RAIL_BPS = 20_000_000
REPLICAS = {"tensor": 2, "pipeline": 1, "micro_batch": 1}  # a domain each
JOB = {"kind": "gpt", "duration": "1s", "compute": 0.1}


def taken_over(kind: str, domains: int = 2, **more: Any) -> tuple[Replacement, dict[str, int]]:
    """The row of a takeover, and when each of its steps was (ns)."""
    replicas = {**REPLICAS, "data": domains, "global_batch": 2 * domains}
    takeovers = [{"failed": "d0g1", "workload": {**JOB, "parallelism": replicas}, "iterations": 1, **more}]
    fabrics = [{"kind": kind, "domains": domains, "rails": 2}]
    spec = parse({"name": "mine", "fabrics": fabrics, "replacements": takeovers})
    chosen, fabric, run = ReplacementMeasure().items(spec)[0], spec.gpu_fabrics[0], Run("test", {}, {}, "")
    plan = make_plan(with_spares(chosen, fabric), RAIL_BPS)
    job = replacement_job(chosen, fabric, plan, spec.seed, "replacements.0")
    with built("fabric", plan, datapath(), True, run) as session:
        interval = IntervalId("fabric", policy=session.policy, script="replacement")
        run_replacement(session, chosen, job, interval, spec.seed, run)
    for event in run.events:
        if event.what == INJECTED_LATE and "missed" in event.detail:
            pytest.skip(f"the run is invalid: {event.detail['text']}")
    (row,) = run.rows(REPLACEMENTS)
    assert row.moved_bytes == sum(job.state.matrix.values())
    return row, {event.what: event.monotonic_ns for event in run.events if event.source == "replacement"}


@pytest.mark.long
def test_spare_gpu_joins_optically_and_job_resumes_checkpoint() -> None:
    row, at = taken_over("rail-only", case="idle-gpu", checkpoint_every=2, switching_time="30ms")
    in_turn = (
        "fault",
        "detected",
        "decided",
        "optical-links-down",
        "optical-links-up",
        "replaced",
        "state-moved",
        "job-resumed",
    )
    assert [at[what] for what in in_turn] == sorted(at[what] for what in in_turn)
    assert at["decided"] < at["adopted"] < at["replaced"]
    assert (row.method, row.failed, row.replaced_by) == ("optical", "d0g1", "d0g2")
    assert row.iterations_lost == 2  # the one under way, and one that no checkpoint had
    assert 30.0 == row.optical_links_down_ms < row.replaced_ms < row.interruption_ms
    assert row.detect_ms < row.replaced_ms


@pytest.mark.long
def test_spare_domain_takes_all_tasks_of_a_failed_domain() -> None:
    row, at = taken_over("rail-optimized", case="small-domain")
    assert (row.method, row.replaced_by, row.iterations_lost, row.optical_links_down_ms) == ("migration", "hb2", 1, 0.0)
    assert at["decided"] < at["replaced"] < at["state-moved"] < at["job-resumed"]
    assert min(row.before_s, row.after_s) > 0


@pytest.mark.long
def test_a_spare_domain_takes_the_tasks_of_a_server_that_died() -> None:
    row, at = taken_over("rail-only", domains=3, case="server", failed="hb1")
    assert (row.method, row.failed, row.replaced_by, row.optical_links_down_ms) == ("migration", "hb1", "hb3", 0.0)
    assert at["detected"] <= at["decided"] < at["replaced"] < at["state-moved"] < at["job-resumed"]


@pytest.mark.long
def test_idle_gpu_behind_spines_replaces_without_optics() -> None:
    row, at = taken_over("rail-optimized", case="idle-gpu")
    assert (row.method, row.failed, row.replaced_by, row.optical_links_down_ms) == ("direct", "d0g1", "d0g2", 0.0)
    assert not {"optical-links-down", "optical-links-up", "adopted"} & at.keys()
    assert at["decided"] < at["replaced"] < at["state-moved"] < at["job-resumed"]
