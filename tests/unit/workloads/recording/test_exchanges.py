"""All-to-alls with the same splits on all ranks are even ones."""

from typing import Any

from railyard.workloads.recording.exchanges import with_even_exchanges


def exchange(*sizes: int) -> dict[str, Any]:
    return {"op": "all-to-allv", "communicator": "ep", "sends": [*sizes], "receives": [*sizes], "after": []}


def test_equal_splits_of_all_ranks_are_left_out() -> None:
    even = {"op": "all-to-all", "communicator": "ep", "bytes": 4, "after": []}
    assert with_even_exchanges({0: [exchange(4, 4)], 1: [exchange(4, 4)]}) == {0: [even], 1: [even]}


def test_splits_stay_if_any_rank_differs_in_that_turn() -> None:
    programs = {0: [exchange(4, 4), exchange(2, 2)], 1: [exchange(4, 8), exchange(2, 2)]}
    result = with_even_exchanges(programs)
    assert [operation["op"] for operation in result[0]] == ["all-to-allv", "all-to-all"]
    assert result[1][0] == exchange(4, 8)
