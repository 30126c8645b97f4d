"""Finding of steered intervals: how much of the background load was sent."""

from collections.abc import Iterator

from railyard.core.records import IntervalId
from railyard.experiments.measures.steering.records import BACKGROUND_SENT
from railyard.results.analysis.findings import Finding
from railyard.results.analysis.limits import BACKGROUND
from railyard.results.format import size
from railyard.results.runs.records import Run


def findings(run: Run) -> Iterator[Finding]:
    """Yield for each interval the share of its background that was not sent."""
    for event in run.events:
        if event.what == BACKGROUND_SENT:
            sent = event.detail["sent"]
            requested = event.detail["requested"]
            missing = max(0.0, 1 - sent / requested) if requested else 0.0
            text = f"{size(sent)} of background sent of {size(requested)}"
            yield Finding(IntervalId.of(event.detail), BACKGROUND, missing, text)
