"""Takeovers drawn, in the report's tables and on the screen."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from railyard.core.records import IntervalId
from railyard.experiments.measures.replacement import section
from railyard.experiments.measures.replacement.analysis import replacement_rows
from railyard.experiments.measures.replacement.plot import replacement_plots
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import Load, Run
from tests.unit.replaced import replaced
from tests.unit.sample_runs import recovery_run
from tests.unit.shown import screen


@pytest.fixture(scope="module")
def run() -> Run:
    return recovery_run()


def test_replacement_steps_are_drawn_by_method_and_fabric(run: Run) -> None:
    (plot,) = replacement_plots(run.events)
    ElementTree.fromstring(plot.svg)
    optical, direct = plot.alt.replace("\u00a0", " ").split("; ")
    light = ", optical-links-down 9.0 ms, adopted 14.0 ms, optical-links-up 20.0 ms"
    ways = ((optical, "rail-only, optical", light, 42), (direct, "rail-optimized, direct", "", 32))
    for message, way, light_off, over in ways:
        steps = f"detected 7.0 ms, decided 8.0 ms{light_off}, replaced {over}.0 ms, state-moved 440.0 ms"
        assert message.endswith(f"median repeat of {way}, d0g1: {steps}, job-resumed 899.0 ms")
    assert plot.svg.count(">optical-links-down<") == 1
    assert replacement_plots([e for e in run.events if e.source != "replacement"]) == []


def load(part: str, repeat: int, lag_ms: float = 9.0, failed: str = "") -> Load:
    interval = IntervalId("rail-only", "", "dr", script=f"idle-gpu by optical{failed}", part=part, repeat=repeat)
    return Load(interval, 0.4, 0.0, lag_ms, 0, 1, 0)


def test_replacement_medians_are_beside_their_predictions(run: Run) -> None:
    optical, direct = replacement_rows(run, judge(run))
    assert (optical.n, optical.medians["replaced_ms"], optical.verdict) == (3, 42.0, "ok")
    assert direct.slowdown == pytest.approx(1.12)
    assert direct.predicted_slowdown == pytest.approx(1.0)
    slow = load("after", 1)
    unknown = [replace(t, after_predicted_s=None, state_transfer_predicted_ms=None) for t in run.rows(REPLACEMENTS)]
    run = replace(run, loads=[*run.loads, slow]).with_rows(REPLACEMENTS, unknown)
    rows = replacement_rows(run, judge(run))
    assert [row.verdict for row in rows] == ["degraded", "ok"]
    assert rows[0].predicted_slowdown is None
    steps, iterations = section.replacement_steps_table(rows), section.iterations_table(rows)
    assert all(len(line) == len(table.shown) for table in (steps, iterations) for line in table.cells)
    assert (iterations.cells[0][5], iterations.cells[0][-1]) == ("–", "–")


def test_replacements_have_a_spread_and_a_verdict(run: Run) -> None:
    many = [replaced(t, repeat=n, replaced_ms=40.0 + n) for t in run.rows(REPLACEMENTS)[:1] for n in range(20)]
    slow = load("replacement", 7)
    run = replace(run, loads=[*run.loads, slow]).with_rows(REPLACEMENTS, many)
    (row,) = replacement_rows(run, judge(run))
    assert row.verdict == "degraded"
    found = row.figures["replaced_ms"]
    assert (found.n, found.median, found.p95) == (20, 49.5, 58.0)
    assert row.figures["after_s"].median == 100.0  # ms
    first, *_, last = section.spread_table([row]).cells
    assert re.fullmatch(r"49\.5\u00a0ms \[\d+\.\d, \d+\.\d\]", first[6])
    assert re.fullmatch(r"58\.0\u00a0ms \[\d+\.\d, 59\.0\]", first[7])
    assert last[4] == "iteration after"
    low, high = row.as_dict()["replaced_ms"]["median_95"]
    assert low < 49.5 < high
    assert row.as_dict()["after_ms"]["p95"] == 100.0


def test_two_replacements_of_one_case_are_two_rows(run: Run) -> None:
    one = run.rows(REPLACEMENTS)[0]
    rows = replacement_rows(run.with_rows(REPLACEMENTS, [one, replace(one, failed="d2g2")]), judge(run))
    assert [(row.failed, row.n) for row in rows] == [("d0g1", 1), ("d2g2", 1)]
    assert [row[3] for row in section.iterations_table(rows).cells] == ["d0g1", "d2g2"]


def test_two_replacements_of_one_case_have_their_own_verdicts(run: Run) -> None:
    one = run.rows(REPLACEMENTS)[0]
    both = [replaced(one, failed=name, script=f"idle-gpu by optical, {name}") for name in ("d0g1", "d2g2")]
    loads = [load("after", 0, 1.0, ", d0g1"), load("after", 0, 9.0, ", d2g2")]
    several = replace(run, loads=[*run.loads, *loads]).with_rows(REPLACEMENTS, both)
    rows = replacement_rows(several, judge(several))
    assert [(row.failed, row.verdict) for row in rows] == [("d0g1", "ok"), ("d2g2", "degraded")]
    shown = [line for line in screen(several, 120) if line.startswith("idle-gpu")]
    gpus = [re.findall(r"d\dg\d", line) for line in shown]
    assert gpus == [["d0g1"], ["d2g2"]] * 2  # in two parts
    assert not re.search("idle-gpu .*d0g1", "\n".join(screen(run, 120)))
