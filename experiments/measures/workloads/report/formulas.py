"""Formulas behind the times of a run, with its values, for the report."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from markupsafe import Markup, escape

from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row, time_label
from railyard.results.analysis.slowdowns import pairs
from railyard.results.runs.records import FabricRun, Run
from railyard.topologies.build.shaping import payload_fraction

_VALUES: Final = Markup(
    "{}: <var>x</var> = {} GPUs in each of <var>y</var> = {} HB domains, <var>C<sub>F</sub></var> = {}/s ({}), "
    "<var>C<sub>S</sub></var> = {}/s ({}) for payload"
)
_COST: Final = Markup(
    "All-to-all on {} over {}: <var>y</var>(<var>x</var>−1)<var>C<sub>S</sub></var> / "
    "(<var>x</var>(<var>y</var>−1)<var>C<sub>F</sub></var>) = {y}·{x1}·{s} / ({x}·{y1}·{h}) = {}"
)


def filled_formulas(run: Run, names: Mapping[tuple[str, str], str], rows: Sequence[Row]) -> list[Markup]:
    """Return a line for each time: its equation with the values of this run, for each fabric where they differ.

    `names`: the labels of fabrics, by fabric and policy.
    """
    fabrics: dict[tuple[str, str], dict[str, None]] = {}  # by time and formula
    for row in rows:
        for measurement in run.measurements:
            key = (measurement.interval.work, measurement.phase, measurement.metric)
            if measurement.formula and key == (row.work, row.phase, row.metric):
                label = names[measurement.fabric, measurement.policy]
                fabrics.setdefault((time_label(row), measurement.formula), {})[label] = None
    formulas_of_time = Counter(name for name, _ in fabrics)
    lines: list[Markup] = []
    for (name, formula), labels in fabrics.items():
        title = name
        if formulas_of_time[name] > 1:
            title = f"{name} on {', '.join(labels)}"
        lines.append(Markup("<strong>{}</strong>, {}").format(title, _with_subscripts(formula)))
    return lines


def _with_subscripts(formula: str) -> Markup:
    """Return a formula as HTML, with `C_F` as a letter and its subscript."""
    return Markup(re.sub(r"\b([CT])_(\w+)", r"<var>\1<sub>\2</sub></var>", str(escape(formula))))


def formulas(run: Run) -> Iterator[Markup]:
    """Yield the symbols of the formulas with each fabric's values, and the cost of an all-to-all on rail-only."""
    for fabric in run.fabrics:
        rates: list[str] = []
        for bps in (fabric.hb_bps, fabric.gpu_rail_bps):
            payload_bps = bps * payload_fraction(fabric.mtu)
            rates += [fmt.size(payload_bps / 8), fmt.rate(payload_bps)]
        yield _VALUES.format(fabric.label, fabric.rails, fabric.domains, *rates)
    for fabric, baseline in pairs(run):
        x = fabric.rails
        y = fabric.domains
        # else the rails aren't Eq. 2's slower part
        if y > 1 and x * (y - 1) / fabric.gpu_rail_bps >= (x - 1) / fabric.hb_bps:
            yield _cost(fabric, baseline)


def _cost(fabric: FabricRun, baseline: FabricRun) -> Markup:
    """Return how much longer an all-to-all takes on rail-only."""
    x = fabric.rails
    y = fabric.domains
    share = y * (x - 1) * fabric.gpu_rail_bps / (x * (y - 1) * fabric.hb_bps)
    rail = fmt.short(fmt.rate(fabric.gpu_rail_bps))
    hb = fmt.short(fmt.rate(fabric.hb_bps))
    percent = fmt.percent(share)
    return _COST.format(fabric.label, baseline.label, percent, x=x, y=y, x1=x - 1, y1=y - 1, s=rail, h=hb)
