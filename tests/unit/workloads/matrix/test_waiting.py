"""Transfers that wait for ever on isolated rails: which ones, of which communicator, and what is left to count."""

from collections.abc import Sequence

import pytest
from hypothesis import given

from railyard.results.theory.predict import predict_schedule
from railyard.results.theory.stated import stated
from railyard.topologies.prediction import WHOLE, NotCompared
from railyard.topologies.spec import FabricSpec, parse_fabric
from railyard.workloads.matrix.traffic_matrix import port_bytes
from railyard.workloads.matrix.waiting import (
    Wait,
    unreachable_pairs,
    wait_lines,
    waiting_phases,
    waiting_transfers,
    waits,
    without_transfers,
)
from railyard.workloads.schedule import Phase, Program, Schedule, payload_rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Transfer
from tests.unit.workloads.schedules import schedules

RATES = payload_rates(240_000_000, 20_000_000, 9000)
CROSSING = ("d0g0", "d0g1", "d1g0", "d1g1")
ALIGNED = ("d0g0", "d0g1", "d1g1", "d1g0")


def fabric_of(policy: str, domains: int = 2, rails: int = 2) -> FabricSpec:
    return parse_fabric({"kind": "rail-only", "domains": domains, "rails": rails, "policy": policy})


def ring(gpus: Sequence[str], policy: str = "isolated") -> Schedule:
    data = {"kind": "collective", "collective": "all-reduce", "name": "ring", "gpus": list(gpus), "bytes": "4MB"}
    return build(parse_workload(data), fabric_of(policy), 20_000_000, 240_000_000).schedule


def test_a_ring_that_crosses_rails_waits_at_its_first_crossing() -> None:
    schedule = ring(CROSSING)
    isolated = fabric_of("isolated")
    assert unreachable_pairs(schedule, isolated) == {(1, 2), (3, 0)}
    assert waits(schedule, isolated) == (Wait("ring", "all-reduce", (0, 1, 2, 3), ((1, 2), (3, 0))),)
    assert waiting_phases(schedule, isolated).keys() == {"all-reduce"}
    line, remedy = wait_lines(schedule, isolated)
    for name in ("ring communicator", "0 on d0g0, 1 on d0g1, 2 on d1g0, 3 on d1g1", "all-reduce", "d0g1 -> d1g0"):
        assert name in line
    assert "NCCL_PXN_DISABLE=0" in remedy


@pytest.mark.parametrize(("gpus", "policy"), [(ALIGNED, "isolated"), (CROSSING, "dr"), (CROSSING, "rd")])
def test_no_communicator_waits_on_its_rails_or_with_forwarding(gpus: tuple[str, ...], policy: str) -> None:
    schedule = ring(gpus, policy)
    fabric = fabric_of(policy)
    assert waits(schedule, fabric) == ()
    assert waiting_transfers(schedule, fabric) == frozenset()
    assert without_transfers(schedule, frozenset()) is schedule
    assert predict_schedule(schedule, RATES, fabric)["all-reduce"] > 0


def test_a_communicator_that_waits_has_no_predicted_time() -> None:
    schedule = ring(CROSSING)
    isolated = fabric_of("isolated")
    reason = NotCompared(waiting_phases(schedule, isolated)["all-reduce"])
    assert "d0g1 -> d1g0" in reason.reason
    assert stated(schedule, RATES, isolated) == {"all-reduce": reason, WHOLE: reason}
    assert predict_schedule(schedule, RATES, isolated) == {}


def test_tasks_after_a_transfer_without_a_path_wait_too() -> None:
    program = Program(2, 2)
    phase = program.phase(Phase("exchange", "mine", "", 1, 2, 10))
    arrives = program.send(0, 2, 10, phase, ())
    crosses = program.send(0, 3, 10, phase, (arrives,))
    program.wait_for(0, [crosses])
    program.compute(0, 1.0, phase)
    follows = program.send(0, 1, 10, phase, program.last(0))
    beside = program.send(1, 0, 10, phase, ())
    schedule = program.schedule("mine")
    isolated = fabric_of("isolated")
    assert waiting_transfers(schedule, isolated) == {crosses, follows}
    counted = without_transfers(schedule, waiting_transfers(schedule, isolated))
    assert counted.matrix == {(0, 2): 10, (1, 0): 10}
    assert beside not in waiting_transfers(schedule, isolated)


@pytest.mark.parametrize(
    ("kind", "name", "communicator"), [("DP", "", "DP"), ("collective", "", ""), ("EP", "ep", "ep")]
)
def test_communicators_are_named_by_trace_or_traffic(kind: str, name: str, communicator: str) -> None:
    program = Program(2, 2)
    program.send(0, 3, 10, program.phase(Phase("exchange", kind, "", 1, 2, 10, communicator=name)), ())
    schedule = program.schedule("mine")
    (wait,) = waits(schedule, fabric_of("isolated"))
    assert wait.communicator == communicator
    line = wait_lines(schedule, fabric_of("isolated"))[0]
    assert line.startswith(f"{communicator} communicator (".lstrip())


@given(schedule=schedules())
def test_waiting_transfers_follow_from_a_replay_by_hand(schedule: Schedule) -> None:
    """Ends of tasks are found by going round all tasks until nothing changes."""
    isolated = fabric_of("isolated", schedule.gpus // schedule.rails, schedule.rails)
    ended: set[int] = set()
    before = -1
    while len(ended) > before:
        before = len(ended)
        for number, task in enumerate(schedule.tasks):
            can_end = not isinstance(task, Transfer) or is_joined(task, schedule.rails)
            if can_end and ended.issuperset(task.after):
                ended.add(number)
    waiting = {number for number, _ in schedule.transfers if number not in ended}
    assert waiting_transfers(schedule, isolated) == waiting
    assert bool(waits(schedule, isolated)) == bool(unreachable_pairs(schedule, isolated))
    sent = without_transfers(schedule, frozenset(waiting))
    on_rails = sum(
        t.bytes for n, t in schedule.transfers if n in ended and t.src // schedule.rails != t.dst // schedule.rails
    )
    assert port_bytes(sent, isolated).rail_out.sum() == on_rails


def is_joined(transfer: Transfer, rails: int) -> bool:
    same_domain = transfer.src // rails == transfer.dst // rails
    return same_domain or transfer.src % rails == transfer.dst % rails
