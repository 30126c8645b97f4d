"""Theory of one replay: the predicted time of each phase, the ratios that it explains, and why some are not compared.

No prediction is ever tuned to a measured time. The measured quantities that predictions do use are the latencies of
idle links and the imbalance of hashed flows over uplinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeVar

from railyard.results.theory.ecmp import has_choice
from railyard.results.theory.formula_text import formula_texts
from railyard.results.theory.latency import idle_credit, latency
from railyard.results.theory.path_seconds import PathSeconds
from railyard.results.theory.predict import explained_ratios, predict_schedule, share_uplinks
from railyard.results.theory.stated import stated
from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import idle_credit_s
from railyard.topologies.plan import Plan
from railyard.topologies.prediction import WHOLE, NotCompared
from railyard.workloads.matrix.traffic_matrix import at_line_rate
from railyard.workloads.schedule import Rates, Schedule, payload_rates

# the byte of a barrier takes less: packets and turns decide its time, and not bandwidth
MIN_PREDICTED_S: Final = 1e-4
# share of a run's time: from here on, traffic on the same links may change it by more than verdicts allow for
MAX_SHARED: Final = 0.05
Value = TypeVar("Value")


@dataclass(frozen=True)
class ReplayConditions:
    """Conditions of a replay that decide which predictions apply.

    `is_iteration`: the whole is a training iteration, and not plain traffic. `is_steered`: a policy chooses the paths.
    `is_faulted`: faults are injected meanwhile. `one_way`: latency of each path, None if unknown. `uplink_imbalance`:
    of the uplinks during the replay, None if no bytes have a choice of uplinks. `not_compared`: why no time of this
    fabric is compared, "" if they are.
    """

    is_iteration: bool
    is_steered: bool
    is_faulted: bool
    one_way: PathSeconds | None = None
    uplink_imbalance: float | None = None
    not_compared: str = ""


@dataclass(frozen=True)
class Prediction:
    """Theory of the time of one phase, or of the whole.

    `seconds`: None where no formula applies. `by_uplink_s`: with the expected load of each uplink, None where flows
    have no choice. `latency_s`: by which latency prolongs it, None if unknown. `credit_s`: the most that idle credit of
    shapers saves. The other fields are those of `Measurement`.
    """

    seconds: float | None = None
    by_uplink_s: float | None = None
    explained_least: float = 0.0
    explained_most: float = inf
    latency_s: float | None = None
    credit_s: float = 0.0
    formula: str = ""
    shares_links_with: str = ""
    not_compared: str = ""


@dataclass(frozen=True)
class _Theory:
    """The parts of all predictions, each by phase name. A part is empty where it does not apply."""

    seconds: Mapping[str, float]
    reasons: Mapping[str, str]
    phases_on_same_links: Mapping[str, list[str]]
    credit_s: Mapping[str, float]
    latency_s: Mapping[str, float]
    explained: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_uplink_s: Mapping[str, float] = field(default_factory=dict)
    formulas: Mapping[str, str] = field(default_factory=dict)
    phases_on_same_uplinks: Mapping[str, str] = field(default_factory=dict)


def predictions_of(
    schedule: Schedule, plan: Plan, seconds: Mapping[str, float], conditions: ReplayConditions
) -> dict[str, Prediction]:
    """Return the prediction of each phase by name, and of the whole under `WHOLE`.

    `seconds`: the predicted time of each phase and of the whole; those without a formula are missing.
    """
    theory = _theory(schedule, plan, seconds, conditions)
    predictions = {}
    for phase in _phase_names(schedule):
        takes_first = phase == WHOLE and not conditions.is_iteration
        predictions[phase] = _prediction(theory, phase, takes_first)
    return predictions


def _phase_names(schedule: Schedule) -> list[str]:
    """Return the name of each phase once, with that of the whole."""
    names = [phase.name for phase in schedule.phases]
    return list(dict.fromkeys([WHOLE, *names]))


def _theory(schedule: Schedule, plan: Plan, seconds: Mapping[str, float], conditions: ReplayConditions) -> _Theory:
    fabric = plan.spec
    rates = payload_rates(plan.hb_bps, plan.rail_bps, fabric.mtu)
    phases_on_same_links: dict[str, list[str]] = {}
    credit_s: dict[str, float] = {}
    latency_s: dict[str, float] = {}
    reasons = dict.fromkeys(_phase_names(schedule), conditions.not_compared)
    if not conditions.is_steered:
        reasons |= _stated_reasons(schedule, rates, plan)
    if seconds:
        phases_on_same_links = _phases_on_same_links(schedule, rates, plan)
        credit_s = idle_credit(schedule, _idle_credit_of_links(plan), fabric.rail_of_rank)
    if seconds and conditions.one_way is not None:
        latency_s = latency(schedule, conditions.one_way, fabric.rail_of_rank)
    if conditions.is_steered or conditions.is_faulted:
        # the equations count the fabric's own paths, with all of its links
        return _Theory(seconds, reasons, phases_on_same_links, credit_s, latency_s)
    by_uplink_s: dict[str, float] = {}
    # where flows have no choice of uplinks, the loads are those of the plain prediction
    if has_choice(fabric):
        by_uplink_s = predict_schedule(schedule, rates, fabric, "expected")
    return _Theory(
        seconds,
        reasons,
        phases_on_same_links,
        credit_s,
        latency_s,
        explained=explained_ratios(schedule, rates, fabric, conditions.uplink_imbalance),
        by_uplink_s=by_uplink_s,
        formulas=formula_texts(schedule, rates, fabric),
        phases_on_same_uplinks=share_uplinks(schedule, fabric),
    )


def _stated_reasons(schedule: Schedule, rates: Rates, plan: Plan) -> dict[str, str]:
    """Return by phase why its definition says that its time is not compared."""
    reasons = {}
    for phase, prediction in stated(schedule, rates, plan.spec).items():
        if isinstance(prediction, NotCompared):
            reasons[phase] = prediction.reason
    return reasons


def _phases_on_same_links(schedule: Schedule, rates: Rates, plan: Plan) -> dict[str, list[str]]:
    """Return by phase the other phases that use its links at the same time for more than `MAX_SHARED` of its run."""
    names: dict[str, list[str]] = {}
    if len(set(schedule.phases)) < 2:
        return names
    for (phase, other_phase), share in at_line_rate(schedule, rates, plan.spec).shared.items():
        if share > MAX_SHARED:
            names.setdefault(phase, []).append(other_phase)
    return names


def _idle_credit_of_links(plan: Plan) -> PathSeconds:
    """Return the idle credit of the link that gains most on each path."""
    mtu = plan.spec.mtu
    rail_s = idle_credit_s(plan.rail_link(Gpu(0, 0)).rate_bps, mtu)
    cross_rail_s = rail_s
    if plan.uplinks:
        cross_rail_s = max(rail_s, idle_credit_s(plan.uplink_bps, mtu))
    if plan.spec.definition.is_graph:
        # in a graph, paths along a rail pass several switches, too
        rail_s = cross_rail_s
    return PathSeconds(idle_credit_s(plan.hb_bps, mtu), rail_s, cross_rail_s)


def _prediction(theory: _Theory, phase: str, takes_first: bool) -> Prediction:
    """Return the prediction of one phase.

    `takes_first`: it is the whole of plain traffic, which has the prediction of its first step unless it has its own.
    """

    def part(values: Mapping[str, Value]) -> Value | None:
        if phase not in values and takes_first:
            return next(iter(values.values()), None)
        return values.get(phase)

    reason = theory.reasons[phase]
    shares_links_with = ", ".join(theory.phases_on_same_links.get(phase, ()))
    if not shares_links_with:
        shares_links_with = theory.phases_on_same_uplinks.get(phase, "")
    not_compared = reason
    if shares_links_with and not reason:
        not_compared = f"shares links with {shares_links_with}"
    seconds = part(theory.seconds)
    least, most = part(theory.explained) or (0.0, inf)
    # a ratio to a prediction that doesn't apply would be taken for a result
    if reason or seconds is None or seconds <= MIN_PREDICTED_S:
        return Prediction(
            explained_least=least,
            explained_most=most,
            shares_links_with=shares_links_with,
            not_compared=not_compared,
        )
    return Prediction(
        seconds=seconds,
        by_uplink_s=part(theory.by_uplink_s),
        explained_least=least,
        explained_most=most,
        latency_s=part(theory.latency_s),
        credit_s=part(theory.credit_s) or 0.0,
        formula=part(theory.formulas) or "",
        shares_links_with=shares_links_with,
        not_compared=not_compared,
    )
