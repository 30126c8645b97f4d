"""Measured times of phases: each run by itself, at its busiest GPUs, from the last member of a group on."""

from railyard.experiments.measures.workloads.phase_times import phase_times
from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Compute, Transfer


def test_each_run_of_a_phase_is_timed_by_itself() -> None:
    phases = (
        Phase("a", "EP", "all-to-all", 2, 1, 1),
        Phase("a", "EP", "all-to-all", 2, 1, 1),
        Phase("b", "DP", "all-reduce-ring", 1, 2, 1),
    )
    tasks = (Transfer(0, 1, 1, 0), Transfer(1, 0, 1, 0), Compute(0, 1.0, 1), Transfer(0, 1, 1, 1), Transfer(0, 1, 1, 2))
    schedule = Schedule("s", 4, 2, phases, tasks)
    spans = {0: (1.0, 2.0), 1: (1.5, 3.0), 3: (10.0, 10.5)}
    assert phase_times(schedule, spans) == {"a": [1.5, 0.5]}  # b's transfer never ended


def test_phase_is_timed_at_its_busiest_gpus() -> None:
    phase = Phase("a", "TP", "", 2, 1, 1)
    tasks = (Transfer(0, 1, 8, 0), Transfer(2, 3, 8, 0), Transfer(4, 5, 1, 0))
    spans = {0: (1.0, 2.0), 1: (3.0, 4.0), 2: (0.0, 9.0)}
    assert phase_times(Schedule("s", 6, 2, (phase,), tasks), spans) == {"a": [1.0]}


def test_phase_begins_with_the_last_member_of_its_group() -> None:
    """GPU 0 has sent half of it before GPU 1 begins; a second group takes as long, at another time."""
    phase = Phase("a", "DP", "", 1, 2, 1)
    pairs = [(0, 1), (0, 1), (1, 0), (1, 0), (2, 3), (3, 2)]
    tasks = tuple(Transfer(src, dst, 8 if src < 2 else 16, 0) for src, dst in pairs)
    spans = dict(enumerate([(0.0, 1.0), (1.0, 2.0), (2.5, 3.5), (3.5, 4.5), (7.0, 9.0), (7.0, 9.0)]))
    assert phase_times(Schedule("s", 4, 2, (phase,), tasks), spans) == {"a": [2.0]}


def test_phase_of_a_receiver_lasts_from_its_first_receipt() -> None:
    phase = Phase("a", "EP", "", 1, 3, 1)
    tasks = (Transfer(0, 2, 8, 0), Transfer(1, 2, 8, 0))
    assert phase_times(Schedule("s", 4, 2, (phase,), tasks), {0: (1.0, 2.0), 1: (1.5, 4.0)}) == {"a": [3.0]}
