"""Lab 12's answers about two jobs, which follow from paths and halves of a link, against a simulation of both."""

import pytest

from railyard.experiments.labs.definition import NOMINAL_BPS, Setting, find
from railyard.experiments.labs.functions.jobs import shared_links
from railyard.experiments.measures.jobs.links import rates_of
from railyard.experiments.measures.jobs.planning import planned_jobs
from railyard.experiments.spec.loading import load_any
from railyard.results.theory.fluid.jobs import JobsPrediction, predict_jobs
from railyard.topologies.plan import make_plan

LAB = find("12")
RUNS = {run.name: run for run in LAB.runs}
STUDENTS = ("", "student1")


def predicted(setting: Setting, run: str, fabric: int) -> JobsPrediction:
    """The simulation of the jobs on a fabric of a run that the lab asks for."""
    spec = load_any(RUNS[run].experiment, setting.overrides(RUNS[run]))
    plan = make_plan(spec.gpu_fabrics[fabric], NOMINAL_BPS)
    return predict_jobs(planned_jobs(spec, fabric, plan).combined, rates_of(plan), plan.spec)


def right(setting: Setting, name: str) -> float:
    (question,) = (question for question in LAB.questions if question.name == name)
    answer = question.right(setting)
    assert isinstance(answer, int | float)
    return answer


@pytest.mark.parametrize("student", STUDENTS)
def test_shared_links_are_used_by_both_jobs(student: str) -> None:
    setting = Setting.of(LAB, student)
    prediction = predicted(setting, "together", 1)
    users: dict[str, set[int]] = {}
    for use in prediction.uses:
        if use.port.side == "rail" and use.port.is_out:
            users.setdefault(use.port.node, set()).add(use.job)
    assert {gpu for gpu, jobs in users.items() if len(jobs) == 2} == shared_links(setting)
    slow_downs = [times.slow_down for times in prediction.times]
    assert slow_downs == pytest.approx([right(setting, "slow_down")] * 2, rel=0.001)


@pytest.mark.parametrize("student", STUDENTS)
def test_rectangles_of_the_lab_slow_no_job(student: str) -> None:
    setting = Setting.of(LAB, student)
    slow_downs = [times.slow_down for times in predicted(setting, "together", 0).times]
    assert slow_downs == pytest.approx([right(setting, "apart")] * 2, rel=0.001)


@pytest.mark.parametrize("student", STUDENTS)
def test_bursts_that_collide_take_twice_their_time(student: str) -> None:
    setting = Setting.of(LAB, student)
    slow_downs = [times.slow_down for times in predicted(setting, "interleaved", 0).times]
    assert slow_downs == pytest.approx([right(setting, "collided")] * 2, rel=0.001)
