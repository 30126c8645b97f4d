"""Tables of allreduces over several rails, for the terminal and for the report."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Final

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
    m: FabricMeasurements,
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
    valid = FabricMeasurements(m.rails, tuple(p for p in valid_results.points if p.fabric == m.rails.label))
    titles = ["size", *m.policies]
    rows = [[size_name(size), *_times(m, size, invalid)] for size in m.sizes]
    if "nezha" in m.policies:
        titles += ["nezha's shares", "gain", "m/p"]
        for size, cells in zip(m.sizes, rows, strict=True):
            percents = [f"{100 * share:.0f}" for share in m.shares("nezha", size) or ()]
            cells += ["/".join(percents) or fmt.NOTHING, fmt.times(valid.gain("nezha", size))]
            cells.append(_nezha_over_predicted(m, size, invalid, coarse))
    stated_gains = _stated_gains_row(m)
    if stated_gains:
        rows.append(stated_gains)
    if is_slowed(m.points):
        titles.insert(1, SLOW_MOTION)
        factors = [_factor(point for point in m.points if point.size == size) for size in m.sizes]
        # the row of stated gains has no factor
        for cells, factor in zip(rows, [*factors, ""], strict=False):
            cells.insert(1, factor)
    title = f"{m.rails.label}: {_TITLE}"
    return text_table(titles, rows, numbers=1, title=title, note=starts_text(m))


def _times(m: FabricMeasurements, size: int, invalid: frozenset[IntervalId]) -> list[str]:
    """Return the time of each policy at a size, with a mark if its interval is invalid."""
    cells = []
    for policy in m.policies:
        is_invalid = allreduce_interval(m.rails.label, policy, size) in invalid
        cells.append(fmt.seconds(m.at(policy, size)) + (" ?" if is_invalid else ""))
    return cells


def _stated_gains_row(m: FabricMeasurements) -> list[str]:
    """Return the row with the gains that the paper states for such a fabric; no cells if it states none."""
    gains: dict[str, float] = {}
    for (mix, nodes, policy), gain in nezha.GAINS.items():
        if (mix, nodes) == (m.rails.mix, m.rails.nodes):
            gains[policy] = gain
    if not gains:
        return []
    cells = ["Nezha states, at most"]
    cells += [fmt.times(gains[policy]) if policy in gains else "" for policy in m.policies]
    if "nezha" in m.policies:
        cells += ["", fmt.times(gains.get("nezha")), ""]
    return cells


def _nezha_over_predicted(
    m: FabricMeasurements, size: int, invalid: frozenset[IntervalId], coarse: frozenset[IntervalId]
) -> str:
    """Return nezha's measured time over the predicted one, or why they are not compared."""
    interval = allreduce_interval(m.rails.label, "nezha", size)
    if interval in invalid:
        return "invalid"
    if interval in coarse:
        return "below resolution"
    return _over_predicted(m.at("nezha", size), m.predicted("nezha", size))


def starts_text(m: FabricMeasurements) -> str:
    """Return `to 512KiB medians of 3 starts, up to 12% apart`; nothing where each size has one."""
    times = m.frame.groupby(["size", "policy"]).mean_s
    spread = (times.max() - times.min()) / times.median()
    # the most of all policies: one that breaks down has fewer starts
    most = pd.DataFrame({"starts": times.count(), "spread": spread}).groupby("size").max()
    parts = []
    for starts, group in groupby(m.sizes, key=lambda size: int(most.starts[size])):
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
    return f"{dilation:g}x" if dilation > 1 else ""


def _over_predicted(measured: float | None, predicted: float | None) -> str:
    return fmt.ratio(measured / predicted) if predicted and measured else fmt.NOTHING


def _size(size: float | None) -> str:
    return size_name(round(size)) if size else fmt.NOTHING


def gains_table(results: AllreduceResults) -> Table:
    """Return every policy's gain over the better single rail, and what the paper states."""

    def best(row: tuple[FabricMeasurements, str]) -> tuple[float | None, int | None]:
        """Return the largest gain at one of the large sizes, and that size."""
        m, policy = row
        gains = [(gain, size) for size in m.sizes if size >= nezha.LARGE and (gain := m.gain(policy, size)) is not None]
        return max(gains, default=(None, None))

    columns = (
        text("fabric", lambda row: row[0].rails.label),
        text("policy", lambda row: row[1]),
        Column("largest size", lambda row: row[0].gain(row[1], row[0].largest), fmt.times),
        Column("best of large sizes", lambda row: best(row)[0], fmt.times),
        Column("at", lambda row: best(row)[1], _size),
        Column("Nezha's best", lambda r: nezha.GAINS.get((r[0].rails.mix, r[0].rails.nodes, r[1])), fmt.times),
    )
    rows = [(m, policy) for m in by_fabric(results) for policy in m.policies if not is_single(policy)]
    return Table(columns, rows, title="Throughput over the better single rail")


def thresholds_table(results: AllreduceResults) -> Table:
    """Return up to which size nezha used one rail alone; a dash where it split all sizes, or none."""
    columns = (
        text("fabric", lambda m: m.rails.label),
        Column("one rail up to", lambda m: m.threshold(), _size),
        Column("Eq. 6 + 10%", lambda m: m.rails.threshold, _size),
        Column("Nezha's", lambda m: nezha.THRESHOLDS.get((m.rails.mix, m.rails.nodes)), _size),
    )
    rows = [m for m in by_fabric(results) if "nezha" in m.policies and len(m.rails.names) > 1]
    return Table(columns, rows, title="Sizes that nezha leaves to one rail")


def table_1(results: AllreduceResults) -> Table | None:
    """Return the paper's Table 1 beside what was measured on 4 nodes with tcp and sharp; None without these."""
    m = next(filter(_is_of_table_1, by_fabric(results)), None)
    if m is None:
        return None
    names = {f"single:{name}": f"single:{kind}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True)}
    if m.rails.kinds[0] == "tcp":
        names |= {"weights:99:1": "99/1", "weights:1:99": "1/99"}
    policies = {names.get(policy, policy): policy for policy in m.policies}
    columns = [name for name in _TABLE_1 if name in policies]
    rows: list[list[str]] = []
    for size in m.sizes:
        rows.append([size_name(size), "measured", *(fmt.seconds(m.at(policies[name], size)) for name in columns)])
        stated = nezha.TABLE_1.get(size)
        if stated:
            rows.append(["", "Nezha", *(fmt.seconds(stated.get(name)) for name in columns)])
    return text_table(("size", "", *columns), rows, numbers=2, title="Nezha's Table 1, and the same here")


def _is_of_table_1(m: FabricMeasurements) -> bool:
    return m.rails.nodes == 4 and sorted(m.rails.kinds) == ["sharp", "tcp"]


def cuts_table(cuts: Sequence[Cut]) -> Table:
    """Return a row for each fabric, policy and fault, its repeats together; `back` is of rails that were in use."""
    columns = (
        text("fabric", lambda rows: rows[0].fabric),
        text("fault", lambda rows: rows[0].name),
        text("policy", lambda rows: rows[0].policy),
        Column("in an operation", lambda rows: f"{sum(c.inside for c in rows)} of {len(rows)}"),
        Column("detected ms", lambda rows: _spread([c.detect_ms for c in rows if c.inside])),
        Column("migrated ms", lambda rows: _spread([c.migrate_ms for c in rows if c.inside])),
        Column("back ms", lambda rows: _spread([c.home_ms for c in rows if c.carried])),
        Column("operation", lambda rows: median(c.median_s for c in rows), fmt.seconds),
        Column("longest", lambda rows: max(c.worst_s for c in rows), fmt.seconds),
        Column("elements wrong", lambda rows: f"{sum(c.wrong for c in rows):,}"),
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
    by_policy = [rows for training in trainings.values() for rows in grouped(training, "policy").values()]
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
    baseline_rows = []
    for training in all_rows:
        is_baseline = is_single(training.policy) if baseline == "single" else training.policy == baseline
        if is_baseline and training.policy != policy:
            baseline_rows.append(training)
    if not baseline_rows:
        return fmt.NOTHING
    best = max(map(_median_speed, grouped(baseline_rows, "policy").values()))
    ratio_text = fmt.times(_median_speed(rows) / best)
    rails = next(rails for rails in results.fabrics if rails.label == rows[0].fabric)
    stated = nezha.TRAINING_GAINS.get((rows[0].workload, rails.mix, rails.nodes, baseline))
    if stated and policy == "nezha":
        gain, is_upper_bound = stated
        ratio_text += f" (Nezha {'≤ ' if is_upper_bound else ''}{fmt.times(gain)})"
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
        fabric = [rails.label, str(rails.nodes), f"{rails.scale:g}", fmt.seconds(rails.build_s)]
        for n, name in enumerate(rails.names):
            cells = (name, rails.kinds[n], fmt.rate(rails.bps[n]), fmt.seconds(rails.setup_s[n]))
            rows.append([*(fabric if n == 0 else [""] * 4), *cells])
    titles = ("fabric", "nodes", "times slower", "built in", "rail", "kind", "payload a NIC", "set-up a message")
    return text_table(titles, rows, numbers=1)
