"""What a multi-rail run stands or falls by: right sums, and rails that come back. Speed is told, not judged. Pure."""

from collections.abc import Iterator

from railyard.results.multirail.records import Multirail
from railyard.results.multirail.targets import Outcome, in_unit, outcomes

Claim = tuple[str, bool, str]
"""Name, whether it holds, and by which figures: those of railyard.results.runs.checks.Check."""


def requirements(found: Multirail) -> Iterator[Claim]:
    """Those for which there are records."""
    checked = [o for o in outcomes(found) if o.target.checked and o.measured]
    for target in dict.fromkeys(o.target for o in checked):
        target_outcomes = [o for o in checked if o.target == target]
        name = f"{target.what}: none" if not target.limit else target.what
        yield name, all(o.met for o in target_outcomes), "; ".join(map(_outcome_text, target_outcomes))
    failed = [s for s in found.skipped if s.failed]
    if found:
        detail = f"{failed[0].policy} on {failed[0].fabric}: {failed[0].why}" if failed else "no policy broke down"
        yield "every policy went through", not failed, detail


def _outcome_text(outcome: Outcome) -> str:
    value = in_unit(outcome.value, outcome.target.unit)
    return f"{value} {outcome.where} ({outcome.fabric})"
