"""Find connectivity checks of a script that were due, by the times of its actions, and weren't taken. Pure."""

from collections.abc import Sequence
from typing import Final

from railyard.failure.connectivity.check import ConnectivityResult
from railyard.failure.connectivity.verdict import Verdict
from railyard.failure.faults import Fault
from railyard.failure.scenario.timeline import SETTLE_S, Action

MAX_ACTION_S: Final = 0.15
"""The expected duration of an action, s: after a longer one, the check is still due."""


def missed_checks(
    actions: Sequence[Action], taken: Sequence[ConnectivityResult], check_s: float, after_s: float
) -> list[ConnectivityResult]:
    """Return a result for each missing check. One is due after each action that is followed by enough idle time.

    `check_s`: the duration of a check. `after_s`: the time after the last action. A controller may take its time to
    start: there, idle time counts from when the action was done. ValueError without actions.
    """
    ordered = sorted(actions, key=lambda action: action.at_ns)
    ends = [*(action.at_ns for action in ordered[1:]), max(action.done_ns for action in actions) + int(after_s * 1e9)]
    found, broken = list[ConnectivityResult](), list[Fault]()
    for action, end_ns in zip(ordered, ends, strict=True):
        if action.operation == "inject":
            broken.append(action.fault)
        else:
            broken.remove(action.fault)
        counts_from_done = action is ordered[-1] or action.fault.definition.is_control_plane
        begin_ns = action.done_ns if counts_from_done else action.at_ns + int(MAX_ACTION_S * 1e9)
        is_due = end_ns - begin_ns > (SETTLE_S + check_s) * 1e9
        if is_due and not any(action.at_ns <= check.at_ns < end_ns for check in taken):
            found.append(ConnectivityResult(end_ns, action.name, tuple(broken), 0, 0, 0, Verdict(), taken=False))
    return found
