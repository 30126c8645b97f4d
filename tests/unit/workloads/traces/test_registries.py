"""Definitions of workload kinds, collective algorithms and backgrounds are checked when they are registered."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

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
from tests.unit.workloads.messages import CheckMessages


class Nameless(DirectAllToAll):
    algorithm = ""


class Empty(Workload):
    pass


def test_messages_of_definitions_that_are_not_whole(check_messages: CheckMessages) -> None:
    no_definition: Any = object()
    calls: dict[str, Callable[[], object]] = {
        "a workload kind without build": partial(WORKLOADS.add, "empty", Empty),
        "an algorithm without a name": partial(ALGORITHMS.add, "nameless", Nameless()),
        "an algorithm with a taken name": partial(ALGORITHMS.add, "point-to-point", PointToPoint()),
        "a background with a taken name": partial(BACKGROUNDS.add, "rails", BACKGROUNDS["rails"]),
        "a background of another type": partial(BACKGROUNDS.add, "mine", no_definition),
        "a trace format of another type": partial(TRACE_FORMATS.add, "mine", no_definition),
    }
    check_messages(calls)
    assert "empty" not in WORKLOADS


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


@pytest.mark.parametrize(
    "spec",
    [{"kind": "moe", "bytes": "1MB"}, {"kind": "trace", "path": "tests/traces/micro.txt", "bytes_factor": 1.0}],
    ids=["moe", "trace"],
)
def test_workloads_take_any_all_to_all_of_the_registry(spec: dict[str, object], mine: str) -> None:
    fabric = FabricSpec(kind="rail-only", domains=4, rails=4)
    built, reference = (
        build(parse_workload({**spec, "algorithm": name}), fabric, 10**8, 10**9).schedule
        for name in ("mine", "two-phase")
    )
    assert built.tasks == reference.tasks
    assert mine in {phase.collective for phase in built.phases}


def test_messages_of_all_to_alls_that_do_not_fit(mine: str, check_messages: CheckMessages) -> None:
    specs: dict[str, dict[str, object]] = {
        "an algorithm of each rail by itself": {"kind": "moe", "algorithm": "in-rail"},
        "an algorithm of another collective": {"kind": "moe", "algorithm": "ring"},
        "the same of a trace": {"kind": "trace", "path": "tests/traces/micro.txt", "algorithm": "ring"},
        "uneven bytes": {"kind": "moe", "algorithm": "mine", "skew": 1.0},
    }
    check_messages({case: partial(parse_workload, spec) for case, spec in specs.items()})


def test_traffic_kind_that_is_not_defined_is_a_headline() -> None:
    assert traffic_kind("broadcast") == TrafficKind(is_dense=False, is_headline=True)
    assert [name for name in TRAFFIC_KINDS if traffic_kind(name).is_dense] == [
        name for name in TRAFFIC_KINDS if not traffic_kind(name).is_headline
    ]
    assert {"TP", "PP", "DP", "EP", "collective"} <= set(TRAFFIC_KINDS)
