"""How long each policy should take on a steered fabric: max-min fair shares, where these are the whole truth. Pure."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

from railyard.experiments.run.initial_state import InitialState, initial_states
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.theory.predict import WHOLE, predict_schedule
from railyard.workloads.scale import payload_rates

SHARES: Final = "max-min fair shares"
EQUATIONS: Final = "the equations: routes stay as they are"
WHY_NOT: Final = {
    "moving": "the background comes and goes, and no formula says what follows from when routes change",
    "dependent": "its steps wait for one another, and no formula says what they gain by another path",
    "several": "pairs have several paths, and a hash decides which of them a connection takes",
}


@dataclass(frozen=True, slots=True)
class SteeredPrediction:
    """A row of NAME.csv. `predicted` (s) is of the whole workload; None where it isn't known: see `why`."""

    fabric: str
    policy: str
    workload: str
    seed: int
    metric: str
    predicted: float | None
    unit: str
    equation: str
    why: str


def predictions(spec: ExperimentSpec) -> tuple[SteeredPrediction, ...]:
    """A row for each fabric, workload, policy and seed. None if nobody steers."""
    rows = [
        SteeredPrediction(label, policy, name, initial.seed, "completion_time", predicted, "s", equation, why)
        for label, name, initial in initial_states(spec)
        for policy in initial.routing.policies
        for predicted, equation, why in [_of(initial, policy)]
    ]
    grouped = [row for policies in by_fabric_and_workload(rows).values() for own in policies.values() for row in own]
    return tuple(grouped)


def _of(initial: InitialState, policy: str) -> tuple[float | None, str, str]:
    """(seconds, by what, why not)"""
    if not initial.pattern.steady:
        return None, "", WHY_NOT["moving"]
    if initial.independent:
        known = initial.completion_s(policy)
        return (known, SHARES, "") if known is not None else (None, "", WHY_NOT["several"])
    if policy == initial.plan.policy and not initial.background:
        return _by_equations(initial), EQUATIONS, ""
    return None, "", WHY_NOT["dependent"]


def _by_equations(initial: InitialState) -> float | None:
    """As on a fabric that nobody steers: this policy is the fabric's own, and nothing else is sent."""
    rates = payload_rates(initial.plan.hb_bps, initial.plan.rail_bps, initial.plan.spec.mtu)
    times = predict_schedule(initial.schedule, rates, initial.plan.spec)
    return times.get(WHOLE, next(iter(times.values())))


def to_csv(rows: Sequence[SteeredPrediction]) -> bytes:
    """The rows with a header."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(SteeredPrediction)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return sink.getvalue().encode()


Policies = dict[str, list[SteeredPrediction]]


def by_fabric_and_workload(rows: Iterable[SteeredPrediction]) -> dict[tuple[str, str], Policies]:
    """(fabric, workload) -> policy -> its rows."""
    found: defaultdict[tuple[str, str], Policies] = defaultdict(dict)
    for row in rows:
        found[row.fabric, row.workload].setdefault(row.policy, []).append(row)
    return dict(found)


def times_of(rows: Iterable[SteeredPrediction]) -> list[float]:
    """Those that are known, s."""
    return [row.predicted for row in rows if row.predicted is not None]
