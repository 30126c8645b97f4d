"""Identity of measurement intervals: two defects that came of labels as identity."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.records import INTERVAL_FIELDS, IntervalId
from railyard.experiments.measures.faults.analysis import verdict
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results import run_folder
from railyard.results.analysis.fidelity import judge
from railyard.results.runs import record_files
from railyard.results.runs.records import Load, record_kinds
from tests.unit.replaced import replaced
from tests.unit.sample_runs import recovery_run

pytestmark = pytest.mark.usefixtures("figures_as_text")

TEXT = st.text(max_size=12)
IDENTITIES = st.builds(IntervalId, TEXT, TEXT, TEXT, TEXT, TEXT, st.integers(0, 99), TEXT, TEXT)


def test_invalid_interval_of_label_with_with_is_shown() -> None:
    """A workload called `gpt with experts` beside a script: its invalid verdict was lost, and shown as `ok`."""
    run = recovery_run()
    label = "gpt with experts"
    faults = [replaced(row, workload=label) for row in run.rows(RECOVERIES) if row.script == "storm"]
    run.loads = [Load(r.interval, 0.99, 0.0, 1.0, 0, 1, 0, transfers_faulted=True) for r in faults]
    assert verdict(faults, judge(run)) == "invalid"


def test_no_record_hides_a_column_of_its_interval() -> None:
    for kind in record_kinds().values():
        names = {field.name for field in fields(kind.row)}
        assert "interval" not in names or names.isdisjoint(INTERVAL_FIELDS), kind.name


@given(IDENTITIES)
def test_identity_survives_events_and_rows(interval: IntervalId) -> None:
    load = Load(interval, 0.5, 0.0, 1.0, 0, 1, 0)
    assert IntervalId.of(interval.as_dict()) == interval
    assert record_files.from_plain(Load, [record_files.to_plain(load)]) == [load]


def test_identity_survives_the_run_folder(tmp_path: Path) -> None:
    run = recovery_run()
    label = "gpt, with a comma"
    run.records[RECOVERIES.name] = [replaced(row, workload=label) for row in run.rows(RECOVERIES)]
    run_folder.save(replace(run, files={}), tmp_path)
    found = run_folder.load(tmp_path)
    for name, kind in record_kinds().items():
        assert found.rows(kind) == run.rows(kind), name
