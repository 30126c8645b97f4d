"""Detection of dead rails: silent while others send, or idle while all wait; never one whose node sleeps."""

from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.file_regression import FileRegressionFixture

from railyard.workloads.allreduce.engine.jobs import Timeouts
from railyard.workloads.allreduce.engine.recovery import BARRIER, DATA, IDLE, Heartbeat, LivenessMonitor

TIMEOUTS = Timeouts(heartbeat_s=0.1, missed_heartbeats=4, stall_s=0.2)


def heartbeat(
    number: int, op: int = 1, moved: tuple[int, int] = (0, 0), busy: tuple[int, int] = (DATA, DATA)
) -> Heartbeat:
    return Heartbeat(number, op, "", moved, busy)


def test_rail_without_heartbeats_of_another_is_silent() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for number in range(1, 4):
        watch.received(1, 0, heartbeat(number), 0.0)
        assert watch.silent([1], {0, 1}) == {}
    watch.received(1, 0, heartbeat(4), 0.0)
    assert watch.silent([1], {0, 1}).keys() == {1}
    assert watch.silent([1], {0}) == {}


def test_sleeping_node_makes_no_rail_dead() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for rail in (0, 1):
        watch.received(1, rail, heartbeat(1), 0.0)
    watch.received(1, 0, heartbeat(2), 100.0)  # awake again: the copy on rail 1 is still on its way
    assert watch.silent([1], {0, 1}) == {}


def test_restored_rail_has_missed_nothing() -> None:
    watch = LivenessMonitor(2, TIMEOUTS)
    for number in range(1, 50):
        watch.received(1, 0, heartbeat(number), 0.0)
    watch.restored(1, 0.0)
    assert watch.silent([1], {0, 1}) == {}


def fed(*heartbeats: tuple[int, Heartbeat, float]) -> LivenessMonitor:
    watch = LivenessMonitor(2, TIMEOUTS)
    for rank, what, now in heartbeats:
        watch.received(rank, 0, what, now)
    return watch


def test_rail_that_moves_nothing_on_any_node_is_stalled() -> None:
    start = [(rank, heartbeat(1), 0.0) for rank in (0, 1)]
    moved = [(rank, heartbeat(4, moved=(5, 0)), 0.25) for rank in (0, 1)]
    assert fed(*start, *moved).stalled([0, 1], {0, 1}, 0.26) == {1: "nothing moved for 200 ms"}
    assert fed(*start, moved[0], (1, heartbeat(4, moved=(0, 1)), 0.25)).stalled([0, 1], {0, 1}, 0.26) == {}


def test_waiting_for_a_late_node_is_no_stall() -> None:
    late = [(0, heartbeat(1, op=2), 0.0), (1, heartbeat(1, op=1, busy=(IDLE, IDLE)), 0.0), (0, heartbeat(4, op=2), 0.3)]
    assert fed(*late).stalled([0, 1], {0, 1}, 0.31) == {}
    assert fed((0, heartbeat(1), 0.0), (0, heartbeat(4), 0.3)).stalled([0, 1], {0, 1}, 0.31) == {}


def test_node_not_run_by_the_machine_is_no_stall() -> None:
    """Both wake after five seconds and say so before anything else: that's a beat of each, not fifty."""
    woken = [(rank, heartbeat(number), now) for number, now in ((1, 0.0), (2, 5.0)) for rank in (0, 1)]
    assert fed(*woken).stalled([0, 1], {0, 1}, 5.0) == {}


def test_barrier_that_waits_for_other_rails_is_no_stall() -> None:
    start = [(0, heartbeat(1, busy=(BARRIER, IDLE)), 0.0), (1, heartbeat(1, busy=(IDLE, DATA)), 0.0)]
    busy = [(0, heartbeat(4, busy=(BARRIER, IDLE)), 0.3), (1, heartbeat(4, moved=(0, 9), busy=(IDLE, DATA)), 0.3)]
    still = [(0, heartbeat(4, busy=(BARRIER, IDLE)), 0.3), (1, heartbeat(4, busy=(BARRIER, IDLE)), 0.3)]
    assert fed(*start, *busy).stalled([0, 1], {0, 1}, 0.31) == {}
    assert fed(*start, *still).stalled([0, 1], {0, 1}, 0.31) == {0: "nothing moved for 200 ms"}


def test_unlike_calls_of_one_operation_are_listed_by_rank(file_regression: FileRegressionFixture) -> None:
    watch = LivenessMonitor(1, TIMEOUTS)
    for rank, call in enumerate(["allreduce of 3 int64", "allreduce of 4 int64", "allreduce of 3 int64"]):
        watch.received(rank, 0, Heartbeat(1, 5, call, (0,), (DATA,)), 0.0)
    file_regression.check(f"{watch.mismatch()}")


def test_absent_ranks_are_late_or_quiet() -> None:
    watch = fed((1, heartbeat(1, op=4), 0.0), (2, heartbeat(1, op=3), 0.0), (3, heartbeat(1, op=4), -2.0))
    assert watch.absent([1, 2, 3, 4], 4, 0.5) == [2, 3, 4]


def test_rare_heartbeats_make_no_rank_absent_too_early() -> None:
    assert TIMEOUTS.dilated(10).heartbeat_s == 1.0
    watch = LivenessMonitor(2, TIMEOUTS.dilated(10))
    watch.received(1, 0, heartbeat(1), 0.0)
    assert watch.absent([1], 1, 4.9) == []
    assert watch.absent([1], 1, 5.1) == [1]


def reported_at(lasting: list[float]) -> list[float]:
    """Return when a node beats whose operations last so long, one after the other."""
    heartbeats: list[float] = []
    now = due = latest = 0.0
    for seconds in lasting:
        due = TIMEOUTS.next_heartbeat(now, due, latest)
        now += seconds
        while due <= now:
            latest = due
            heartbeats.append(due)
            due += TIMEOUTS.heartbeat_s
    return heartbeats


SHORT = st.lists(st.floats(0.001, 0.09), min_size=1, max_size=200)


@given(SHORT)
def test_short_operations_send_a_tenth_of_the_heartbeats(lasting: list[float]) -> None:
    assert abs(len(reported_at(lasting)) - sum(lasting) / (10 * TIMEOUTS.heartbeat_s)) <= 1


@given(SHORT, st.floats(0.5, 3.0))
def test_long_operation_sends_every_heartbeat(lasting: list[float], long: float) -> None:
    begins = sum(lasting)
    mine = [at for at in reported_at([*lasting, long]) if at > begins + 1e-9]
    assert mine[0] <= begins + TIMEOUTS.heartbeat_s + 1e-9
    assert len(mine) >= int(long / TIMEOUTS.heartbeat_s) - 1
