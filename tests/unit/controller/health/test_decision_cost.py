"""The benchmark of decisions: what it times has to search, both ways agree, and its table says what was measured."""

import pytest
from rich.console import Console

from benchmarks import decision_cost
from benchmarks.decision_cost import Cost, by_scan, measure, table_of, task_of
from railyard.controller.health.policy import choose_path, first_routable, near_path


@pytest.mark.parametrize("rails", [8, 256])
def test_every_pair_searches_and_most_find(rails: int) -> None:
    scores, pairs = task_of(rails, 200)
    chosen = [choose_path(src, dst, scores) for src, dst in pairs]
    assert chosen == [by_scan(src, dst, scores) for src, dst in pairs]
    assert sum(path is not None and path.kind == "drd" for path in chosen) > 100
    nears = [near_path(src, dst, scores) for src, dst in pairs]
    assert all(near and near.kind != "d" for near in nears)
    assert len({first_routable(near, *pair, scores) for near, pair in zip(nears, pairs, strict=True) if near}) > 2


def test_a_search_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_cost, "choose_path", near_path)
    with pytest.raises(ValueError, match="disagree at 8 rails"):
        measure(8, decisions=50, repeats=1)


def test_the_table_has_growth_and_factors_repeat_by_repeat() -> None:
    costs = [Cost(8, (1.0, 1.0), (2.0, 2.0), (5.0, 5.0)), Cost(64, (2.0, 1.0), (40.0, 30.0), (50.0, 60.0))]
    console = Console(width=140)
    with console.capture() as capture:
        console.print(table_of(costs))
    rows = [line.split() for line in capture.get().splitlines() if line.startswith("│")]
    assert {"1.00", "(1.00–1.00)", "2.0"} <= set(rows[0])
    assert {"64", "1.50", "(1.00–2.00)", "2.00", "35.0", "25.0", "55"} <= set(rows[1])  # 20 and 30: 25


@pytest.mark.parametrize("option", ["--decisions", "--repeats"])
def test_bad_input_is_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert decision_cost.main([option, "0"]) == 2
    assert capsys.readouterr().err == f"error: {option}: 0 must be 1 or more\n"
