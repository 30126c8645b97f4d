"""Targets measured on a fabric: throughput at large sizes, latency at small ones, and the shares of the balancer."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from statistics import fmean, geometric_mean, median
from typing import Final

from railyard.core.units import size_name
from railyard.experiments.measures.allreduce.analysis import SINGLE, FabricMeasurements
from railyard.experiments.measures.allreduce.measured_target import NEVER, MeasuredTarget, Value
from railyard.experiments.measures.allreduce.records import Point
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.targets import Target
from railyard.results.format import times
from railyard.results.theory import nezha

# Throughput at large sizes --------------------------------------------------------------------------------------------

LINK_BOUND: Final = Target(quantity="single rail, ring, large: of its links' bound", unit="share", least=0.95)


def _of_link_bound(fabric: FabricMeasurements) -> Value | None:
    """The worst of the rings at the largest size: the time that its links alone would take, over the measured time.

    Of a ring of N no rank's link can carry less than 2(N-1)/N of the buffer (Patarasuk and Yuan, 2009). Set-up is not
    included. Rails whose processor is slower than their links are left out.
    """
    nodes = fabric.rails.nodes
    rates = _link_bound_rates(fabric)
    bits_per_byte_sent = 8 * 2 * (nodes - 1) / nodes
    shares: list[Value] = []
    for point in fabric.points:
        if point.size == fabric.large and point.policy in rates:
            bound_s = bits_per_byte_sent * point.sent / rates[point.policy]
            measured_s = fabric.at(point.policy, fabric.large) or inf
            shares.append(Value(bound_s / measured_s, point.policy))
    return min(shares, default=None)


def _link_bound_rates(fabric: FabricMeasurements) -> dict[str, float]:
    """Return the rate of each single rail that is a ring and whose links are its bottleneck, bit/s, by policy."""
    rails = fabric.rails
    cpu_times = rails.cpu_s_per_byte or (0.0,) * len(rails.names)
    rates: dict[str, float] = {}
    for name, kind, bps, cpu_s in zip(rails.names, rails.kinds, rails.bps, cpu_times, strict=True):
        if kind != "sharp" and cpu_s <= 8 / bps:
            rates[f"{SINGLE}:{name}"] = bps
    return rates


def _gain_of_pair(nodes: int) -> Target:
    """Return the target of the gain by a second rail like the first, on so many nodes."""
    stated = nezha.GAINS["tcp+tcp", nodes, "nezha"]
    quantity = f"two like rails, {nodes} nodes, large: of one"
    return Target(quantity=quantity, unit="times", least=stated, source="Nezha 5.2.1", goal=1.95)


PAIR: Final = {nodes: _gain_of_pair(nodes) for nodes in (4, 8)}


def _gain_of_second_rail(nodes: int, fabric: FabricMeasurements) -> Value | None:
    """Gain at the largest size, on fabrics with so many nodes."""
    if fabric.rails.nodes != nodes or not _has_two_like_rails(fabric):
        return None
    return _value_if_measured(fabric.gain("nezha", fabric.large))


def _has_two_like_rails(fabric: FabricMeasurements) -> bool:
    kinds = fabric.rails.kinds
    distinct_rails = set(zip(kinds, fabric.rails.bps, strict=True))
    return len(kinds) == 2 and len(distinct_rails) == 1


def _value_if_measured(number: float | None) -> Value | None:
    if number is None:
        return None
    return Value(number)


_STATED_BASELINES: Final = {
    "mptcp": "Nezha 5.2.2, unlike rails: up to 1.80x",
    "mrib": "Nezha 5.2.2, unlike rails: up to 1.41x",
    "slicing": "",
}
"""Policy of the paper -> what it states of it."""


def _throughput_target(baseline: str, source: str) -> Target:
    """Return the target of the throughput over a baseline's, at the large size where it is worst."""
    return Target(quantity=f"nezha, large: throughput of {baseline}'s", unit="times", least=0.98, source=source)


OVER_BASELINE: Final = {name: _throughput_target(name, source) for name, source in _STATED_BASELINES.items()}


def _throughput_over(baseline: str, fabric: FabricMeasurements) -> Value | None:
    """Throughput over a baseline's at the size where it is lowest, of the large ones that the paper measures."""
    ratio_by_size: dict[int, float] = {}
    for size in fabric.sizes:
        if nezha.LARGE <= size <= nezha.LARGEST:
            ratios = fabric.ratios(baseline, "nezha", size)
            if ratios:
                ratio_by_size[size] = geometric_mean(ratios)
    if not ratio_by_size:
        return None
    worst_size = min(ratio_by_size, key=ratio_by_size.__getitem__)
    return Value(ratio_by_size[worst_size], f"at {size_name(worst_size)}")


UNLIKE: Final = Target(
    quantity="unlike rails, large: of the better one", unit="times", least=1.4, source="Nezha 5.2.2: 1.46 to 1.63"
)


def _gain_of_unlike(fabric: FabricMeasurements) -> Value | None:
    """Gain at the largest size."""
    if not _has_unlike_rails(fabric):
        return None
    return _value_if_measured(fabric.gain("nezha", fabric.large))


SUM_OF_RAILS: Final = Target(quantity="unlike rails, large: of the sum of both", unit="share", least=0.95)


def _share_of_sum(fabric: FabricMeasurements) -> Value | None:
    """Throughput at the largest size, over that of all rails alone."""
    if not _has_unlike_rails(fabric):
        return None
    return _value_if_measured(fabric.of_ideal("nezha", fabric.large))


def _has_unlike_rails(fabric: FabricMeasurements) -> bool:
    return len(set(fabric.rails.kinds)) > 1


GLOO: Final = Target(quantity="one tcp rail, large: throughput of Gloo's", unit="times", least=1.0)


def _over_gloo(fabric: FabricMeasurements) -> Value | None:
    """The first TCP rail that was measured."""
    policies: list[str] = []
    for name, kind in zip(fabric.rails.names, fabric.rails.kinds, strict=True):
        if kind == "tcp":
            policies.append(f"{SINGLE}:{name}")
    if not policies:
        return None
    # runs that name no rail have only the policy that chooses one
    policies.append(SINGLE)
    for policy in policies:
        ratio = fabric.over(policy, "gloo", fabric.large)
        if ratio is not None:
            return Value(ratio)
    return None


GLOO_PAIR: Final = Target(
    quantity="two tcp rails, large: throughput of Gloo's", unit="times", least=1.8, source="Nezha: 1.7 to 4.3"
)


def _pair_over_gloo(fabric: FabricMeasurements) -> Value | None:
    """Nezha over Gloo at the largest size."""
    if not _has_two_like_rails(fabric):
        return None
    return _value_if_measured(fabric.over("nezha", "gloo", fabric.large))


# Latency at small sizes -----------------------------------------------------------------------------------------------

SMALL_LATENCY: Final = Target(quantity="small, cold: latency of the best single rail's", unit="times", most=1.03)


def _worst_small_latency(fabric: FabricMeasurements) -> Value | None:
    """The small size where it was worst, beside the rail that was best there."""
    ratios_by_size: dict[int, list[float]] = {}
    for size in fabric.small:
        ratios = _ratios_to_best_rail(fabric, size)
        if ratios:
            ratios_by_size[size] = ratios
    if not ratios_by_size:
        return None
    ratio_by_size = {size: geometric_mean(ratios) for size, ratios in ratios_by_size.items()}
    worst_size = max(ratio_by_size, key=ratio_by_size.__getitem__)
    # one size has few operations, so its figure varies by chance: the median of all sizes is shown with it
    median_text = f"median of {len(ratio_by_size)} sizes {times(median(ratio_by_size.values()))}"
    starts_text = _range_of_starts(ratios_by_size[worst_size], times)
    return Value(ratio_by_size[worst_size], f"at {size_name(worst_size)}; {median_text}{starts_text}")


def _ratios_to_best_rail(fabric: FabricMeasurements, size: int) -> list[float]:
    """Return nezha's latency over that of the rail that was best at a size, by start; empty if none was measured."""
    ratios_by_rail = [fabric.ratios("nezha", rail, size) for rail in fabric.singles(size)]
    return max(filter(None, ratios_by_rail), key=geometric_mean, default=[])


def _range_of_starts(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return `; 0.96x to 1.04x in 3 starts`, which shows how much a few percent mean; nothing for one start."""
    if len(values) < 2:
        return ""
    return f"; {show(min(values))} to {show(max(values))} in {len(values)} starts"


def _less_latency_target(baseline: str) -> Target:
    quantity = f"small, cold: less latency than {baseline}"
    return Target(quantity=quantity, unit="share", least=0.15, source="Nezha 5.2.1")


SMALL_LATENCY_OVER_BASELINE: Final = {name: _less_latency_target(name) for name in ("mrib", "mptcp")}


def _less_latency_than(baseline: str, fabric: FabricMeasurements) -> Value | None:
    """Part of the baseline's latency that is saved, as the median over small sizes."""
    ratios_by_size = [fabric.ratios("nezha", baseline, size) for size in fabric.small]
    measured = [ratios for ratios in ratios_by_size if ratios]
    if not measured:
        return None
    saved_by_start = [1 - median(ratios) for ratios in zip(*measured, strict=False)]
    starts_text = _range_of_starts(saved_by_start, SMALL_LATENCY_OVER_BASELINE[baseline].text)
    # the paper's 15% are of set-ups, which all sizes have, so one slow operation of the baseline's must not count
    saved = 1 - median(map(geometric_mean, measured))
    return Value(saved, f"median of {len(measured)} sizes{starts_text}")


# Balancer -------------------------------------------------------------------------------------------------------------

CONVERGENCE: Final = Target(
    quantity="balancer converges in", unit="operations", most=nezha.CONVERGENCE_OPERATIONS, source="Nezha 4.3"
)


def _slowest_convergence(fabric: FabricMeasurements) -> Value | None:
    """The size, and of its starts the one, that took longest: it has to converge however often it is started."""
    split = _split_points(fabric)
    if not split:
        return None
    slowest = max(split, key=_operations_to_converge)
    return Value(_operations_to_converge(slowest), f"at {size_name(slowest.size)}")


def _operations_to_converge(point: Point) -> float:
    if point.settled_after is None:
        return NEVER
    return point.settled_after


RAIL_TIME_SPREAD: Final = Target(
    quantity="time between rails after that", unit="share", most=nezha.MEAN_RAIL_TIME_SPREAD, source="Nezha 5.3.2"
)


def _mean_spread(fabric: FabricMeasurements) -> Value | None:
    """Mean over the sizes that were split, since the paper's figure is an average."""
    spreads: list[float] = []
    # a size counts once, whatever its number of starts: small sizes have more than large ones
    for starts in grouped(_split_points(fabric), "size").values():
        spreads.append(fmean([point.relative_spread for point in starts]))
    if not spreads:
        return None
    return Value(fmean(spreads), f"mean of {len(spreads)} sizes")


def _split_points(fabric: FabricMeasurements) -> list[Point]:
    return [point for point in fabric.points if point.policy == "nezha" and point.split]


def _pair_targets() -> list[MeasuredTarget]:
    return [MeasuredTarget("fabric", target, partial(_gain_of_second_rail, nodes)) for nodes, target in PAIR.items()]


def _throughput_targets() -> list[MeasuredTarget]:
    return [MeasuredTarget("fabric", target, partial(_throughput_over, name)) for name, target in OVER_BASELINE.items()]


def _latency_targets() -> list[MeasuredTarget]:
    targets = SMALL_LATENCY_OVER_BASELINE.items()
    return [MeasuredTarget("fabric", target, partial(_less_latency_than, name)) for name, target in targets]


FABRIC_TARGETS: Final = (
    MeasuredTarget("fabric", LINK_BOUND, _of_link_bound),
    *_pair_targets(),
    *_throughput_targets(),
    MeasuredTarget("fabric", UNLIKE, _gain_of_unlike),
    MeasuredTarget("fabric", SUM_OF_RAILS, _share_of_sum),
    MeasuredTarget("fabric", SMALL_LATENCY, _worst_small_latency),
    *_latency_targets(),
    MeasuredTarget("fabric", CONVERGENCE, _slowest_convergence),
    MeasuredTarget("fabric", RAIL_TIME_SPREAD, _mean_spread),
)
"""Targets of rails and of the balancer, in the order of the report."""
GLOO_TARGETS: Final = (
    MeasuredTarget("fabric", GLOO, _over_gloo),
    MeasuredTarget("fabric", GLOO_PAIR, _pair_over_gloo),
)
"""Targets beside Gloo on the same rails."""
