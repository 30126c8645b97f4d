"""State that a replacement rank receives, its sources, and the minimum time."""

import pytest

from railyard.core.errors import BadInput
from railyard.topologies.platforms import PLATFORMS
from railyard.topologies.spec import parse_fabric
from railyard.workloads.jobs.migration import state_bytes, state_peers, state_s, state_schedule, state_senders
from railyard.workloads.placement.layout import place_with_spares, relabelled
from railyard.workloads.schedule import Rates
from railyard.workloads.spec import build, parse_workload

FABRIC = parse_fabric({"kind": "rail-only", "domains": 4, "rails": 4})
RAIL_BPS = 100_000_000
HB_BPS = round(RAIL_BPS * PLATFORMS["a100"].ratio)
GPT = parse_workload({"kind": "gpt", "duration": "500ms"})


def test_the_state_is_eight_times_the_gradients_in_16_bits() -> None:
    schedule, scale, *_ = build(GPT, FABRIC, RAIL_BPS, HB_BPS)
    gradients = next(phase.data_bytes for phase in schedule.phases if phase.kind == "DP")
    assert state_bytes(GPT, scale, "w") == pytest.approx(8 * gradients, rel=1e-3)


def test_a_gpu_with_all_parameters_has_all_their_state() -> None:
    spec = parse_workload({"kind": "data-parallel", "bytes": "1MB"})
    schedule, scale, *_ = build(spec, FABRIC, RAIL_BPS, HB_BPS)
    gradients = sum(phase.data_bytes for phase in schedule.phases)  # in 32 bits
    assert state_bytes(spec, scale, "w") == pytest.approx(4 * gradients, rel=1e-3)
    assert state_peers(schedule)[5] == frozenset(range(16)) - {5}


def test_senders_of_state_stay_on_a_rail_and_have_one_receiver() -> None:
    spec = parse_workload({"kind": "data-parallel", "bytes": "1MB"})
    schedule = build(spec, FABRIC, RAIL_BPS, HB_BPS).schedule
    moves = {4: 16, 5: 17, 8: 18}
    assert state_senders(schedule, moves, frozenset(moves), "w") == {16: 0, 17: 1, 18: 12}


@pytest.mark.parametrize("keys", [{"kind": "moe"}, {"kind": "collective", "collective": "all-gather"}])
def test_workload_without_state_is_refused(keys: dict[str, str]) -> None:
    spec = parse_workload(keys)
    _, scale, *_ = build(spec, FABRIC, RAIL_BPS, HB_BPS)
    with pytest.raises(BadInput, match="data-parallel or gpt") as caught:
        state_bytes(spec, scale, "takeovers.0.workload")
    assert caught.value.field == "takeovers.0.workload.kind"


def test_gpt_twins_are_its_stages_replicas_on_its_rail() -> None:
    schedule, *_ = build(GPT, FABRIC, RAIL_BPS, HB_BPS)  # two stages of two replicas, a domain each
    assert state_peers(schedule) == {n: frozenset({n ^ 4}) for n in range(16)}


def test_domain_state_is_sent_rank_by_rank_on_its_rail() -> None:
    schedule, *_ = build(GPT, FABRIC, RAIL_BPS, HB_BPS)
    job = relabelled(schedule, place_with_spares((4, 4), (5, 4)), 20, 4)
    moves = {4 + rank: 16 + rank for rank in range(4)}
    state_sources = state_senders(job, moves, frozenset(moves), "takeovers.0")
    assert state_sources == {16 + rank: rank for rank in range(4)}
    state = state_schedule(job, state_sources, 1_000_000)
    state.check()
    assert sum(state.matrix.values()) == 4_000_000
    assert state_s(state, Rates(hb=12e6, rail=1e6), FABRIC) == pytest.approx(1.0)


def test_dr_state_that_changes_rails_shares_its_ports() -> None:
    schedule, *_ = build(GPT, FABRIC, RAIL_BPS, HB_BPS)
    job = relabelled(schedule, place_with_spares((4, 4), (4, 5)), 20, 5)
    state_sources = state_senders(job, {6: 9}, frozenset({6}), "takeovers.0")  # d1g1's rank to d1g4
    assert state_sources == {9: 1}
    state = state_schedule(job, state_sources, 1_000_000)
    assert state_s(state, Rates(hb=0.5e6, rail=1e6), FABRIC) == pytest.approx(2.0)  # d0g1 -hb-> d0g4 -rail-> d1g4


def test_state_without_a_replica_is_refused() -> None:
    small = parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2})
    schedule, *_ = build(GPT, small, RAIL_BPS, HB_BPS)
    with pytest.raises(BadInput) as caught:
        state_senders(schedule, {0: 3}, frozenset({0}), "takeovers.0.workload")
    assert caught.value.field == "takeovers.0.workload"
