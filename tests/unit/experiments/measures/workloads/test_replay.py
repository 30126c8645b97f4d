"""Records of a replay: times beside predictions, flows, and bytes counted three ways."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from railyard.experiments.measures.workloads import replay as workload_replay
from railyard.experiments.measures.workloads.checks import checks
from railyard.experiments.measures.workloads.records import WAITS
from railyard.experiments.measures.workloads.replay import run_workload
from railyard.experiments.measures.workloads.turn import Turn, Workload
from railyard.experiments.run.machines import Machines
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import Measurement, Run
from railyard.results.theory.predict import predict_schedule
from railyard.results.theory.stated import SIMULATED
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.waiting import waiting_transfers
from railyard.workloads.replay.run import Replay
from railyard.workloads.schedule import Phase, Program, Schedule, payload_rates
from railyard.workloads.spec import build, parse_workload
from tests.unit.stand_ins import FIRST_UPLINK, GPU_PORT, plan_of, run_of, session_of

SECOND = 1_000_000_000
ALL_TO_ALL = {"kind": "collective", "collective": "all-to-all", "algorithm": "in-rail", "bytes": "1MB"}
GPT = {"kind": "gpt", "duration": "1s", "compute": 0.1}


def workload_on(plan: Plan, data: dict[str, Any]) -> Workload:
    schedule, scale, *_ = build(parse_workload(data), plan.spec, plan.rail_bps, plan.hb_bps)
    return Workload("mine", schedule, scale, data["kind"] != "collective")


def replay_of(schedule: Schedule, without: frozenset[int] = frozenset(), corrupt: tuple[int, ...] = ()) -> Replay:
    """Task n runs from n ms to n + 2 ms, the last one until 4 s are over."""
    came = {n for n in range(len(schedule.tasks)) if n not in without}
    spans = {n: (SECOND + n * 1_000_000, SECOND + (n + 2) * 1_000_000) for n in came}
    if came:
        spans[max(came)] = (spans[max(came)][0], 5 * SECOND)
    delivered = {n: t.bytes for n, t in schedule.transfers if n in came and n not in corrupt}
    broken = tuple(f"{n} broke" for n in without)
    return Replay(schedule, SECOND, 5 * SECOND, spans, delivered, corrupt, broken)


@pytest.fixture
def no_fabric(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`replay` gives what is put in here under that name; how it was called comes out under `called`."""
    replays: dict[str, Any] = {}

    def replay(
        schedule: Schedule,
        windows: object,
        seed: int,
        deadline_s: float,
        progress: object,
        places: object,
        unreachable: frozenset[tuple[int, int]],
        **shown: object,
    ) -> Replay:
        assert places == ()
        replays["called"] = (seed, deadline_s)
        replays["unreachable"] = unreachable
        replays.get("meanwhile", lambda: None)()
        made: Replay = replays["replay"]
        return made

    monkeypatch.setattr(workload_replay, "replay", replay)
    monkeypatch.setattr(Machines, "relaxed_tcp_timers", lambda *_: nullcontext())
    return replays


def run_once(plan: Plan, workload: Workload, replays: dict[str, Any], **replayed: Any) -> Run:
    run, (session, _) = run_of(), session_of(plan)
    replays["replay"] = replay_of(workload.schedule, **replayed)
    run_workload(Turn(session, workload, 3, 7, run))
    return run


def test_a_collective_has_a_time_beside_its_prediction(no_fabric: dict[str, Any]) -> None:
    plan = plan_of()
    workload = workload_on(plan, ALL_TO_ALL)
    run = run_once(plan, workload, no_fabric)
    rows = {m.metric: m for m in run.measurements if m.phase == ""}
    time, throughput = rows["completion_time"], rows["throughput"]
    assert (time.value, time.repeat, time.policy, time.fabric) == (4.0, 3, "dr", "a fabric")
    assert time.predicted == pytest.approx(1_000_000 / (12_500_000 * 8948 / 9014))  # a megabyte to one peer
    assert time.ratio == pytest.approx(4.0 * (12_500_000 * 8948 / 9014) / 1_000_000)
    assert throughput.value == sum(workload.schedule.matrix.values()) * 8 / 4.0
    assert no_fabric["called"][0] == 7


def test_an_iteration_has_a_time_and_each_of_its_phases_too(no_fabric: dict[str, Any]) -> None:
    plan = plan_of()
    run = run_once(plan, workload_on(plan, GPT), no_fabric)
    whole = [m for m in run.measurements if m.metric == "iteration_time"]
    assert [m.value for m in whole] == [4.0]
    phases = {m.phase: m for m in run.measurements if m.metric == "completion_time"}
    assert phases.keys() >= {"tp-all-gather", "tp-reduce-scatter", "pp"}
    assert all(m.predicted and m.value > 0 for m in phases.values())
    projected = {m.phase for m in run.measurements if m.metric == "projected_full_size"}
    assert projected >= {"", "tp-all-gather"}


def test_whole_of_a_workload_with_stragglers_is_predicted(no_fabric: dict[str, Any]) -> None:
    plan = plan_of()

    def times_of(data: dict[str, Any]) -> list[Measurement]:
        run = run_once(plan, workload_on(plan, data), no_fabric)
        return [row for row in run.measurements if row.metric in ("iteration_time", "completion_time")]

    even, *_ = times_of(GPT)
    slow, *phases = times_of({**GPT, "stragglers": {"slow": {"d0g1": 2.0}}})
    assert (slow.predicted or 0.0) > (even.predicted or 0.0)
    assert slow.formula.startswith(SIMULATED)
    assert not slow.not_compared
    assert all(row.predicted is None and row.not_compared for row in phases)


def test_transfer_rounds_have_a_time_each_and_their_sum(no_fabric: dict[str, Any]) -> None:
    plan = plan_of()
    data = {"kind": "transfers", "duration": "1s", "rounds": 3, "stripes": 2}
    schedule, scale, *_ = build(parse_workload(data), plan.spec, plan.rail_bps, plan.hb_bps)
    run = run_once(plan, Workload("mine", schedule, scale, False), no_fabric)
    rows = {m.phase: m for m in run.measurements if m.metric == "completion_time"}
    assert [rows[""].value, rows[""].predicted] == pytest.approx([4, 3])
    assert [rows["transfer"].value, rows["transfer"].predicted] == pytest.approx([0.003, 1])
    assert rows["receipt"].predicted is None


@pytest.mark.parametrize(
    ("is_iteration", "is_uneven", "seconds"), [(False, False, 3.9), (True, False, 4.0), (False, True, 4.0)]
)
def test_iterations_and_stragglers_count_computing_at_their_ends(
    is_iteration: bool, is_uneven: bool, seconds: float, no_fabric: dict[str, Any]
) -> None:
    plan = plan_of()
    program = Program(plan.spec.domains, plan.spec.rails)
    phase = program.phase(Phase("exchange", "mine", "", 1, 2, 1_000_000))
    for _ in range(100):  # tasks of 1 ms each in the stand-in, before the first send
        program.compute(0, 0.001, phase)
    program.send(0, plan.spec.rails, 1_000_000, phase, program.last(0))
    schedule = replace(program.schedule("mine"), is_uneven=is_uneven)
    scale = build(parse_workload(ALL_TO_ALL), plan.spec, plan.rail_bps, plan.hb_bps).scale
    run = run_once(plan, Workload("mine", schedule, scale, is_iteration), no_fabric)
    (row,) = (m for m in run.measurements if m.phase == "" and m.metric in ("iteration_time", "completion_time"))
    assert row.value == pytest.approx(seconds)
    (throughput,) = (m for m in run.measurements if m.metric == "throughput")
    assert throughput.value == pytest.approx(8_000_000 / seconds)


def test_missing_and_corrupt_transfers_are_counted(no_fabric: dict[str, Any]) -> None:
    """A broken connection ends a replay early: that would look like a fast run."""
    plan = plan_of()
    workload = workload_on(plan, ALL_TO_ALL)
    lost, transfer = workload.schedule.transfers[-1]
    run = run_once(plan, workload, no_fabric, without=frozenset({lost}))
    assert run.measurements == []
    (check,) = run.bytes
    assert (check.pairs_wrong, check.asked_bytes - check.delivered_bytes) == (1, transfer.bytes)
    assert [flow.delivered for flow in run.flows][-1] == 0
    assert run.events[-1].detail["broken"] == [f"{lost} broke"]
    corrupt = run_once(plan, workload, no_fabric, corrupt=(0,))
    assert corrupt.bytes[0].pairs_wrong == 1
    assert (corrupt.flows[0].delivered, corrupt.flows[0].end_ns > 0) == (0, True)


def test_flows_name_gpus_and_phases(no_fabric: dict[str, Any]) -> None:
    plan = plan_of(rails=3)
    workload = workload_on(plan, {**ALL_TO_ALL, "algorithm": "two-phase", "bytes": "30KB"})
    run = run_once(plan, workload, no_fabric)
    assert len(run.flows) == len(workload.schedule.transfers)
    first = run.flows[0]
    _, transfer = workload.schedule.transfers[0]
    assert (first.src, first.dst) == (plan.gpus[transfer.src].name, plan.gpus[transfer.dst].name)
    assert (first.bytes, first.delivered, first.kind) == (transfer.bytes, transfer.bytes, "collective")
    assert (first.start_ns, first.end_ns) == (SECOND, SECOND + 2_000_000)


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized", "single-switch"])
def test_port_counters_are_of_this_replay_alone(kind: str, no_fabric: dict[str, Any]) -> None:
    """What GPUs sent into rail switches, and what these sent up to spines: both since the replay began."""
    plan, run = plan_of(kind), run_of()
    session, controller = session_of(plan)
    switch = plan.switches[0].name
    controller.carried(switch, GPU_PORT, rx_bytes=1000, tx_bytes=77)
    if plan.uplinks:
        controller.carried("spine0", 1, rx_bytes=9, tx_bytes=9)
        controller.carried(switch, FIRST_UPLINK, rx_bytes=88, tx_bytes=500)

    def meanwhile() -> None:
        controller.carried(switch, GPU_PORT, rx_bytes=1_500_000, tx_bytes=99)
        if plan.uplinks:
            controller.carried(switch, FIRST_UPLINK, rx_bytes=99, tx_bytes=700)
            controller.carried("spine0", 1, rx_bytes=99_999, tx_bytes=99_999)

    workload = workload_on(plan, ALL_TO_ALL)
    no_fabric.update(meanwhile=meanwhile, replay=replay_of(workload.schedule))
    run_workload(Turn(session, workload, 0, 1, run))
    (check,) = run.bytes
    assert check.rail_port_bytes == 1_499_000
    assert check.rail_expected_bytes == round(4_000_000 * 9014 / 8948)
    assert check.cross_rail_bytes == (200 if plan.uplinks else 0)
    assert controller.asked_for == [len(plan.switches)] * 2


MOE = {"kind": "moe", "duration": "3s", "compute": 0.02, "all_to_alls": 1}


@pytest.mark.parametrize(
    ("busiest", "slower", "verdict"),
    [(1.0, 1.0, "ok"), (1.0, 1.2, "degraded"), (1.6, 1.2, "ok"), (1.6, 1.0, "invalid"), (1.6, 1.3, "degraded")],
)
def test_hashed_flows_are_judged_by_the_busiest_uplinks_load(
    busiest: float, slower: float, verdict: str, no_fabric: dict[str, Any]
) -> None:
    """On 4x4 an uplink that has n times the mean takes 3 n / 4 of Eq. 2: three of four bytes change rails."""
    plan, run = plan_of("rail-optimized", 4, 4), run_of()
    workload = workload_on(plan, MOE)
    session, controller = session_of(plan)
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    predicted_s = predict_schedule(workload.schedule, rates, plan.spec)["moe-a2a"]
    end_ns = SECOND + round(slower * predicted_s * SECOND)
    done = replay_of(workload.schedule)
    for number, transfer in workload.schedule.transfers:
        if workload.schedule.phases[transfer.phase].name == "moe-a2a":
            done.spans[number] = SECOND, end_ns
    for switch in (switch.name for switch in plan.switches if switch.role == "rail"):
        controller.carried(switch, FIRST_UPLINK)
        controller.carried(switch, FIRST_UPLINK + 1)

    def meanwhile() -> None:
        for switch in (switch.name for switch in plan.switches if switch.role == "rail"):
            controller.carried(switch, FIRST_UPLINK, 10_000_000, 10_000_000)
            controller.carried(switch, FIRST_UPLINK + 1, 10_000_000, 10_000_000)
        controller.carried("rail1", FIRST_UPLINK, 10_000_000, round(10_000_000 * busiest))
        controller.carried("rail1", FIRST_UPLINK + 1, 10_000_000, round(10_000_000 * (2 - busiest)))

    no_fabric.update(meanwhile=meanwhile, replay=done)
    run_workload(Turn(session, workload, 0, 1, run))
    (row,) = (m for m in run.measurements if (m.phase, m.metric) == ("moe-a2a", "completion_time"))
    assert row.ratio == pytest.approx(slower, abs=1e-6)
    assert judge(run).rows[row.interval, row.phase, row.metric] == verdict


RING = {"kind": "collective", "collective": "all-reduce", "bytes": "1MB", "gpus": ["d0g0", "d0g1", "d1g0", "d1g1"]}


def test_a_communicator_without_a_path_is_recorded_as_waiting(no_fabric: dict[str, Any]) -> None:
    plan = plan_of(policy="isolated")
    workload = workload_on(plan, RING)
    waiting = waiting_transfers(workload.schedule, plan.spec)
    run = run_once(plan, workload, no_fabric, without=waiting)
    assert no_fabric["unreachable"] == {(1, 2), (3, 0)}
    assert no_fabric["called"][1] < 10
    assert run.measured("completion_time") == []
    (wait,) = run.rows(WAITS)
    assert (wait.communicator, wait.operation, wait.pair) == ("all-reduce", "all-reduce", "d0g1 -> d1g0")
    assert (wait.pairs, wait.arrived) == (2, 0)
    (count,) = run.bytes
    assert count.pairs_wrong == 0
    assert count.asked_bytes == count.delivered_bytes > 0
    assert count.asked_bytes < sum(workload.schedule.matrix.values())
    assert [check.passed for check in checks(run)] == [True, True]


def test_bytes_that_arrive_without_a_path_fail_the_checks(no_fabric: dict[str, Any]) -> None:
    plan = plan_of(policy="isolated")
    run = run_once(plan, workload_on(plan, RING), no_fabric)
    (wait,) = run.rows(WAITS)
    assert wait.arrived == wait.pairs == 2
    assert [check.passed for check in checks(run)] == [False, False]
