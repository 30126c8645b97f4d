"""A sweep on packets: domains of 2, 4 and 8 of the same 16 GPUs, and the curve over them."""

from itertools import pairwise

import pytest

from railyard.results.analysis.fidelity import judge
from tests.emulation.runs import Stored, overrides, run_experiment

CHANGES = overrides("rail_rate=5Mbit", "workloads.0.bytes=100KB", "repeats=1", "attempts=1")
LABELS = ["rail-only 8x2", "rail-only 4x4", "rail-only 2x8"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return run_experiment("sweep-domain-size", tmp_path_factory.mktemp("sweep"), *CHANGES)


def test_every_byte_arrives_and_none_goes_between_rails(stored: Stored) -> None:
    assert [check.fabric for check in stored.run.bytes] == LABELS
    assert {check.cross_rail_bytes for check in stored.run.bytes} == {0}
    stored.assert_no_byte_is_missing()


def test_larger_domains_shorten_iterations_as_predicted(stored: Stored) -> None:
    """A time that a busy machine made longer is not ok, and shows nothing."""
    wholes = {row.fabric: row for row in stored.run.measured("iteration_time")}
    judgement = judge(stored.run)
    assert list(wholes) == LABELS
    for smaller, larger in pairwise(wholes.values()):
        assert smaller.predicted
        assert larger.predicted
        assert smaller.predicted > larger.predicted
        if judgement.of_row(smaller) == judgement.of_row(larger) == "ok":
            assert smaller.value > 0.9 * larger.value


def test_the_report_has_the_curve(stored: Stored) -> None:
    assert "(domains x rails). rail-only: rail-only 8x2 " in stored.text("report.html")
    assert stored.summary["interrupted"] is False
