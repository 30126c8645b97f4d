"""SimAI's workload text: what runs when, for each parallelism, and what is wrong with a line."""

from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.traces.common import Gap
from tests.unit.traces import SIMAI, read, replayable


def parts(text: str, tmp_path: Path) -> list[tuple[str, tuple[int, ...]]]:
    """(line, part, gap or collective) and what it waits for, of rank 0."""
    (tmp_path / "w.txt").write_text(text)
    nodes = read(tmp_path / "w.txt").ranks[0]
    return [
        (f"{node.where.split(': ')[1]} {'gap' if isinstance(node.action, Gap) else 'comm'}", node.after)
        for node in nodes
    ]


def test_layers_run_forward_and_back(tmp_path: Path) -> None:
    """One-nanosecond times are AICB's nothing; the weights' collectives are waited for by nobody but the update."""
    assert parts(SIMAI, tmp_path) == [
        ("line 3, fwd gap", ()),
        ("line 3, fwd comm", (0,)),
        ("line 4, fwd gap", (1,)),
        ("line 4, ig gap", (2,)),
        ("line 4, ig comm", (3,)),
        ("line 3, ig gap", (4,)),
        ("line 3, ig comm", (5,)),
        ("line 3, wg gap", (6,)),
        ("line 3, wg comm", (7,)),
        ("line 3, update gap", (8,)),
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("DATA", ["3 fwd gap", "4 fwd gap", "4 ig gap", "3 wg gap", "3 wg comm", "3 update gap"]),
        ("MICRO", ["3 wg comm"]),
        ("MODEL", ["3 fwd gap", "3 fwd comm", "4 fwd gap", "4 ig gap", "4 ig comm", "3 ig gap", "3 wg gap"]),
        (
            "HYBRID_DATA_MODEL",
            ["3 fwd gap", "3 fwd comm", "4 fwd gap", "4 ig gap", "4 ig comm", "3 ig gap", "3 wg gap", "3 wg comm",
             "3 update gap"],
        ),
    ],
)  # fmt: skip
def test_each_parallelism_has_its_own_parts(policy: str, expected: list[str], tmp_path: Path) -> None:
    text = SIMAI.replace("HYBRID_TRANSFORMER model_parallel_NPU_group: 2", policy)
    found = [what.removeprefix("line ").replace(",", "") for what, _ in parts(text, tmp_path)]
    assert found == expected


def test_checkpointed_layers_run_forward_again(tmp_path: Path) -> None:
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 all_gpus: 4 checkpoints: 1 0 "
    text = head + "checkpoint_initiates: 1 1\n" + SIMAI.partition("\n")[2]
    found = [what for what, _ in parts(text, tmp_path)]
    assert found[2:6] == ["line 4, fwd gap", "line 3, fwd gap", "line 3, fwd comm", "line 4, ig gap"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "w.txt: line 1: 'nothing' is not known: allowed are"),
        (SIMAI.replace("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMR"), "did you mean 'HYBRID_TRANSFORMER'?"),
        (SIMAI.replace("ALLGATHER", "ALLSHUFFLE"), "w.txt: line 4: 'ALLSHUFFLE' is not a known collective: "),
        (SIMAI.replace("ALLGATHER", "ALLGATHER_XP"), "w.txt: line 4: 'ALLGATHER_XP' is not a known collective: "),
        (SIMAI[:-30], "w.txt: line 4: "),
        (SIMAI.replace("\n2\n", "\n3\n"), "w.txt: 3 layers are announced in line 2, and 2 follow: the file is cut off"),
        (SIMAI.replace("\n2\n", "\ntwo\n"), "w.txt: line 2: 'two' is no number of layers"),
        (SIMAI.replace("201", "-201"), "w.txt: line 4: '-201' is no size of ig in bytes"),
        (SIMAI.replace("all_gpus: 4", "all_gpus: 5"), "w.txt: line 1: 5 ranks can't be divided by 2"),
        (SIMAI.replace("all_gpus: 4", "all_gpus: 4 ep: 4"), "w.txt: line 1: 'ep: 4' must divide the 2 ranks"),
        (SIMAI.replace("all_gpus: 4", "all_gpus: 32"), "has 32 ranks, more than the 4 domains x 4 rails have GPUs"),
        (SIMAI.replace("ALLREDUCE", "NONE").replace("ALLGATHER", "NONE"), "sends nothing"),
    ],
)  # fmt: skip
def test_error_in_a_workload_text_has_its_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(text)
    with pytest.raises(BadInput) as error:
        replayable(tmp_path / "w.txt")
    assert message in str(error.value)
