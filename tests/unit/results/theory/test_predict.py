"""Predictions of phases and iterations; the tasks' own pace agrees with the equations, which know no tasks."""

import pytest

from railyard.results.theory.predict import (
    explained_ratios,
    full_step_s,
    predict_iteration,
    predict_phase,
    predict_schedule,
    project_to_full_size,
)
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.prediction import WHOLE
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, collective_schedule
from railyard.workloads.matrix.traffic_matrix import at_line_rate, line_rate_duration_s
from railyard.workloads.schedule import Phase, Rates, Schedule, payload_rates
from railyard.workloads.spec import build, parse_workload
from railyard.workloads.tasks import Transfer

RAIL, HB = 100_000_000, 1_200_000_000
RATES = payload_rates(HB, RAIL, 9000)
ONLY = FabricSpec(kind="rail-only")
OPTIMIZED = FabricSpec(kind="rail-optimized")
ALL = [name for name, algorithm in ALGORITHMS.items() if algorithm.collective]


@pytest.mark.parametrize(("platform", "longer"), [("a100", 0.009), ("h100", 0.017)])
def test_the_full_step_has_all_of_its_computing(platform: str, longer: float) -> None:
    """Rail-only IV-B: so much longer the whole step takes on rail-only, however much computing is kept."""
    hb_bps = 1_200_000_000 if platform == "a100" else 900_000_000
    for kept in (1.0, 0.02, 0.0):
        workload = parse_workload({"kind": "moe", "compute": kept, "duration": "3s"})
        seconds = []
        for kind in ("rail-only", "rail-optimized"):
            fabric = FabricSpec(kind=kind, domains=4, rails=4, platform=platform)
            seconds.append(full_step_s(build(workload, fabric, 100_000_000, hb_bps).scale, fabric) or 0.0)
        assert seconds[0] / seconds[1] - 1 == pytest.approx(longer, abs=5e-4)


def test_payload_is_a_frame_without_headers() -> None:
    assert payload_fraction(9000) == pytest.approx(0.99268, abs=1e-5)
    assert payload_fraction(1500) == 1448 / 1514
    assert payload_rates(HB, RAIL, 1500).rail == pytest.approx(RAIL / 8 * 1448 / 1514)


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.parametrize(("domains", "rails"), [(4, 4), (8, 8), (3, 5)])
def test_the_tasks_of_each_collective_take_its_equations_time(collective: str, domains: int, rails: int) -> None:
    schedule = collective_schedule(collective, domains, rails, 10**7)
    for fabric in (ONLY, OPTIMIZED):
        (expected,) = {*predict_schedule(schedule, RATES, fabric).values()}
        assert line_rate_duration_s(schedule, RATES, fabric) == pytest.approx(expected, rel=2e-3)


def test_forwarding_where_hb_is_slow_binds_at_the_hb_port() -> None:
    """x = y = 4, C_F = C_S = 1: dr's HB port carries 12 D, as its rail port does; C_F = 1/2 doubles it."""
    phase = Phase("a", "EP", "all-to-all", 4, 4, 1.0)
    assert predict_phase(phase, Rates(hb=1.0, rail=1.0), ONLY) == 12
    assert predict_phase(phase, Rates(hb=0.5, rail=1.0), ONLY) == 24
    assert predict_phase(phase, Rates(hb=0.5, rail=1.0), OPTIMIZED) == 12


def test_thin_spines_slow_a_direct_all_to_all_only() -> None:
    thin = FabricSpec(kind="rail-optimized", oversubscription=4.0)
    direct, two_phase = (Phase("a", "EP", c, 4, 4, 1e6) for c in ("all-to-all", "all-to-all-two-phase"))
    assert predict_phase(direct, RATES, thin) == pytest.approx(3 * predict_phase(direct, RATES, OPTIMIZED))
    assert predict_phase(two_phase, RATES, thin) == predict_phase(two_phase, RATES, OPTIMIZED)


def test_point_to_point_goes_where_its_peers_are() -> None:
    on_rail, in_domain = Phase("p", "PP", "point-to-point", 1, 2, 8.0), Phase("p", "PP", "point-to-point", 2, 1, 8.0)
    assert predict_phase(on_rail, Rates(hb=4.0, rail=1.0), ONLY) == 8
    assert predict_phase(in_domain, Rates(hb=4.0, rail=1.0), ONLY) == 2


def test_an_iteration_of_four_terms() -> None:
    """p = 2, d = 2, m = 4: 5 micro-batches of computing, 4 of collectives, 2 + 8 transfers on a rail, one AllReduce."""
    schedule, scale, *_ = build(parse_workload({"kind": "gpt"}), ONLY, RAIL, HB)
    assert schedule.iteration is not None
    steps = predict_schedule(schedule, RATES, ONLY)
    iteration_s = predict_iteration(schedule.iteration, RATES, ONLY)
    tensor = 2 * (steps["tp-all-gather"] + steps["tp-reduce-scatter"])
    by_hand = 5 * schedule.iteration.compute_s + 4 * tensor + (2 + 8) * steps["pp"] + steps["dp-all-reduce"]
    assert iteration_s == pytest.approx(by_hand)
    assert steps[WHOLE] == iteration_s
    assert line_rate_duration_s(schedule, scale.emulated_rates) == pytest.approx(iteration_s, rel=0.03)


@pytest.mark.parametrize(("layers", "overlaps"), [(1, True), (8, False)])
def test_iteration_time_may_equal_its_tasks(layers: int, overlaps: bool) -> None:
    """Long messages between stages overlap with other traffic; short ones let the term show that Eq. 6 leaves out."""
    workload = {"kind": "gpt", "layers_per_stage": layers, "micro_batch": 16, "compute": 0.01}
    schedule, scale, *_ = build(parse_workload(workload), ONLY, RAIL, HB)
    rates = scale.emulated_rates
    of_tasks = line_rate_duration_s(schedule, rates) / predict_schedule(schedule, rates, ONLY)[WHOLE]
    assert (of_tasks < 1) == overlaps
    least, most = explained_ratios(schedule, rates, ONLY)[WHOLE]
    assert (least, most) == pytest.approx((of_tasks if overlaps else 1.0, of_tasks))


def test_a_moe_step_is_its_all_to_alls_all_reduce_and_computing() -> None:
    schedule, *_ = build(parse_workload({"kind": "moe"}), ONLY, RAIL, HB)
    assert schedule.iteration is not None
    steps = predict_schedule(schedule, RATES, ONLY)
    by_hand = 4 * steps["moe-a2a"] + steps["dp-all-reduce"] + schedule.iteration.compute_s
    assert steps[WHOLE] == pytest.approx(by_hand)
    assert line_rate_duration_s(schedule, RATES) == pytest.approx(by_hand, rel=1e-3)


def test_phases_share_links_if_the_schedule_permits() -> None:
    phases = (Phase("a", "DP", "", 2, 2, 1), Phase("b", "DP", "", 2, 2, 1), Phase("c", "DP", "", 2, 2, 1))
    first, second = Transfer(0, 2, 1000, 0), Transfer(0, 2, 1000, 0)
    between, apart = Transfer(0, 2, 1000, 1), Transfer(1, 3, 1000, 2)
    mixed = Schedule("s", 4, 2, phases, (first, between, second, apart))
    assert at_line_rate(mixed, RATES, ONLY).shared == {("a", "b"): pytest.approx(1 / 3)}
    assert at_line_rate(Schedule("s", 4, 2, phases, (first, second, between, apart)), RATES, ONLY).shared == {}


def test_the_prediction_itself_projects_to_full_size() -> None:
    """16 DGX A100: Eq. 3 of 262,144 bytes a pair; a measured 10% more comes out as 10% more."""
    for data in ({"kind": "moe"}, {"kind": "gpt", "compute": 0.5}):
        schedule, scale, *_ = build(parse_workload(data), ONLY, RAIL, HB)
        predicted = predict_schedule(schedule, scale.emulated_rates, ONLY)
        full = project_to_full_size(scale, schedule, predicted, ONLY)
        assert full.keys() == predicted.keys()
        if data["kind"] == "moe":
            assert full["moe-a2a"] == pytest.approx(1.3562e-3, rel=1e-4)
        slower = project_to_full_size(scale, schedule, {k: 1.1 * v for k, v in predicted.items()}, ONLY)
        assert slower == pytest.approx({k: 1.1 * v for k, v in full.items()})
        assert predicted[WHOLE] / scale.time_factor < full[WHOLE]


def test_a_plain_collective_has_no_full_size() -> None:
    schedule, scale, *_ = build(parse_workload({"kind": "collective", "collective": "all-gather"}), ONLY, RAIL, HB)
    assert project_to_full_size(scale, schedule, {"all-gather-hierarchical": 1.0}, ONLY) == {}
