"""Pipelined collectives: who receives what, and that they take what their formula says."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import ALGORITHMS, SLICE_BYTES, collective_schedule
from railyard.workloads.collectives.pipelined import CHUNKS, pieces_of_share, pipelined_s
from railyard.workloads.matrix.traffic_matrix import line_rate_duration_s
from railyard.workloads.schedule import Rates

NAMES = ("all-gather-pipelined", "reduce-scatter-pipelined", "all-reduce-pipelined")
DIRECTIONS = dict(zip(NAMES, (1, 1, 2), strict=True))
SIDE = st.integers(1, 5)
PIECE = st.integers(1, 4)


@pytest.mark.parametrize("name", NAMES)
@given(domains=SIDE, rails=SIDE, pieces=PIECE, ratio=st.sampled_from((1, 2, 3, 9, 12)))
def test_line_rate_takes_the_time_of_the_formula(name: str, domains: int, rails: int, pieces: int, ratio: int) -> None:
    """Whichever is slower, the rails or the domains."""
    share = pieces * SLICE_BYTES
    data_bytes = share * domains * rails
    schedule = collective_schedule(name, domains, rails, data_bytes)
    rates = Rates(hb=ratio * 1e6, rail=1e6)
    expected_s = DIRECTIONS[name] * pipelined_s(
        data_bytes, rails, domains, rates.hb, rates.rail, pieces_of_share(share, domains)
    )
    assert line_rate_duration_s(schedule, rates) == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(domains=SIDE, rails=SIDE)
def test_each_gpu_receives_each_part_once(name: str, domains: int, rails: int) -> None:
    share = 2 * SLICE_BYTES
    received = Counter[int]()
    for (_, dst), size in collective_schedule(name, domains, rails, share * domains * rails).matrix.items():
        received[dst] += size
    gpus = domains * rails
    expected = DIRECTIONS[name] * share * (gpus - 1)
    assert [received[gpu] for gpu in range(gpus)] == [expected] * gpus


@given(domains=st.integers(2, 4), rails=st.integers(2, 4))
def test_a_domain_gathers_only_arrived_parts(domains: int, rails: int) -> None:
    """A GPU sends no more into its domain than it has: its own share, and what others sent to it before."""
    schedule = collective_schedule("all-gather-pipelined", domains, rails, 2 * SLICE_BYTES * domains * rails)
    before: list[set[int]] = []
    for task in schedule.tasks:
        before.append(set(task.after).union(*(before[i] for i in task.after)))
    sent = dict(schedule.transfers)
    for number, transfer in sent.items():
        earlier = [sent[n] for n in before[number]]
        has = 2 * SLICE_BYTES + sum(t.bytes for t in earlier if t.dst == transfer.src)
        out = transfer.bytes + sum(t.bytes for t in earlier if (t.src, t.dst) == (transfer.src, transfer.dst))
        assert out <= has


def test_pieces_are_as_many_as_chunks_and_not_tiny() -> None:
    assert [pieces_of_share(1e9, domains) for domains in (1, 4, 8, 64)] == [CHUNKS, 8, 4, 1]
    assert pieces_of_share(2.5 * SLICE_BYTES, 4) == 2
    assert pieces_of_share(1.0, 4) == 1


def test_a_hundredth_above_the_bound_of_the_rails() -> None:
    """8 domains of 8 A100s, C_F/C_S = 12: the bound is (y - 1)/C_S, and Eq. 1 takes 1.67 times as long."""
    bound_s = 7.0
    assert pipelined_s(64.0, 8, 8, 12.0, 1.0, CHUNKS // 8) / bound_s == pytest.approx(1.0208, abs=1e-4)


@pytest.mark.parametrize(("kind", "is_stated"), [("rail-only", True), ("rail-optimized", True), ("dual-plane", False)])
def test_planes_have_no_exact_time(kind: str, is_stated: bool) -> None:
    fabric = FabricSpec.model_validate({"kind": kind, "domains": 2, "rails": 2, "rail_rate": "10Mbit"})
    schedule = collective_schedule("all-gather-pipelined", 2, 2, 10**6)
    algorithm = ALGORITHMS["all-gather-pipelined"]
    assert (algorithm.stated(schedule.phases[0], 1e6, 1e5, fabric) is not None) == is_stated
