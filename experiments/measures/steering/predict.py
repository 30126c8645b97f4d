"""`predict` for an experiment with health routing: a time for each policy, as a table, NAME.csv and NAME.png.

Times follow from max-min fair shares, where these decide alone; `WHY_NOT` names the other cases.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
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
    return tuple(
        SteeredPrediction(label, policy, name, initial.seed, "completion_time", *_predict(initial, policy))
        for (label, name), group in groupby(initial_states(spec), key=lambda state: state[:2])
        for states in [[initial for *_, initial in group]]
        for policy in states[0].routing.policies
        for initial in states
    )


def _predict(initial: InitialState, policy: str) -> tuple[float | None, str, str, str]:
    plan = initial.plan
    if not initial.pattern.steady:
        return None, "s", "", WHY_NOT["moving"]
    if initial.workload.is_independent:
        known_s = completion_s(initial.pattern, initial.flows, initial.steering(policy))
        return (known_s, "s", SHARES, "") if known_s is not None else (None, "s", "", WHY_NOT["several"])
    if policy != plan.spec.chosen_policy or initial.background:
        return None, "s", "", WHY_NOT["dependent"]
    # the fabric's own policy and no other traffic: as on a fabric without health routing
    times = predict_schedule(initial.schedule, payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu), plan.spec)
    return times.get(WHOLE, next(iter(times.values()))), "s", EQUATIONS, ""


def _by_workload(rows: Sequence[SteeredPrediction]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (fabric, workload, its times): seconds by seed (rows) and policy (columns), NaN where not known."""
    frame = pd.DataFrame(rows).astype({"predicted": float})
    for (fabric, workload), group_rows in frame.groupby(["fabric", "workload"], sort=False):
        times = group_rows.pivot(index="seed", columns="policy", values="predicted")
        yield str(fabric), str(workload), times[group_rows["policy"].unique()]


def _panels(rows: Sequence[SteeredPrediction]) -> Figure:
    """Draw for each fabric and workload a bar a policy to the median of the seeds, and a dot for each seed."""
    workloads = list(_by_workload(rows))
    heights = [len(times.columns) + 1.5 for *_, times in workloads]
    figure = style.new_figure(style.WIDTH, 1.0 + 0.32 * sum(heights))
    panels = figure.subplots(len(workloads), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    reasons = {(row.fabric, row.workload, row.policy): row.why for row in reversed(rows)}  # of each policy's first seed
    for axes, (fabric, workload, times) in zip(panels[:, 0], workloads, strict=True):
        for y, policy in enumerate(times.columns):
            known_times = times[policy].dropna()
            if len(known_times):
                axes.barh(y, known_times.median(), height=0.62, color=POLICY_COLOURS.get(policy, style.SKY))
                axes.plot(known_times, [y] * len(known_times), "o", ms=3.6, mfc=style.PAPER, mec=style.INK, mew=0.7)
            text = (
                fmt.seconds(known_times.median())
                if len(known_times)
                else f"{fmt.NOTHING} {reasons[fabric, workload, policy]}"
            )
            at = (max(known_times, default=0.0), y)
            axes.annotate(text, at, xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(times.columns)), list(times.columns))
        axes.set_xlim(0, 1.15 * (1.0 if times.isna().all(axis=None) else float(times.max().max())))
        axes.set_title(f"{workload} on {fabric}")
        _finish(axes)
    return figure


def _scenes(rows: Sequence[SteeredPrediction]) -> Figure:
    """Draw a line for each scene, with a ring for each policy."""
    workloads = list(_by_workload(rows))
    names = list(dict.fromkeys(row.policy for row in rows))
    figure = style.new_figure(style.WIDTH, 1.4 + 0.24 * len(workloads))
    axes = figure.subplots()
    for policy, colour in style.colours(names).items():
        medians = [times[policy].median() for *_, times in workloads]
        axes.plot(medians, range(len(workloads)), "o", ms=7, mfc="none", mec=colour, mew=1.8, label=policy)
    axes.set_yticks(range(len(workloads)), [f"{workload} on {fabric}" for fabric, workload, _ in workloads], fontsize=8)
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
    title = f"{spec.name}: predicted times"
    if grid_of(spec):
        policies = list(dict.fromkeys(row.policy for row in rows))
        table = plain_table("fabric", "workload and scene", *policies, right=policies, title=f"{title}, scene by scene")
        for fabric, workload, times in _by_workload(rows):
            table.add_row(fabric, workload, *map(_seconds, times.median()))
        console.print(table)
    else:
        seeds = f"seed {spec.seed}" if spec.repeats == 1 else f"seeds {spec.seed} to {spec.seed + spec.repeats - 1}"
        equations = {(row.fabric, row.workload, row.policy): row.equation for row in rows if row.equation}
        numbers = ("median", "least", "most", f"{BASELINE_POLICY} / this", f"this / {ORACLE_POLICY}")
        for fabric, workload, times in _by_workload(rows):
            heading = f"{title} of {workload} on {fabric}, {seeds}"
            table = plain_table("policy", *numbers, right=numbers, title=heading)
            table.add_column("by", style="dim")
            unknown = times[times.columns[0]] * float("nan")
            for policy, policy_times in ((policy, times[policy]) for policy in map(str, times)):
                # ratios are medians over the seeds that both have
                over = (
                    times.get(BASELINE_POLICY, unknown) / policy_times,
                    policy_times / times.get(ORACLE_POLICY, unknown),
                )
                ratios = (fmt.NOTHING if ratio.isna().all() else f"{ratio.median():.2f}" for ratio in over)
                figures = map(_seconds, (policy_times.median(), policy_times.min(), policy_times.max()))
                table.add_row(policy, *figures, *ratios, equations.get((fabric, workload, policy)))
            console.print(table)
    for why in dict.fromkeys(row.why for row in rows if row.why):
        console.print(f"{fmt.NOTHING}: {why}", highlight=False)
    print_rates(spec, console)


def _seconds(value: float) -> str:
    return fmt.seconds(None if pd.isna(value) else value)
