"""Interleaving of jobs: the experiment's prediction, its records, and its section of the report."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.interleaving import busiest_shared_port, job_bursts, job_shifts
from railyard.experiments.measures.jobs.interleaving_section import InterleavingSection, interleaved_rows
from railyard.experiments.measures.jobs.links import measured_uses
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.predictions import Predictions, predicted_jobs
from railyard.experiments.measures.jobs.records import INTERLEAVED, JOB_BURSTS, JOB_SHIFTS, TOGETHER
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.analysis.run_analysis import Analysis
from railyard.topologies.plan import Plan
from tests.unit.stand_ins import run_of

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "bytes": "100KB"}


def job(name: str, *gpus: str) -> dict[str, Any]:
    return {"name": name, "workload": SEND, "domains": 2, "rails": 1, "gpus": list(gpus), "compute": "1s"}


# by dr, d0g0 reaches d1g1 over the rail link of d0g1
JOBS = [job("crossing", "d0g0", "d1g1"), job("straight", "d0g1", "d2g1")]
FABRIC = {"kind": "rail-only", "domains": 3, "rails": 2, "rail_rate": "1Mbit", "hb_rate": "9Mbit"}
SPEC = parse({"name": "x", "fabrics": [FABRIC], "jobs": JOBS, "interleaving": True})
PLAN: Plan = nominal_plan(SPEC.gpu_fabrics[0])
PREDICTIONS = predicted_jobs(planned_jobs(SPEC, 0, PLAN), PLAN, True)


def worst_by_mode(predictions: Predictions) -> dict[str, float]:
    """The largest slow-down of a job in each mode, without drift."""
    worst: dict[str, float] = {}
    for mode, prediction in predictions.by_mode.items():
        worst[mode] = max(times.slow_down for times in prediction.simulated.times)
    return worst


def test_interleaved_jobs_are_predicted_not_to_slow_each_other() -> None:
    assert list(PREDICTIONS.by_mode) == [TOGETHER, INTERLEAVED]
    worst = worst_by_mode(PREDICTIONS)
    assert worst[TOGETHER] > 1.2
    assert worst[INTERLEAVED] == pytest.approx(1)


def test_drift_of_colliding_bursts_has_an_interval() -> None:
    for job, times in zip(PREDICTIONS.together.jobs, PREDICTIONS.together.simulated.times, strict=True):
        assert 1 < job.slow_down.least < job.slow_down.mean < job.slow_down.most
        # drift doesn't let bursts collide that were apart
        assert job.slow_down.mean < times.slow_down + 0.02
        assert PREDICTIONS.iteration_s(TOGETHER, job.name) == job.together_s
        assert PREDICTIONS.iteration_s("link-slow d0g1", job.name) is None


def test_single_job_has_nothing_to_interleave() -> None:
    with pytest.raises(BadInput, match=r"^interleaving: True has no effect: it needs two jobs"):
        parse({"name": "x", "fabrics": [FABRIC], "jobs": JOBS[:1], "interleaving": True})


def test_jobs_without_interleaving_run_in_no_further_mode() -> None:
    assert list(predicted_jobs(planned_jobs(SPEC, 0, PLAN), PLAN, False).by_mode) == [TOGETHER]


def test_bursts_of_jobs_alternate_on_the_shared_port() -> None:
    run = run_of()
    assert PREDICTIONS.interleaving is not None
    port = busiest_shared_port(PREDICTIONS.interleaving)
    assert port is not None
    for mode, prediction in PREDICTIONS.by_mode.items():
        together = prediction.simulated.together
        transfers = np.flatnonzero(together.flow >= 0).tolist()
        spans = {task: (float(together.start_s[task]), float(together.end_s[task])) for task in transfers}
        jobs = prediction.simulated.combined
        uses = measured_uses(together, spans, jobs)
        interval = IntervalId("rail-only", prediction.workload, "dr")
        run.rows(JOB_BURSTS).extend(job_bursts(interval, mode, port, uses, jobs))
    predicted = [prediction.jobs for prediction in PREDICTIONS.by_mode.values()]
    shifts = job_shifts(IntervalId("rail-only", "all jobs", "dr"), PREDICTIONS.interleaving, *predicted)
    run.rows(JOB_SHIFTS).extend(shifts)
    bursts = sorted((row.start_s, row.end_s) for row in run.rows(JOB_BURSTS) if row.mode == INTERLEAVED)
    # an iteration of each job is one burst, which ends before the other job's next one
    assert len(bursts) == 2 * 3
    assert all(end_s <= next_s for (_, end_s), (next_s, _) in pairwise(bursts))
    rows = interleaved_rows(Analysis(run))
    assert [(row.job, row.before) for row in rows] == [("crossing", None), ("straight", None)]
    # with noise, bursts meet now and then
    assert [row.after_predicted for row in rows] == pytest.approx([1, 1], abs=0.03)
    section = InterleavingSection()
    assert section.applies(Analysis(run))
    assert len(section.parts(Analysis(run))["plots"]) == 1
    console = Console(width=140)
    with console.capture() as capture:
        section.show(Analysis(run), console)
    assert "crossing" in capture.get()
    assert len(section.summary(Analysis(run))["interleaving"]) == 2


def test_three_jobs_are_interleaved() -> None:
    """All three reach rank 1 of another domain over the rail link of d0g1."""
    pairs = (("d0g0", "d1g1"), ("d0g1", "d2g1"), ("d0g2", "d3g1"))
    jobs = [{**job(src, src, dst), "compute": "4s"} for src, dst in pairs]
    spec = parse({"name": "x", "fabrics": [FABRIC | {"domains": 4, "rails": 3}], "jobs": jobs, "interleaving": True})
    plan = nominal_plan(spec.gpu_fabrics[0])
    worst = worst_by_mode(predicted_jobs(planned_jobs(spec, 0, plan), plan, True))
    assert worst[TOGETHER] > 1.2
    assert worst[INTERLEAVED] == pytest.approx(1)
