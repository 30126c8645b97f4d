"""Reports of benchmarks and the input that they refuse. Measurements need root: see tests/emulation."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from benchmarks import build_fabric, pair_traffic, route_changes, scores_to_routes
from benchmarks.builders import Railyard, Stock
from benchmarks.measurements import Ratios, Turn, ratios, spread
from railyard.core.sandbox import launcher
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.unit.shown import table_rows


def turn(repeat: int, builder: str, build_s: float, stop_s: float) -> Turn:
    return Turn(repeat, builder, build_s, stop_s, freed_s=stop_s + 0.5, links=8, namespaces=4)


# a slow machine in repeat 2 makes both slow, and no ratio worse
TURNS = [
    turn(1, Railyard.name, 1.0, 0.5),
    turn(1, Stock.name, 10.0, 8.0),
    turn(2, Railyard.name, 3.0, 1.5),
    turn(2, Stock.name, 30.0, 18.0),
    turn(3, Railyard.name, 1.0, 0.5),
    turn(3, Stock.name, 9.0, 7.0),
]


def test_ratios_are_per_pair_in_any_order_of_turns() -> None:
    expected = Ratios(build=10.0, stop=14.0, freed=8.5)  # of 10, 10, 9; 16, 12, 14; and 8.5, 9.25, 7.5
    assert ratios(TURNS, Stock.name, Railyard.name) == expected
    assert ratios(TURNS[::-1], Stock.name, Railyard.name) == expected


@pytest.mark.parametrize("turns", [TURNS[:-1], [*TURNS[:-1], turn(4, Stock.name, 1, 1)]])
def test_no_ratios_of_turns_that_are_not_pairs(turns: list[Turn]) -> None:
    with pytest.raises(ValueError):
        ratios(turns, Stock.name, Railyard.name)


def test_a_spread_reads_as_median_least_and_most() -> None:
    assert str(spread([2.0, 9.0, 1.5])) == "2.00 (1.50–9.00)"


def test_the_table_compares_both_builders_times() -> None:
    plan = make_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2}), build_fabric.RAIL_BPS)
    console = Console(width=120)
    with console.capture() as capture:
        build_fabric.print_result(TURNS, [Railyard(plan, "netdev"), Stock(plan, "netdev")], "4 GPUs", console)
    rows = table_rows(capture.get())
    assert {"1.00", "(1.00–3.00)", "0.50", "(0.50–1.50)", "(1.00–2.00)"} <= set(rows[Railyard.name])
    shown = [word for word in rows[Stock.name] if word not in ("│", *Stock.name.split())]
    assert shown == ["10.00", "(9.00–30.00)", "10.0", "8.00", "(7.00–18.00)", "14.0", "8.50", "(7.50–18.50)", "8.5"]


EXISTING = "/etc/passwd"
BAD_INPUT: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "build: 1 rail": (build_fabric.main, "--rails 1"),
    "build: no repeats": (build_fabric.main, "--repeats 0"),
    "build: unknown builder": (build_fabric.main, "--only stock"),
    "build: file under /run": (build_fabric.main, "--json /run/x.json"),
    "build: file that exists": (build_fabric.main, f"--json {EXISTING}"),
    "build: folder that is not there": (build_fabric.main, "--json /nowhere/x.json"),
    "pair traffic: no repeats": (pair_traffic.main, "--repeats 0"),
    "pair traffic: file that exists": (pair_traffic.main, f"--json {EXISTING}"),
    "pair traffic: folder that is not there": (pair_traffic.main, "--json /nowhere/x.json"),
    "route changes: 1 rail": (route_changes.main, "--rails 1"),
    "route changes: no repeats": (route_changes.main, "--repeats 0"),
    "scores to routes: 1 rail": (scores_to_routes.main, "--rails 1"),
    "scores to routes: no rounds": (scores_to_routes.main, "--rounds 0"),
    "scores to routes: unknown policy": (scores_to_routes.main, "--policy helth"),
    "scores to routes: policy without scores": (scores_to_routes.main, "--policy dr"),
}


def test_bad_input_is_one_line_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    monkeypatch.setattr(launcher, "enter", lambda *_: pytest.fail("entered a sandbox"))
    lines = {}
    for case, (main, arguments) in BAD_INPUT.items():
        assert main(arguments.split()) == 2
        (lines[case],) = capsys.readouterr().err.splitlines()
    data_regression.check(lines)


def test_sandbox_gets_the_users_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(build_fabric, "require", lambda machine: None)

    def enter(argv: list[str], task: dict[str, object], visible: list[Path]) -> int:
        given.append(task)
        assert visible == [tmp_path]
        return 7

    monkeypatch.setattr(launcher, "enter", enter)
    file = tmp_path / "x.json"
    with pytest.raises(SystemExit) as end:
        build_fabric.main(["--domains", "3", "--repeats", "2", "--only", "railyard", "--json", str(file)])
    assert end.value.code == 7
    assert given == [{"domains": 3, "rails": 8, "repeats": 2, "json": str(file), "builders": ["railyard"]}]
