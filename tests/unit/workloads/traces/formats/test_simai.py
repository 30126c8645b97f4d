"""SimAI's workload text: what runs when, for each parallelism, and what is wrong with a line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from railyard.workloads.traces.common import Gap
from tests.unit.traces import SIMAI, read, replayable
from tests.unit.workloads.messages import CheckMessages


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
    assert [part.removeprefix("line ").replace(",", "") for part, _ in parts(text, tmp_path)] == expected


def test_checkpointed_layers_run_forward_again(tmp_path: Path) -> None:
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 all_gpus: 4 checkpoints: 1 0 "
    text = head + "checkpoint_initiates: 1 1\n" + SIMAI.partition("\n")[2]
    names = [part for part, _ in parts(text, tmp_path)]
    assert names[2:6] == ["line 4, fwd gap", "line 3, fwd gap", "line 3, fwd comm", "line 4, ig gap"]


TEXTS: Final = {
    "empty": "",
    "unknown parallelism": SIMAI.replace("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMR"),
    "unknown collective": SIMAI.replace("ALLGATHER", "ALLSHUFFLE"),
    "unknown group": SIMAI.replace("ALLGATHER", "ALLGATHER_XP"),
    "cut off in a line": SIMAI[:-30],
    "cut off between lines": SIMAI.replace("\n2\n", "\n3\n"),
    "no number of layers": SIMAI.replace("\n2\n", "\ntwo\n"),
    "negative size": SIMAI.replace("201", "-201"),
    "ranks that groups don't divide": SIMAI.replace("all_gpus: 4", "all_gpus: 5"),
    "experts that replicas don't divide": SIMAI.replace("all_gpus: 4", "all_gpus: 4 ep: 4"),
    "more ranks than GPUs": SIMAI.replace("all_gpus: 4", "all_gpus: 32"),
    "nothing to send": SIMAI.replace("ALLREDUCE", "NONE").replace("ALLGATHER", "NONE"),
}


def test_messages_of_workload_texts(tmp_path: Path, check_messages: CheckMessages) -> None:
    calls: dict[str, Callable[[], object]] = {}
    for number, (case, text) in enumerate(TEXTS.items()):
        path = tmp_path / f"w{number}.txt"
        path.write_text(text)
        calls[case] = partial(replayable, path)
    check_messages(calls)
