"""The repeated iteration is found by optimizer steps, and cut out with its dependencies."""

from typing import Any

from railyard.workloads.recording.iterations import Iteration, cut, find_iteration


def calls(sizes: list[int]) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = []
    for position, size in enumerate(sizes):
        after = [position - 1] if position else []
        operations.append({"op": "all-reduce", "communicator": 0, "bytes": size, "after": after})
    return operations


def test_a_first_step_that_differs_is_left_out() -> None:
    assert find_iteration(calls([9, 9, 1, 2, 1, 2]), [2, 4, 6]) == Iteration(2, 3, 3)


def test_two_optimizers_make_an_iteration_of_two_steps() -> None:
    # two of one, one of the other
    assert find_iteration(calls([5, 5, 7, 5, 5, 7]), [2, 3, 5, 6]) == Iteration(2, 4, 4)


def test_an_evaluation_at_the_end_is_passed_over() -> None:
    assert find_iteration(calls([1, 2, 1, 2, 3, 1, 2]), [2, 4, 7]) == Iteration(1, 2, 3)


def test_a_single_step_repeats_nothing() -> None:
    assert find_iteration(calls([1, 2]), [2]) is None
    assert find_iteration(calls([1, 2]), []) is None


def test_floating_point_operations_may_differ() -> None:
    operations: list[dict[str, Any]] = [
        {"op": "compute", "flops": 5, "after": []},
        {"op": "compute", "flops": 6, "after": []},
    ]
    assert find_iteration(operations, [1, 2]) == Iteration(1, 2, 2)


def test_dependencies_before_the_iteration_are_left_out() -> None:
    kept = cut(calls([1, 2, 1, 2]), [2, 4], Iteration(1, 2, 2))
    assert [operation["after"] for operation in kept] == [[], [0]]
    assert [operation["bytes"] for operation in kept] == [1, 2]
