"""Tables of allreduces over several rails, for the terminal and for the report."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple

import pandas as pd

from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.experiments.measures.allreduce.analysis import FabricMeasurements, by_fabric, is_single
from railyard.experiments.measures.allreduce.records import (
    AllreduceResults,
    Cut,
    DdpRun,
    Point,
    Training,
    allreduce_interval,
    rails_of_fabric,
)
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import grouped
from railyard.results.runs.records import Verdict
from railyard.results.theory import nezha
from railyard.results.views.table import Column, Table, text, text_table, texts

SLOW_MOTION: Final = "slow motion"
_TABLE_1: Final = ("single:sharp", "single:tcp", "equal", "99/1", "1/99", "slicing", "mrib", "mptcp", "nezha")
_TITLE: Final = "time of an allreduce (gain: nezha over the better single rail; m/p: measured over predicted)"


def benchmark_table(
    fabric: FabricMeasurements,
    valid_results: AllreduceResults,
    invalid: frozenset[IntervalId] = frozenset(),
    coarse: frozenset[IntervalId] = frozenset(),
) -> Table:
    """Return a fabric's times: a row for each size, a column for each policy; then nezha's shares and its gain.

    `valid_results`: those of valid intervals, from which gains are computed.
    `invalid`: intervals of points, without their repeat, of which some repeat is invalid. They are marked by `?`, and
    not compared with their prediction.
    `coarse`: intervals of points below resolution, which are not compared with their prediction either.
    """
    valid_points = [point for point in valid_results.points if point.fabric == fabric.rails.label]
    valid = FabricMeasurements(fabric.rails, tuple(valid_points))
    titles = ["size", *fabric.policies]
    rows = [[size_name(size), *_times(fabric, size, invalid)] for size in fabric.sizes]
    if "nezha" in fabric.policies:
        titles += ["nezha's shares", "gain", "m/p"]
        for size, cells in zip(fabric.sizes, rows, strict=True):
            cells.append(_shares_text(fabric.shares("nezha", size) or ()))
            cells.append(fmt.times(valid.gain("nezha", size)))
            cells.append(_nezha_over_predicted(fabric, size, invalid, coarse))
    stated_gains = _stated_gains_row(fabric)
    if stated_gains:
        rows.append(stated_gains)
    if is_slowed(fabric.points):
        titles.insert(1, SLOW_MOTION)
        points_by_size = grouped(fabric.points, "size")
        factors = [_factor(points_by_size[size]) for size in fabric.sizes]
        # the row of stated gains has no factor
        for cells, factor in zip(rows, [*factors, ""], strict=False):
            cells.insert(1, factor)
    title = f"{fabric.rails.label}: {_TITLE}"
    return text_table(titles, rows, numbers=1, title=title, note=starts_text(fabric))


def _times(fabric: FabricMeasurements, size: int, invalid: frozenset[IntervalId]) -> list[str]:
    """Return the time of each policy at a size, with a mark if its interval is invalid."""
    cells = []
    for policy in fabric.policies:
        cell = fmt.seconds(fabric.at(policy, size))
        if allreduce_interval(fabric.rails.label, policy, size) in invalid:
            cell += " ?"
        cells.append(cell)
    return cells


def _shares_text(shares: Sequence[float]) -> str:
    """Return `40/60`: the percents that each rail carried."""
    percents = [f"{100 * share:.0f}" for share in shares]
    return "/".join(percents) or fmt.NOTHING


def _stated_gains_row(fabric: FabricMeasurements) -> list[str]:
    """Return the row with the gains that the paper states for such a fabric; no cells if it states none."""
    gains: dict[str, float] = {}
    for (mix, nodes, policy), gain in nezha.GAINS.items():
        if (mix, nodes) == (fabric.rails.mix, fabric.rails.nodes):
            gains[policy] = gain
    if not gains:
        return []
    cells = ["Nezha states, at most"]
    for policy in fabric.policies:
        cells.append(fmt.times(gains[policy]) if policy in gains else "")
    if "nezha" in fabric.policies:
        cells += ["", fmt.times(gains.get("nezha")), ""]
    return cells


def _nezha_over_predicted(
    fabric: FabricMeasurements, size: int, invalid: frozenset[IntervalId], coarse: frozenset[IntervalId]
) -> str:
    """Return nezha's measured time over the predicted one, or why they are not compared."""
    interval = allreduce_interval(fabric.rails.label, "nezha", size)
    if interval in invalid:
        return "invalid"
    if interval in coarse:
        return "below resolution"
    return _over_predicted(fabric.at("nezha", size), fabric.predicted("nezha", size))


def starts_text(fabric: FabricMeasurements) -> str:
    """Return `to 512KiB medians of 3 starts, up to 12% apart`; nothing where each size has one."""
    times = fabric.frame.groupby(["size", "policy"]).mean_s
    spread = (times.max() - times.min()) / times.median()
    # the most of all policies: one that breaks down has fewer starts
    most = pd.DataFrame({"starts": times.count(), "spread": spread}).groupby("size").max()
    parts = []
    for starts, group in groupby(fabric.sizes, key=lambda size: int(most.starts[size])):
        sizes = list(group)
        if starts > 1:
            apart = fmt.percent(float(most.spread[sizes].max()), 0)
            parts.append(f"to {size_name(sizes[-1])} medians of {starts} starts, up to {apart} apart")
    return "; ".join(parts)


def is_slowed(rows: Iterable[Point | Training]) -> bool:
    """Return whether any of them was measured where time passed slower."""
    return any(row.dilation > 1 for row in rows)


def _factor(rows: Iterable[Point | Training]) -> str:
    """Return `5x` for rows that were measured in slow motion."""
    dilation = max(row.dilation for row in rows)
    if dilation <= 1:
        return ""
    return f"{dilation:g}x"


def _over_predicted(measured: float | None, predicted: float | None) -> str:
    if not measured or not predicted:
        return fmt.NOTHING
    return fmt.ratio(measured / predicted)


def _size(size: float | None) -> str:
    if not size:
        return fmt.NOTHING
    return size_name(round(size))


class _Gain(NamedTuple):
    """Gains of a policy over the better single rail on a fabric; None where a size was not measured.

    `best`: the largest one at a large size, which is `best_size`. `stated`: the paper's best.
    """

    fabric: str
    policy: str
    at_largest: float | None
    best: float | None
    best_size: int | None
    stated: float | None


def gains_table(results: AllreduceResults) -> Table:
    """Return every policy's gain over the better single rail, and what the paper states."""
    columns = (
        *texts("fabric", "policy"),
        Column("largest size", "at_largest", fmt.times),
        Column("best of large sizes", "best", fmt.times),
        Column("at", "best_size", _size),
        Column("Nezha's best", "stated", fmt.times),
    )
    rows: list[_Gain] = []
    for fabric in by_fabric(results):
        for policy in fabric.policies:
            if not is_single(policy):
                rows.append(_gain_of(fabric, policy))
    return Table(columns, rows, title="Throughput over the better single rail")


def _gain_of(fabric: FabricMeasurements, policy: str) -> _Gain:
    """Return the gains of a policy on a fabric."""
    best = None
    best_size = None
    for size in fabric.sizes:
        gain = fabric.gain(policy, size)
        # of two equal gains the one at the larger size
        if size >= nezha.LARGE and gain is not None and gain >= (best or 0.0):
            best = gain
            best_size = size
    stated = nezha.GAINS.get((fabric.rails.mix, fabric.rails.nodes, policy))
    return _Gain(fabric.rails.label, policy, fabric.gain(policy, fabric.largest), best, best_size, stated)


def thresholds_table(results: AllreduceResults) -> Table:
    """Return up to which size nezha used one rail alone; a dash where it split all sizes, or none."""
    columns = (
        text("fabric", lambda fabric: fabric.rails.label),
        Column("one rail up to", lambda fabric: fabric.threshold(), _size),
        Column("Eq. 6 + 10%", lambda fabric: fabric.rails.threshold, _size),
        Column("Nezha's", lambda fabric: nezha.THRESHOLDS.get((fabric.rails.mix, fabric.rails.nodes)), _size),
    )
    rows = [fabric for fabric in by_fabric(results) if "nezha" in fabric.policies and len(fabric.rails.names) > 1]
    return Table(columns, rows, title="Sizes that nezha leaves to one rail")


def table_1(results: AllreduceResults) -> Table | None:
    """Return the paper's Table 1 beside what was measured on 4 nodes with tcp and sharp; None without these."""
    fabric = next(filter(_is_of_table_1, by_fabric(results)), None)
    if fabric is None:
        return None
    policies = _policies_by_papers_name(fabric)
    columns = [name for name in _TABLE_1 if name in policies]
    rows: list[list[str]] = []
    for size in fabric.sizes:
        times = [fmt.seconds(fabric.at(policies[name], size)) for name in columns]
        rows.append([size_name(size), "measured", *times])
        stated = nezha.TABLE_1.get(size)
        if stated:
            stated_times = [fmt.seconds(stated.get(name)) for name in columns]
            rows.append(["", "Nezha", *stated_times])
    return text_table(("size", "", *columns), rows, numbers=2, title="Nezha's Table 1, and the same here")


def _policies_by_papers_name(fabric: FabricMeasurements) -> dict[str, str]:
    """Return the policies of a fabric by their names in the paper's Table 1."""
    names: dict[str, str] = {}
    for rail, kind in zip(fabric.rails.names, fabric.rails.kinds, strict=True):
        names[f"single:{rail}"] = f"single:{kind}"
    # the paper's weights are those of tcp, then sharp
    if fabric.rails.kinds[0] == "tcp":
        names |= {"weights:99:1": "99/1", "weights:1:99": "1/99"}
    return {names.get(policy, policy): policy for policy in fabric.policies}


def _is_of_table_1(fabric: FabricMeasurements) -> bool:
    return fabric.rails.nodes == 4 and sorted(fabric.rails.kinds) == ["sharp", "tcp"]


def cuts_table(cuts: Sequence[Cut]) -> Table:
    """Return a row for each fabric, policy and fault, its repeats together; `back` is of rails that were in use."""

    def values(rows: Sequence[Cut], column: str, counting: str = "") -> list[Any]:
        """Return a column of the repeats; only of those for which the column `counting` is true, if it is given."""
        counted = filter(attrgetter(counting), rows) if counting else rows
        return list(map(attrgetter(column), counted))

    columns = (
        text("fabric", lambda rows: rows[0].fabric),
        text("fault", lambda rows: rows[0].name),
        text("policy", lambda rows: rows[0].policy),
        Column("in an operation", lambda rows: f"{sum(values(rows, 'inside'))} of {len(rows)}"),
        Column("detected ms", lambda rows: _spread(values(rows, "detect_ms", counting="inside"))),
        Column("migrated ms", lambda rows: _spread(values(rows, "migrate_ms", counting="inside"))),
        Column("back ms", lambda rows: _spread(values(rows, "home_ms", counting="carried"))),
        Column("operation", lambda rows: median(values(rows, "median_s")), fmt.seconds),
        Column("longest", lambda rows: max(values(rows, "worst_s")), fmt.seconds),
        Column("elements wrong", lambda rows: f"{sum(values(rows, 'wrong')):,}"),
    )
    return Table(columns, list(grouped(cuts, "fabric", "policy", "name").values()), title="Rail faults")


def _spread(values: Sequence[float | None]) -> str:
    """Return `33.1 (28.0 to 41.2)`: median, least, most; a value of None never came."""
    if not values:
        return fmt.NOTHING
    reached = [value for value in values if value is not None]
    if not reached:
        return "never"
    missing = ""
    if len(reached) < len(values):
        missing = f", never {len(values) - len(reached)}"
    return f"{median(reached):,.1f} ({min(reached):,.1f} to {max(reached):,.1f}{missing})"


def trainings_table(results: AllreduceResults) -> Table:
    """Return a row for each training and policy: speed, what the equations say, and over one rail and over Gloo."""
    trainings = grouped(results.trainings, "fabric", "workload")

    def over(baseline: str, rows: Sequence[Training]) -> str:
        return _over_baseline(baseline, rows, trainings[rows[0].fabric, rows[0].workload], results)

    columns = [
        text("fabric", lambda rows: rows[0].fabric),
        text("training", lambda rows: rows[0].workload),
        text("policy", lambda rows: rows[0].policy),
        Column("samples/s a node", _median_speed, fmt.digits),
        Column("step", _median_step_s, fmt.seconds),
        Column("of it computing", lambda rows: rows[0].compute_s, fmt.seconds),
        Column("m/p", lambda rows: _over_predicted(_median_step_s(rows), rows[0].predicted_s)),
        Column("over one rail", lambda rows: over("single", rows)),
        Column("over Gloo", lambda rows: over("gloo", rows)),
    ]
    if is_slowed(results.trainings):
        columns.insert(3, Column(SLOW_MOTION, _factor))
    by_policy: list[Sequence[Training]] = []
    for training in trainings.values():
        by_policy += grouped(training, "policy").values()
    return Table(columns, by_policy, title="Trainings")


def _median_speed(rows: Iterable[Training]) -> float:
    """Return the median speed, samples per second."""
    return median(training.samples_per_s for training in rows)


def _median_step_s(rows: Iterable[Training]) -> float:
    return median(training.step_s for training in rows)


def _over_baseline(
    baseline: str, rows: Sequence[Training], all_rows: Sequence[Training], results: AllreduceResults
) -> str:
    """Return `1.43x (Nezha 1.48x)`: the speed over that of the best policy of the baseline, and what the paper states.

    `baseline`: `single` for one rail, else a policy. `rows`: of one policy; `all_rows`: of the training, all policies.
    """
    policy = rows[0].policy
    if is_single(policy):
        return fmt.NOTHING
    speeds: list[float] = []
    for other, other_rows in grouped(all_rows, "policy").items():
        is_one_rail = baseline == "single" and is_single(other)
        if other != policy and (other == baseline or is_one_rail):
            speeds.append(_median_speed(other_rows))
    if not speeds:
        return fmt.NOTHING
    best = max(speeds)
    ratio_text = fmt.times(_median_speed(rows) / best)
    rails = rails_of_fabric(results.fabrics, rows[0].fabric)
    stated = nezha.TRAINING_GAINS.get((rows[0].workload, rails.mix, rails.nodes, baseline))
    if stated and policy == "nezha":
        gain, is_upper_bound = stated
        sign = "≤ " * is_upper_bound
        ratio_text += f" (Nezha {sign}{fmt.times(gain)})"
    return ratio_text


def ddp_runs_table(results: AllreduceResults, verdicts: Mapping[IntervalId, Verdict]) -> Table:
    """Return a row for each network that was really trained; steps of an invalid interval are not compared."""

    def over_gloo(ddp_run: DdpRun) -> str:
        if verdicts.get(ddp_run.interval) == "invalid":
            return "invalid"
        return fmt.times(ddp_run.gloo_step_s / ddp_run.step_s)

    columns = (
        *texts("fabric", "policy"),
        Column("gradients", "bytes", fmt.size),
        Column("steps", lambda ddp_run: len(ddp_run.losses)),
        Column("loss", lambda ddp_run: f"{ddp_run.losses[0]:.3f} to {ddp_run.losses[-1]:.3f}"),
        Column("apart", lambda ddp_run: fmt.digits(ddp_run.losses_apart, 2)),
        Column("Gloo's step", "gloo_step_s", fmt.seconds),
        Column("step", "step_s", fmt.seconds),
        Column("over Gloo", over_gloo),
    )
    return Table(columns, results.ddp_runs, title="DDP over Gloo and over Railyard's backend")


def fabrics_table(results: AllreduceResults) -> Table:
    """Return what was built: a row for each rail."""
    rows = []
    for rails in results.fabrics:
        fabric_cells = [rails.label, str(rails.nodes), f"{rails.scale:g}", fmt.seconds(rails.build_s)]
        for number, name in enumerate(rails.names):
            cells = (name, rails.kinds[number], fmt.rate(rails.bps[number]), fmt.seconds(rails.setup_s[number]))
            rows.append([*fabric_cells, *cells])
            # only the first row of a fabric names it
            fabric_cells = [""] * len(fabric_cells)
    titles = ("fabric", "nodes", "times slower", "built in", "rail", "kind", "payload a NIC", "set-up a message")
    return text_table(titles, rows, numbers=1)
