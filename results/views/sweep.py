"""The results of a sweep: medians by the values of its axes, on the terminal and in report.html."""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from operator import itemgetter
from statistics import median
from typing import Any, Final, cast

import pandas as pd
from markupsafe import Markup

from railyard.results import format as fmt
from railyard.results.analysis.aggregate import TIME_METRICS, Spread
from railyard.results.plots import sweep_axes
from railyard.results.plots.style import Plot
from railyard.results.runs.records import VERDICTS, Verdict
from railyard.results.views.report import templates
from railyard.results.views.table import Column, Table, text

SEED: Final = "seed"
MISSING: Final = "missing"  # the state of a run that isn't there
_KEYS: Final = ("fabric", "policy", "workload", "scene", "script", "reroute", "metric", "unit")


@dataclass(frozen=True)
class SweepRow:
    """Values of a metric at one place of the axes, of all seeds and repeats.

    axes: the value of each axis; names: of fabric, workload, metric and so on, by `_KEYS`.
    """

    axes: dict[str, Any]
    names: dict[str, str]
    values: tuple[float, ...]
    predicted: float | None
    ratio: float | None
    verdict: Verdict
    runs: tuple[str, ...]
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure and its title."""

    title: str
    plot: Plot


def groups(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the rows that have the same values of `keys`, with these values."""
    for values, group in frame.groupby(list(keys), sort=False, dropna=False):
        yield cast(tuple[Any, ...], values), group


def rows_of(results: pd.DataFrame, axes: Sequence[str]) -> list[SweepRow]:
    """Return a row for each time of a whole workload, by the axes apart from the seed."""
    times = results[results.metric.isin(TIME_METRICS) & (results.phase.fillna("") == "")]
    shown_axes = [axis for axis in axes if axis != SEED]
    rows = []
    for values, group in groups(times, [*shown_axes, *_KEYS]):
        names = map(_text, values[len(shown_axes) :])
        rows.append(
            SweepRow(
                axes=dict(zip(shown_axes, values, strict=False)),
                names=dict(zip(_KEYS, names, strict=True)),
                values=tuple(group.value),
                predicted=_median(group.predicted),
                ratio=_median(group.ratio),
                verdict=max(group.verdict, key=VERDICTS.index),
                runs=tuple(group.run.unique()),
                machines=tuple(group.machine.dropna().unique()),
            )
        )
    return rows


def _text(value: object) -> str:
    """Return the text of a cell; "" for one without a value."""
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    return str(value)


def _median(column: "pd.Series[float]") -> float | None:
    """Return the median of the values that are there; None if there are none."""
    values = column.dropna()
    if values.empty:
        return None
    return float(values.median())


def _axis_value(axis: str, row: SweepRow) -> str:
    return str(row.axes[axis])


def _name(key: str, row: SweepRow) -> str:
    return row.names[key]


def _quantity(statistic: Callable[[Sequence[float]], float], row: SweepRow) -> str:
    return fmt.quantity(statistic(row.values), row.names["unit"])


def table(rows: Sequence[SweepRow]) -> Table:
    """Return the rows as a table."""
    axes = dict.fromkeys(chain.from_iterable(row.axes for row in rows))
    columns = [text(axis.rpartition(".")[2], partial(_axis_value, axis)) for axis in axes]
    columns += [text(key, partial(_name, key)) for key in _KEYS[:-1]]
    columns += [
        Column("median", partial(_quantity, median), str),
        Column("min", partial(_quantity, min), str),
        Column("max", partial(_quantity, max), str),
        Column("n", lambda row: len(row.values), str),
        Column("ratio", _displayed_ratio, fmt.ratio),
        text("verdict", lambda row: row.verdict),
        text("machines", lambda row: ", ".join(row.machines)),
    ]
    return Table(columns, rows).without_empty(("median", "n", "verdict"))


def _displayed_ratio(row: SweepRow) -> float | None:
    """Return measured over predicted; None if the machine was measured, and not the fabric."""
    if row.verdict == "invalid":
        return None
    return row.ratio


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the runs of a sweep; each that is there is a link to its report."""
    columns = (
        text("run", dict, _link),
        text("verdict", itemgetter("state")),
        Column("took", _took_s, fmt.seconds),
        text("machine", lambda run: run.get("machine", "")),
    )
    return Table(columns, runs)


def _link(run: Mapping[str, Any]) -> str:
    """Return the label of a run, as a link to its report if the run is there."""
    if run["state"] == MISSING:
        return str(run["label"])
    return Markup('<a href="runs/{folder}/report.html">{label}</a>').format(**run)


def _took_s(run: Mapping[str, Any]) -> float | None:
    """Return the duration of a run, s; None if it didn't end."""
    if "end_ns" not in run:
        return None
    return float(run["end_ns"] - run["start_ns"]) / 1e9


def summary(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return how many runs a sweep has, by verdict."""
    counts = Counter(run["state"] for run in runs)
    return f"{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.most_common())


def machines_table(machines: Sequence[Mapping[str, Any]]) -> Table:
    """Return the machines with the time of their sentinel experiment."""
    columns = (
        text("machine", itemgetter("machine")),
        text("kernel", lambda machine: machine["kernel"] or fmt.NOTHING),
        Column("cores", itemgetter("cores"), fmt.or_dash("{:g}".format)),
        Column("sentinel", itemgetter("seconds"), fmt.seconds),
        text("verdict", itemgetter("verdict")),
    )
    return Table(columns, machines)


def tables(results: pd.DataFrame, axes: Sequence[str]) -> list[Table]:
    """Return the tables of a sweep's measurements that have rows."""
    if results.empty:
        return []
    times = table(rows_of(results, axes))
    if not times.rows:
        return []
    return [times]


def figures(results: pd.DataFrame, axes: Sequence[str]) -> list[Figure]:
    """Return the figures of a sweep: its times over its axes, at most `MAX_FIGURES`."""
    if results.empty:
        return []
    points = list(map(_point, rows_of(results, axes)))
    drawn: list[Figure] = []
    for number, figure in enumerate(sweep_axes.figures_of(points)[: sweep_axes.MAX_FIGURES]):
        drawn.append(Figure(figure.title, sweep_axes.plot(figure, f"axes-{number}")))
    return drawn


def _point(row: SweepRow) -> sweep_axes.AxisPoint:
    names = row.names
    work = ", ".join(filter(None, (names["workload"], names["scene"], names["script"])))
    line = ", ".join(filter(None, (names["fabric"], names["policy"])))
    if names["reroute"]:
        work += f", reroute {names['reroute']}"
    title = f"{work}: {names['metric'].replace('_', ' ')}"
    return sweep_axes.AxisPoint(row.axes, title, line, Spread(row.values, row.predicted, row.verdict))


def csv_of(results: pd.DataFrame, axes: Sequence[str]) -> str:
    """Return the table of times as CSV, with values in their unit, as they were measured."""
    if results.empty:
        return ""
    rows = list(map(_csv_row, rows_of(results, axes)))
    if not rows:
        return ""
    return pd.DataFrame(rows).to_csv(index=False)


def _csv_row(row: SweepRow) -> dict[str, Any]:
    return {
        **row.axes,
        **row.names,
        "median": median(row.values),
        "min": min(row.values),
        "max": max(row.values),
        "n": len(row.values),
        "predicted": row.predicted,
        "ratio": row.ratio,
        "verdict": row.verdict,
        "machines": " ".join(row.machines),
        "runs": " ".join(row.runs),
    }


def render(
    name: str,
    shown: Sequence[Table],
    drawn: Sequence[Figure],
    csv: str,
    runs: Sequence[Mapping[str, Any]],
    machines: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
) -> bytes:
    """Return report.html of a sweep, which needs no other file and no network.

    `csv`: the table of times, to be downloaded. `runs`: folder, label, state (MISSING if it isn't there) and record of
    each.
    """
    environment = templates()
    script = Markup(environment.get_template("report.js.j2").render())
    csv_url = ""
    if csv:
        csv_url = f"data:text/csv;charset=utf-8;base64,{b64encode(csv.encode()).decode()}"
    page = environment.get_template("sweep.html.j2").render(
        title=f"Sweep of {name}",
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        figures=drawn,
        csv_url=csv_url,
        csv_name=f"{name}.csv",
        summary=summary(runs),
        notes=notes,
        tables=[table.to_html() for table in shown],
        machines=machines_table(machines).to_html(),
        runs=runs_table(runs).to_html(),
    )
    return page.encode()
