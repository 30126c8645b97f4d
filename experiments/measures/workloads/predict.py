"""Predictions by the papers' equations for an experiment, without running it: a table, NAME.csv and NAME.png."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from railyard.core.units import format_rate
from railyard.experiments.measures.workloads.spec import labelled_workloads, workload_labels
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted, Prediction
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Spread
from railyard.results.plots import style, sweep
from railyard.results.theory.ecmp import has_choice
from railyard.results.theory.latency import latency
from railyard.results.theory.path_seconds import PathSeconds
from railyard.results.theory.predict import equation, full_step_s, hash_choices, predict_schedule
from railyard.results.theory.stated import stated
from railyard.results.views.computing import computing_lines
from railyard.topologies.prediction import WHOLE, NotCompared, StatedTime
from railyard.topologies.spec import FabricSpec
from railyard.workloads.schedule import Rates, Schedule, payload_rates
from railyard.workloads.spec import build


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the times of all workloads."""
    rows = predictions(spec)
    title = f"{spec.name}: predicted times"
    show = partial(print_table, spec, rows)
    return Predicted(spec.name, title, Prediction._fields, rows, lambda: draw(rows, spec), show)


def predictions(spec: ExperimentSpec) -> tuple[Prediction, ...]:
    """Return every phase of every workload on every fabric."""
    rows: list[Prediction] = []
    for label, fabric in zip(spec.labels, spec.gpu_fabrics, strict=True):
        plan = nominal_plan(fabric)
        rates = payload_rates(plan.hb_bps, plan.rail_bps, fabric.mtu)
        for name, workload in labelled_workloads(spec):
            schedule, *_ = build(workload, fabric, plan.rail_bps, plan.hb_bps, seed=spec.seed)
            where = (label, plan.spec.chosen_policy, name)
            rows += _of_schedule(schedule, rates, fabric, where, workload.is_iteration)
    return tuple(rows)


def _of_schedule(
    schedule: Schedule, rates: Rates, fabric: FabricSpec, where: tuple[str, str, str], is_iteration: bool
) -> Iterator[Prediction]:
    """Yield the whole, if it has a prediction or a reason for none, then each phase. `where`: the first columns."""
    times = predict_schedule(schedule, rates, fabric)
    loaded: dict[str, float] = {}
    if has_choice(fabric):
        loaded = predict_schedule(schedule, rates, fabric, "expected")
    # with a latency of 1 s for each path, the latency of a phase is its number of sequential steps
    steps = latency(schedule, PathSeconds(1, 1, 1))
    stated_by_phase = stated(schedule, rates, fabric)
    for phase, by in _equations(schedule, rates, fabric, is_iteration, WHOLE in stated_by_phase).items():
        metric = "completion_time"
        if phase == WHOLE and is_iteration:
            metric = "iteration_time"
        match stated_by_phase.get(phase):
            case NotCompared(reason):
                name = ""
                not_compared = reason
            case StatedTime(equation=name):
                not_compared = ""
            case None:
                name = by
                not_compared = ""
        seconds = times.get(phase)
        step_count = round(steps.get(phase, 0))
        yield Prediction(*where, phase, metric, seconds, "s", name, loaded.get(phase), step_count, not_compared)


def _equations(
    schedule: Schedule, rates: Rates, fabric: FabricSpec, is_iteration: bool, is_whole_stated: bool
) -> dict[str, str]:
    """Return the equation of each phase by name; that of the whole first, if it has a time of its own."""
    equations: dict[str, str] = {}
    for phase in schedule.phases:
        equations[phase.name] = equation(phase, rates, fabric, hash_choices(phase, schedule, fabric))
    if schedule.iteration is not None:
        whole = "Eq. 6" if is_iteration else "all rounds"
        if schedule.iteration.bubble_has_collectives and schedule.iteration.stages > 1:
            whole = "Eq. 6, all-to-alls in the bubble too"
        return {WHOLE: whole, **equations}
    if is_whole_stated and (len(equations) > 1 or schedule.is_uneven):
        return {WHOLE: "", **equations}
    return equations


def draw(rows: Sequence[Prediction], spec: ExperimentSpec) -> Figure:
    """Draw curves if all of it is a sweep, else bars."""
    data = spec.resolved()
    rows = [row for row in rows if row.predicted is not None]
    if not rows:
        figure = style.new_figure(style.WIDTH, 1.2)
        figure.text(0.02, 0.5, "no prediction applies to any of these workloads")
        return figure
    timed = {(row.fabric, row.workload, row.phase): Spread((), row.predicted) for row in rows}
    fabrics = list(zip(spec.labels, data["fabrics"], strict=True))
    workloads = list(zip(workload_labels(spec), data["workloads"], strict=True))
    curves = sweep.curves(fabrics, workloads, timed)
    if not sweep.covers(curves, timed):
        return _panels(rows)
    heights = [sweep.height(curve) for curve in curves]
    figure = style.new_figure(style.WIDTH, 0.4 + sum(heights))
    parts = figure.subfigures(len(curves), 1, squeeze=False, height_ratios=heights)
    for part, curve in zip(parts[:, 0], curves, strict=True):
        sweep.draw(part, curve)
    return figure


def _panels(rows: Sequence[Prediction]) -> Figure:
    """Draw a panel for each workload: for each of its phases a bar for each fabric."""
    by_workload: defaultdict[str, list[Prediction]] = defaultdict(list)
    for phase_rows in _by_phase(rows).values():
        by_workload[phase_rows[0].workload] += phase_rows
    fabrics = dict.fromkeys(row.fabric for row in rows)
    colours = style.colours(list(fabrics))
    heights = [len(workload_rows) + 1 for workload_rows in by_workload.values()]
    figure = style.new_figure(style.WIDTH, 1.2 + 0.3 * sum(heights))
    panels = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (workload, workload_rows) in zip(panels[:, 0], by_workload.items(), strict=True):
        times = [row.predicted or 0.0 for row in workload_rows]
        bar_colours = [colours[row.fabric] for row in workload_rows]
        labels = [f"{row.phase or 'iteration'} ({row.fabric})" for row in workload_rows]
        axes.barh(range(len(workload_rows)), times, color=bar_colours, height=0.7)
        axes.set_yticks(range(len(workload_rows)), labels)
        axes.set_xlim(0, 1.15 * max(times))
        axes.invert_yaxis()
        axes.set(xlabel="seconds", title=workload)
        for position, time in enumerate(times):
            axes.annotate(f" {fmt.seconds(time)}", (time, position), va="center")
        style.quiet(axes, grid="x")
    return figure


def _by_phase(rows: Iterable[Prediction]) -> dict[tuple[str, str], list[Prediction]]:
    """Return the rows of each phase of each workload, by workload and phase, in the order of first rows."""
    by_phase: dict[tuple[str, str], list[Prediction]] = {}
    for row in rows:
        by_phase.setdefault((row.workload, row.phase), []).append(row)
    return by_phase


def print_table(spec: ExperimentSpec, rows: Sequence[Prediction], console: Console) -> None:
    """Print the times with fabrics side by side."""
    title = f"{spec.name}: predicted times"
    table = plain_table("workload", "phase", *spec.labels, right=spec.labels, title=title)
    table.add_column("steps", justify="right", style="dim")
    table.add_column("equation", style="dim")
    for (workload, phase), phase_rows in _by_phase(rows).items():
        table.add_row(workload, phase or "iteration", *_cells(spec.labels, phase_rows))
    console.print(table)
    note = "steps: how often a run waits for the latency of a path, which a run measures; it is not in these times"
    console.print(note, style="dim", highlight=False, soft_wrap=True)
    for row in rows:
        if row.predicted and row.predicted_by_uplink and row.predicted_by_uplink > row.predicted * 1.005:
            longer = row.predicted_by_uplink / row.predicted
            line = f"{row.fabric}, {row.phase or row.workload}: {fmt.seconds(row.predicted_by_uplink)} expected, "
            line += f"{longer:.2f} of the above, since flows collide on uplinks"
            console.print(line, highlight=False, soft_wrap=True)
    for line in computing_lines(*_scales(spec)):
        console.print(line, highlight=False, soft_wrap=True)
    print_rates(spec, console)


def _cells(labels: Sequence[str], rows: Sequence[Prediction]) -> list[str]:
    """Return the time of a phase on each fabric, its steps, and its equation or why it is not compared."""
    times = dict.fromkeys(labels, fmt.NOTHING)
    # fabrics mostly have the same steps and equation: each is shown once
    steps: dict[str, None] = {}
    equations: dict[str, None] = {}
    for row in rows:
        times[row.fabric] = fmt.seconds(row.predicted)
        steps[str(row.sequential_steps)] = None
        if row.not_compared:
            equations[f"not compared: {row.not_compared}"] = None
        else:
            equations[row.equation] = None
    return [*times.values(), ", ".join(steps), ", ".join(equations)]


def _scales(spec: ExperimentSpec) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Return how each workload is scaled on each fabric, and the labels of fabrics with that of their baseline."""
    scales = []
    fabrics = list(zip(spec.labels, spec.gpu_fabrics, strict=True))
    for label, fabric in fabrics:
        plan = nominal_plan(fabric)
        for name, workload in labelled_workloads(spec):
            scale = build(workload, fabric, plan.rail_bps, plan.hb_bps, seed=spec.seed).scale
            full_s = full_step_s(scale, plan.spec)
            scales.append({**scale.as_dict(), "workload": name, "fabric": label, "full_step_s": full_s})
    size = attrgetter("domains", "rails", "rail_of_rank", "rail_rate", "hb_rate", "mtu", "platform")
    compared = []
    for (label, fabric), (other_label, other) in product(fabrics, fabrics):
        if fabric.definition.baseline == other.kind and size(fabric) == size(other):
            compared.append((label, other_label))
    return scales, compared


def print_rates(spec: ExperimentSpec, console: Console) -> None:
    """Print for each fabric its size, and the rates that times were predicted with."""
    for label, fabric in zip(spec.labels, spec.gpu_fabrics, strict=True):
        plan = nominal_plan(fabric)
        assumed = ""
        if fabric.rail_rate == "auto":
            assumed = " (assumed for auto)"
        rates = f"rails {format_rate(plan.rail_bps)}{assumed}, HB {format_rate(plan.hb_bps)}"
        line = f"{label}: {fabric.size_text}, {rates}"
        console.print(line, style="dim", highlight=False)
