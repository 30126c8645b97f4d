"""Times on rail-only fabrics over those on the rail-optimized fabrics that are alike in everything else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isclose
from operator import attrgetter

from railyard.core.records import IntervalId
from railyard.results.analysis.aggregate import MAX_UNEXPLAINED, Row, labels, unexplained
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import NOT_COMPARED, FabricRun, Run, Verdict, worst_verdict
from railyard.topologies.fabric_kinds import FABRIC_KINDS


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The time of a row on a rail-only fabric over that on the rail-optimized fabric of the same size and rates.

    `nominal` is the paper's C_S/C_F (Rail-only IV-B): the share by which all-to-all is slower, once x, y >> 1.
    `explained`: the least and the most that the theory explains, of measured over predicted.
    """

    interval: IntervalId  # on the rail-only fabric
    row: Row
    rail_only: str
    rail_optimized: str
    measured: float
    predicted: float | None
    nominal: float
    explained: tuple[float, float]

    @property
    def _verdicts(self) -> dict[str, Verdict]:
        """The verdicts of the two times, by fabric."""
        times = self.row.by_fabric
        return {name: times[name].verdict for name in (self.rail_only, self.rail_optimized)}

    @property
    def of_times(self) -> Verdict:
        """The worst verdict of all repeats on both fabrics."""
        return worst_verdict(self._verdicts.values())

    @property
    def invalid_fabrics(self) -> tuple[str, ...]:
        """The fabrics whose time is invalid: with one of them the fabrics are not compared."""
        return tuple(name for name, verdict in self._verdicts.items() if verdict == "invalid")

    @property
    def not_compared(self) -> str:
        """The reason why the two times are not compared; "" if they are."""
        match self.invalid_fabrics:
            case ():
                return ""
            case (fabric,):
                return f"the time on {fabric} is invalid"
            case fabrics:
                return f"the times on {' and '.join(fabrics)} are invalid"

    @property
    def displayed(self) -> float | None:
        """The measured value for tables and figures; None if the times are not compared."""
        if self.not_compared:
            return None
        return self.measured

    @property
    def off(self) -> float:
        """The share by which it is off what the formulas explain; 0 if it isn't compared with them."""
        verdict = self.of_times
        if not self.predicted or verdict == "invalid" or verdict in NOT_COMPARED:
            return 0.0
        least, most = self.explained
        return unexplained(self.measured / self.predicted, least, most)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the times, or degraded if it is off its formula."""
        if self.off > MAX_UNEXPLAINED:
            return worst_verdict((self.of_times, "degraded"))
        return self.of_times

    @property
    def is_all_to_all(self) -> bool:
        """True for an all-to-all, which `nominal` is about, that the two fabrics carry differently."""
        return self.row.operations == ("all-to-all",) and (self.predicted is None or not isclose(self.predicted, 1))


def pairs(run: Run) -> tuple[tuple[FabricRun, FabricRun], ...]:
    """Return (fabric, baseline of its kind) where they are alike in everything else, so that times can be compared."""
    size = attrgetter("domains", "rails", "nics", "rail_bps", "hb_bps", "mtu")
    comparable: list[tuple[FabricRun, FabricRun]] = []
    for fabric, other in product(run.fabrics, repeat=2):
        # the kind may be a plugin's that isn't loaded
        if fabric.kind not in FABRIC_KINDS:
            continue
        if FABRIC_KINDS[fabric.kind].baseline == other.kind and size(fabric) == size(other):
            comparable.append((fabric, other))
    return tuple(comparable)


def slowdowns_of(run: Run, timed: Sequence[Row]) -> tuple[Slowdown, ...]:
    """Return rail-only over rail-optimized for each time that both have, under one policy if several ran in turn."""
    names = labels(run)
    in_turn = [(policy, policy) for policy in policies_in_turn(run)]
    compared: list[Slowdown] = []
    for rail_only, rail_optimized in pairs(run):
        nominal = rail_only.gpu_rail_bps / rail_only.hb_bps
        for policy, baseline_policy in in_turn or [(rail_only.policy, rail_optimized.policy)]:
            label = names.get((rail_only.label, policy), "")
            baseline_label = names.get((rail_optimized.label, baseline_policy), "")
            for row in timed:
                interval = replace(row.work, fabric=rail_only.label, policy=policy)
                slowdown = _slowdown(row, interval, label, baseline_label, nominal)
                if slowdown:
                    compared.append(slowdown)
    return tuple(compared)


def _slowdown(row: Row, interval: IntervalId, label: str, baseline_label: str, nominal: float) -> Slowdown | None:
    """Return the time of a row on one fabric over that on its baseline; None if either wasn't measured."""
    slow = row.by_fabric.get(label)
    fast = row.by_fabric.get(baseline_label)
    if not slow or not fast or fast.median <= 0:
        return None
    predicted = None
    if slow.predicted and fast.predicted:
        predicted = slow.predicted / fast.predicted
    slow_least, slow_most = slow.explained
    fast_least, fast_most = fast.explained
    explained = (0.0, inf)
    if slow_least and fast_least:
        explained = (slow_least / fast_most, slow_most / fast_least)
    measured = slow.median / fast.median
    return Slowdown(interval, row, label, baseline_label, measured, predicted, nominal, explained)
