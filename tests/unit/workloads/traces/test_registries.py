"""Definitions of workload kinds, collective algorithms and backgrounds are checked when they are registered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.core.plugins import BadDefinition
from railyard.topologies.spec import FabricSpec
from railyard.workloads.background.spec import BACKGROUNDS
from railyard.workloads.collectives.algorithm import ALGORITHMS
from railyard.workloads.collectives.all_to_all_direct import DirectAllToAll
from railyard.workloads.collectives.all_to_all_two_phase import TwoPhaseAllToAll
from railyard.workloads.collectives.point_to_point import PointToPoint
from railyard.workloads.spec import (
    TRAFFIC_KINDS,
    WORKLOADS,
    TrafficKind,
    Workload,
    build,
    parse_workload,
    traffic_kind,
)
from railyard.workloads.traces.common import TRACE_FORMATS, Files, Node, Recv, ReplayOn, Send, Trace, TraceFormat


class Nameless(DirectAllToAll):
    algorithm = ""


def test_workload_kind_without_build_is_refused() -> None:
    class Empty(Workload):
        pass

    with pytest.raises(BadDefinition, match=r"'empty' is not a whole workload kind: build\(setting\) is missing"):
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


def test_trace_format_that_is_no_definition_is_refused() -> None:
    with pytest.raises(BadDefinition, match="must be an instance of TraceFormat"):
        TRACE_FORMATS.add("mine", object())  # type: ignore[arg-type]


class Lines(TraceFormat):
    """A send for each line and rank: `0 1 4096`."""

    rank_suffixes = ("lines",)

    def recognizes(self, files: Files) -> bool:
        return files.suffix == ".lines"

    def read(self, files: Files, on: ReplayOn) -> Trace:
        sends = [tuple(map(int, line.split())) for line in files.content[0].splitlines()]
        ranks: list[list[Node]] = [[] for _ in range(2)]
        for number, (src, dst, size) in enumerate(sends):
            ranks[src].append(Node(f"line {number}", Send(dst, size, 0)))
            ranks[dst].append(Node(f"line {number}", Recv(src, size, 0)))
        return Trace(files.name, tuple(map(tuple, ranks)), lambda measured: {})


def test_registered_trace_format_is_recognized_and_read(tmp_path: Path) -> None:
    TRACE_FORMATS.add("lines", Lines())
    try:
        (tmp_path / "my.0.lines").write_text("0 1 4096\n1 0 99\n")
        spec = parse_workload({"kind": "trace", "path": str(tmp_path / "my"), "bytes_factor": 1.0})
        assert spec.label() == "my"
        built = build(spec, FabricSpec(kind="rail-only", domains=2, rails=2), 10**8, 10**9)
        assert built.schedule.matrix == {(0, 1): 4096, (1, 0): 99}
    finally:
        TRACE_FORMATS.remove("lines")


class Mine(TwoPhaseAllToAll):
    algorithm = "mine"


@pytest.fixture
def mine() -> Iterator[str]:
    ALGORITHMS.add("all-to-all-mine", Mine())
    yield "all-to-all-mine"
    ALGORITHMS.remove("all-to-all-mine")


@pytest.mark.parametrize("spec", [{"kind": "moe"}, {"kind": "trace", "path": "tests/traces/micro.txt"}])
def test_workloads_take_any_all_to_all_of_the_registry(spec: dict[str, str], mine: str) -> None:
    fabric = FabricSpec(kind="rail-only", domains=4, rails=4)
    built, reference = (
        build(parse_workload({**spec, "algorithm": name}), fabric, 10**8, 10**9).schedule
        for name in ("mine", "two-phase")
    )
    assert built.tasks == reference.tasks
    assert mine in {phase.collective for phase in built.phases}
    for name, allowed in (("in-rail", "direct, mine, two-phase"), ("ring", "direct, mine, two-phase")):
        with pytest.raises(BadInput, match=f"is not for all-to-all: allowed are auto, {allowed}"):
            parse_workload({**spec, "algorithm": name})


def test_uneven_experts_need_an_algorithm_that_can_be_uneven(mine: str) -> None:
    with pytest.raises(BadInput, match="is not for mine, whose pairs are all alike"):
        parse_workload({"kind": "moe", "algorithm": "mine", "skew": 1.0})


def test_traffic_kind_that_is_not_defined_is_a_headline() -> None:
    assert traffic_kind("broadcast") == TrafficKind(is_dense=False, is_headline=True)
    assert [name for name in TRAFFIC_KINDS if traffic_kind(name).is_dense] == [
        name for name in TRAFFIC_KINDS if not traffic_kind(name).is_headline
    ]
    assert {"TP", "PP", "DP", "EP", "collective"} <= set(TRAFFIC_KINDS)
