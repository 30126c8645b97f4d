"""The results of a sweep: medians by the values of its axes, on the terminal and in report.html."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
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
    """Values of a metric at one place of the axes, of all seeds and repeats."""

    axes: dict[str, Any]
    what: dict[str, str]
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
    keys = [*(axis for axis in axes if axis != SEED), *_KEYS]
    rows = []
    for values, group in groups(times, keys):
        named = dict(zip(keys, values, strict=True))
        ratios = group.ratio.dropna()
        predicted = group.predicted.dropna()
        rows.append(
            SweepRow(
                axes={key: named[key] for key in keys if key not in _KEYS},
                what={key: "" if pd.isna(named[key]) else str(named[key]) for key in _KEYS},
                values=tuple(group.value),
                predicted=float(predicted.median()) if len(predicted) else None,
                ratio=float(ratios.median()) if len(ratios) else None,
                verdict=max(group.verdict, key=VERDICTS.index),
                runs=tuple(group.run.unique()),
                machines=tuple(group.machine.dropna().unique()),
            )
        )
    return rows


def _axis_value(axis: str, row: SweepRow) -> str:
    return str(row.axes[axis])


def _what(key: str, row: SweepRow) -> str:
    return row.what[key]


def table(rows: Sequence[SweepRow]) -> Table:
    """Return the rows as a table."""
    axes = dict.fromkeys(axis for row in rows for axis in row.axes)
    columns = [text(axis.rpartition(".")[2], partial(_axis_value, axis)) for axis in axes]
    columns += [text(key, partial(_what, key)) for key in _KEYS[:-1]]
    columns += [
        Column("median", lambda row: fmt.quantity(median(row.values), row.what["unit"]), str),
        Column("min", lambda row: fmt.quantity(min(row.values), row.what["unit"]), str),
        Column("max", lambda row: fmt.quantity(max(row.values), row.what["unit"]), str),
        Column("n", lambda row: len(row.values), str),
        Column("ratio", lambda row: None if row.verdict == "invalid" else row.ratio, fmt.ratio),
        text("verdict", lambda row: row.verdict),
        text("machines", lambda row: ", ".join(row.machines)),
    ]
    return Table(columns, rows).without_empty(("median", "n", "verdict"))


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the runs of a sweep; each that is there is a link to its report."""

    def link(run: Mapping[str, Any]) -> str:
        place = Markup('<a href="runs/{folder}/report.html">{label}</a>')
        return str(run["label"]) if run["state"] == MISSING else place.format(**run)

    def took(run: Mapping[str, Any]) -> float | None:
        return (run["end_ns"] - run["start_ns"]) / 1e9 if "end_ns" in run else None

    columns = (
        text("run", dict, link),
        text("verdict", itemgetter("state")),
        Column("took", took, fmt.seconds),
        text("machine", lambda run: run.get("machine", "")),
    )
    return Table(columns, runs)


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
    tables = [table(rows_of(results, axes))] if len(results) else []
    return [each for each in tables if each.rows]


def figures(results: pd.DataFrame, axes: Sequence[str]) -> list[Figure]:
    """Return the figures of a sweep: its times over its axes, at most `MAX_FIGURES`."""
    rows = rows_of(results, axes) if len(results) else []
    axis_figures = sweep_axes.figures_of(list(map(_point, rows)))[: sweep_axes.MAX_FIGURES]
    return [
        Figure(figure.title, sweep_axes.plot(figure, f"axes-{number}")) for number, figure in enumerate(axis_figures)
    ]


def _point(row: SweepRow) -> sweep_axes.AxisPoint:
    work = ", ".join(filter(None, (row.what[key] for key in ("workload", "scene", "script"))))
    rerouted = f", reroute {row.what['reroute']}" if row.what["reroute"] else ""
    line = ", ".join(filter(None, (row.what[key] for key in ("fabric", "policy"))))
    title = f"{work}{rerouted}: {row.what['metric'].replace('_', ' ')}"
    return sweep_axes.AxisPoint(row.axes, title, line, Spread(row.values, row.predicted, row.verdict))


def csv_of(results: pd.DataFrame, axes: Sequence[str]) -> str:
    """Return the table of times as CSV, with values in their unit, as they were measured."""
    rows = [
        {
            **row.axes,
            **row.what,
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
        for row in (rows_of(results, axes) if len(results) else [])
    ]
    return pd.DataFrame(rows).to_csv(index=False) if rows else ""


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
    page = environment.get_template("sweep.html.j2").render(
        title=f"Sweep of {name}",
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        figures=drawn,
        csv_url=f"data:text/csv;charset=utf-8;base64,{b64encode(csv.encode()).decode()}" if csv else "",
        csv_name=f"{name}.csv",
        summary=summary(runs),
        notes=notes,
        tables=[each.to_html() for each in shown],
        machines=machines_table(machines).to_html(),
        runs=runs_table(runs).to_html(),
    )
    return page.encode()
