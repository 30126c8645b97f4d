"""Outcomes of recoveries that are no time: the same words in records, progress lines, tables, figures and files."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import pytest

from railyard.core.records import Recovered, Recovery
from railyard.experiments.measures.faults import tables as faults
from railyard.experiments.measures.faults.analysis import rows_of_faults
from railyard.experiments.measures.faults.records import RECOVERIES, RECOVERY_COLUMNS
from railyard.experiments.measures.faults.states import (
    FirstPacket,
    Goodput,
    csv_row,
    first_packet,
    goodput,
    read_csv_row,
)
from railyard.experiments.measures.faults.targets import TRAFFIC_RESTORED, shown_outcomes
from railyard.experiments.measures.faults.texts import first_packets_text
from railyard.experiments.run.progress import outcome
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.record_files import from_csv, from_plain, to_csv
from railyard.results.runs.records import Run
from railyard.results.timeline import timeline
from railyard.results.views.report import summarise
from tests.unit.sample_runs import sample_run


def faulted(reroute: str, fault: str = "link-down") -> Recovery:
    rows = sample_run(2, 2, 1).rows(RECOVERIES)
    return next(row for row in rows if row.fault == fault and row.reroute == reroute)


def unprobed(row: Recovery) -> Recovery:
    return replace(row, source_side_probed=0, far_side_probed=0, first_packet_ms=None)


def unaffected(row: Recovery) -> Recovery:
    row = replace(row, first_packet_ms=0.0, goodput_ms=0.0, goodput_after_repair_ms=0.0, primary_path_ms=0.0)
    return replace(row, probes_lost=0, recovered=Recovered.UNAFFECTED)


def repeated(row: Recovery, number: int) -> Recovery:
    return replace(row, interval=replace(row.interval, repeat=number))


def written(rows: list[Recovery]) -> list[dict[str, str]]:
    """Return the rows of recovery.csv, as text."""
    data = to_csv(RECOVERY_COLUMNS, [SimpleNamespace(**csv_row(row)) for row in rows])
    return list(csv.DictReader(data.decode().splitlines()))


def read_back(rows: list[Recovery]) -> list[Recovery]:
    """Return the records of recovery.csv."""
    data = to_csv(RECOVERY_COLUMNS, [SimpleNamespace(**csv_row(row)) for row in rows])
    plain = from_csv(data, "recovery.csv", Recovery)
    for row in plain:
        read_csv_row(row)
    return from_plain(Recovery, plain, "recovery.csv")


ON, OFF = faulted("on"), faulted("off")
STATES = {
    FirstPacket.NOT_PROBED: unprobed(OFF),
    FirstPacket.NONE_LOST: unaffected(ON),
    FirstPacket.NEVER_AS_EXPECTED: OFF,
    FirstPacket.NEVER: replace(ON, first_packet_ms=None, recovered=Recovered.NO),
}


@pytest.mark.parametrize(("state", "row"), STATES.items())
def test_every_view_names_why_there_is_no_first_packet(state: FirstPacket, row: Recovery) -> None:
    run = sample_run(2, 2, 1)
    run.records[RECOVERIES.name] = [row]
    analysis = Analysis(run)
    assert first_packet(row) is state
    measured = Run("r", {}, {}, "now", records={"recoveries": [row]})
    assert outcome(run, measured)[1] == f"first packet: {state}"
    rows = rows_of_faults(run)
    assert faults.first_packets_table(rows, judge(run)).cells[0][6] == state
    assert faults.repeats_table(rows).cells[0][7] == state
    assert summarise(analysis)["headline"]["recovery"][0]["first_packet"] == state
    (line,) = written(run.rows(RECOVERIES))
    assert line["first_packet"] == state
    assert read_back(run.rows(RECOVERIES)) == run.rows(RECOVERIES)
    assert state in str(timeline(run))


def test_slow_link_without_rerouting_need_not_stop_packets() -> None:
    assert first_packet(replace(OFF, fault="link-slow")) is FirstPacket.NEVER


def test_a_step_with_several_faults_names_each_outcome() -> None:
    never = replace(ON, first_packet_ms=None)
    text = first_packets_text([replace(ON, first_packet_ms=12.3), never, never, unprobed(OFF)])
    assert text.split(", ") == ["first packet after 12.3\u00a0ms", "of 1 fault not probed", "of 2 faults never"]


def test_goodput_that_never_fell_is_no_time() -> None:
    run = sample_run(2, 2, 1)
    row = replace(ON, goodput_ms=0.0)
    run.records[RECOVERIES.name] = [row, repeated(row, 1)]
    (steps,) = faults.steps_table(rows_of_faults(run)).cells
    assert steps[7] == "did not fall"
    assert "did not fall" in faults.terminal_table(rows_of_faults(run), judge(run)).cells[0]
    first, _ = written(run.rows(RECOVERIES))
    assert (first["goodput_ms"], first["goodput"]) == ("", "did not fall")
    assert read_back(run.rows(RECOVERIES)) == run.rows(RECOVERIES)
    (summary,) = summarise(Analysis(run))["headline"]["recovery"]
    assert summary["goodput_ms_did_not_fall"] == 2
    assert "goodput_ms" not in summary


def test_statistics_leave_out_goodput_that_never_fell() -> None:
    run = sample_run(2, 2, 1)
    run.records[RECOVERIES.name] = [repeated(replace(ON, goodput_ms=ms), n) for n, ms in enumerate((0.0, 40.0, 60.0))]
    (row,) = rows_of_faults(run)
    assert (row.steps["goodput_ms"].median, row.steps["goodput_ms"].n) == (50.0, 2)
    assert row.unfallen("goodput_ms") == 1


def test_goodput_that_nothing_streamed_for_is_named() -> None:
    assert goodput(replace(ON, has_streams=False), None) is Goodput.NO_STREAM
    assert goodput(ON, None) is Goodput.NOT_BACK


def test_a_fault_that_affected_nobody_has_not_recovered() -> None:
    run = sample_run(2, 2, 1)
    run.records[RECOVERIES.name] = [ON, unaffected(faulted("on", "gpu-crash"))]
    (check,) = [c for c in Analysis(run).checks if "recovers" in c.name]
    assert check.passed
    assert check.detail.startswith("1 of 1 faults; 1 more ")
    cells = {row[0]: row[3] for row in faults.steps_table(rows_of_faults(run)).cells}
    assert cells == {"link-down": "1 of 1", "gpu-crash": "unaffected"}
    (restored,) = [o for o in shown_outcomes(Analysis(run)) if o.target is TRAFFIC_RESTORED]
    assert len(restored.samples) == 1
    assert not Recovered.UNAFFECTED
    assert not Recovered.NO


def test_a_side_that_lost_no_probe_shows_no_time() -> None:
    run = sample_run(2, 2, 1).with_rows(RECOVERIES, [replace(faulted("on"), source_side_ms=0.0)])
    table = faults.terminal_table(rows_of_faults(run), judge(run))
    at = [column.title for column in table.columns].index("1st packet ms")
    assert table.cells[0][at] == "no probe lost"
