"""Steering on the live page of a finished run: the scores of one fabric."""

from railyard.experiments.measures.steering.records import HEALTH
from railyard.experiments.measures.steering.tracks import page_messages
from tests.unit.steered_runs import steered_run


def test_page_has_scores_of_a_fabric_by_element() -> None:
    run = steered_run(2, 4, 1, ("health-best",), kinds=("rail-only", "rail-optimized"))
    samples = [sample for sample in run.rows(HEALTH) if sample.fabric == "rail-optimized"]
    messages = [message for _, message in page_messages(run, "rail-optimized")]
    assert [message["ns"] for message in messages] == sorted({sample.monotonic_ns for sample in samples})
    rails = {sample.index: (sample.load, sample.score) for sample in samples if sample.element == "rail"}
    assert messages[-1]["rail"] == [rails[index] for index in sorted(rails)]
