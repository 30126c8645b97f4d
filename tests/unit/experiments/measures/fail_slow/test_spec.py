"""Section fail_slow: what gets slow in each repeat, and values that are refused in one line."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.measures.fail_slow.run import job_of, phases_of_iteration
from railyard.experiments.measures.fail_slow.spec import FailSlowSpec, fault_of, place_of
from railyard.experiments.spec.experiment import nominal_plan
from railyard.experiments.spec.parsing import parse
from railyard.failure.diagnosis.cases import Case
from railyard.failure.diagnosis.definition import Culprit
from railyard.failure.faults import Fault
from railyard.topologies.spec import parse_fabric
from railyard.workloads.schedule import Phase, Program, Schedule

PLAN = nominal_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 3}))


def job() -> Schedule:
    """Return an iteration in which all GPUs compute, then send to the next one."""
    program = Program(2, 3)
    phase = program.phase(Phase("step", "step", "", 3, 2, 0.0))
    for gpu in range(6):
        program.compute(gpu, 0.002, phase)
        program.send(gpu, (gpu + 3) % 6, 100_000, phase, program.last(gpu))
    return program.schedule("job")


def experiment(**item: Any) -> dict[str, Any]:
    fabric = {"kind": "rail-only", "domains": 4, "rails": 4}
    return {"name": "mine", "fabrics": [fabric], "fail_slow": [item]}


def test_case_follows_from_seed_and_repeat() -> None:
    item = FailSlowSpec(part="rail")
    cases = [item.case(PLAN, job(), seed=1, repeat=repeat) for repeat in range(4)]
    assert len({case.culprit for case in cases}) > 1
    assert cases[2] == item.case(PLAN, job(), seed=1, repeat=2)


def test_equal_items_have_different_cases() -> None:
    items = [FailSlowSpec(part="gpu"), *(FailSlowSpec(part="rail") for _ in range(4))]
    places = [place_of(item, items) for item in items]
    assert places == [0, 0, 1, 2, 3]
    cases = [item.case(PLAN, job(), 1, 0, place) for item, place in zip(items[1:], places[1:], strict=True)]
    assert len(set(cases)) == 4


def test_values_of_the_file_take_the_place_of_drawn_ones() -> None:
    item = FailSlowSpec(part="hb", target="d1g2", ratio=2.0, iteration=9)
    assert item.case(PLAN, job(), 0, 0) == Case(Culprit("hb", "d1g2", 2.0), 9)
    assert FailSlowSpec(part="none").case(PLAN, job(), 0, 0).culprit is None


def test_slow_link_is_a_fault_and_a_slow_gpu_is_not() -> None:
    assert fault_of(Culprit("rail", "d0g1", 4.0)) == Fault.of("link-slow", "d0g1", rate=0.25)
    assert fault_of(Culprit("hb", "d0g1", 2.0)) == Fault.of("hb-port-slow", "d0g1", rate=0.5)
    assert fault_of(Culprit("gpu", "d0g1", 2.0)) is None


def test_gpu_computes_slowly_from_its_iteration_on() -> None:
    slow = job_of(job(), 3, Case(None, 1), [1, 1, 5, 1, 1, 1])
    seconds = slow.schedule.columns.seconds[slow.schedule.columns.src == 2]
    assert seconds[seconds > 0].tolist() == pytest.approx([0.002, 0.01, 0.01])
    assert {slow.schedule.phases[number].name for number in phases_of_iteration(slow, 1)} == {"job: step"}


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"part": "rail", "target": "d9g0"}, "fail_slow.0.target"),
        ({"part": "none", "ratio": 2}, "fail_slow.0.ratio"),
        ({"iteration": 22}, "fail_slow.0.iteration"),
        ({"detector": "greyhoun"}, "fail_slow.0.detector"),
        ({"workload": {"kind": "collective", "collective": "all-gather"}}, "fail_slow.0.part"),
        ({"workload": {"kind": "gptt"}}, "fail_slow.0.workload.kind"),
        ({"ratio": 0.5}, "fail_slow.0.ratio"),
    ],
)
def test_impossible_case_is_refused_by_its_field(item: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        parse(experiment(**item))
    assert str(error.value).startswith(f"{field}:")
