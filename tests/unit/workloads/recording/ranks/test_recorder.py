"""Dependencies of recorded operations follow the streams that a script uses."""

import pytest

from railyard.workloads.recording.ranks.recorder import MAX_OPERATIONS, Recorder, TooManyOperations


def recorder_of_two() -> Recorder:
    recorder = Recorder(0, 2)
    recorder.define_communicator([0, 1], "0", "", "train.py:1", "nccl")
    return recorder


def after(recorder: Recorder) -> list[list[int]]:
    return [operation["after"] for operation in recorder.close()["operations"]]


def test_computing_goes_on_beside_a_collective_until_it_waits() -> None:
    recorder = recorder_of_two()
    recorder.count_flops(10)
    call = recorder.add("all-reduce", "0", bytes=8)
    recorder.count_flops(20)
    recorder.wait(call)
    recorder.count_flops(30)
    assert after(recorder) == [[], [0], [0], [2, 1]]


def test_a_wait_replaces_earlier_waits() -> None:
    recorder = recorder_of_two()
    for _ in range(3):
        recorder.wait(recorder.add("all-reduce", "0", bytes=8))
    assert after(recorder) == [[], [0], [1]]


def test_a_second_stream_runs_beside_the_first() -> None:
    recorder = recorder_of_two()
    recorder.count_flops(10)
    outer = recorder.switch_stream(1)
    recorder.wait(recorder.add("all-gather", "0", bytes=8))
    event = recorder.event(1)
    recorder.switch_stream(outer)
    recorder.count_flops(20)
    recorder.wait_event(0, event)
    recorder.count_flops(30)
    # the gather waits for no computing, and only the last computing for the gather
    assert after(recorder) == [[], [], [0], [2, 1]]


def test_a_script_that_waits_orders_all_later_operations() -> None:
    recorder = recorder_of_two()
    recorder.add("all-reduce", "0", bytes=8)
    recorder.count_flops(10)
    recorder.synchronize(recorder.event(0))
    recorder.switch_stream(1)
    recorder.add("all-reduce", "0", bytes=8)
    assert after(recorder) == [[], [], [1]]


def test_an_optimizer_step_waits_for_all_operations() -> None:
    recorder = recorder_of_two()
    recorder.add("all-reduce", "0", bytes=8)
    recorder.add("all-reduce", "0", bytes=16)
    recorder.wait_for_all()
    recorder.count_flops(10)
    assert recorder.end_step(1) == 1
    assert after(recorder) == [[], [], [0, 1]]
    assert recorder.steps == [3]


def test_a_group_of_a_single_rank_sends_nothing() -> None:
    recorder = Recorder(0, 2)
    recorder.define_communicator([0], "0", "", "train.py:1", "nccl")
    assert recorder.add("all-reduce", "0", bytes=8) is None
    recorder.wait(None)
    assert recorder.close()["operations"] == []


def test_nothing_is_recorded_after_the_end() -> None:
    recorder = recorder_of_two()
    recorder.close()
    recorder.count_flops(10)
    assert recorder.add("all-reduce", "0", bytes=8) is None
    assert recorder.operations == []


def test_operations_without_end_are_refused() -> None:
    recorder = recorder_of_two()
    recorder.operations = [{"after": []}] * MAX_OPERATIONS
    with pytest.raises(TooManyOperations, match="more than 200,000 operations"):
        recorder.add("all-reduce", "0", bytes=8)
