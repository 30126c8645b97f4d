"""Uneven experts: their shares, the bytes that follow, and how long the busiest port needs for them."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.errors import BadInput
from railyard.results.theory.bottleneck import bottleneck_s
from railyard.results.theory.predict import predict_phase, predict_schedule
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import Sizes
from railyard.workloads.collectives.all_to_all_uneven import Combine, Dispatch
from railyard.workloads.jobs.moe import gpu_shares, zipf_shares
from railyard.workloads.matrix.traffic_matrix import cross_rail_bytes, line_rate_duration_s, traffic_matrix
from railyard.workloads.schedule import Phase, Program, Rates, payload_rates
from railyard.workloads.spec import build, parse_workload
from tests.unit.workloads.schedules import SIDE

RAIL, HB = 100_000_000, 1_200_000_000
RATES = payload_rates(HB, RAIL, 9000)
ONLY = FabricSpec(kind="rail-only")
OPTIMIZED = FabricSpec(kind="rail-optimized")
FABRICS = [
    ONLY,
    FabricSpec(kind="rail-only", policy="rd"),
    OPTIMIZED,
    FabricSpec(kind="rail-optimized", policy="pxn"),
    FabricSpec(kind="rail-optimized", oversubscription=4.0),
    FabricSpec(kind="single-switch"),
]
BOTH: list[str] = ["all-to-all-dispatch", "all-to-all-combine"]
SKEW = st.floats(0, 2)
SEED = st.integers(0, 2**32 - 1)


def phase_of(collective: str, x: int, y: int, skew: float, seed: int, pair_bytes: float = 1e6) -> Phase:
    return Phase("a", "EP", collective, x, y, pair_bytes, shares=zipf_shares(x * y, skew, seed))


@given(experts=st.integers(1, 200), skew=SKEW, seed=SEED)
def test_shares_follow_the_law_and_add_up(experts: int, skew: float, seed: int) -> None:
    shares = zipf_shares(experts, skew, seed)
    assert sum(shares) == pytest.approx(1)
    ranked = sorted(shares, reverse=True)
    assert ranked == pytest.approx([ranked[0] / n**skew for n in range(1, experts + 1)])
    assert shares == zipf_shares(experts, skew, seed)


def test_seed_decides_the_popular_experts() -> None:
    most = Counter(max(range(4), key=zipf_shares(4, 1, seed).__getitem__) for seed in range(400))
    assert all(60 <= count <= 140 for count in most.values())  # 100 each, give or take four deviations
    assert len(most) == 4


def test_several_experts_of_a_gpu_share_its_popularity() -> None:
    """So a GPU with four experts is less uneven than one with the most popular expert alone."""
    experts = zipf_shares(32, 1.0, 5)
    shares = gpu_shares(8, 4, 1.0, 5)
    assert shares == pytest.approx([sum(experts[first : first + 4]) for first in range(0, 32, 4)])
    assert max(shares) < max(gpu_shares(8, 1, 1.0, 5))
    assert gpu_shares(8, 1, 1.0, 5) == zipf_shares(8, 1.0, 5)


def test_micro_batches_dispatch_and_combine_by_turns() -> None:
    """Of two all-to-alls of a micro-batch at a stage, the forward pass has one and the backward pass the other."""
    parallelism = {"tensor": 1, "pipeline": 2, "data": 8, "micro_batch": 1, "global_batch": 24, "expert": 8}
    spec = {"kind": "moe", "model": "deepseek-v3", "parallelism": parallelism, "bytes": "1MB", "skew": 1.0}
    schedule = build(parse_workload(spec), ONLY, RAIL, HB).schedule
    names = Counter(phase.name for phase in schedule.phases if phase.kind == "EP")
    assert names == {"moe-dispatch": 6, "moe-combine": 6}
    assert schedule.iteration is not None
    assert [phase.repeats for phase in schedule.iteration.each_micro_batch] == [1, 1]


@given(x=SIDE, y=SIDE, skew=SKEW, seed=SEED)
def test_every_gpu_exchanges_its_share_with_each_expert(x: int, y: int, skew: float, seed: int) -> None:
    grid = Program(y, x).grid
    out, back = (
        algorithm.pair_sizes(phase_of(name, x, y, skew, seed), grid)
        for name, algorithm in zip(BOTH, (Dispatch(), Combine()), strict=True)
    )
    shares, n = zipf_shares(x * y, skew, seed), x * y
    assert back == {(b, a): size for (a, b), size in out.items()}
    assert len(out) == n * (n - 1)
    for (_, expert), size in out.items():
        assert size == pytest.approx(n * 1e6 * shares[expert], abs=1)


@pytest.mark.parametrize("fabric", FABRICS, ids=lambda f: f"{f.kind}-{f.chosen_policy}-{f.oversubscription}")
@given(x=SIDE, y=SIDE, hb=st.floats(0.1, 20))
def test_busiest_port_without_skew_needs_the_equations_time(fabric: FabricSpec, x: int, y: int, hb: float) -> None:
    rates, pair = Rates(hb=hb, rail=1.0), 10**6
    expected = predict_phase(Phase("a", "EP", "all-to-all", x, y, pair), rates, fabric)
    sizes = {(a, b): pair for a in range(x * y) for b in range(x * y) if a != b}
    assert bottleneck_s([Sizes.of(sizes)], x, y, rates, fabric) == pytest.approx(expected)
    for collective in BOTH:
        assert predict_phase(phase_of(collective, x, y, 0, 1, pair), rates, fabric) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("fabric", "collective"),
    [(ONLY, "all-to-all-dispatch"), (OPTIMIZED, "all-to-all-dispatch"), (OPTIMIZED, "all-to-all-combine")],
)
@given(x=SIDE, y=SIDE, skews=st.lists(SKEW, min_size=2, max_size=4), seed=SEED)
def test_more_skew_never_takes_less(
    fabric: FabricSpec, collective: str, x: int, y: int, skews: list[float], seed: int
) -> None:
    """Where the rail of the most popular expert decides. The way back by dr is spread over its domain's rails."""
    times = [predict_phase(phase_of(collective, x, y, skew, seed), RATES, fabric) for skew in sorted(skews)]
    assert all(less <= more * (1 + 1e-5) for less, more in pairwise(times))


def test_by_hand() -> None:
    """2 x 2, shares 0.7 for d0g0 and 0.1 for the others, D = 1 MB: 2.8 MB to d0g0 from each, 0.4 MB to each other."""
    out, back = (Phase("a", "EP", c, 2, 2, 1e6, shares=(0.7, 0.1, 0.1, 0.1)) for c in BOTH)
    rates = Rates(hb=1e9, rail=1e6)
    assert predict_phase(out, rates, ONLY) == pytest.approx(5.6), "from both of d1 into d0g0"
    assert predict_phase(back, rates, OPTIMIZED) == pytest.approx(5.6), "out of d0g0 to both of d1"
    assert predict_phase(back, rates, ONLY) == pytest.approx(3.2), "what d0g0 has for d1g1, and d0g1 too, by rail 1"


@pytest.mark.parametrize("fabric", [ONLY, OPTIMIZED], ids=["rail-only", "rail-optimized"])
def test_skewed_moe_step_sends_as_many_bytes_as_an_even_one(fabric: FabricSpec) -> None:
    spec = {"kind": "moe", "all_to_alls": 3, "bytes": "1MB"}
    even, uneven = (
        build(parse_workload({**spec, "algorithm": "direct", "skew": skew}), fabric, RAIL, HB) for skew in (0, 1.2)
    )
    names = [phase.name for phase in uneven[0].phases]
    assert names == ["moe-dispatch", "moe-combine", "moe-dispatch", "dp-all-reduce"]
    auto = build(parse_workload({**spec, "skew": 1.2}), fabric, RAIL, HB)
    assert auto == uneven
    assert {p.data_bytes for p in uneven[0].phases} == {p.data_bytes for p in even[0].phases}
    kept = zipf_shares(16, 1.2, 0)  # every GPU keeps the tokens of its own expert
    total = 16 * 16 * even[0].phases[0].data_bytes
    assert traffic_matrix(uneven[0], "EP").sum() == pytest.approx(3 * total * (1 - sum(kept) / 16), rel=1e-4)
    assert cross_rail_bytes(uneven[0]) > 0


@pytest.mark.parametrize(("fabric", "skew"), [(ONLY, 0.3), (OPTIMIZED, 1), (ONLY, 2)], ids=["0.3", "1", "2"])
def test_its_tasks_take_little_more_than_the_bounds_together(fabric: FabricSpec, skew: float) -> None:
    """And a little less at most: a GPU that is done with one all-to-all begins the next."""
    data = {"kind": "moe", "skew": skew, "compute": 0, "all_to_alls": 2, "bytes": "1MB"}
    schedule, scale, *_ = build(parse_workload(data), fabric, RAIL, HB, seed=3)
    assert schedule.iteration is not None
    times = predict_schedule(schedule, RATES, fabric)
    assert [(p.name, p.repeats) for p in schedule.iteration.each_micro_batch] == [
        ("moe-dispatch", 1),
        ("moe-combine", 1),
    ]
    assert times[""] == pytest.approx(sum(times[name] for name in ("moe-dispatch", "moe-combine", "dp-all-reduce")))
    assert 0.99 < line_rate_duration_s(schedule, RATES, fabric) / times[""] < 1.3
    assert scale.real is not None
    assert len(scale.real.each_micro_batch[0].shares) == 128


@pytest.mark.parametrize("keys", [{"algorithm": "two-phase", "skew": 0.5}, {"skew": 2.1}])
def test_impossible_skew_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        parse_workload({"kind": "moe", **keys})
    assert caught.value.field == "workload.skew"
