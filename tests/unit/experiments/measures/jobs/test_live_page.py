"""Jobs of a run that has ended, as the live page shows them: the same that it shows while they run."""

from typing import Any

from railyard.core.records import IntervalId
from railyard.experiments.measures.definition import MEASURES
from railyard.experiments.measures.jobs.links import link_records, measured_uses, rates_of
from railyard.experiments.measures.jobs.live_page import jobs_on_fabric
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.measures.jobs.records import JOB_LINKS, JOB_RUNS, JobRun
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.results.runs.records import Event, Run
from railyard.results.theory.fluid.jobs import predict_jobs
from tests.unit.stand_ins import run_of

SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "bytes": "100KB"}
SIZE = {"workload": SEND, "domains": 2, "rails": 1}
FABRIC = {"kind": "rail-only", "domains": 3, "rails": 2}
JOBS = [{"name": "crossing", "gpus": ["d0g0", "d1g1"], **SIZE}, {"name": "straight", "gpus": ["d0g1", "d2g1"], **SIZE}]
TOGETHER = IntervalId("rail-only", "all jobs", "dr", part="link-slow d0g1")


def ended_run() -> tuple[Run, dict[str, Any]]:
    """Return a run of two jobs, whose transfers took the predicted times, and what its live page showed of them."""
    spec = parse({"name": "x", "fabrics": [FABRIC], "jobs": JOBS})
    plan = nominal_plan(spec.gpu_fabrics[0])
    jobs = planned_jobs(spec, 0, plan).combined
    together = predict_jobs(jobs, rates_of(plan), plan.spec).together
    spans: dict[int, tuple[float, float]] = {}
    for task in range(len(jobs.schedule.tasks)):
        spans[task] = (float(together.start_s[task]), float(together.end_s[task]))
    links, _ = link_records(TOGETHER, measured_uses(together, spans, jobs), jobs)
    run = run_of()
    run.events.append(Event(5, "jobs", "started", TOGETHER.as_dict()))
    run.events.append(Event(6, "jobs", "finished", TOGETHER.as_dict()))
    run.rows(JOB_LINKS).extend(links)
    for job in jobs.jobs:
        gpus = " ".join(plan.gpus[gpu].name for gpu in job.gpus)
        row = JobRun(TOGETHER, job.name, "together", "gpus", gpus, 0.0, 3, 1.0, 1.0, 0.1, 100, 100, 0, 100)
        run.rows(JOB_RUNS).append(row)
    return run, jobs_on_fabric(plan, jobs, together)


def test_page_of_an_ended_run_shows_the_same_jobs() -> None:
    run, shown = ended_run()
    messages = list(MEASURES["jobs"].page_messages(run, "rail-only"))
    assert messages == [("jobs", {"ns": 5, "fabric": "rail-only", **shown})]
    assert shown["links"]["d0g1 rail"] == [0, 1]
    assert list(MEASURES["jobs"].page_messages(run, "rail-optimized")) == []
