"""What several faults leave of a fabric, as the oracle sees it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from railyard.failure.faults import Fault, Impact
from railyard.failure.oracle.reachability import Survivors
from railyard.topologies.plan import Plan


@dataclass(frozen=True)
class Bounds:
    """What must work, with all intermittent parts dead (`lower`), and what may work, with those alive (`upper`)."""

    lower: Survivors
    upper: Survivors


def bounds(plan: Plan, faults: Collection[Fault]) -> Bounds:
    """Return what concurrent faults leave of the fabric."""
    lower = Survivors(plan, _union(plan, faults))
    steady = [fault for fault in faults if not fault.definition.is_intermittent]
    return Bounds(lower, lower if len(steady) == len(faults) else Survivors(plan, _union(plan, steady)))


def _union(plan: Plan, faults: Iterable[Fault]) -> Impact:
    return reduce(or_, (fault.impact(plan) for fault in faults), Impact())
