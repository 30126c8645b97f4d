"""A recording is compared with a real run operation for operation, on derived ranks too."""

from railyard.workloads.recording.command_line import TrainingCommand
from railyard.workloads.recording.comparison import compare, real_request, recorded_request
from railyard.workloads.recording.launcher import Recording, Request
from railyard.workloads.recording.symmetry import Program

REQUEST = Request(TrainingCommand("python", "train.py", False, ()), 64, 8, "h100", (0,), 4, False, 60.0, fake=True)


def program(*sizes: int) -> Program:
    return [{"op": "all-reduce", "communicator": "world", "bytes": size, "after": []} for size in sizes]


def recording(programs: dict[int, Program], sources: dict[int, int]) -> Recording:
    return Recording(REQUEST, {"world": ((0, 1),)}, programs, sources, None, "2.13.0")


def test_a_real_run_has_all_ranks_and_contents() -> None:
    real = real_request(REQUEST, 4)
    assert (real.ranks, real.ranks_per_node, real.only, real.real, real.fake) == (4, 4, (0, 1, 2, 3), True, False)
    recorded = recorded_request(REQUEST, 4)
    assert (recorded.ranks, recorded.only, recorded.real, recorded.fake) == (4, None, False, False)


def test_derived_ranks_are_compared() -> None:
    recorded = recording({0: program(4, 8)}, {0: 0, 1: 0})
    equal = recording({0: program(4, 8), 1: program(4, 8)}, {0: 0, 1: 1})
    assert compare(recorded, equal).operations == 4
    assert compare(recorded, equal).difference == ""
    other = recording({0: program(4, 8), 1: program(4, 9)}, {0: 0, 1: 1})
    assert compare(recorded, other).difference.startswith("rank 1: operation 1: recorded {")
    shorter = recording({0: program(4), 1: program(4, 8)}, {0: 0, 1: 1})
    assert compare(recorded, shorter).difference == "rank 0: recorded 2 operations, really 1"
