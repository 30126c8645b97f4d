"""Inputs of ranks to operations, and the expected results."""

from typing import Any

import numpy as np
import pytest

from railyard.core.errors import BadInput
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport, latencies_s
from railyard.workloads.allreduce.engine.worker import draw_input, expected, outcome, wrong

NODES = 4


def asked(collective: str = "allreduce", dtype: str = "float32", size: int = 400) -> Operations:
    return Operations(collective, dtype, size, count=3, seed=7)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("index", [0, 5])
def test_sum_in_any_order_is_right_and_a_stale_one_wrong(dtype: str, index: int) -> None:
    operations = asked(dtype=dtype)
    parts = [np.roll(draw_input(operations, NODES, rank), index) for rank in range(NODES)]
    backwards = parts[3] + parts[2] + parts[1] + parts[0]
    reference = outcome(operations, NODES, 0, expected(operations, NODES, 0), index)
    assert wrong(backwards, reference, NODES) == 0
    stale = outcome(operations, NODES, 0, expected(operations, NODES, 0), index + 1)
    assert wrong(backwards, stale, NODES) > len(reference) // 2
    backwards[3:4] += backwards[3]
    assert wrong(backwards, reference, NODES) == 1


def test_expected_results_differ_by_collective_and_rank() -> None:
    parts = [np.roll(draw_input(asked("all_gather"), NODES, rank), 2) for rank in range(NODES)]
    gathered = expected(asked("all_gather"), NODES, 1)
    assert np.array_equal(outcome(asked("all_gather"), NODES, 1, gathered, 2), np.concatenate(parts))
    reported = expected(asked("broadcast"), NODES, 3)
    assert np.array_equal(outcome(asked("broadcast"), NODES, 3, reported, 2), parts[0])
    scattered = asked("reduce_scatter", "int64", 8 * 13)
    assert len(draw_input(scattered, NODES, 0)) == 12
    whole = sum(np.roll(draw_input(scattered, NODES, rank), 2) for rank in range(NODES))
    mine = outcome(scattered, NODES, 2, expected(scattered, NODES, 2), 2)
    assert isinstance(whole, np.ndarray)
    assert np.array_equal(mine, whole[6:9])


def test_a_result_of_another_size_is_all_wrong() -> None:
    reference = expected(asked(), NODES, 0)
    assert wrong(reference[1:], reference, NODES) == 100


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"collective": "all_reduce"}, "collective"),
        ({"dtype": "flot32"}, "dtype"),
        ({"dtype": "datetime64"}, "dtype"),
        ({"size": -1}, "size_bytes"),
    ],
)
def test_impossible_operations_name_their_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as problem:
        asked(**values)
    assert problem.value.field == field


def test_an_operation_lasts_from_the_first_start_to_the_last_end() -> None:
    early = RankReport(0, starts_ns=[0, 5_000], ends_ns=[3_000, 9_000])
    late = RankReport(1, starts_ns=[1_000], ends_ns=[4_000])
    assert latencies_s([early, late]) == [4e-6]
