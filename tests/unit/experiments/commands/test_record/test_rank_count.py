"""The number of ranks that `record` takes from its options and from torchrun's."""

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.commands.record import rank_count
from railyard.workloads.recording.command_line import TrainingCommand

ON_TWO_NODES = TrainingCommand("python", "train.py", False, (), ranks=16, ranks_per_node=8)


@pytest.mark.parametrize(("ranks", "count"), [(None, 16), (8, 8), (64, 64)])
def test_ranks_are_whole_nodes_of_torchrun(ranks: int | None, count: int) -> None:
    assert rank_count(ON_TWO_NODES, ranks, None) == count


@pytest.mark.parametrize(("ranks", "nearest"), [(4, "gives: 8"), (20, "gives: 16 or 24")])
def test_other_numbers_are_refused_with_the_nearest(ranks: int, nearest: str) -> None:
    with pytest.raises(BadInput, match=f"--nproc-per-node {nearest}"):
        rank_count(ON_TWO_NODES, ranks, None)
