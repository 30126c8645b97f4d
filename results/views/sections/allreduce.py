"""Allreduces on several rails: tables for the terminal and for report.html, and the report's sections."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from statistics import median
from typing import Any, Final

import pandas as pd
from rich.console import Console
from rich.text import Text

from railyard.core.records import IntervalId
from railyard.core.units import size_name
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.allreduce import FabricMeasurements, by_fabric, is_single
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.plots import allreduce as plots
from railyard.results.runs.allreduce import AllreduceResults, Cut, DdpRun, Point, Training, allreduce_interval
from railyard.results.runs.records import Verdict
from railyard.results.theory import nezha
from railyard.results.views.report import Card, Section, section, spread_text
from railyard.results.views.sections.faults import targets_table
from railyard.results.views.table import Column, Table, text, text_table, texts

SLOW_MOTION: Final = "slow motion"
SLOW_MOTION_NOTE: Final = (
    "figures with a factor under slow motion were measured while time passed that many times slower, and are given in "
    "the fabric's own time; faults and DDP aren't slowed down"
)
_TABLE_1: Final = ("single:sharp", "single:tcp", "equal", "99/1", "1/99", "slicing", "mrib", "mptcp", "nezha")
_AGREEMENT_NOTE: Final = "m/p is nezha's; agreement with theory counts every policy that has a prediction"
_TITLE: Final = "time of an allreduce (gain: nezha over the better single rail; m/p: measured over predicted)"


@section("multirail")
class _Allreduces(Section):
    """Times of allreduces by size and policy, faults of rails, trainings."""

    title = "Performance targets"
    order = 30
    template = "allreduce.html.j2"
    is_page_part = False

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.allreduce)

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        for o in [o for o in analysis.performance if o.samples]:
            values = [value for value in o.values if value is not None]
            yield Card(
                f"{o.name}{f' ({o.fabric})' if o.fabric else ''}",
                o.text,
                f"target {'≤' if o.target.least is None else '≥'} {o.target.limits_text}",
                spread_text(values, o.target.text) if values else "",
                o.verdict,
            )

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        found = analysis.allreduce
        (invalid, coarse) = _doubtful_points(analysis)
        believable = _believable(analysis)
        places = dict.fromkeys((rates.fabric, rates.interval.part) for rates in found.rates)
        drawn = [(f"{fabric}: {fault}", plots.nic_rates(found, fabric, fault)) for fabric, fault in places]
        return {
            "multirail": {
                "targets": targets_table(analysis.performance, "Performance targets"),
                "latencies": [
                    (m.rails.label, plots.latency(m), benchmark_table(m, believable, invalid, coarse), starts_text(m))
                    for m in by_fabric(found)
                ],
                "thresholds": thresholds_table(believable),
                "shares": plots.shares(found),
                "channels": plots.channels(found),
                "gains": gains_table(believable),
                "table_1": table_1(believable),
                "cuts": cuts_table(found.cuts),
                "rates": [(name, plot) for name, plot in drawn if plot],
                "speeds": plots.trainings(found),
                "trainings": trainings_table(believable),
                "ddp_runs": ddp_runs_table(found, analysis.judgement.intervals),
                "losses": plots.losses(found),
                "slow_motion_note": SLOW_MOTION_NOTE if is_slowed((*found.points, *found.trainings)) else "",
                "fabrics": fabrics_table(found),
                "skipped": found.skipped,
            }
        }

    def links(self, analysis: Analysis) -> dict[str, str]:
        found = analysis.allreduce
        titles = {
            "multirail": (self.title, True),
            "sizes": ("By size", found.points),
            "cuts": ("Rail faults", found.cuts),
            "trainings": ("Trainings", found.trainings),
            "ddp": ("DDP", found.ddp_runs),
            "rails": ("Rails", True),
        }
        return {name: title for name, (title, is_there) in titles.items() if is_there}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print every table that has rows, and notes on what it shows."""
        if not analysis.allreduce:
            return
        found = analysis.allreduce
        (invalid, coarse) = _doubtful_points(analysis)
        believable = _believable(analysis)
        paper = table_1(believable)
        measured = [o for o in analysis.performance if o.samples]
        tables = (
            *(
                *(benchmark_table(m, believable, invalid, coarse) for m in by_fabric(found)),
                *((paper,) if paper else ()),
            ),
            *(thresholds_table(believable), gains_table(believable)),
            *(cuts_table(found.cuts), trainings_table(believable)),
            *(ddp_runs_table(found, analysis.judgement.intervals), targets_table(measured, "Performance targets")),
        )
        for table in tables:
            if table.rows:
                console.print(table.to_terminal())
                console.print()
        all_targets = dict.fromkeys(o.target.quantity for o in analysis.performance)
        missing = all_targets.keys() - {o.target.quantity for o in measured}
        notes = (
            *[f"{SLOW_MOTION}: {SLOW_MOTION_NOTE}"] * is_slowed((*found.points, *found.trainings)),
            *["?: the machine was measured there, and not the fabric"] * bool(invalid),
            *[_AGREEMENT_NOTE] * bool(found.points and (analysis.agreement.compared or analysis.agreement.invalid)),
            *[f"not measured: {len(missing)} of {len(all_targets)} performance targets"] * bool(missing),
            *(f"not run: {skipped.policy} on {skipped.fabric}: {skipped.why}" for skipped in found.skipped),
        )
        for note in notes:
            console.print(Text(note, style="dim"), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        skipped = [asdict(policy) for policy in analysis.allreduce.skipped]
        return {"targets": [outcome.as_dict() for outcome in analysis.performance], "skipped": skipped}


def benchmark_table(
    m: FabricMeasurements,
    valid_results: AllreduceResults,
    invalid: frozenset[IntervalId] = frozenset(),
    coarse: frozenset[IntervalId] = frozenset(),
) -> Table:
    """Return a fabric's times: a row for each size, a column for each policy; then nezha's shares and its gain.

    `?` marks a point whose interval is `invalid`, of any repeat: it isn't compared with its prediction. Gains are
    computed from `valid_results`, in which such repeats are missing. Points in `coarse` are below resolution, and not
    compared with their prediction.
    """
    valid = FabricMeasurements(m.rails, tuple(p for p in valid_results.points if p.fabric == m.rails.label))
    slow = is_slowed(m.points)
    own = "nezha" in m.policies
    paper = {policy: gain for (*where, policy), gain in nezha.GAINS.items() if where == [m.rails.mix, m.rails.nodes]}
    titles = ["size", *[SLOW_MOTION] * slow, *m.policies, *["nezha's shares", "gain", "m/p"] * own]
    rows = []
    for size in m.sizes:
        marks = (" ?" if allreduce_interval(m.rails.label, p, size) in invalid else "" for p in m.policies)
        cells = [fmt.seconds(m.at(policy, size)) + mark for policy, mark in zip(m.policies, marks, strict=True)]
        if slow:
            cells.insert(0, _factor(p for p in m.points if p.size == size))
        if own:
            shares = "/".join(f"{100 * share:.0f}" for share in m.shares("nezha", size) or ())  # percents by rail
            cells += [shares or fmt.NOTHING, fmt.times(valid.gain("nezha", size))]
            interval = allreduce_interval(m.rails.label, "nezha", size)
            if interval in invalid:
                cells.append("invalid")
            elif interval in coarse:
                cells.append("below resolution")
            else:
                cells.append(_over_predicted(m.at("nezha", size), m.predicted("nezha", size)))
        rows.append([size_name(size), *cells])
    if paper:
        gains = [fmt.times(paper[policy]) if policy in paper else "" for policy in m.policies]
        rows.append(["Nezha states, at most", *[""] * slow, *gains, *["", fmt.times(paper.get("nezha")), ""] * own])
    title = f"{m.rails.label}: {_TITLE}"
    return text_table(titles, rows, numbers=1, title=title, note=starts_text(m))


def starts_text(m: FabricMeasurements) -> str:
    """Return `to 512KiB medians of 3 starts, up to 12% apart`; nothing where each size has one."""
    times = m.frame.groupby(["size", "policy"]).mean_s
    spread = (times.max() - times.min()) / times.median()
    most = pd.DataFrame({"starts": times.count(), "spread": spread}).groupby("size").max()  # a policy may break down
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
    dilation = max(row.dilation for row in rows)
    return f"{dilation:g}x" if dilation > 1 else ""


def _over_predicted(measured: float | None, predicted: float | None) -> str:
    return fmt.ratio(measured / predicted) if predicted and measured else fmt.NOTHING


def _size(size: float | None) -> str:
    return size_name(round(size)) if size else fmt.NOTHING


def gains_table(found: AllreduceResults) -> Table:
    """Return every policy's gain over the better single rail, and what the paper states."""

    def best(row: tuple[FabricMeasurements, str]) -> tuple[float | None, int | None]:
        m, policy = row
        gains = [(g, s) for s in m.sizes if s >= nezha.LARGE and (g := m.gain(policy, s)) is not None]
        return max(gains, default=(None, None))

    columns = (
        text("fabric", lambda row: row[0].rails.label),
        text("policy", lambda row: row[1]),
        Column("largest size", lambda row: row[0].gain(row[1], row[0].largest), fmt.times),
        Column("best of large sizes", lambda row: best(row)[0], fmt.times),
        Column("at", lambda row: best(row)[1], _size),
        Column("Nezha's best", lambda r: nezha.GAINS.get((r[0].rails.mix, r[0].rails.nodes, r[1])), fmt.times),
    )
    rows = [(m, policy) for m in by_fabric(found) for policy in m.policies if not is_single(policy)]
    return Table(columns, rows, title="Throughput over the better single rail")


def thresholds_table(found: AllreduceResults) -> Table:
    """Return up to which size nezha used one rail alone; a dash where it split all sizes, or none."""
    columns = (
        text("fabric", lambda m: m.rails.label),
        Column("one rail up to", lambda m: m.threshold(), _size),
        Column("Eq. 6 + 10%", lambda m: m.rails.threshold, _size),
        Column("Nezha's", lambda m: nezha.THRESHOLDS.get((m.rails.mix, m.rails.nodes)), _size),
    )
    rows = [m for m in by_fabric(found) if "nezha" in m.policies and len(m.rails.names) > 1]
    return Table(columns, rows, title="Sizes that nezha leaves to one rail")


def table_1(found: AllreduceResults) -> Table | None:
    """Return the paper's Table 1 beside what was measured on 4 nodes with tcp and sharp; None without these."""
    m = next((m for m in by_fabric(found) if m.rails.nodes == 4 and sorted(m.rails.kinds) == ["sharp", "tcp"]), None)
    if m is None:
        return None
    by_kind = {f"single:{name}": f"single:{kind}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True)}
    if m.rails.kinds[0] == "tcp":
        by_kind |= {"weights:99:1": "99/1", "weights:1:99": "1/99"}
    known = {by_kind.get(policy, policy): policy for policy in m.policies}
    shown = [name for name in _TABLE_1 if name in known]
    rows: list[list[str]] = []
    for size in m.sizes:
        rows.append([size_name(size), "measured", *(fmt.seconds(m.at(known[name], size)) for name in shown)])
        if stated := nezha.TABLE_1.get(size):
            rows.append(["", "Nezha", *(fmt.seconds(stated.get(name)) for name in shown)])
    return text_table(("size", "", *shown), rows, numbers=2, title="Nezha's Table 1, and the same here")


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
    """`33.1 (28.0 to 41.2)`: median, least, most."""
    reached = [value for value in values if value is not None]
    if not reached:
        return "never" if values else fmt.NOTHING
    missing = f", never {len(values) - len(reached)}" if len(reached) < len(values) else ""
    return f"{median(reached):,.1f} ({min(reached):,.1f} to {max(reached):,.1f}{missing})"


def trainings_table(found: AllreduceResults) -> Table:
    """Return a row for each training and policy: speed, what the equations say, and over one rail and over Gloo."""
    rails = {each.label: each for each in found.fabrics}
    slow = is_slowed(found.trainings)
    runs = grouped(found.trainings, "fabric", "workload")

    def speed(rows: Iterable[Training]) -> float:
        return median(t.samples_per_s for t in rows)

    def over(baseline: str, rows: list[Training]) -> str:
        # such as `1.43x (Nezha 1.48x)`, over the best policy of the baseline
        policy = rows[0].policy
        fabric = rails[rows[0].fabric]
        others = [t for t in runs[rows[0].fabric, rows[0].workload] if t.policy != policy]
        others = [t for t in others if (is_single(t.policy) if baseline == "single" else t.policy == baseline)]
        if not others or is_single(policy):
            return fmt.NOTHING
        best = max(map(speed, grouped(others, "policy").values()))
        text = fmt.times(speed(rows) / best)
        stated = nezha.TRAINING_GAINS.get((rows[0].workload, fabric.mix, fabric.nodes, baseline))
        if stated and policy == "nezha":
            gain, is_upper_bound = stated
            text += f" (Nezha {'≤ ' if is_upper_bound else ''}{fmt.times(gain)})"
        return text

    def step_s(rows: list[Training]) -> float:
        return median(t.step_s for t in rows)

    columns = [
        text("fabric", lambda rows: rows[0].fabric),
        text("training", lambda rows: rows[0].workload),
        text("policy", lambda rows: rows[0].policy),
        *[Column(SLOW_MOTION, _factor)] * slow,
        Column("samples/s a node", speed, fmt.digits),
        Column("step", step_s, fmt.seconds),
        Column("of it computing", lambda rows: rows[0].compute_s, fmt.seconds),
        Column("m/p", lambda rows: _over_predicted(step_s(rows), rows[0].predicted_s)),
        Column("over one rail", lambda rows: over("single", rows)),
        Column("over Gloo", lambda rows: over("gloo", rows)),
    ]
    by_policy = [rows for training in runs.values() for rows in grouped(training, "policy").values()]
    return Table(columns, by_policy, title="Trainings")


def ddp_runs_table(found: AllreduceResults, verdicts: Mapping[IntervalId, Verdict]) -> Table:
    """Return a row for each network that was really trained; steps of an invalid interval are not compared."""

    def over_gloo(ddp_run: DdpRun) -> str:
        is_invalid = verdicts.get(ddp_run.interval) == "invalid"
        return "invalid" if is_invalid else fmt.times(ddp_run.gloo_step_s / ddp_run.step_s)

    columns = (
        *texts("fabric", "policy"),
        Column("gradients", "bytes", fmt.size),
        Column("steps", lambda x: len(x.losses)),
        Column("loss", lambda x: f"{x.losses[0]:.3f} to {x.losses[-1]:.3f}"),
        Column("apart", lambda x: fmt.digits(x.losses_apart, 2)),
        Column("Gloo's step", "gloo_step_s", fmt.seconds),
        Column("step", "step_s", fmt.seconds),
        Column("over Gloo", over_gloo),
    )
    return Table(columns, found.ddp_runs, title="DDP over Gloo and over Railyard's backend")


def fabrics_table(found: AllreduceResults) -> Table:
    """Return what was built: a row for each rail."""
    rows = []
    for rails in found.fabrics:
        fabric = [rails.label, str(rails.nodes), f"{rails.scale:g}", fmt.seconds(rails.build_s)]
        for n, name in enumerate(rails.names):
            cells = (name, rails.kinds[n], fmt.rate(rails.bps[n]), fmt.seconds(rails.setup_s[n]))
            rows.append([*(fabric if n == 0 else [""] * 4), *cells])
    titles = ("fabric", "nodes", "times slower", "built in", "rail", "kind", "payload a NIC", "set-up a message")
    return text_table(titles, rows, numbers=1)


def _believable(analysis: Analysis) -> AllreduceResults:
    """Return what was measured in intervals that are not invalid: what gains and thresholds are computed from."""
    intervals = analysis.judgement.intervals
    return analysis.allreduce.without({each for each, verdict in intervals.items() if verdict == "invalid"})


def _doubtful_points(analysis: Analysis) -> tuple[frozenset[IntervalId], frozenset[IntervalId]]:
    """Return the intervals of points, without their repeat, that are invalid, and those that are below resolution."""
    judgement = analysis.judgement
    invalid = (interval for interval, verdict in judgement.intervals.items() if verdict == "invalid")
    coarse = (interval for (interval, *_), verdict in judgement.rows.items() if verdict == "below resolution")
    return frozenset(replace(i, repeat=0) for i in invalid), frozenset(replace(i, repeat=0) for i in coarse)
