"""Answers of lab 10: predicted times of shipped policies, the student's run, and the goal that the run must meet."""

from typing import Final

from railyard.experiments.labs.definition import NotDone, Setting
from railyard.experiments.labs.functions import health
from railyard.experiments.measures.steering.analysis import ORACLE_POLICY, PolicyRow, rows_of
from railyard.results.analysis.run_analysis import Analysis

STUDENT_POLICY: Final = "mine"
SENDERS: Final = 3
TRANSFER_S: Final = health.TRANSFER_S
ENOUGH: Final = 1.4
"""How many times the oracle's predicted time the student's policy may take. All pairs on the empty rail take 1.8 times
as long or longer; a pair that changes its path on the way loses up to a fifth."""


def free_rails(rails: list[int], loads: list[float]) -> list[tuple[int, float]]:
    """Return each free rail with its load, by number."""
    return sorted(zip(rails, loads, strict=True))


def background_load(hot: float, free: list[tuple[int, float]]) -> str:
    """Return the override of the background load. `hot`: the load of rails 0 to 2."""
    entries = [f"{{rails: [0, 1, 2], load: {hot}}}"]
    for rail, load in free:
        if load:
            entries.append(f"{{rails: [{rail}], load: {load}}}")
    return f"background=[{', '.join(entries)}]"


def row_of(analysis: Analysis, policy: str) -> PolicyRow:
    """Return what a policy achieved in a run. NotDone if it didn't run."""
    for rows in analysis.derived(rows_of).values():
        for row in rows:
            if row.policy == policy:
                return row
    raise NotDone(f"the run has no times of the policy {policy}")


def measured(setting: Setting, policy: str = STUDENT_POLICY) -> PolicyRow:
    """Return what a policy achieved in the run `measured`; by default the student's."""
    return row_of(setting.records("measured"), policy)


def over_dr(setting: Setting) -> float:
    """Return how many times as long the transfers took under dr. NotDone if one of the two times is invalid."""
    ratio = measured(setting).over_dr
    if ratio is None:
        raise NotDone("the times of dr and mine must both be valid")
    return ratio


def predicted_s(setting: Setting, policy: str) -> float:
    """Return the predicted time of the variant's transfers under a shipped policy, s."""
    overrides = setting.overrides(setting.lab.runs[0])
    without_policies = [text for text in overrides if "policies" not in text]
    return health.predicted_s(policy, *without_policies)


def changes(setting: Setting) -> int:
    """Return how often the pair that changed most changed its path under the student's policy."""
    most = measured(setting).most_changed
    return most.changes if most else 0


def near_the_oracle(analysis: Analysis) -> str:
    """Compare the measured time of the student's policy with the oracle's predicted one; "" if it is near enough."""
    predicted = row_of(analysis, ORACLE_POLICY).predicted
    median = row_of(analysis, STUDENT_POLICY).median
    if not predicted or median <= ENOUGH * predicted:
        return ""
    return (
        f"{STUDENT_POLICY} took {median:.3g} s, and allowed are {ENOUGH} times the {predicted:.3g} s that are "
        "predicted for the oracle: look at the first paths in dry-run for rails that are hot, or that several pairs "
        "share"
    )
