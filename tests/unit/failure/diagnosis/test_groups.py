"""Communication groups: whose times count, and which links their transfers cross."""

import numpy as np
import pytest

from railyard.experiments.spec.experiment import nominal_plan
from railyard.failure.diagnosis.definition import Spans
from railyard.failure.diagnosis.groups import Group, GroupRuns, links_of_pairs
from railyard.topologies.plan import Plan
from railyard.topologies.spec import parse_fabric
from railyard.workloads.schedule import Phase, Program, Schedule


def plan_of(**keys: object) -> Plan:
    return nominal_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2, **keys}))


def two_groups() -> Schedule:
    """Return a schedule in which GPUs 0 and 2 exchange data on rail 0, and 1 and 3 on rail 1."""
    program = Program(2, 2)
    phase = program.phase(Phase("dp", "DP", "", 1, 2, 0.0))
    for src, dst in ((0, 2), (2, 0), (1, 3), (3, 1)):
        program.send(src, dst, 100, phase, ())
    return program.schedule("two groups")


def spans_of(seconds: float = 1.0, late: float = 0.0) -> Spans:
    """Return an iteration: a transfer takes 1 s, that from GPU 3 `seconds`, and GPU 2 begins `late` s late."""
    return np.array([(0.0, 1.0), (late, late + 1.0), (0.0, 1.0), (0.0, seconds)])


def test_group_with_a_slow_transfer_is_slower() -> None:
    groups = GroupRuns.of(two_groups()).slower([spans_of()] * 3, [spans_of(seconds=1.5)] * 3, 0.05)
    assert groups == {Group("dp", (1, 3)): pytest.approx(1.5)}


def test_group_that_waits_for_a_late_gpu_is_not_slower() -> None:
    assert GroupRuns.of(two_groups()).slower([spans_of()], [spans_of(late=0.5)], 0.05) == {}


def test_times_of_several_runs_of_a_group_are_added() -> None:
    program = Program(1, 2)
    for _ in range(2):
        program.send(0, 1, 100, program.phase(Phase("tp", "TP", "", 2, 1, 0.0)), ())
    runs = GroupRuns.of(program.schedule("two runs"))
    assert runs.groups == (Group("tp", (0, 1)),)
    assert runs.seconds(np.array([(0.0, 1.0), (5.0, 7.0)])).tolist() == [3.0]


def test_links_of_a_group_are_on_its_rail() -> None:
    schedule = two_groups()
    pairs = GroupRuns.of(schedule).pairs(schedule, [Group("dp", (1, 3))])
    assert pairs == [(1, 3), (3, 1)]
    links = links_of_pairs(pairs, plan_of())
    assert links == {("rail", 1), ("rail", 3)}


def test_forwarded_pair_crosses_links_of_the_gpus_that_forward() -> None:
    # dr: to d0g1 inside the domain, then along rail 1 to d1g1
    assert links_of_pairs([(0, 3)], plan_of()) == {("hb", 0), ("hb", 1), ("rail", 1), ("rail", 3)}


def test_gpus_that_share_a_nic_have_its_link() -> None:
    links = links_of_pairs([(1, 3)], plan_of(gpus_per_nic=2))
    assert links == {("rail", 0), ("rail", 2)}
