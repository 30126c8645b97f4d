"""How long each policy should take on a steered fabric: max-min fair shares, where these are the whole truth. Pure."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

from railyard.experiments.run.initial_state import Beginning, beginnings
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
        SteeredPrediction(label, policy, name, begin.seed, "completion_time", predicted, "s", equation, why)
        for label, name, begin in beginnings(spec)
        for policy in begin.routing.policies
        for predicted, equation, why in [_of(begin, policy)]
    ]
    grouped = [row for policies in by_place(rows).values() for own in policies.values() for row in own]
    return tuple(grouped)


def _of(begin: Beginning, policy: str) -> tuple[float | None, str, str]:
    """(seconds, by what, why not)"""
    if not begin.pattern.steady:
        return None, "", WHY_NOT["moving"]
    if begin.independent:
        known = begin.completion_s(policy)
        return (known, SHARES, "") if known is not None else (None, "", WHY_NOT["several"])
    if policy == begin.plan.policy and not begin.background:
        return _by_equations(begin), EQUATIONS, ""
    return None, "", WHY_NOT["dependent"]


def _by_equations(begin: Beginning) -> float | None:
    """As on a fabric that nobody steers: this policy is the fabric's own, and nothing else is sent."""
    rates = payload_rates(begin.plan.hb_bps, begin.plan.rail_bps, begin.plan.spec.mtu)
    times = predict_schedule(begin.schedule, rates, begin.plan.spec)
    return times.get(WHOLE, next(iter(times.values())))


def to_csv(rows: Sequence[SteeredPrediction]) -> bytes:
    """The rows with a header."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(SteeredPrediction)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return sink.getvalue().encode()


Policies = dict[str, list[SteeredPrediction]]


def by_place(rows: Iterable[SteeredPrediction]) -> dict[tuple[str, str], Policies]:
    """(fabric, workload) -> policy -> its rows."""
    found: defaultdict[tuple[str, str], Policies] = defaultdict(dict)
    for row in rows:
        found[row.fabric, row.workload].setdefault(row.policy, []).append(row)
    return dict(found)


def times_of(rows: Iterable[SteeredPrediction]) -> list[float]:
    """Those that are known, s."""
    return [row.predicted for row in rows if row.predicted is not None]
