"""Checks of allreduces over several rails: no policy broke down, and no rail was lost without a fault."""

from collections.abc import Iterator

from railyard.experiments.measures.allreduce.analysis import results_of
from railyard.experiments.measures.allreduce.records import lost_rails
from railyard.results.analysis.findings import Finding
from railyard.results.analysis.limits import RAILS_MISSING, RAILS_REMEASURED
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.measured import Check
from railyard.results.runs.records import Run


def checks(analysis: Analysis) -> Iterator[Check]:
    """Yield whether a policy broke down that this machine can run; nothing for a run without multi-rail fabrics."""
    results = analysis.derived(results_of)
    if not results:
        return
    failed = [skipped for skipped in results.skipped if skipped.failed]
    detail = "no policy broke down"
    if failed:
        detail = f"{failed[0].policy} on {failed[0].fabric}: {failed[0].why}"
    yield Check(
        "every policy went through",
        passed=not failed,
        detail=detail,
        quantity="policies that failed",
        value=len(failed),
        limit=0,
        unit="policies",
    )


def lost_rails_findings(run: Run) -> Iterator[Finding]:
    """Yield rails that were lost though no fault was injected."""
    for lost in lost_rails(run.events):
        limit = RAILS_REMEASURED
        effect = "measured anew"
        if lost.kept:
            limit = RAILS_MISSING
            effect = "in operations that count"
        text = f"{', '.join(lost.rails)} lost while nothing was cut, {effect}"
        yield Finding(lost.interval, limit, 1.0, text)
