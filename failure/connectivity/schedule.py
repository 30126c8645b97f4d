"""Which censuses of a script were due, by the times of what was done, and weren't taken. Pure."""

from collections.abc import Sequence
from typing import Final

from railyard.failure.connectivity.check import CensusRun
from railyard.failure.connectivity.verdict import Verdict
from railyard.failure.oracle.dead import CONTROL
from railyard.failure.scenario.kinds import Fault
from railyard.failure.scenario.timeline import SETTLE_S, Act

ACT_S: Final = 0.15
"""So long an act may take: of what takes longer, the census after it is still due."""


def missed(acts: Sequence[Act], taken: Sequence[CensusRun], census_s: float, after_s: float) -> list[CensusRun]:
    """A row for each that is missing. One is due after each act that nothing follows for long enough.

    `census_s`: what a census needs, `after_s` what there is after the last act was done. A controller that starts takes
    its time by right: there it counts from when it had. ValueError if nothing was done.
    """
    ordered = sorted(acts, key=lambda act: act.at_ns)
    ends = [*(act.at_ns for act in ordered[1:]), max(act.done_ns for act in acts) + int(after_s * 1e9)]
    found, broken = list[CensusRun](), list[Fault]()
    for act, end_ns in zip(ordered, ends, strict=True):
        if act.what == "inject":
            broken.append(act.fault)
        else:
            broken.remove(act.fault)
        by_right = act is ordered[-1] or act.fault.kind in CONTROL
        begin_ns = act.done_ns if by_right else act.at_ns + int(ACT_S * 1e9)
        is_due = end_ns - begin_ns > (SETTLE_S + census_s) * 1e9
        if is_due and not any(act.at_ns <= census.at_ns < end_ns for census in taken):
            found.append(CensusRun(end_ns, act.name, tuple(broken), 0, 0, 0, Verdict(), taken=False))
    return found
