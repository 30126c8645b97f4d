"""Measures: what a registry refuses, and a plugin's measure in all that needs no packets."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core import plugins
from railyard.core.config import OnFabrics
from railyard.core.plugins import BadDefinition
from railyard.core.records import IntervalId, Record
from railyard.experiments.api import specs
from railyard.experiments.commands.describe import shown
from railyard.experiments.commands.list import command as list_command
from railyard.experiments.measures.definition import MEASURES, Measure, RunContext
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.run.progress import event_text, outcome
from railyard.experiments.spec import loading
from railyard.experiments.spec.parsing import parse, restored
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import RecordKind
from railyard.results.run_folder import load, save
from railyard.results.runs.records import Event, Measurement, Run
from railyard.results.views import report
from railyard.results.views.report import render, summarise
from tests.emulation.programs import ROOT
from tests.unit.loaded_experiments import refusals
from tests.unit.sample_runs import sample_run

PLUGIN = ROOT / "docs/examples/latency.py"
SPEC = {
    "name": "latency",
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2}, {"kind": "rail-only", "domains": 2, "rails": 4}],
    "latencies": [{"count": 20, "on": [0]}, {"src": "d1g0"}],
    "latency_repeats": 3,
}


@dataclass(frozen=True, slots=True)
class RoundTrip(Record):
    """A row of round_trips.csv, as docs/extending.md has it."""

    phase: str
    seconds: float


@pytest.fixture
def latency(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measure[Any]]:
    """The measure of the example plugin, which is forgotten afterwards."""
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.ENVIRONMENT, "")
    specs.load_plugin(PLUGIN)
    yield MEASURES["latency"]
    MEASURES.remove("latency")


def run_with_latencies(lost: int = 0, milliseconds: Sequence[float] = (1.0, 2.0)) -> Run:
    """Return a sample run that has round trips, too, of two repeats."""
    run = sample_run(2, 2, 1)
    run.records[RECOVERIES.name], run.records[GOODPUT.name] = [], []
    fabric = run.fabrics[0].label
    for repeat, value in enumerate(milliseconds):
        interval = IntervalId(fabric, "latency from d0g0", "dr", repeat=repeat)
        run.measurements.append(Measurement(interval, "rail", "round_trip", value / 1e3, "s"))
        run.measurements.append(Measurement(interval, "rail", "lost", lost, "datagrams"))
    return run


def test_section_of_a_plugin_is_parsed_counted_and_shown(latency: Measure[Any]) -> None:
    spec = parse(SPEC)
    assert [item.src for item in latency.items_on(spec, 1)] == ["d1g0"]
    assert latency.steps(spec) == 2 + 3 * 3
    assert latency.counts(spec).replays == 3 * 3
    console = Console(file=StringIO(), width=120)
    latency.dry_run(spec, console)
    assert console.file.getvalue().count("times 3") == 3  # type: ignore[attr-defined]
    assert {"latencies", "latency_repeats"} <= set(shown(spec))
    assert restored(spec.resolved()).model_dump(exclude={"plugins"}) == spec.model_dump(exclude={"plugins"})


def test_list_counts_the_items_of_a_file(latency: Measure[Any], tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(SPEC))
    list_command([str(file)], as_json=True, plugin_files=[])
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["replays"], listed["takes"]) == ("latency", 9, "20s")


def test_short_keys_of_a_plugin_need_no_section(latency: Measure[Any]) -> None:
    assert loading.apply(SPEC, ["count=30"])["latencies"][0]["count"] == 30


REFUSED = """
latencies: [{src: d9g0}]
latencies: [{src: d0g3}]
latencies: [{count: 1}]
latencies: [{counts: 20}]
latencies: [{on: [2]}]
latencies: [3]
"""


def test_refused_items_of_a_plugin(latency: Measure[Any], data_regression: DataRegressionFixture) -> None:
    data_regression.check(refusals(SPEC, REFUSED))


def test_other_processes_read_experiments_without_the_plugin(latency: Measure[Any]) -> None:
    without = {key: value for key, value in SPEC.items() if "latenc" not in key}
    resolved = parse({**without, "workloads": [{"kind": "moe", "duration": "1s"}]}).resolved()
    assert not {"latencies", "latency_repeats"} & set(resolved)


def test_results_of_a_plugin_are_in_report_and_summary(latency: Measure[Any]) -> None:
    analysis = Analysis(run_with_latencies())
    summary = summarise(analysis)
    (target,) = summary["headline"]["measure_targets"]["latency"]
    assert (target["met"], target["value"]) == (True, 1.5)
    page = render(analysis)
    assert '<section id="latency">' in page
    assert '<section id="measure-targets">' in page
    missed = summarise(Analysis(run_with_latencies(lost=1, milliseconds=(6.0, 8.0))))
    (failed,) = itertools.filterfalse(itemgetter("passed"), missed["checks"])
    assert failed["value"] == 2
    assert failed["name"] in map(itemgetter("name"), summary["checks"])
    assert len(missed["targets_missed"]) == len(summary["targets_missed"]) + 1


def test_every_section_of_the_report_has_a_template_of_its_name() -> None:
    folders = [ROOT / "results/views", ROOT / "results/views/sections"]
    folders += [(ROOT / MEASURES.source(name).file).parent for name in MEASURES.names()]
    templates = [path.name for folder in folders for path in folder.glob("*.j2")]
    assert len(set(templates)) == len(templates), "one would be taken for another"
    assert {section.template for _, section in report.sections()} <= set(templates)


def test_records_of_a_plugin_are_a_file_of_the_folder(
    latency: Measure[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "render", lambda analysis: "")  # takes seconds
    kind = RecordKind("round_trips", RoundTrip, "round_trips.csv")
    monkeypatch.setattr(type(latency), "records", (kind,))
    run = run_with_latencies()
    run.rows(kind).append(kind.row(run.measurements[-1].interval, "rail", 0.001))
    save(run, tmp_path)
    assert (tmp_path / "round_trips.csv").read_text().splitlines()[1].endswith("rail,0.001")
    read = load(tmp_path)
    assert (read.rows(kind), read.damaged) == (run.rows(kind), [])
    MEASURES.remove("latency")
    try:
        without = load(tmp_path)
    finally:
        MEASURES.add("latency", latency)
    assert (without.damaged, without.measurements) == ([], run.measurements)


def test_report_without_the_plugin_leaves_its_results_out() -> None:
    run = run_with_latencies()
    run.spec = {**run.spec, "latencies": SPEC["latencies"], "plugins": ["plugins/latency.py"]}
    summary = summarise(Analysis(run))
    assert "measure_targets" not in summary["headline"]
    assert '<section id="latency">' not in render(Analysis(run))


def test_step_and_events_of_a_plugin_are_in_words(latency: Measure[Any]) -> None:
    run = run_with_latencies(milliseconds=(1.0,))
    rows = [row for row in run.measurements if row.metric == "round_trip"]
    measured = Run("latency", {}, {}, run.started_utc, measurements=rows)
    assert outcome(run, measured) == ("", "rail 1.000 ms")
    event = Event(1, "latency", "answered", {"fabric": "a", "src": "d0g0", "dst": "d0g1", "answers": 1})
    for part in ("d0g1", "1 datagram back", "d0g0"):
        assert part in event_text(event)


class Item(OnFabrics):
    """An item."""


class Whole(Measure[Item]):
    """A measure with all that it needs."""

    key = "things"
    Spec = tuple[Item, ...]

    def run(self, context: RunContext) -> None:
        """Do nothing."""


class WithoutRun(Measure[Item]):
    """A measure that can't run."""

    key = "things"
    Spec = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Row(Record):
    value: float


INCOMPLETE: dict[str, dict[str, Any]] = {
    "without a key": {"key": ""},
    "without a type": {"Spec": None},
    "key of another measure": {"key": "trainings"},
    "key of a plugin": {"key": "latencies"},
    "key of every experiment": {"repeats_key": "repeats"},
    "key of two words": {"key": "My things"},
    "same key twice": {"repeats_key": "things"},
    "type that is no tuple of items": {"Spec": list[int]},
    "without run_on": {"shares_fabric": True},
    "records of a taken name": {"records": (RecordKind("replacements", Row, "rows.csv"),)},
    "records of a taken file": {"records": (RecordKind("rows", Row, "results.csv"),)},
    "records of a file that is no table": {"records": (RecordKind("rows", Row, "../rows.txt"),)},
    "records of no dataclass": {"records": (RecordKind("rows", int, "rows.csv"),)},
}


def test_incomplete_measures_are_refused(latency: Measure[Any], data_regression: DataRegressionFixture) -> None:
    measures = {case: type("Incomplete", (Whole,), attributes) for case, attributes in INCOMPLETE.items()}
    measures["without run"] = WithoutRun
    messages: dict[str, str] = {}
    for case, measure in measures.items():
        with pytest.raises(BadDefinition) as caught:
            MEASURES.register("mine")(measure)
        place, _, messages[case] = str(caught.value).partition(": ")
        assert place.startswith("tests/unit/experiments/measures/test_measures.py:")
        assert "mine" not in MEASURES
    data_regression.check(messages)


def test_built_in_measures_are_whole() -> None:
    for name, measure in MEASURES.items():
        earlier: dict[str, Any] = dict(MEASURES.items())
        del earlier[name]
        assert list(measure.problems(earlier)) == []
