"""Tables, figures and files of allreduces over several rails, from a sample of records."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from railyard.core.records import Recovered
from railyard.experiments.measures.allreduce import plots as allreduce
from railyard.experiments.measures.allreduce import tables
from railyard.experiments.measures.allreduce.analysis import by_fabric
from railyard.experiments.measures.allreduce.records import (
    AllreduceResults,
    LostRails,
    Skipped,
    allreduce_interval,
)
from railyard.experiments.measures.allreduce.section import SLOW_MOTION_NOTE
from railyard.experiments.measures.allreduce.targets import outcomes
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results import run_folder
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Load, Run, Verdict
from railyard.results.theory import nezha
from railyard.results.views import report
from railyard.results.views.table import Table
from railyard.results.views.targets import targets_table
from railyard.workloads.jobs.training import training_name
from tests.unit import shown
from tests.unit.experiments.measures.allreduce.sample_results import (
    MIB,
    PAIR,
    UNLIKE,
    cut_of,
    run_of,
    sample,
    started,
    training_of,
)
from tests.unit.replaced import replaced


@pytest.fixture(scope="module")
def run() -> Run:
    found = run_of(sample())
    found.loads = [Load(allreduce_interval(PAIR.label, "nezha", 64 * MIB), 0.5, 0.01, 0.4, 0, 1000, 0)]
    return found


@pytest.mark.usefixtures("figures_as_text")
def test_records_are_the_same_when_read_back(run: Run, tmp_path: Path) -> None:
    assert AllreduceResults.of(run) == sample()
    run_folder.save(run, tmp_path)
    assert AllreduceResults.of(run_folder.load(tmp_path)) == sample()
    assert json.loads((tmp_path / "summary.json").read_text())["passed"]


def test_skipped_policies_and_lost_rails_are_read_back() -> None:
    lost = [LostRails(allreduce_interval(PAIR.label, "nezha", 64 * MIB), ("tcp0", "tcp1"), kept=True)]
    found = replace(sample(), lost=lost, skipped=[Skipped(PAIR.label, "gloo", "PyTorch isn't installed", failed=False)])
    assert AllreduceResults.of(run_of(found)) == found


@pytest.mark.parametrize("carried", [True, False])
def test_error_of_a_fault_is_read_back(carried: bool) -> None:
    failed = cut_of(home_ms=None, carried=carried, error="rank 1 is gone", migrate_ms=None)
    run = run_of(replace(sample(), cuts=[failed]))
    assert AllreduceResults.of(run).cuts == [failed]
    assert [r.recovered for r in run.rows(RECOVERIES)] == [Recovered.NO]
    assert [r.primary_path_ms for r in run.rows(RECOVERIES)] == [None if carried else 0.0]


@pytest.mark.usefixtures("figures_as_text")
def test_point_that_lost_a_rail_is_marked_with_the_reason(run: Run) -> None:
    interval = allreduce_interval(PAIR.label, "nezha", 64 * MIB)
    changed = replace(run, events=[])
    for kept in (False, True):
        LostRails(interval, ("tcp0",), kept=kept).add_to(changed)
    page = shown.render(changed)
    assert "157.0\u00a0ms ?" in page
    assert len(re.findall("tcp0 lost [^<]*(?:in operations that count|measured anew)", page)) >= 2


def test_throughput_is_of_the_size_of_the_paper(run: Run) -> None:
    row = next(m for m in run.measurements if (m.fabric, m.policy, m.metric) == (UNLIKE.label, "nezha", "throughput"))
    assert row.workload == "allreduce 2KiB"
    point = next(p for p in sample().points if (p.fabric, p.policy) == (UNLIKE.label, "nezha"))
    assert row.value == pytest.approx(8 * point.size / point.mean_s), "sizes are the paper's, as times are"
    assert row.ratio == pytest.approx(0.97)


def test_steps_of_an_invalid_ddp_run_are_not_compared() -> None:
    (ddp_run,) = sample().ddp_runs
    verdicts: tuple[Verdict, ...] = ("ok", "degraded", "invalid")
    found = [tables.ddp_runs_table(sample(), {ddp_run.interval: verdict}).cells[0][-1] for verdict in verdicts]
    assert found == ["1.79x", "1.79x", "invalid"]


def test_model_with_a_batch_of_its_own_is_named_without_one() -> None:
    assert training_name("gpt3-2.7b", 0) == "gpt3-2.7b"
    gpt = replaced(training_of("nezha", 1.0), workload="gpt3-2.7b")
    found = replace(sample(), trainings=[gpt, training_of("nezha", 1.0)])
    assert [row[1] for row in tables.trainings_table(found).cells] == ["gpt3-2.7b", "vgg-11 batch 64"]


@pytest.mark.usefixtures("figures_as_text")
def test_point_of_an_invalid_interval_is_marked(run: Run) -> None:
    busy = replace(
        run,
        loads=[replaced(run.loads[0], cpu_busy=0.99), replaced(run.loads[0], workload="allreduce 2KiB", policy="mrib")],
    )
    printed = "\n".join(shown.screen(busy, 200))
    assert "157.0\u00a0ms ?" in printed
    assert printed.count(" ?") == 1


def test_gain_and_ratio_of_an_invalid_point_are_no_numbers() -> None:
    results = sample()
    measured = by_fabric(results)[-1]
    size = measured.sizes[-1]
    interval = allreduce_interval(measured.rails.label, "nezha", size)
    row = tables.benchmark_table(measured, results, frozenset()).cells[len(measured.sizes) - 1]
    assert re.fullmatch(r"\d\.\d\dx", row[-2])
    assert re.fullmatch(r"\d\.\d{3}", row[-1])
    repeats = {point.interval for point in results.points if replace(point.interval, repeat=0) == interval}
    table = tables.benchmark_table(measured, results.without(repeats), frozenset({interval}))
    assert table.cells[len(measured.sizes) - 1][-2:] == ("–", "invalid")


def titles(table: Table) -> tuple[str, ...]:
    return tuple(column.title for column in table.columns)


def slowed(run: Run) -> Run:
    """Its small sizes and its trainings in slow motion."""
    found = AllreduceResults.of(run)
    points = [replace(p, dilation=10.0) if p.size < MIB else p for p in found.points]
    trainings = [replace(t, dilation=3.0) for t in found.trainings]
    return replace(run_of(replace(found, points=points, trainings=trainings)), loads=run.loads)


def restarted(run: Run) -> Run:
    """Its small sizes measured over three starts, nezha's on unlike rails the least steady."""
    points = []
    for p in AllreduceResults.of(run).points:
        slowest = 1.08 if (p.fabric, p.policy) == (UNLIKE.label, "nezha") else 1.0
        points += started(p, 0.96 * p.mean_s, p.mean_s, slowest * p.mean_s) if p.size < MIB else [p]
    return replace(run_of(replace(AllreduceResults.of(run), points=points)), loads=run.loads)


def test_slow_motion_has_a_column(run: Run) -> None:
    results = AllreduceResults.of(slowed(run))
    table = tables.benchmark_table(by_fabric(results)[0], results)
    assert titles(table)[:2] == ("size", "slow motion")
    assert [row[:2] for row in table.cells] == [("2KiB", "10x"), ("64MiB", ""), ("Nezha states, at most", "")]
    assert {len(row) for row in table.cells} == {len(table.columns)}
    speeds = tables.trainings_table(results)
    place = titles(speeds).index("slow motion")
    assert [row[place] for row in speeds.cells] == ["3x"] * len(speeds.cells)


def test_medians_of_starts_have_their_spread(run: Run) -> None:
    assert [tables.starts_text(fabric) for fabric in by_fabric(AllreduceResults.of(run))] == ["", ""]
    results = AllreduceResults.of(restarted(run))
    pair, unlike = map(tables.starts_text, by_fabric(results))
    assert pair == "to 2KiB medians of 3 starts, up to 4% apart"
    assert unlike == "to 2KiB medians of 3 starts, up to 12% apart"
    everywhere = [again for p in results.points for again in ([p] if p.size < MIB else started(p, 1.0, 1.0))]
    (both, _) = by_fabric(replace(results, points=everywhere))
    assert tables.starts_text(both) == f"{pair}; to 64MiB medians of 2 starts, up to 0% apart"


@pytest.mark.usefixtures("figures_as_text")
def test_notes_on_slow_motion_and_starts_are_shown(run: Run) -> None:
    changed = slowed(restarted(run))
    starts = [tables.starts_text(fabric) for fabric in by_fabric(AllreduceResults.of(changed))]
    for text in ("\n".join(shown.screen(changed, 200)), shown.render(changed)):
        assert SLOW_MOTION_NOTE.partition(",")[0] in " ".join(text.split())
        assert [text.count(note) for note in starts] == [1, 1]


def test_no_cell_is_cut_on_a_narrow_screen(run: Run) -> None:
    for changed in (run, slowed(run), restarted(run)):
        analysis = Analysis(changed)
        for width in (80, 100, 120):
            out = StringIO()
            report.print_summary(analysis, Console(file=out, width=width, force_terminal=True, color_system=None))
            assert max(map(len, out.getvalue().splitlines())) <= width


@pytest.mark.usefixtures("figures_as_text")
def test_figures_of_the_paper_are_beside_ours(run: Run) -> None:
    paper = tables.table_1(AllreduceResults.of(run))
    assert paper is not None
    assert " ".join(titles(paper)) == "size  single:sharp single:tcp equal 99/1 slicing mrib mptcp nezha"
    theirs = next(row for row in paper.cells if row[1] == "Nezha")
    assert theirs[2:7] == ("181.5\u00a0ms", "316.3\u00a0ms", "178.4\u00a0ms", "314.9\u00a0ms", "257.1\u00a0ms")
    thresholds = tables.thresholds_table(AllreduceResults.of(run))
    assert thresholds.cells == ((PAIR.label, "2KiB", "48.22KB", "256KiB"), (UNLIKE.label, "2KiB", "–", "–"))
    page = shown.render(run)
    assert "One rail up to" in page
    assert "slow motion" not in page
    wanted = {row[1]: (row[4], row[7]) for row in targets_table(outcomes(AllreduceResults.of(run))).cells}
    assert wanted["two like rails, 4 nodes, large: of one"] == ("≥ 1.84x, goal 1.95x", "Nezha 5.2.1")
    assert wanted["nezha, large: throughput of mrib's"][1] == "Nezha 5.2.2, unlike rails: up to 1.41x"
    gains = tables.gains_table(AllreduceResults.of(run))
    assert (PAIR.label, "nezha", "1.91x", "1.91x", "64MiB", "1.84x") in gains.cells
    speeds = tables.trainings_table(AllreduceResults.of(run))
    assert any("1.50x (Nezha 1.20x)" in row for row in speeds.cells)


def test_only_measurements_are_drawn() -> None:
    found = sample()
    assert allreduce.channels(found) is None, "no virtual rails"
    assert allreduce.shares(replace(found, points=[p for p in found.points if p.policy != "nezha"])) is None
    assert allreduce.nic_rates(found, UNLIKE.label, "link-down tcp0 of n1") is None
    pair = by_fabric(found)[0]
    assert "at 64MiB: nezha 157.0\u00a0ms" in allreduce.latency(pair).alt
    assert tables.table_1(replace(found, fabrics=[PAIR])) is None


def test_published_figures_are_those_of_the_text() -> None:
    assert nezha.GAINS["tcp+sharp", 8, "nezha"] == 1.63
    assert nezha.TABLE_1[8 * MIB]["single:tcp"] == pytest.approx(37.137e-3)
    assert nezha.TRAINING_GAINS["vgg-11 batch 64", "tcp+tcp", 8, "gloo"] == (1.504, False)
