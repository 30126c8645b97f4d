"""The balancer finds, on any rails, shares with which they end together; and the laws of its shares."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from railyard.workloads.allreduce.balancing.balancer import Balancer
from railyard.workloads.allreduce.balancing.costs import (
    Cost,
    equal_finish_s,
    fastest_rail,
    ideal_shares,
    rails_to_split,
    spread,
)
from railyard.workloads.allreduce.balancing.states import MIN_GAIN
from tests.unit.workloads.allreduce.multirail_net import split_seconds

TRUE = st.builds(Cost, st.floats(0, 3e-3), st.floats(1e-10, 1e-7))
WRONG = st.floats(0.3, 3)


def play(balancer: Balancer, truth: list[Cost], size: int, operations: int, noise: list[float]) -> None:
    """Operations with the times that `truth` gives; each rail's mean over a window is off by one of `noise`."""
    left, windows = operations, count()
    while left >= (window := balancer.window(size)):
        left -= window
        number = next(windows)
        shares = balancer.shares(size)
        times = [
            cost.seconds(share * size) * noise[(number * len(truth) + rail) % len(noise)] if share > 0 else 0.0
            for rail, (cost, share) in enumerate(zip(truth, shares, strict=True))
        ]
        balancer.learn(size, times)


def used_times(balancer: Balancer, truth: list[Cost], size: int) -> list[float]:
    return [c.seconds(a * size) for c, a in zip(truth, balancer.shares(size), strict=True) if a > 0]


def learn_windows(
    balancer: Balancer, size: int, windows: int, times_of: Callable[[Sequence[float]], Sequence[float]]
) -> None:
    """Let the balancer learn windows with the times by rail that `times_of` gives for its shares."""
    for _ in range(windows):
        balancer.learn(size, times_of(balancer.shares(size)))


def alone_or_split(alone_s: float, split: Sequence[float], shares: Sequence[float]) -> Sequence[float]:
    """Return the times of a split, or of a rail that has all."""
    if max(shares) < 1:
        return split
    return [alone_s * share for share in shares]


@given(
    rails=st.lists(st.tuples(TRUE, WRONG, WRONG), min_size=1, max_size=4),
    size=st.integers(1, 2**28),
    noise=st.lists(st.floats(0.99, 1.01), min_size=1, max_size=7),
)
@example(rails=[(Cost(0, 1e-9), 1, 1), (Cost(0, 4e-9), 3, 3)], size=2**24, noise=[1.0])
@example(  # the second's set-up alone is more than the level: no share of it, however small, ends with the others
    rails=[(Cost(0, 7.25e-8), 1, 1), (Cost(1.95e-3, 4.45e-9), 1, 1), (Cost(1.168e-3, 6.34e-8), 1, 0.5)],
    size=28457,
    noise=[1.0],
)
@example(rails=[(Cost(3e-3, 1e-10), 1, 1), (Cost(0, 1e-10), 1, 0.3)], size=2**25, noise=[1.0])
def test_rails_end_within_9_percent_after_100_operations(
    rails: list[tuple[Cost, float, float]], size: int, noise: list[float]
) -> None:
    truth = [cost for cost, _, _ in rails]
    nominal = [Cost(cost.setup_s * a, cost.s_per_byte * b) for cost, a, b in rails]
    balancer = Balancer(nominal)
    play(balancer, truth, size, 100, noise)
    shares = balancer.shares(size)
    assert sum(shares) == pytest.approx(1)
    assert spread(used_times(balancer, truth, size)) <= 0.093
    if len(set(truth)) == len(truth) and balancer.state(size).name == "settled":
        tried = [cost for cost, share in zip(truth, shares, strict=True) if share > 0]  # of others it knows the name
        assert split_seconds(truth, shares, size) <= 1.1 * min(cost.seconds(size) for cost in tried)


@given(truth=st.lists(TRUE, min_size=2, max_size=4), size=st.integers(1, 2**28))
def test_right_rates_lead_to_the_best_split_or_rail(truth: list[Cost], size: int) -> None:
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [1.0])
    near = rails_to_split(truth, size)
    if near:
        chosen = [truth[rail] for rail in near]
        best = split_seconds(chosen, ideal_shares(chosen, size), size)
        assert max(used_times(balancer, truth, size)) <= (1 + MIN_GAIN) * best * (
            1 + 1e-3
        )  # learnt lines are a little off
    else:
        assert balancer.shares(size)[fastest_rail(truth, size)] == 1


def test_small_sizes_stay_cold_and_large_ones_are_split() -> None:
    truth = [Cost(1e-3, 4e-9), Cost(1e-5, 2e-9)]
    balancer = Balancer(truth)
    for size in (1, 1024, 2**24):
        play(balancer, truth, size, 100, [1.0])
    assert balancer.shares(1) == balancer.shares(1024) == (0.0, 1.0)
    assert balancer.state(2**24).name == "settled"
    assert balancer.shares(2**24)[1] == pytest.approx(ideal_shares(truth, 2**24)[1], rel=0.03)


def test_a_split_that_measures_slower_than_one_rail_is_given_up() -> None:
    balancer, size = Balancer([Cost(0, 1e-9), Cost(0, 1e-9)]), 2**20
    learn_windows(balancer, size, 10, partial(alone_or_split, 1e-3, (2e-3, 2e-3)))
    assert balancer.state(size).name == "cold"
    assert sorted(balancer.shares(size)) == [0.0, 1.0]


def off_the_rail(balancer: Balancer, truth: list[Cost], size: int, operations: int) -> int:
    """Of so many operations, how many aren't wholly on the rail of the first."""
    first, off = balancer.shares(size), 0
    while operations > 0:
        shares, window = balancer.shares(size), min(operations, balancer.window(size))
        operations -= window
        off += window * (shares != first)
        balancer.learn(size, [c.seconds(a * size) if a else 0.0 for c, a in zip(truth, shares, strict=True)])
    return off


@pytest.mark.parametrize("kinds", [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_small_size_overhead_makes_no_other_rail_look_better(kinds: tuple[int, int]) -> None:
    rails = Cost(6e-6, 3e-8), Cost(1e-3, 5e-8)
    nominal = [rails[kind] for kind in kinds]
    slow = [Cost(cost.setup_s + 2e-3, cost.s_per_byte) for cost in nominal]
    assert off_the_rail(Balancer(nominal), slow, 1024, 1000) == 0


def test_large_sizes_make_a_rail_no_faster_at_small_ones() -> None:
    """What a message costs the machine is hidden while bytes take longer, and is all there is where they don't."""
    rails = [Cost(0.02e-3, 2e-9), Cost(0.1e-3, 1e-9)]
    balancer = Balancer(rails)
    play(balancer, rails, 2**24, 100, [1.0])
    machine = [Cost(cost.setup_s + 2e-3, cost.s_per_byte) for cost in rails]
    assert balancer.shares(2**16) == (1.0, 0.0)
    assert off_the_rail(balancer, machine, 2**16, 1000) == 0


def test_one_scattered_window_starts_no_split_of_a_cold_class() -> None:
    """Two rails of which a split gains a bit less than 10%: a slow window is nothing, a rail slow for good is left."""
    truth, size = [Cost(0.5e-3, 1e-9), Cost(0.64e-3, 1e-9)], 2**18
    balancer = Balancer(truth)
    play(balancer, truth, 2**19, 100, [1.0])
    play(balancer, truth, size, 5, [1.0])
    assert (balancer.state(size).name, balancer.window(size)) == ("cold", 100)
    for noise in (1.05, 0.97, 1.3, 0.9, 1.08, 1.0):
        play(balancer, truth, size, 100, [noise])
        assert balancer.state(size).name == "cold"
    play(balancer, [Cost(0.5e-3, 4e-9), truth[1]], size, 400, [1.0])
    assert balancer.shares(size)[0] < 1


@given(
    truth=st.lists(TRUE, min_size=2, max_size=3),
    size=st.integers(2**16, 2**26),
    window=st.lists(st.floats(0.3, 3), min_size=3, max_size=3),
)
def test_one_window_alone_moves_no_class_that_has_settled(truth: list[Cost], size: int, window: list[float]) -> None:
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [1.0])
    assume(balancer.state(size).name == "settled")
    resting = balancer.shares(size)
    for noise in (window, [1.0], window, [1.0]):
        play(balancer, truth, size, 100, noise)
        assert balancer.shares(size) == resting


def test_futile_splits_are_short_and_get_rarer() -> None:
    nominal = [Cost(1e-3, 1e-7), Cost(1e-3, 1e-7)]
    balancer, size = Balancer(nominal), 16384
    total = 0
    tried: list[int] = []
    while total < 20_000:
        shares, window = balancer.shares(size), balancer.window(size)
        split = sum(share > 0 for share in shares) > 1
        tried += range(total, total + window) if split else []
        total += window
        # a second rail costs more than it brings, and each takes as long as it likes
        balancer.learn(size, [(4e-3 + 3e-3 * share if split else 3e-3) if share else 0.0 for share in shares])
    first = sum(operation < 500 for operation in tried)
    assert 0 < first <= 20
    assert first < len(tried) <= 0.006 * total


def test_share_updates_that_slow_down_end_with_the_best_shares() -> None:
    truth, size = [Cost(1e-4, 5e-8), Cost(1e-4, 5e-8)], 2**17
    balancer = Balancer(truth)

    def times_of(shares: Sequence[float]) -> Sequence[float]:
        """The first rail never ends as early as the second, however little it has to do."""
        return alone_or_split(8e-3, (6e-3 + 8e-3 * (0.5 - shares[0]), 3e-3 + 5e-3 * shares[1]), shares)

    learn_windows(balancer, size, 10, times_of)
    assert balancer.state(size).name == "settled"
    assert balancer.shares(size) == (0.5, 0.5)
    assert balancer.window(size) == 100
    unlike = [truth[0], Cost(1e-4, 10e-8)]
    play(balancer, unlike, size, 1000, [1.0])  # now it does, and shares can be better
    assert balancer.shares(size) == pytest.approx(ideal_shares(unlike, size), abs=0.02)


@given(
    truth=st.lists(TRUE, min_size=2, max_size=4),
    size=st.integers(0, 2**26),
    events=st.lists(st.tuples(st.sampled_from(["learn", "down", "up"]), st.integers(0, 3)), max_size=30),
    noise=st.lists(st.floats(0.3, 3), min_size=1, max_size=31),
)
def test_shares_sum_to_one_and_a_dead_rail_has_none(
    truth: list[Cost], size: int, events: list[tuple[str, int]], noise: list[float]
) -> None:
    balancer, alive = Balancer(truth), set(range(len(truth)))
    for place, (event, number) in enumerate(events):
        rail = number % len(truth)
        if event == "learn":
            late = [noise[(place + other) % len(noise)] for other in range(len(truth))]
            shares = balancer.shares(size)
            times = [c.seconds(a * size) * n if a else 0.0 for c, a, n in zip(truth, shares, late, strict=True)]
            balancer.learn(size, times)
        elif event == "up" and rail not in alive:
            balancer.up(rail)
            alive.add(rail)
        elif event == "down" and len(alive - {rail}) > 0:
            balancer.down(rail)
            alive.discard(rail)
        shares = balancer.shares(size)
        assert sum(shares) == pytest.approx(1)
        assert all(share >= 0 for share in shares)
        assert all(shares[rail] == 0 for rail in range(len(truth)) if rail not in alive)


def learn_all(balancer: Balancer, size: int, windows: Sequence[Sequence[float]]) -> None:
    for seconds in windows:
        balancer.learn(size, seconds)


def test_restored_best_shares_leave_out_a_dead_rail() -> None:
    balancer, size = Balancer([Cost(0, 1e-9)] * 3), 3_000_000
    learn_all(balancer, size, [(9e-3, 0, 0), (3e-3, 3e-3, 3.4e-3), (3.4e-3, 3.4e-3, 0.4)])
    assert balancer.shares(size)[2] == 0
    balancer.down(2)
    for _ in range(20):
        learn_all(balancer, size, [(5e-3, 5e-3, 0)])
        assert balancer.shares(size)[2] == 0


def test_sizes_of_one_class_are_split_alike() -> None:
    """1.1 MB and 2 MB are of one class; what the smaller took on one rail isn't what the larger would."""
    truth = [Cost(0, 1e-9), Cost(0, 2e-9)]
    balancer = Balancer(truth)
    play(balancer, truth, 1_100_000, 5, [1.0])
    for _ in range(10):
        play(balancer, truth, 2_000_000, 5, [1.0])
    assert balancer.shares(2_000_000) == pytest.approx((2 / 3, 1 / 3), abs=0.02)


def test_slow_split_is_compared_with_one_rail_as_slow() -> None:
    truth, size = [Cost(0, 1e-9), Cost(0, 1e-9)], 2**24
    balancer = Balancer(truth)
    play(balancer, truth, size, 200, [1.0])
    slower = [Cost(0, 3e-9), Cost(0, 2.2e-9)]
    play(balancer, slower, size, 400, [1.0])
    assert balancer.shares(size) == pytest.approx(ideal_shares(slower, size), abs=0.03)


def test_split_is_compared_with_a_live_rail() -> None:
    named, size = [Cost(0, 1e-9), Cost(0, 2e-9), Cost(0, 2e-9)], 2**20
    balancer = Balancer(named)
    play(balancer, named, size, 40, [1.0])
    balancer.down(0)
    # together the other two take longer than one of them would alone
    learn_windows(balancer, size, 30, partial(alone_or_split, 2e-3, (0, 8e-3, 8e-3)))
    assert max(balancer.shares(size)) == 1


@pytest.mark.parametrize("size", [0, 1024])
def test_class_on_one_slowed_rail_comes_to_rest(size: int) -> None:
    balancer = Balancer([Cost(1e-5, 1e-9), Cost(1e-5, 1e-9)])
    learn_all(balancer, size, [(1e-3, 1e-3)] * 10 + [(2e-3, 2e-3)] * 5)  # may have tried the other one
    resting = balancer.shares(size)
    for _ in range(10):
        assert (balancer.shares(size), balancer.window(size)) == (resting, 100)
        learn_all(balancer, size, [(2e-3, 2e-3)])


def test_rail_slower_than_its_estimate_is_left() -> None:
    named, size = [Cost(1e-5, 1e-9), Cost(1e-5, 1e-9)], 2**20
    balancer = Balancer(named)

    def times_of(shares: Sequence[float]) -> Sequence[float]:
        """The second ends early in a split, but both take long."""
        return (1.3e-3, 0.45e-3) if max(shares) < 1 else (1.05e-3 * shares[0], 1.3e-3 * shares[1])

    learn_windows(balancer, size, 30, times_of)
    assert balancer.shares(size) == (1, 0)


def test_contradicting_windows_move_no_class_at_rest() -> None:
    truth, size = [Cost(0, 1e-9), Cost(0, 1e-9)], 2**24
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [1.0])
    resting, time = balancer.shares(size), truth[0].seconds(size / 2)
    for _ in range(5):
        learn_all(balancer, size, [(time, 1.2 * time), (1.2 * time, time)])
        assert (balancer.shares(size), balancer.window(size)) == (resting, 100)
    learn_all(balancer, size, [(time, 1.2 * time)] * 2)
    assert balancer.shares(size)[0] > resting[0]


def test_last_rail_stays_and_a_returning_one_starts_cold() -> None:
    truth = [Cost(0, 1e-9), Cost(0, 2e-9)]
    balancer = Balancer(truth)
    play(balancer, truth, 2**24, 100, [1.0])
    balancer.down(0)
    assert balancer.shares(2**24) == (0.0, 1.0)
    with pytest.raises(ValueError, match="last one"):
        balancer.down(1)
    balancer.up(0)
    assert balancer.state(2**24).name == "cold"


def test_times_of_a_dead_rail_end_no_split_of_the_others() -> None:
    truth, size = [Cost(0, 1e-9), Cost(0, 4e-9), Cost(0, 4e-9)], 2**24
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [1.0])
    balancer.down(0)
    play(balancer, truth, size, 100, [1.0])
    assert balancer.shares(size) == pytest.approx((0, 0.5, 0.5), abs=0.02)


def test_failed_split_ends_on_the_faster_rail() -> None:
    """By name the second and the third are nearly alike; on this machine the third costs three times as much."""
    named = [Cost(3.9e-3, 9e-7), Cost(0.02e-3, 5.4e-7), Cost(0.17e-3, 4.8e-7)]
    machine, size = [Cost(6e-3, 9e-7), Cost(1.4e-3, 1.6e-7), Cost(4.6e-3, 1e-8)], 2620
    balancer = Balancer(named)
    play(balancer, machine, 40, 100, [1.0])
    assert (balancer.shares(40), balancer.shares(size)) == ((0, 1, 0), (0, 0, 1))
    play(balancer, machine, size, 100, [1.0])
    assert balancer.shares(size) == (0, 1, 0)


def test_settled_class_is_adjusted_when_a_rail_slows_down() -> None:
    truth = [Cost(0, 1e-9), Cost(0, 1e-9)]
    balancer = Balancer(truth)
    play(balancer, truth, 2**24, 200, [1.0])
    assert balancer.window(2**24) == 100
    slower = [Cost(0, 3e-9), Cost(0, 1e-9)]
    play(balancer, slower, 2**24, 350, [1.0])
    assert spread(used_times(balancer, slower, 2**24)) <= 0.093


@given(noise=st.lists(st.floats(0.94, 1.06), min_size=3, max_size=13), size=st.integers(2**16, 2**26))
def test_shares_settle_in_100_operations_of_scattered_times(noise: list[float], size: int) -> None:
    truth = [Cost(1e-4, 5e-8), Cost(1e-4, 5e-8)]
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, noise)
    assert balancer.state(size).name == "settled"
    assert balancer.shares(size) == pytest.approx((0.5, 0.5), abs=0.05)


@given(
    rails=st.lists(TRUE, min_size=2, max_size=3),
    noise=st.lists(st.floats(0.6, 1.6), min_size=3, max_size=31),
    size=st.integers(2**16, 2**26),
)
def test_100_operations_are_enough_however_much_times_scatter(rails: list[Cost], noise: list[float], size: int) -> None:
    balancer = Balancer(rails)
    play(balancer, rails, size, 100, noise)
    assert balancer.state(size).name in ("cold", "settled")


def test_held_shares_are_left_when_a_rail_slows_down() -> None:
    """And not since the fastest of the short windows was faster than any long one."""
    truth, size = [Cost(1e-4, 5e-8), Cost(1e-4, 5e-8)], 2**24
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [0.82, 1.18, 1.14, 1.04, 0.85, 1.25, 1.27, 1.06, 1.05])
    held = balancer.shares(size)
    assert balancer.state(size).name == "settled"
    play(balancer, truth, size, 300, [1.15, 1.0])
    assert balancer.shares(size) == held
    slower = [truth[0], Cost(1e-4, 1e-7)]
    play(balancer, slower, size, 300, [1.0])
    assert spread(used_times(balancer, slower, size)) <= 0.093


def test_nonlinear_rails_keep_no_share_swinging() -> None:
    """Of times that rise twice as steeply as T/alpha, whole steps go from 40% to a half and back for ever."""
    balancer, size = Balancer([Cost(0, 1e-9), Cost(0, 1e-9)]), 2**24

    def times_of(shares: Sequence[float]) -> Sequence[float]:
        split = [max(1e-4, 10e-3 + 40e-3 * (share - best)) for share, best in zip(shares, (0.45, 0.55), strict=True)]
        return alone_or_split(17e-3, split, shares)

    learn_windows(balancer, size, 20, times_of)
    assert balancer.state(size).name == "settled"
    assert balancer.shares(size) == pytest.approx((0.45, 0.55), abs=0.01)


@given(
    truth=st.lists(TRUE, min_size=2, max_size=3),
    size=st.integers(2**10, 2**26),
    noise=st.lists(st.floats(0.3, 30), min_size=1, max_size=40),
)
def test_disturbed_learning_is_corrected_later(truth: list[Cost], size: int, noise: list[float]) -> None:
    balancer = Balancer(truth)
    play(balancer, truth, size, 150, noise)
    play(balancer, truth, size, 4000, [1.0])
    near = rails_to_split(truth, size, 2 * MIN_GAIN)
    best = (
        equal_finish_s([truth[rail] for rail in near], size) if near else truth[fastest_rail(truth, size)].seconds(size)
    )
    assert max(used_times(balancer, truth, size)) <= (1 + 2 * MIN_GAIN) * best


@given(
    rails=st.lists(st.tuples(TRUE, WRONG, WRONG), min_size=2, max_size=3),
    size=st.integers(2**10, 2**26),
    machine=st.floats(0, 5e-3),
)
def test_recheck_is_soon_no_slower_than_before(
    rails: list[tuple[Cost, float, float]], size: int, machine: float
) -> None:
    """Names are wrong, and the machine adds to every rail's set-up: so looks often fail."""
    truth = [Cost(cost.setup_s + machine, cost.s_per_byte) for cost, _, _ in rails]
    balancer = Balancer([Cost(cost.setup_s * a, cost.s_per_byte * b) for cost, a, b in rails])
    play(balancer, truth, size, 400, [1.0])
    before = max(used_times(balancer, truth, size))
    play(balancer, truth, size, 4000, [1.0])
    assert max(used_times(balancer, truth, size)) <= before * 1.03


def test_third_rail_that_slows_a_settled_split_is_left() -> None:
    """It stood still while the class was learnt; but where this machine binds, all three take longer than two."""
    truth, size = [Cost(0, 8e-3 / 2**20)] * 3, 2**20
    balancer = Balancer(truth)
    took = {1: 8e-3, 2: 5e-3, 3: 6.8e-3}
    rails: list[int] = []
    for number in range(40):
        shares = balancer.shares(size)
        used = sum(share > 0 for share in shares)
        rails += [used] if [used] != rails[-1:] else []
        late = 100 if number < 8 else 1
        times = [took[used] * (share * used) for share in shares]
        balancer.learn(size, [*times[:2], times[2] * late])
    assert rails[:5] == [1, 3, 2, 3, 2]
    assert max(balancer.shares(size)) == pytest.approx(0.5, abs=0.05)


def test_recheck_ignores_rails_that_are_nominally_slow() -> None:
    """Three rails, of which the first has no share in the best split."""
    truth, size = [Cost(1e-3, 3.2e-8), Cost(0.2e-3, 3.2e-8), Cost(0.19e-3, 3.1e-8)], 10_000
    assert ideal_shares(truth, size)[0] == 0
    balancer = Balancer(truth)
    play(balancer, truth, size, 100, [1.0])
    resting = balancer.shares(size)
    for _ in range(30):
        assert balancer.shares(size) == resting
        play(balancer, truth, size, 100, [1.0])


def test_slower_rail_of_a_recheck_is_left_again() -> None:
    truth, size = [Cost(3.25e-3, 1e-12), Cost(3e-3, 1e-12)], 1024
    balancer = Balancer([Cost(1.0e-3, 1e-12), Cost(1.2e-3, 1e-12)])
    balancer.down(0)
    play(balancer, truth, size, 5, [1.0])
    balancer.up(0)
    play(balancer, [Cost(6e-3, 1e-12), truth[1]], size, 5, [1.0])
    assert balancer.shares(size) == (0, 1), "the first was slow as it came back"
    on_first = off_the_rail(balancer, truth, size, 8000)
    assert 0 < on_first <= 5 * 5
    assert balancer.shares(size) == (0, 1)
