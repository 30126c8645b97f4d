"""GREYHOUND names slow GPUs and links from iteration times, transfers, and a few passes of validation."""

from collections.abc import Mapping

import numpy as np
import pytest

from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.diagnosis.definition import DETECTORS, Culprit, Diagnosis, Play, Spans, diagnose
from railyard.failure.diagnosis.validation import PASS_S
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric
from railyard.workloads.schedule import Phase, Program, Schedule
from railyard.workloads.tasks import Compute

Slow = Mapping[tuple[str, int], float]
"""Times as long as healthy, by part and GPU number."""


def ring_job(domains: int, rails: int) -> Schedule:
    """Return an iteration in which GPUs compute, then send around a ring in each domain and on each rail."""
    program = Program(domains, rails)
    for gpu in range(domains * rails):
        program.compute(gpu, 1.0, program.phase(Phase("compute", "compute", "", 1, 1, 0.0)))
    tensor = program.phase(Phase("tp", "TP", "", rails, 1, 0.0))
    for domain in range(domains):
        for rank in range(rails):
            src = domain * rails + rank
            program.send(src, domain * rails + (rank + 1) % rails, 100, tensor, program.last(src))
    data = program.phase(Phase("dp", "DP", "", 1, domains, 0.0))
    for domain in range(domains):
        for rank in range(rails):
            src = domain * rails + rank
            program.send(src, (domain + 1) % domains * rails + rank, 100, data, program.last(src))
    return program.schedule("ring job")


def playing(slow: Slow, plan: Plan) -> Play:
    """Return a fabric in which every task takes `PASS_S`, times what is slow at its GPU or at an end of its link."""

    def play(schedule: Schedule) -> Spans:
        spans: list[tuple[float, float]] = []
        for task in schedule.tasks:
            if isinstance(task, Compute):
                ratio = slow.get(("gpu", task.gpu), 1.0)
            else:
                part = "hb" if plan.gpus[task.src].domain == plan.gpus[task.dst].domain else "rail"
                ratio = max(slow.get((part, gpu), 1.0) for gpu in (task.src, task.dst))
            spans.append((0.0, PASS_S * ratio))
        return np.array(spans)

    return play


def diagnosis_of(slow: Slow, domains: int = 4, rails: int = 4, ratio: float = 1.5) -> Diagnosis:
    """Diagnose a job of which 10 iterations are healthy, and 5 take `ratio` times as long."""
    plan = nominal_plan(parse_fabric({"kind": "rail-only", "domains": domains, "rails": rails}))
    job = ring_job(domains, rails)
    healthy = playing({}, plan)(job)
    ill = playing(slow, plan)(job)
    seconds = [1.0] * 10 + [ratio] * 5
    spans = [healthy] * 10 + [ill] * 5
    return diagnose(DETECTORS["greyhound"], plan, job, seconds, spans.__getitem__, playing(slow, plan))


@pytest.mark.parametrize("part", ["gpu", "rail", "hb"])
@pytest.mark.parametrize("gpu", [0, 6, 15])
def test_slow_gpu_or_link_is_named(part: str, gpu: int) -> None:
    diagnosis = diagnosis_of({(part, gpu): 1.5})
    assert diagnosis.change is not None
    assert diagnosis.change.iteration == 10
    assert [(culprit.part, culprit.name) for culprit in diagnosis.culprits] == [(part, f"d{gpu // 4}g{gpu % 4}")]


def test_healthy_link_between_two_slow_ones_is_not_named() -> None:
    diagnosis = diagnosis_of({("hb", 0): 1.5, ("hb", 2): 2.0})
    assert [culprit.name for culprit in diagnosis.culprits] == ["d0g2", "d0g0"]


def test_link_and_gpu_are_named_together() -> None:
    diagnosis = diagnosis_of({("gpu", 3): 3.0, ("rail", 9): 2.0})
    assert [culprit.title for culprit in diagnosis.culprits] == ["GPU d0g3", "rail link of d2g1"]
    assert not diagnosis.is_right(Culprit("gpu", "d0g3", 1.0))


def test_of_a_rail_with_two_links_both_are_named() -> None:
    diagnosis = diagnosis_of({("rail", 1): 2.0}, domains=2, rails=3)
    assert [culprit.name for culprit in diagnosis.culprits] == ["d0g1", "d1g1"]


def test_slow_job_without_a_slow_part_has_no_culprit() -> None:
    diagnosis = diagnosis_of({})
    assert diagnosis.change is not None
    assert diagnosis.culprits == ()


def test_job_that_got_faster_is_not_examined() -> None:
    assert diagnosis_of({("gpu", 3): 3.0}, ratio=0.5) == Diagnosis(None)
