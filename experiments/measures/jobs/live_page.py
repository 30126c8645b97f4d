"""The GPUs of each job and the links that it uses, for the live page: of a run under way, and of one that has ended."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from railyard.core.records import IntervalId
from railyard.experiments.measures.jobs.records import JOB_LINKS, JOB_RUNS, JobLink, JobRun
from railyard.experiments.run import observers
from railyard.results.analysis.aggregate import grouped
from railyard.results.runs.records import Run
from railyard.results.theory.fluid.simulation import FluidRun
from railyard.topologies.plan import Plan
from railyard.workloads.combined import CombinedSchedule


def show_jobs(fabric: str, plan: Plan, jobs: CombinedSchedule, routed: FluidRun) -> None:
    """Emit which jobs run from now on. `fabric`: its label. `routed`: a simulation with the routes of transfers."""
    observers.show("jobs", {"fabric": fabric, **jobs_on_fabric(plan, jobs, routed)})


def jobs_on_fabric(plan: Plan, jobs: CombinedSchedule, routed: FluidRun) -> dict[str, Any]:
    """Return the names of jobs, and their numbers by GPU and by link.

    A link is named by its node and side, `d0g1 rail`; the uplinks of a rail switch together, `rail0 uplink`.
    """
    gpus = {plan.gpus[gpu].name: number for gpu, number in jobs.job_of_gpu.items()}
    links: dict[str, list[int]] = {}
    is_transfer = routed.flow >= 0
    for number in range(len(jobs.jobs)):
        flows = np.unique(routed.flow[is_transfer & (jobs.job_of_task == number)])
        ports = np.unique(routed.routes.crossed[flows][routed.routes.shares[flows] > 0])
        # the same link in both directions is one link
        crossed = [routed.routes.ports[port] for port in ports.tolist()]
        for name in sorted({f"{port.node} {port.side}" for port in crossed}):
            links.setdefault(name, []).append(number)
    return {"names": [job.name for job in jobs.jobs], "gpus": gpus, "links": links}


def page_messages(run: Run, fabric_label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield which jobs ran on a fabric from when on, by the records of a run."""
    jobs = grouped(run.rows(JOB_RUNS), "interval")
    links = grouped(run.rows(JOB_LINKS), "interval")
    for event in run.events:
        if (event.source, event.what) != ("jobs", "started"):
            continue
        interval = IntervalId.of(event.detail)
        if interval.fabric == fabric_label and interval in jobs:
            recorded = _recorded_jobs(jobs[interval], links.get(interval, ()))
            yield "jobs", {"ns": event.monotonic_ns, "fabric": fabric_label, **recorded}


def _recorded_jobs(jobs: Sequence[JobRun], links: Sequence[JobLink]) -> dict[str, Any]:
    """Return the same as `jobs_on_fabric`, by the rows of an interval."""
    names = [job.job for job in jobs]
    gpus: dict[str, int] = {}
    for number, job in enumerate(jobs):
        gpus |= dict.fromkeys(job.gpus.split(), number)
    numbers_by_link: dict[str, set[int]] = {}
    for link in links:
        # a row may be of one of several uplinks or planes, which are one link here
        node, side, *_ = link.link.split()
        numbers_by_link.setdefault(f"{node} {side}", set()).add(names.index(link.job))
    return {"names": names, "gpus": gpus, "links": {link: sorted(users) for link, users in numbers_by_link.items()}}
