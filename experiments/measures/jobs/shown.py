"""Events by which observers of a run, such as the live page, learn the GPUs of each job and the links that it uses."""

from typing import Any

import numpy as np

from railyard.experiments.run import observers
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
