"""Definitions of workload kinds, collective algorithms and backgrounds are checked when they are registered."""

import pytest

from railyard.core.plugins import BadDefinition
from railyard.workloads.background.kind import BACKGROUNDS
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.collectives.all_to_all_direct import DirectAllToAll
from railyard.workloads.collectives.point_to_point import PointToPoint
from railyard.workloads.spec import WORKLOADS, Workload


class Nameless(DirectAllToAll):
    algorithm = ""


def test_workload_kind_without_build_is_refused() -> None:
    class Empty(Workload):
        pass

    with pytest.raises(BadDefinition, match="'empty' is not a whole workload kind: build is missing"):
        WORKLOADS.add("empty", Empty)
    assert "empty" not in WORKLOADS


def test_algorithm_must_name_itself_and_its_collective() -> None:
    with pytest.raises(BadDefinition, match="collective and algorithm must be given together"):
        ALGORITHMS.add("nameless", Nameless())


def test_name_of_a_built_in_definition_is_taken() -> None:
    with pytest.raises(BadDefinition, match="is already registered as collective algorithm, at workloads/collectives/"):
        ALGORITHMS.add("point-to-point", PointToPoint())
    with pytest.raises(BadDefinition, match="is already registered as background kind"):
        BACKGROUNDS.add("rails", BACKGROUNDS["rails"])


def test_background_that_is_no_definition_is_refused() -> None:
    with pytest.raises(BadDefinition, match="must be an instance of BackgroundKind"):
        BACKGROUNDS.add("mine", object())  # type: ignore[arg-type]
