"""Ranks are derived from ranks of their kind; samples that disagree refute it."""

from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.recording.symmetry import (
    Program,
    Recorded,
    Symmetry,
    families_of,
    family_names,
    program_of,
)


def communicator(ranks: list[int], place: str = "train.py:5", description: str = "") -> dict[str, Any]:
    return {"ranks": ranks, "place": place, "description": description, "backend": "nccl", "member": True}


WORLD = communicator([0, 1, 2, 3], "train.py:1")
TP = [communicator([0, 1]), communicator([2, 3])]
PP = [communicator([0, 2], "train.py:9", "mesh_pp"), communicator([1, 3], "train.py:9", "mesh_pp")]
FAMILIES = {"world": ((0, 1, 2, 3),), "group": ((0, 1), (2, 3)), "pp": ((0, 2), (1, 3))}


def program(*operations: tuple[str, str, int]) -> Program:
    return [{"op": op, "communicator": name, "bytes": size, "after": []} for op, name, size in operations]


def test_groups_of_a_line_are_a_family() -> None:
    assert family_names([WORLD, *TP, *PP]) == ["world", "group", "group", "pp", "pp"]


def test_a_line_that_repeats_ranks_makes_a_second_family() -> None:
    assert family_names([WORLD, *TP, *TP]) == ["world", "group", "group", "group-2", "group-2"]


def test_families_have_the_groups_of_all_ranks_that_were_run() -> None:
    records = [Recorded(0, [], [WORLD, TP[0]], []), Recorded(3, [], [WORLD, TP[1]], [])]
    assert families_of(records) == {"world": ((0, 1, 2, 3),), "group": ((0, 1), (2, 3))}


def test_a_program_names_families() -> None:
    operations = [{"op": "compute", "flops": 1, "after": []}, {"op": "barrier", "communicator": 2, "after": [0]}]
    named = program_of(Recorded(2, operations, [WORLD, *TP], []), operations)
    assert named == [
        {"op": "compute", "flops": 1, "after": []},
        {"op": "barrier", "communicator": "group", "after": [0]},
    ]


def test_collectives_make_all_ranks_alike() -> None:
    reduce = program(("all-reduce", "group", 4))
    symmetry = Symmetry(4, FAMILIES, {0: reduce, 3: reduce})
    assert symmetry.missing() == []
    assert symmetry.sources("train.py") == {0: 0, 1: 0, 2: 0, 3: 3}


def test_each_stage_of_a_pipeline_must_be_run() -> None:
    symmetry = Symmetry(4, FAMILIES, {0: program(("send", "pp", 4))})
    assert symmetry.missing() == [2]
    both = Symmetry(4, FAMILIES, {0: program(("send", "pp", 4)), 2: program(("recv", "pp", 4))})
    assert both.missing() == []
    assert both.sources("train.py") == {0: 0, 1: 0, 2: 2, 3: 2}


def test_a_sample_that_differs_is_refused() -> None:
    programs = {0: program(("all-reduce", "world", 4)), 3: program(("all-reduce", "world", 8))}
    with pytest.raises(BadInput) as refused:
        Symmetry(4, FAMILIES, programs).sources("train.py")
    assert str(refused.value) == (
        "train.py: 'rank 3' differs from rank 0 at operation 1 (all-reduce of 8 bytes in world, "
        "not all-reduce of 4 bytes in world), so ranks can't be derived: run them all, --only all"
    )


def test_routing_that_differs_can_be_made_even() -> None:
    programs = {rank: program(("all-to-allv", "world", rank)) for rank in (0, 3)}
    with pytest.raises(BadInput, match="--only all, or route evenly, --routing balanced"):
        Symmetry(4, FAMILIES, programs).sources("train.py")


def test_ranks_that_were_all_run_may_differ() -> None:
    programs = {rank: program(("all-reduce", "world", rank)) for rank in range(4)}
    assert Symmetry(4, FAMILIES, programs).sources("train.py") == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_communicator_of_its_members_alone_is_refused() -> None:
    families = {"world": ((0, 1, 2, 3),), "group": ((0, 1),)}
    with pytest.raises(BadInput, match="'rank 2' is in no communicator group that rank 0 knows of"):
        Symmetry(4, families, {0: program(("all-reduce", "group", 4))}).sources("train.py")
