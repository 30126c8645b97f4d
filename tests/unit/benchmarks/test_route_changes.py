"""The benchmark of route changes: what it changes and what it says of that. What it measures needs root."""

import pytest
from rich.console import Console

from benchmarks import route_changes
from benchmarks.route_changes import Turns, host_routes, measure, table_of
from railyard.topologies.addresses import Gpu
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.fake_kernel import FakeKernel, shape_of
from tests.unit.shown import table_rows

PLAN = make_plan(parse_fabric({"kind": "rail-only", "domains": 8, "rails": 8}), route_changes.RAIL_BPS)


@pytest.mark.parametrize(("rails", "changes"), [(range(1), 448), (range(8), 3584)])
def test_all_routes_differ_between_the_two_sides(rails: range, changes: int) -> None:
    near, far = (host_routes(PLAN, rails, turned) for turned in (False, True))
    assert sum(map(len, near.values())) == sum(map(len, far.values())) == changes
    for gpu in PLAN.gpus:
        assert [route.prefix for route in near[gpu]] == [route.prefix for route in far[gpu]]
        assert all(one != other for one, other in zip(near[gpu], far[gpu], strict=True))


def test_packets_would_go_by_the_rail_that_a_side_says() -> None:
    small = make_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 4}), route_changes.RAIL_BPS)
    for turned in (False, True):
        extra = host_routes(small, range(4), turned)
        kernel = FakeKernel(small, lambda a, b: a.rank == b.rank, extra=extra)
        for src in small.gpus:
            for dst in (Gpu(1 - src.domain, rank) for rank in range(4)):
                hops = kernel.walk(src, dst)
                assert hops is not None
                assert shape_of(hops)[1] == (dst.rank + turned) % 4


def test_ways_take_turns_and_every_turn_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_changes, "check", lambda wanted: None)
    sides = [host_routes(PLAN, range(1), turned) for turned in (False, True)]
    seen: list[tuple[str, int]] = []

    def note(name: str) -> route_changes.Way:
        return lambda wanted: seen.append((name, sides.index(dict(wanted))))  # type: ignore[arg-type]

    turns = measure({"one": note("one"), "two": note("two"), "three": note("three")}, sides, 2)
    assert [name for name, _ in seen] == ["one", "two", "three"] * 2
    assert [side for _, side in seen] == [1, 0] * 3
    assert [(turn.changes, turn.way, len(turn.times_ms)) for turn in turns] == [
        (448, "one", 2),
        (448, "two", 2),
        (448, "three", 2),
    ]


def test_the_table_compares_with_the_agent_repeat_by_repeat() -> None:
    console = Console(width=120)
    turns = [Turns(448, "the agent", (4.48, 8.96, 4.48)), Turns(448, "other", (44.8, 44.8, 44.8))]
    with console.capture() as capture:
        console.print(table_of(turns, "64 GPUs"))
    rows = table_rows(capture.get(), column=2)
    assert {"448", "4.48", "(4.48–8.96)", "10.0", "1"} <= set(rows["the agent"])
    assert {"44.80", "(44.80–44.80)", "100.0", "10.0"} <= set(rows["other"])  # of 10, 5 and 10
