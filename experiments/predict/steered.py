"""`predict` for an experiment with health routing: a time for each policy, as a table, NAME.csv and NAME.png.

Times follow from max-min fair shares, where these decide alone; `WHY_NOT` names the other cases.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable

from railyard.experiments.commands.options import plain_table
from railyard.experiments.predict.unsteered import png, print_rates, save
from railyard.experiments.run.initial_state import InitialState, initial_states
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.results.analysis.steering import BASELINE_POLICY, ORACLE_POLICY
from railyard.results.plots import style
from railyard.results.runs.records import to_csv
from railyard.results.theory.predict import WHOLE, predict_schedule
from railyard.results.views import format as fmt
from railyard.workloads.schedule import payload_rates

SHARES: Final = "max-min fair shares"
EQUATIONS: Final = "the equations: routes stay as they are"
WHY_NOT: Final = {
    "moving": "the background comes and goes, and no formula says what follows from when routes change",
    "dependent": "its steps wait for one another, and no formula says what they gain by another path",
    "several": "pairs have several paths, and a hash decides which of them a connection takes",
}


@dataclass(frozen=True, slots=True)
class SteeredPrediction:
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


STEERED_COLUMNS: Final = tuple(field.name for field in fields(SteeredPrediction))
Policies = dict[str, list[SteeredPrediction]]
_COLOUR: Final = {BASELINE_POLICY: style.ORANGE, ORACLE_POLICY: style.GREEN}


def show(spec: ExperimentSpec, out: Path, console: Console) -> int:
    """Compute, write, print."""
    rows = predictions(spec)
    drawing = png(f"{spec.name}: predicted times", lambda: _scenes(rows) if spec.grid else _panels(rows))
    files = save(spec.name, to_csv(STEERED_COLUMNS, rows), drawing, out)
    print_table(spec, rows, console)
    print(*files, sep="\n")
    return 0


def predictions(spec: ExperimentSpec) -> tuple[SteeredPrediction, ...]:
    """Return a row for each fabric, workload, policy and seed; none without health routing."""
    rows = [
        SteeredPrediction(label, policy, name, initial.seed, "completion_time", predicted, "s", equation, why)
        for label, name, initial in initial_states(spec)
        for policy in initial.routing.policies
        for predicted, equation, why in [_predict(initial, policy)]
    ]
    return tuple(row for by in by_fabric_and_workload(rows).values() for own in by.values() for row in own)


def _predict(initial: InitialState, policy: str) -> tuple[float | None, str, str]:
    """Return the seconds, the formula that gives them, and the reason if none does."""
    plan = initial.plan
    if not initial.pattern.steady:
        return None, "", WHY_NOT["moving"]
    if initial.independent:
        known = initial.completion_s(policy)
        return (known, SHARES, "") if known is not None else (None, "", WHY_NOT["several"])
    if policy != plan.policy or initial.background:
        return None, "", WHY_NOT["dependent"]
    # the fabric's own policy and no other traffic: as on a fabric without health routing
    times = predict_schedule(initial.schedule, payload_rates(plan.hb_bps, plan.rail_bps, plan.spec.mtu), plan.spec)
    return times.get(WHOLE, next(iter(times.values()))), EQUATIONS, ""


def by_fabric_and_workload(rows: Iterable[SteeredPrediction]) -> dict[tuple[str, str], Policies]:
    """Return (fabric, workload) -> policy -> its rows."""
    found: defaultdict[tuple[str, str], Policies] = defaultdict(dict)
    for row in rows:
        found[row.fabric, row.workload].setdefault(row.policy, []).append(row)
    return dict(found)


def times_of(rows: Iterable[SteeredPrediction]) -> list[float]:
    """Return the predictions that are known, s."""
    return [row.predicted for row in rows if row.predicted is not None]


def _panels(rows: Sequence[SteeredPrediction]) -> Figure:
    """Draw for each fabric and workload a bar a policy to the median of the seeds, and a dot for each seed."""
    found = by_fabric_and_workload(rows)
    heights = [len(policies) + 1.5 for policies in found.values()]
    figure = style.new_figure(style.WIDTH, 1.0 + 0.32 * sum(heights))
    panels = figure.subplots(len(found), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (key, policies) in zip(panels[:, 0], found.items(), strict=True):
        for y, (policy, own) in enumerate(policies.items()):
            times = times_of(own)
            if times:
                axes.barh(y, median(times), height=0.62, color=_COLOUR.get(policy, style.SKY))
                axes.plot(times, [y] * len(times), "o", ms=3.6, mfc=style.PAPER, mec=style.INK, mew=0.7)
            text = fmt.seconds(median(times)) if times else f"{fmt.NOTHING} {own[0].why}"
            at = (max(times, default=0.0), y)
            axes.annotate(text, at, xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(policies)), list(policies))
        axes.set_xlim(0, 1.15 * max((t for own in policies.values() for t in times_of(own)), default=1.0))
        axes.set_title(f"{key[1]} on {key[0]}")
        _finish(axes)
    return figure


def _scenes(rows: Sequence[SteeredPrediction]) -> Figure:
    found, names = by_fabric_and_workload(rows), list(dict.fromkeys(row.policy for row in rows))
    figure = style.new_figure(style.WIDTH, 1.4 + 0.24 * len(found))
    axes = figure.subplots()
    for policy, colour in style.colours(names).items():
        known = [(y, times_of(policies[policy])) for y, policies in enumerate(found.values())]
        marks = [(median(times), y) for y, times in known if times]
        axes.plot(*zip(*marks, strict=True), "o", ms=7, mfc="none", mec=colour, mew=1.8, label=policy)
    axes.set_yticks(range(len(found)), [f"{workload} on {fabric}" for fabric, workload in found], fontsize=8)
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
    if spec.grid:
        policies = list(dict.fromkeys(row.policy for row in rows))
        table = plain_table("fabric", "workload and scene", *policies, right=policies, title=f"{title}, scene by scene")
        for key, own in by_fabric_and_workload(rows).items():
            known = map(times_of, own.values())
            table.add_row(*key, *(fmt.seconds(median(times) if times else None) for times in known))
        console.print(table)
    else:
        seeds = f"seed {spec.seed}" if spec.repeats == 1 else f"seeds {spec.seed} to {spec.seed + spec.repeats - 1}"
        for (fabric, workload), own in by_fabric_and_workload(rows).items():
            console.print(_policies(own, f"{title} of {workload} on {fabric}, {seeds}"))
    for why in dict.fromkeys(row.why for row in rows if row.why):
        console.print(f"{fmt.NOTHING}: {why}", highlight=False)
    print_rates(spec, console)


def _policies(policies: Policies, title: str) -> RichTable:
    """Return a table with a row for each policy, over its seeds."""
    numbers = ("median", "least", "most", f"{BASELINE_POLICY} / this", f"this / {ORACLE_POLICY}")
    table = plain_table("policy", *numbers, right=numbers, title=title)
    table.add_column("by", style="dim")
    for policy, own in policies.items():
        times = times_of(own)
        figures = [fmt.seconds(of(times) if times else None) for of in (median, min, max)]
        over = (_over(policies.get(BASELINE_POLICY, []), own), _over(own, policies.get(ORACLE_POLICY, [])))
        by = dict.fromkeys(row.equation for row in own if row.equation)
        table.add_row(policy, *figures, *(fmt.NOTHING if r is None else f"{r:.2f}" for r in over), *by)
    return table


def _over(these: Iterable[SteeredPrediction], those: Iterable[SteeredPrediction]) -> float | None:
    """Return the median ratio over the seeds that both have."""
    below = {row.seed: row.predicted for row in those}
    ratios = [row.predicted / known for row in these if row.predicted and (known := below.get(row.seed))]
    return median(ratios) if ratios else None
