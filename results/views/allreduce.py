"""Tables of allreduces on several rails: for the terminal and for report.html."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from railyard.core.records import IntervalId
from railyard.results.analysis.allreduce import (
    AT_LEAST,
    FabricMeasurements,
    Outcome,
    by_fabric,
    in_unit,
    is_single,
    outcomes,
    times,
)
from railyard.results.plots import allreduce as plots
from railyard.results.published import nezha
from railyard.results.runs.allreduce import AllreduceResults, Cut, Point, Training, allreduce_interval, size_name
from railyard.results.runs.fidelity import Judgement
from railyard.results.runs.records import Rails
from railyard.results.views import format as fmt
from railyard.results.views.report_tables import Table
from railyard.results.views.terminal import Column, fit_to_width

_TABLE_1: Final = ("single:sharp", "single:tcp", "equal", "99/1", "1/99", "slicing", "mrib", "mptcp", "nezha")
SLOW_MOTION: Final = "slow motion"
SLOW_MOTION_NOTE: Final = (
    "what has a figure under slow motion was measured while time passed that many times slower, and is told in the "
    "fabric's own time; cuts and DDP aren't slowed down"
)
MET_MARK: Final = {True: "✓", False: "✗", None: fmt.NOTHING}


InvalidPoints = Set[IntervalId]
"""Points of which the machine, and not the fabric, was measured: of any repeat, which is left out."""


def invalid_points(judgement: Judgement) -> InvalidPoints:
    """Return the intervals that are invalid, without their repeats."""
    return frozenset(replace(i, repeat=0) for i, found in judgement.intervals.items() if found == "invalid")


def benchmark_table(m: FabricMeasurements, invalid: InvalidPoints = frozenset()) -> Table:
    """A fabric: a line a size, a column a policy; then what nezha did, and what that gained. `?`: see Doubts."""
    paper = _paper_gains(m.rails)
    slow = slow_motion(m.points)
    columns = ["size", *([SLOW_MOTION] if slow else []), *m.policies]
    if "nezha" in m.policies:
        columns += ["nezha's shares", "gain", "m/p"]
    rows = []
    for size in m.sizes:
        cells = [size_name(size), *([_dilation_text(p for p in m.points if p.size == size)] if slow else [])]
        cells += [_time(m, policy, size, invalid) for policy in m.policies]
        if "nezha" in m.policies:
            cells += [shares_text(m.shares("nezha", size)), times(m.gain("nezha", size)), _over_predicted(m, size)]
        rows.append(tuple(cells))
    if paper:
        gains = [times(paper.get(policy)) if policy in paper else "" for policy in m.policies]
        more = ("", times(paper.get("nezha")), "") if "nezha" in m.policies else ()
        rows.append(("Nezha states, at most", *([""] if slow else []), *gains, *more))
    return Table(tuple(columns), tuple(rows), 1)


def starts_text(m: FabricMeasurements) -> str:
    """`to 512KiB medians of 3 starts, up to 12% apart`; nothing where each size has one."""
    counts = [(m.max_starts(size), size) for size in m.sizes]
    text = []
    for count, group in groupby(counts, key=itemgetter(0)):
        sizes = [size for _, size in group]
        relative_spread = fmt.percent(max(m.relative_spread(size, m.policies) for size in sizes), 0)
        if count > 1:
            text.append(f"to {size_name(sizes[-1])} medians of {count} starts, up to {relative_spread} apart")
    return "; ".join(text)


def slow_motion(rows: Iterable[Point | Training]) -> bool:
    """Whether any of them was measured where time passed slower."""
    return any(row.dilation > 1 for row in rows)


def _dilation_text(rows: Iterable[Point | Training]) -> str:
    """`10x`; nothing where time passed as it is."""
    max_dilation = max(row.dilation for row in rows)
    return f"{max_dilation:g}x" if max_dilation > 1 else ""


def _time(m: FabricMeasurements, policy: str, size: int, invalid: InvalidPoints) -> str:
    mark = " ?" if allreduce_interval(m.rails.label, policy, size) in invalid else ""
    return fmt.seconds(m.at(policy, size)) + mark


def _paper_gains(rails: Rails) -> dict[str, float]:
    """Times the better single rail, by policy."""
    required = (rails.mix, rails.nodes)
    return {policy: gain for (mix, nodes, policy), gain in nezha.GAINS.items() if (mix, nodes) == required}


def _over_predicted(m: FabricMeasurements, size: int) -> str:
    predicted, measured = m.predicted("nezha", size), m.at("nezha", size)
    return fmt.ratio(measured / predicted) if predicted and measured else fmt.NOTHING


def shares_text(shares: Sequence[float] | None) -> str:
    """`37/63`, in percents by rail."""
    return "/".join(f"{100 * share:.0f}" for share in shares) if shares else fmt.NOTHING


def gains_table(found: AllreduceResults) -> Table:
    """At the largest size: every policy over the better single rail, and what the paper states."""
    rows = []
    for m in by_fabric(found):
        size = m.sizes[-1]
        paper = _paper_gains(m.rails)
        for policy in m.policies:
            if not is_single(policy):
                gains = [(g, s) for s in m.sizes if s >= nezha.LARGE and (g := m.gain(policy, s)) is not None]
                best, where = max(gains, default=(None, None))
                cells = (times(m.gain(policy, size)), times(best), size_name(where) if where else fmt.NOTHING)
                stated = times(paper[policy]) if policy in paper else fmt.NOTHING
                rows.append((m.rails.label, policy, *cells, stated))
    return Table(("fabric", "policy", "largest size", "best of large sizes", "at", "Nezha's best"), tuple(rows), 2)


def thresholds_table(found: AllreduceResults) -> Table:
    """Up to which size nezha used one rail alone, a line a fabric; a dash where it split all sizes, or none."""
    rows = []
    for m in by_fabric(found):
        if "nezha" in m.policies and len(m.rails.names) > 1:
            stated = nezha.THRESHOLDS.get((m.rails.mix, m.rails.nodes))
            thresholds = (m.threshold(), m.rails.threshold, stated)
            rows.append((m.rails.label, *(size_name(round(s)) if s else fmt.NOTHING for s in thresholds)))
    return Table(("fabric", "one rail up to", "Eq. 6 + 10%", "Nezha's"), tuple(rows), 1)


def table_1(found: AllreduceResults) -> Table | None:
    """The paper's Table 1, its figures beside what was measured on 4 nodes with tcp and sharp; None without these."""
    m = next((m for m in by_fabric(found) if m.rails.nodes == 4 and sorted(m.rails.kinds) == ["sharp", "tcp"]), None)
    if m is None:
        return None
    by_kind = {f"single:{name}": f"single:{kind}" for name, kind in zip(m.rails.names, m.rails.kinds, strict=True)}
    if m.rails.kinds[0] == "tcp":
        by_kind |= {"weights:99:1": "99/1", "weights:1:99": "1/99"}
    known = {by_kind.get(policy, policy): policy for policy in m.policies}
    shown = [name for name in _TABLE_1 if name in known]
    rows: list[tuple[str, ...]] = []
    for size in m.sizes:
        stated = nezha.TABLE_1.get(size, {})
        rows.append((size_name(size), "measured", *(fmt.seconds(m.at(known[name], size)) for name in shown)))
        if stated:
            rows.append(("", "Nezha", *(fmt.seconds(stated.get(name)) for name in shown)))
    return Table(("size", "", *shown), tuple(rows), 2)


def targets_table(outcomes: Iterable[Outcome]) -> Table:
    """What was wanted, and what came."""
    rows = []
    for o in outcomes:
        goal = f", goal {in_unit(o.target.goal, o.target.unit)}" if o.target.goal is not None else ""
        required = f"{'≥' if o.target.comparison == AT_LEAST else '≤'} {in_unit(o.target.limit, o.target.unit)}{goal}"
        value = in_unit(o.value, o.target.unit) if o.measured else "not measured"
        rows.append((MET_MARK[o.met], o.target.what, o.fabric, required, value, o.where, o.target.source))
    return Table(("", "what", "fabric", "wanted", "measured", "of what", "from"), tuple(rows), 3)


def cuts_table(cuts: Sequence[Cut]) -> Table:
    """A line a fabric, policy and fault, its repeats together. Times from the fault; `back` from the repair,
    of cuts of a rail that carried something.
    """
    rows = []
    for fabric, policy, fault in dict.fromkeys((c.fabric, c.policy, c.name) for c in cuts):
        selected = [c for c in cuts if (c.fabric, c.policy, c.name) == (fabric, policy, fault)]
        inside = [c for c in selected if c.inside]
        rows.append(
            (
                fabric,
                fault,
                policy,
                f"{len(inside)} of {len(selected)}",
                _spread([c.detect_ms for c in inside]),
                _spread([c.migrate_ms for c in inside]),
                _spread([c.home_ms for c in selected if c.carried]),
                fmt.seconds(median(c.median_s for c in selected)),
                fmt.seconds(max(c.worst_s for c in selected)),
                f"{sum(c.wrong for c in selected):,}",
            )
        )
    columns = (
        "fabric", "fault", "policy", "within one", "detected ms", "migrated ms", "back ms", "operation", "longest",
        "elements wrong",
    )  # fmt: skip
    return Table(columns, tuple(rows), 3)


def _spread(values: Sequence[float | None]) -> str:
    """`33.1 (28.0 to 41.2)`: median, least, most."""
    if not values:
        return fmt.NOTHING
    reached = [value for value in values if value is not None]
    missing = f", never {len(values) - len(reached)}" if len(reached) < len(values) else ""
    if not reached:
        return "never"
    return f"{median(reached):,.1f} ({min(reached):,.1f} to {max(reached):,.1f}{missing})"


def trainings_table(found: AllreduceResults) -> Table:
    """A line a training and policy: speed, what the equations say, and over one rail and over Gloo."""
    rows = []
    slow = slow_motion(found.trainings)
    by_label = {rails.label: rails for rails in found.fabrics}
    for fabric, name in dict.fromkeys((t.fabric, t.workload) for t in found.trainings):
        selected = [t for t in found.trainings if (t.fabric, t.workload) == (fabric, name)]
        for policy in dict.fromkeys(t.policy for t in selected):
            policy_trainings = [t for t in selected if t.policy == policy]
            first, speed, step = (
                policy_trainings[0],
                median(t.samples_per_s for t in policy_trainings),
                median(t.step_s for t in policy_trainings),
            )
            cells = [
                *([_dilation_text(policy_trainings)] if slow else []),
                fmt.digits(speed),
                fmt.seconds(step),
                fmt.seconds(first.compute_s),
                _ratio(step, first.predicted_s),
            ]
            cells += [_over_baseline(speed, selected, policy, by_label[fabric], over) for over in ("single", "gloo")]
            rows.append((fabric, name, policy, *cells))
    columns = (
        "fabric",
        "training",
        "policy",
        *([SLOW_MOTION] if slow else []),
        "samples/s a node",
        "step",
        "of it computing",
        "m/p",
        "over one rail",
        "over Gloo",
    )
    return Table(columns, tuple(rows), 3)


def _ratio(value: float, predicted: float | None) -> str:
    return fmt.ratio(value / predicted) if predicted else fmt.NOTHING


def _over_baseline(speed: float, selected: Sequence[Training], policy: str, rails: Rails, over: str) -> str:
    """`1.43x (Nezha 1.48x)`: over the best of these policies."""
    others = [
        t for t in selected if (is_single(t.policy) if over == "single" else t.policy == over) and t.policy != policy
    ]
    if not others or is_single(policy):
        return fmt.NOTHING
    best = max(median(t.samples_per_s for t in others if t.policy == p) for p in {t.policy for t in others})
    stated = nezha.training_gain(selected[0].workload, rails.mix, rails.nodes, over)
    text = f" (Nezha {'≤ ' if stated.at_most else ''}{times(stated.gain)})" if stated and policy == "nezha" else ""
    return times(speed / best) + text


def ddp_runs_table(found: AllreduceResults) -> Table:
    """A line a network that was trained for real."""
    rows = []
    for x in found.ddp_runs:
        ends = f"{x.losses[0]:.3f} to {x.losses[-1]:.3f}"
        steps = (fmt.seconds(x.gloo_step_s), fmt.seconds(x.step_s), times(x.gloo_step_s / x.step_s))
        rows.append(
            (x.fabric, x.policy, fmt.size(x.bytes), str(len(x.losses)), ends, fmt.digits(x.losses_apart, 2), *steps)
        )
    columns = ("fabric", "policy", "gradients", "steps", "loss", "apart", "Gloo's step", "step", "over Gloo")
    return Table(columns, tuple(rows), 2)


def fabrics_table(found: AllreduceResults) -> Table:
    """What was built, a line a rail."""
    rows = []
    for rails in found.fabrics:
        for n, name in enumerate(rails.names):
            whole = (
                (rails.label, str(rails.nodes), f"{rails.scale:g}", fmt.seconds(rails.build_s)) if n == 0 else ("",) * 4
            )
            rows.append((*whole, name, rails.kinds[n], fmt.rate(rails.bps[n]), fmt.seconds(rails.setup_s[n])))
    columns = ("fabric", "nodes", "times slower", "built in", "rail", "kind", "payload a NIC", "set-up a message")
    return Table(columns, tuple(rows), 1)


def parts(found: AllreduceResults, judgement: Judgement) -> dict[str, Any] | None:
    """What its template asks for; None where there is nothing of the kind."""
    invalid = invalid_points(judgement)
    if not found:
        return None
    places = dict.fromkeys((rates.fabric, rates.interval.part) for rates in found.rates)
    drawn = [(f"{fabric}: {fault}", plots.nic_rates(found, fabric, fault)) for fabric, fault in places]
    return {
        "targets": targets_table(outcomes(found)),
        "latencies": [
            (m.rails.label, plots.latency(m), benchmark_table(m, invalid), starts_text(m)) for m in by_fabric(found)
        ],
        "thresholds": thresholds_table(found),
        "shares": plots.shares(found),
        "channels": plots.channels(found),
        "gains": gains_table(found),
        "table_1": table_1(found),
        "cuts": cuts_table(found.cuts),
        "rates": [(name, plot) for name, plot in drawn if plot],
        "speeds": plots.trainings(found),
        "trainings": trainings_table(found),
        "ddp_runs": ddp_runs_table(found),
        "losses": plots.losses(found),
        "slow_motion_note": SLOW_MOTION_NOTE if slow_motion((*found.points, *found.trainings)) else "",
        "fabrics": fabrics_table(found),
        "skipped": found.skipped,
    }


_TITLE = "time of an allreduce (gain: nezha over the better single rail; m/p: measured over predicted)"


def print_tables(found: AllreduceResults, judgement: Judgement, console: Console) -> None:
    """All of it: the table is what such a run is for."""
    invalid = invalid_points(judgement)
    for title, table, fixed_columns, note in _tables(found, invalid):
        if table.rows:
            console.print(fit_to_width(console, title, _columns(table, fixed_columns), 0, note))
            console.print()
    if slow_motion((*found.points, *found.trainings)):
        console.print(Text(f"{SLOW_MOTION}: {SLOW_MOTION_NOTE}", style="dim"), highlight=False)
    if invalid:
        console.print(Text("?: the machine was measured there, and not the fabric", style="dim"), highlight=False)
    missing = [o.target.what for o in outcomes(found) if not o.measured]
    if missing:
        console.print(Text(f"not measured: {'; '.join(missing)}", style="dim"), highlight=False)
    for skipped in found.skipped:
        console.print(
            Text(f"not run: {skipped.policy} on {skipped.fabric}: {skipped.why}", style="dim"), highlight=False
        )


def _tables(found: AllreduceResults, invalid: InvalidPoints) -> Iterator[tuple[str, Table, int, str]]:
    """(title, table, how many of its columns are always there, a line below it)."""
    for m in by_fabric(found):
        fixed_columns = 5 if slow_motion(m.points) else 4
        yield f"{m.rails.label}: {_TITLE}", benchmark_table(m, invalid), fixed_columns, starts_text(m)
    paper = table_1(found)
    if paper is not None:
        yield "Nezha's Table 1, and the same here", paper, 4, ""
    yield "nezha leaves to one rail", thresholds_table(found), 4, ""
    yield "Throughput over the better single rail", gains_table(found), 6, ""
    yield "Rails that went away and came back", cuts_table(found.cuts), 6, ""
    yield "Trainings", trainings_table(found), 6, ""
    yield "DDP over Gloo and over Railyard's backend", ddp_runs_table(found), 5, ""
    yield "What it has to show", targets_table([o for o in outcomes(found) if o.measured]), 5, ""


def _columns(table: Table, fixed_columns: int) -> list[Column]:
    """On a narrow screen the last columns go first."""
    cells = zip(*table.rows, strict=True)
    named = zip(table.columns, cells, strict=True)
    return [
        Column(name, column, drop=max(0, n - fixed_columns + 1), text=n < table.numbers)
        for n, (name, column) in enumerate(named)
    ]
