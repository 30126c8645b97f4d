"""Durations of recovery steps, from logs made by hand. Times in the logs are ns, with a probe a millisecond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import RESTORED, ProbeLog
from railyard.failure.recovery_times import (
    BIN_MS,
    SAME_OUTAGE,
    STEADY_BINS,
    first_packet_ms,
    forward_mean,
    goodput,
    late_losses,
    restored_ms,
    step_ms,
)

MS = 1_000_000
BIN = int(BIN_MS * MS)
FAULT, REPAIR, END = 1000, 3000, 4000  # ms


def log_of(*lost: range, way_ms: int = 1) -> ProbeLog:
    """Probes at 0, 1, 2 ... ms, each `way_ms` on its way; those in `lost` never arrive."""
    missing = {number for part in lost for number in part}
    arrived = (-1 if n in missing else (n + way_ms) * MS for n in range(END))
    return ProbeLog(tuple(n * MS for n in range(END)), tuple(arrived))


def first(*logs: ProbeLog) -> float | None:
    return first_packet_ms(logs, FAULT * MS, REPAIR * MS)


@pytest.mark.parametrize(
    ("lost", "goodput_after_repair_ms"),
    [
        ((), 0.0),  # never cut off
        ((range(1000, 1005),), 6.0),  # 1005 is the first to arrive, a millisecond later
        ((range(999, 1005),), 6.0),  # one was on its way
        ((range(1000, 1003), range(1010, 1015)), 16.0),  # one outage, with a packet between
        ((range(1000, 1003), range(1500, 1504)), 505.0),  # another one, later: it wasn't over
        ((range(1000, 1010), range(1500, 3000)), None),  # back, and then lost until the repair
        ((range(500, 520),), 0.0),  # before the fault
        ((range(985, 986), range(1010, 1030)), 31.0),  # a loss just before isn't the outage
        ((range(1000, 2999),), None),  # back, but only when the repair came
        ((range(1000, 2998),), 1999.0),
        ((range(1000, 4000),), None),
    ],
)
def test_first_arrival_ends_an_outage(lost: tuple[range, ...], goodput_after_repair_ms: float | None) -> None:
    assert first(log_of(*lost)) == goodput_after_repair_ms


def test_the_last_pair_to_come_back_counts() -> None:
    quick, slow, never = log_of(range(1000, 1005)), log_of(range(1000, 1100)), log_of(range(1000, 4000))
    assert first(quick, slow) == first(slow, quick) == 101.0
    assert first(quick, never, slow) is None
    assert first() == 0.0


@given(start=st.integers(FAULT, 1500), length=st.integers(1, 1000), way_ms=st.integers(1, 5))
def test_an_outage_ends_one_way_after_its_last_lost_probe(start: int, length: int, way_ms: int) -> None:
    assert first(log_of(range(start, start + length), way_ms=way_ms)) == start + length + way_ms - FAULT


@given(lost=st.sets(st.integers(FAULT, REPAIR - SAME_OUTAGE)), more=st.integers(FAULT, REPAIR - SAME_OUTAGE))
def test_to_lose_more_in_the_same_outage_is_never_quicker(lost: set[int], more: int) -> None:
    before = first(log_of(*(range(n, n + 1) for n in lost)))
    joined = {*lost, more}
    after = first(log_of(*(range(n, n + 1) for n in joined)))
    if lost and more >= min(lost):
        assert after is None or (before is not None and after >= before)


@pytest.mark.parametrize("rerouted_ms", [57, None])
def test_frames_kept_by_a_hung_switch_count_as_lost(rerouted_ms: int | None) -> None:
    kept_until = REPAIR if rerouted_ms is None else FAULT + rerouted_ms
    arrived = [REPAIR * MS + 1 if FAULT <= n < kept_until else (n + 1) * MS for n in range(END)]
    log = ProbeLog(tuple(n * MS for n in range(END)), tuple(arrived))
    assert log.lost(0, END * MS) == []
    assert first(log) == (None if rerouted_ms is None else rerouted_ms + 1)


def test_lost_probes_are_sent_probes_without_arrival() -> None:
    log = log_of(range(10, 13), range(20, 21))
    assert log.lost(11 * MS, 20 * MS) == [11, 12]
    assert log.lost(0, END * MS) == [10, 11, 12, 20]


receipts = st.lists(st.tuples(st.integers(-5 * BIN, 20 * BIN), st.integers(1, 10**6)), max_size=50)


@given(arrivals=receipts, start=st.integers(0, 2 * BIN), bins=st.integers(1, 12))
def test_goodput_counts_every_byte_of_its_stretch_once(arrivals: list[tuple[int, int]], start: int, bins: int) -> None:
    end = start + bins * BIN
    trace = goodput(arrivals, start, end)
    assert len(trace) == bins
    counted = trace.sum() * BIN_MS / 1e3 / 8
    # what arrived within a bin's time after an end may have been on its way before it
    assert counted >= sum(size for at, size in arrivals if start + BIN <= at < end) * (1 - 1e-9)
    assert counted <= sum(size for at, size in arrivals if start <= at < end + BIN) * (1 + 1e-9)


def test_goodput_is_bits_per_second_of_the_bin_before_arrival() -> None:
    half = goodput([(BIN * 3 // 2, 1000)], 0, 3 * BIN)
    assert half.tolist() == pytest.approx([500 * 8 / 0.02, 500 * 8 / 0.02, 0.0])
    whole = goodput([(2 * BIN, 100), (0, 9999), (5 * BIN, 9999)], 0, 3 * BIN + 1)
    assert whole.tolist() == pytest.approx([0.0, 100 * 8 / 0.02, 0.0])
    assert goodput([], 0, 2 * BIN).tolist() == [0.0, 0.0]


@given(phases=st.lists(st.integers(0, BIN - 1), min_size=1, max_size=4), size=st.integers(1, 10**6))
def test_one_send_a_bin_is_steady_at_any_offset(phases: list[int], size: int) -> None:
    arrivals = [(bin_ * BIN + phase, size) for bin_ in range(12) for phase in phases]
    steady = goodput(arrivals, BIN, 10 * BIN)
    assert steady == pytest.approx(np.full(9, len(phases) * size * 8 / 0.02))


@given(values=st.lists(st.integers(0, 10**9), min_size=1, max_size=40), width=st.integers(1, 12))
def test_the_mean_ahead_is_that_of_the_bins_that_are_left(values: list[int], width: int) -> None:
    expected = [np.mean(values[n : n + width]) for n in range(len(values))]
    assert forward_mean(np.array(values, dtype=np.float64), width) == pytest.approx(expected, abs=1e-3)


def restored(*values: float, since: int = 5, until: int = 20, before: float = 100.0) -> float | None:
    """Bins of goodput as given, then 100 on and on; times are bins here."""
    trace = np.array([*values, *[100.0] * (30 - len(values))])
    found = restored_ms(trace, 0, since * BIN, until * BIN, before)
    return None if found is None else found / BIN_MS


@pytest.mark.parametrize(
    ("bins", "expected"),
    [
        ([], 0.0),
        ([0.0] * 7, 7.0),
        ([0.0] * 3 + [96.0] * 5, 3.0),
        ([0.0] * 3 + [94.0] * 10, 4.0),  # six of 94, one of 96, 98, and two of 100 are above 95
        ([0.0] * 3 + [50.0] * 5, 8.0),  # one of 50 and nine of 100 would do, but that bin doesn't carry
        ([100.0] * 7 + [0.0] * 4, 11.0),  # the hole comes later
        ([50.0] * 25, None),
        ([0.0] * 16, None),  # back too late
    ],
)
def test_goodput_is_restored_at_95_percent_for_a_while(bins: list[float], expected: float | None) -> None:
    assert restored(*[100.0] * 5, *bins) == expected


@given(bins=st.integers(1, 10), level=st.floats(1.0, 1e12))
def test_restoration_takes_as_long_as_the_hole_whatever_the_rate(bins: int, level: float) -> None:
    trace = np.array([level] * 10 + [0.0] * bins + [level] * 20)
    assert restored_ms(trace, 7 * BIN, 17 * BIN, 37 * BIN, level) == bins * BIN_MS


@given(dips=st.lists(st.floats(0, 100 * (1 - RESTORED) * 0.99), min_size=30, max_size=30))
def test_goodput_within_5_percent_is_never_down(dips: list[float]) -> None:
    assert restored(*(100.0 - dip for dip in dips)) == 0.0


def test_late_bin_is_an_outage_only_from_5_percent_of_the_window() -> None:
    late = 100 * (1 - STEADY_BINS * (1 - RESTORED) * 0.9)
    assert restored(*[100.0] * 8, late) == 0.0


@given(hole=st.integers(2, 10), burst=st.floats(100, 1000), length=st.integers(1, 9))
def test_excess_traffic_afterwards_hides_no_outage(hole: int, burst: float, length: int) -> None:
    assert restored(*[100.0] * 7, *[0.0] * hole, *[burst] * length, since=5, until=29) == 2 + hole


@given(late=st.integers(0, 12))
def test_one_bin_that_comes_with_the_next_is_no_outage(late: int) -> None:
    assert restored(*[100.0] * (6 + late), 0.0, 200.0) == 0.0


def test_fall_after_the_end_is_outside_of_the_interval() -> None:
    assert restored(*[100.0] * 20, *[0.0] * 10) == 0.0
    assert restored(*[100.0] * 5, *[0.0] * 3, *[100.0] * 12, *[0.0] * 10) == 3.0
    assert restored(*[100.0] * 5, *[0.0] * 14, 100.0) is None, "a bin before the end is too little to say so"
    assert restored(since=20, until=20) is None
    assert restored(since=40, until=60) is None


@pytest.mark.parametrize(
    ("lost", "again", "late"),
    [((), False, 0), ((2799,), False, 0), ((2800, 2979), False, 2), ((2980, 3000), False, 0), ((2900,), True, 0)],
)
def test_late_losses_are_losses_of_the_last_200_ms(lost: tuple[int, ...], again: bool, late: int) -> None:
    log = log_of(*(range(n, n + 1) for n in lost))
    assert late_losses([log, log_of()], REPAIR * MS, again) == late


def test_intermittent_fault_is_late_only_without_arrivals() -> None:
    assert late_losses([log_of(range(2700, 3000))], REPAIR * MS, is_intermittent=True) == 180
    assert first_packet_ms([log_of(range(1000, 1010), range(1200, 1230))], FAULT * MS, REPAIR * MS, None, True) == 11.0


def test_step_is_the_first_event_between_fault_and_repair() -> None:
    assert step_ms([14 * MS, 11 * MS], 10 * MS, 20 * MS) == 1.0
    assert step_ms([5 * MS, 12 * MS], 10 * MS, 20 * MS) == 2.0
    assert step_ms([5 * MS, 12 * MS], 10 * MS, 12 * MS) is None
    assert step_ms([], 0, 20 * MS) is None
