"""`predict` for an experiment with health routing: a time for each policy, as a table, NAME.csv and NAME.png.

Times follow from max-min fair shares, where these decide alone; `WHY_NOT` names the other cases.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import isnan
from typing import Final, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from railyard.experiments.measures.steering.analysis import BASELINE_POLICY, ORACLE_POLICY
from railyard.experiments.measures.steering.expected_times import InitialState, completion_s, initial_states
from railyard.experiments.measures.steering.plots import POLICY_COLOURS
from railyard.experiments.measures.steering.spec import grid_of
from railyard.experiments.measures.workloads.predict import print_rates
from railyard.experiments.options import plain_table
from railyard.experiments.predict.output import Predicted
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results import format as fmt
from railyard.results.plots import style
from railyard.results.theory.predict import predict_schedule
from railyard.topologies.prediction import WHOLE
from railyard.workloads.schedule import payload_rates

SHARES: Final = "max-min fair shares"
EQUATIONS: Final = "the equations: routes stay as they are"
WHY_NOT: Final = {
    "moving": "the background comes and goes, and no formula says what follows from when routes change",
    "dependent": "its steps wait for one another, and no formula says what they gain by another path",
    "several": "pairs have several paths, and a hash decides which of them a connection takes",
}


class SteeredPrediction(NamedTuple):
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


STEERED_COLUMNS: Final = SteeredPrediction._fields


def predict(spec: ExperimentSpec) -> Predicted:
    """Compute the time of each workload under each policy."""
    rows = predictions(spec)
    title = f"{spec.name}: predicted times"
    draw = partial(_scenes if grid_of(spec) else _panels, rows)
    show = partial(print_table, spec, rows)
    return Predicted(spec.name, title, STEERED_COLUMNS, rows, draw, show)


def predictions(spec: ExperimentSpec) -> tuple[SteeredPrediction, ...]:
    """Return a row for each fabric, workload, policy and seed; none without health routing."""
    rows: list[SteeredPrediction] = []
    for (label, name), group in groupby(initial_states(spec), key=lambda state: state[:2]):
        states = [initial for _, _, initial in group]
        for policy in states[0].routing.policies:
            for initial in states:
                prediction = _predict(initial, policy)
                row = SteeredPrediction(
                    fabric=label,
                    policy=policy,
                    workload=name,
                    seed=initial.seed,
                    metric="completion_time",
                    predicted=prediction.seconds,
                    unit="s",
                    equation=prediction.equation,
                    why=prediction.why,
                )
                rows.append(row)
    return tuple(rows)


class _PolicyTime(NamedTuple):
    """A time, s, and what it follows from; without one, the reason `why`."""

    seconds: float | None
    equation: str = ""
    why: str = ""


def _predict(initial: InitialState, policy: str) -> _PolicyTime:
    """Return the time of a workload under a policy."""
    if not initial.pattern.steady:
        return _PolicyTime(None, why=WHY_NOT["moving"])
    if initial.workload.is_independent:
        seconds = completion_s(initial.pattern, initial.flows, initial.steering(policy))
        if seconds is None:
            return _PolicyTime(None, why=WHY_NOT["several"])
        return _PolicyTime(seconds, SHARES)
    plan = initial.plan
    if policy != plan.spec.chosen_policy or initial.background:
        return _PolicyTime(None, why=WHY_NOT["dependent"])
    # the fabric's own policy and no other traffic: as on a fabric without health routing
    rates = payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu)
    times = predict_schedule(initial.schedule, rates, plan.spec)
    first_s = next(iter(times.values()))
    return _PolicyTime(times.get(WHOLE, first_s), EQUATIONS)


def _policies(rows: Iterable[SteeredPrediction]) -> list[str]:
    """Return each policy once."""
    return list(dict.fromkeys(row.policy for row in rows))


def _by_workload(rows: Sequence[SteeredPrediction]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (fabric, workload, its times): seconds by seed (rows) and policy (columns), NaN where not known."""
    frame = pd.DataFrame(rows).astype({"predicted": float})
    for (fabric, workload), group_rows in frame.groupby(["fabric", "workload"], sort=False):
        times = group_rows.pivot(index="seed", columns="policy", values="predicted")
        yield str(fabric), str(workload), times[group_rows["policy"].unique()]


def _panels(rows: Sequence[SteeredPrediction]) -> Figure:
    """Draw for each fabric and workload a bar a policy to the median of the seeds, and a dot for each seed."""
    workloads = list(_by_workload(rows))
    heights = [len(times.columns) + 1.5 for _, _, times in workloads]
    figure = style.new_figure(style.WIDTH, 1.0 + 0.32 * sum(heights))
    panels = figure.subplots(len(workloads), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    reasons: dict[tuple[str, str, str], str] = {}
    for row in rows:
        # of each policy's first seed
        reasons.setdefault((row.fabric, row.workload, row.policy), row.why)
    for axes, (fabric, workload, times) in zip(panels[:, 0], workloads, strict=True):
        for y, policy in enumerate(times.columns):
            _draw_policy(axes, y, policy, times[policy].dropna(), reasons[fabric, workload, policy])
        axes.set_yticks(range(len(times.columns)), list(times.columns))
        longest_s = float(times.max().max())
        if isnan(longest_s):
            longest_s = 1.0
        axes.set_xlim(0, 1.15 * longest_s)
        axes.set_title(f"{workload} on {fabric}")
        _finish(axes)
    return figure


def _draw_policy(axes: Axes, y: int, policy: str, times: pd.Series, why: str) -> None:
    """Draw the times of a policy, those of all seeds that have one; the reason `why` if none has."""
    text = f"{fmt.NOTHING} {why}"
    if len(times):
        axes.barh(y, times.median(), height=0.62, color=POLICY_COLOURS.get(policy, style.SKY))
        axes.plot(times, [y] * len(times), "o", ms=3.6, mfc=style.PAPER, mec=style.INK, mew=0.7)
        text = fmt.seconds(times.median())
    end = (max(times, default=0.0), y)
    axes.annotate(text, end, xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)


def _scenes(rows: Sequence[SteeredPrediction]) -> Figure:
    """Draw a line for each scene, with a ring for each policy."""
    workloads = list(_by_workload(rows))
    names = _policies(rows)
    figure = style.new_figure(style.WIDTH, 1.4 + 0.24 * len(workloads))
    axes = figure.subplots()
    for policy, colour in style.colours(names).items():
        medians = [times[policy].median() for *_, times in workloads]
        axes.plot(medians, range(len(workloads)), "o", ms=7, mfc="none", mec=colour, mew=1.8, label=policy)
    labels = [f"{workload} on {fabric}" for fabric, workload, _ in workloads]
    axes.set_yticks(range(len(workloads)), labels, fontsize=8)
    axes.set_xlim(left=0)
    figure.legend(loc="outside upper right", ncols=len(names))
    _finish(axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    style.quiet(axes, grid="x")


def print_table(spec: ExperimentSpec, rows: Sequence[SteeredPrediction], console: Console) -> None:
    """Print a table for each fabric and workload; a single one for the scenes of a grid."""
    if grid_of(spec):
        _print_scenes(spec, rows, console)
    else:
        _print_policies(spec, rows, console)
    reasons = dict.fromkeys(row.why for row in rows)
    for why in filter(None, reasons):
        console.print(f"{fmt.NOTHING}: {why}", highlight=False)
    print_rates(spec, console)


def _print_scenes(spec: ExperimentSpec, rows: Sequence[SteeredPrediction], console: Console) -> None:
    """Print the medians of all policies, a line a scene."""
    policies = _policies(rows)
    title = f"{spec.name}: predicted times, scene by scene"
    table = plain_table("fabric", "workload and scene", *policies, right=policies, title=title)
    for fabric, workload, times in _by_workload(rows):
        table.add_row(fabric, workload, *map(_seconds, times.median()))
    console.print(table)


def _print_policies(spec: ExperimentSpec, rows: Sequence[SteeredPrediction], console: Console) -> None:
    """Print the times of a workload on a fabric over all seeds, a line a policy; ratios are medians over the seeds."""
    seeds = f"seed {spec.seed}"
    if spec.repeats > 1:
        seeds = f"seeds {spec.seed} to {spec.seed + spec.repeats - 1}"
    equations = {(row.fabric, row.workload, row.policy): row.equation for row in rows if row.equation}
    numbers = ("median", "least", "most", f"{BASELINE_POLICY} / this", f"this / {ORACLE_POLICY}")
    for fabric, workload, times in _by_workload(rows):
        title = f"{spec.name}: predicted times of {workload} on {fabric}, {seeds}"
        table = plain_table("policy", *numbers, right=numbers, title=title)
        table.add_column("by", style="dim")
        unknown = times[times.columns[0]] * float("nan")
        baseline = times.get(BASELINE_POLICY, unknown)
        oracle = times.get(ORACLE_POLICY, unknown)
        for policy in map(str, times):
            policy_times = times[policy]
            figures = [_seconds(policy_times.median()), _seconds(policy_times.min()), _seconds(policy_times.max())]
            figures += [_ratio(baseline / policy_times), _ratio(policy_times / oracle)]
            table.add_row(policy, *figures, equations.get((fabric, workload, policy)))
        console.print(table)


def _ratio(ratios: pd.Series) -> str:
    """Return the median over the seeds of which both times are known."""
    if ratios.isna().all():
        return fmt.NOTHING
    return f"{ratios.median():.2f}"


def _seconds(value: float) -> str:
    if isnan(value):
        return fmt.seconds(None)
    return fmt.seconds(value)
