"""Fabrics and workloads in the report: drawings, traffic, times of fabrics side by side, bytes."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from markupsafe import Markup, escape
from rich.console import Console
from rich.text import Text

from railyard.results import format as fmt
from railyard.results.analysis import aggregate
from railyard.results.analysis.aggregate import Row, Slowdown, kind_bytes, one_repeat, pairs
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.spine_condition import first_scene_only
from railyard.results.format import workload_label
from railyard.results.plots import fabric as plot_fabric
from railyard.results.plots import sweep, traffic
from railyard.results.plots import times as plot_times
from railyard.results.plots.style import Plot
from railyard.results.runs.records import Flow, Run
from railyard.results.views.computing import computing_lines
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section, section, spread_text
from railyard.results.views.table import Column, Table, text
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.fabric_kinds import FABRIC_KINDS
from railyard.workloads.spec import traffic_kind

Place = tuple[str, str]  # fabric and policy
_PAIRS_DRAWN: Final = 1024  # GPUs: beyond, a heatmap's cells are smaller than a screen's
_MAX_TIME_ROWS: Final = 7  # as many as leave room for the rest on a screen of 40 lines
_MAX_SIDE_BY_SIDE: Final = 2  # fabrics that the table of times on the terminal sets side by side
_MAX_SLOWDOWN_LINES: Final = 2
_MAX_NAMED_ROWS: Final = 3  # in a line below the table
_RATIO: Final = "m/p"
_WITH_LATENCY: Final = "m/pl"


@section("fabrics")
class _Fabrics(Section):
    """What was built."""

    title = "Fabrics"
    order = 40
    template = "fabrics.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return not analysis.run.rails

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        fabrics = analysis.run.fabrics
        names = analysis.run.policies
        in_turn = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
        built = (  # what the drawings and their captions don't show
            text("fabric", "label"),
            text("policy", lambda f: f"{in_turn} in turn" if in_turn else f.policy),
            text("datapath"),
            Column("switches", lambda f: len(f.switches)),
            *(Column("HB", "hb_bps", unit="bit/s"), Column("rail", "rail_bps", unit="bit/s")),
            Column("uplink", lambda f: f.uplink_bps if f.spines else None, unit="bit/s"),
            *(Column("MTU", "mtu"), Column("built in", "build_s", unit="s")),
            Column("down in", "stop_s", unit="s"),
        )
        return {
            "drawings": [(f.label, plot_fabric.draw(f)) for f in fabrics],
            "have_rails": any(not f.cables for f in fabrics),  # a graph lists its cables
            "are_small": all(plot_fabric.is_small(f) for f in fabrics),
            "built": Table(built, fabrics),
        }

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"fabrics": list(analysis.labels.values())}


@section("workloads")
class _Workloads(Section):
    """Traffic and times of each workload, fabrics side by side."""

    title = "Workloads"
    order = 50
    template = "workloads.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return not analysis.run.rails

    def cards(self, analysis: Analysis) -> Iterable[Card]:
        timed = _side_by_side(analysis)
        for s in [s for s in analysis.slowdowns if s.is_all_to_all] if timed else ():  # Rail-only IV-B
            yield Card(
                f"{s.row.workload} {s.row.phase}: {s.rail_only} over {s.rail_optimized}".replace(" :", ":"),
                _difference(s.displayed),
                f"theory {fmt.change(s.predicted)} (Eq. 3 / Eq. 2)",
                s.not_compared or _difference_spread(s),
                s.verdict,
            )
        for row in [r for r in timed if not r.phase]:
            for fabric, spread in row.by_fabric.items():
                theory = f"theory {fmt.seconds(spread.predicted)}"
                if spread.displayed_ratio is not None:
                    theory += f", measured / theory {fmt.ratio(spread.displayed_ratio)}"
                yield Card(
                    f"{row.workload} on {fabric}",
                    fmt.seconds(spread.median),
                    theory if spread.predicted else "",
                    spread_text(spread.values, fmt.seconds),
                    spread.verdict,
                )

    def headline(self, analysis: Analysis) -> Iterable[str | Table]:
        timed = _side_by_side(analysis)
        for s in [s for s in analysis.slowdowns if s.is_all_to_all] if timed else ():  # Rail-only IV-B
            what = f"{s.row.workload} {s.row.phase}".strip()
            longer = "longer" if s.measured >= 1 else "shorter"
            if s.not_compared:
                yield f"{what}: {s.rail_only} and {s.rail_optimized} are not compared, since {s.not_compared}."
                continue
            measured = fmt.percent(abs(s.measured - 1))
            nominal = fmt.percent(s.nominal)
            yield Markup(
                "{} on {}: {} {} than on {} as measured, {} by the formula (Eq. 3 / Eq. 2, exact for this grid), "
                "{} by the nominal C<sub>S</sub>/C<sub>F</sub>{}."
            ).format(
                *(what, s.rail_only, measured, longer, s.rail_optimized, fmt.change(s.predicted), nominal),
                f": {s.verdict}" if s.verdict != "ok" else "",
            )
        if timed:
            # whole workloads, and phases whose kind of traffic is a headline (all but TP, PP and DP)
            chosen = [r for r in timed if not r.phase or any(traffic_kind(kind).is_headline for kind in r.kinds)]
            yield times_table(chosen or timed, list(analysis.labels.values()), analysis.slowdowns)
        yield from _computing_lines(analysis.run)
        for fabric in [fabric for fabric in analysis.run.fabrics if fabric.kind in FABRIC_KINDS]:
            kind = FABRIC_KINDS[fabric.kind]
            if (planes := len(kind.carrying(kind.all_planes))) > 1:
                yield (
                    f"{fabric.label}: each connection is hashed to one of {planes} planes, at 1/{planes} of the rail's "
                    "rate. Predicted times are means over random hashes; one run has one of them, and varies around "
                    "these."
                )

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        run = first_scene_only(analysis.run)
        names = analysis.labels
        timed = _side_by_side(analysis)
        fabrics = list(names.values())
        workloads = []
        flows: dict[str, dict[Place, list[Flow]]] = {}  # by the workload's label without its scene
        for interval, rows in groupby(run.flows, key=attrgetter("interval")):
            places = flows.setdefault(workload_label(replace(interval, scene="")), {})
            places.setdefault((interval.fabric, interval.policy), []).extend(rows)
        for name in dict.fromkeys([*(r.workload for r in timed), *flows]):
            times = [r for r in timed if r.workload == name]
            workloads.append({
                "name": name,
                "heatmaps": _heatmaps(run, names, name, flows.get(name, {})),
                "times": plot_times.completion(times, fabrics, name) if times else None,
                "table": times_table(times, fabrics, analysis.slowdowns),
                "formulas": filled_formulas(run, names, times) if timed else [],
            })  # fmt: skip
        return {
            "volumes": _volumes(flows, names),
            "workloads": workloads,
            "sweeps": _sweeps(analysis),
            "slowdowns": slowdowns_table(analysis.slowdowns if len(pairs(analysis.run)) > 1 else ()),
            "formulas": list(formulas(run)) if timed else [],
            "ratios": plot_times.ratios(timed, fabrics),
            "others": others_table(analysis.rows),
            "bytes": bytes_table(analysis),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print times, and the slow-down of all-to-alls."""
        if timed := _side_by_side(analysis):
            fabrics = list(analysis.labels.values())
            slow = analysis.slowdowns
            is_sweep = len(fabrics) > _MAX_SIDE_BY_SIDE
            table = terminal_sweep(timed, fabrics) if is_sweep else terminal_times(timed, fabrics, slow)
            console.print(table.to_terminal())
            for reason, rows in _reasons(timed).items():
                why_not = f"not compared with a formula: {', '.join(rows)}, since it {reason}"
                console.print(why_not, style="dim", highlight=False)
            for reason, rows in _reasons_of_differences(timed, slow).items():
                names = ", ".join(rows) if len(rows) <= _MAX_NAMED_ROWS else f"in {len(rows)} rows"
                console.print(f"fabrics not compared: {names}, since {reason}", style="dim", highlight=False)
            for s in [s for s in slow if s.is_all_to_all][:_MAX_SLOWDOWN_LINES]:
                formula = f", {fmt.change(s.predicted)} Eq. 3/Eq. 2, nominal C_S/C_F {fmt.percent(s.nominal)}"
                what = f"{s.row.workload} {s.row.phase}".strip()
                if s.not_compared:
                    continue  # a line above has the reason
                measured = (f"{fmt.change(s.measured)} measured", "bold")
                doubt = (f", {s.verdict}", "bold red") if s.verdict != "ok" else ""
                line = Text.assemble(f"{what}: {s.rail_only} slower by ", measured, (formula, "dim"), doubt)
                console.print(line, highlight=False)

            for line_of_computing in _computing_lines(analysis.run):
                console.print(line_of_computing, highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        columns = ("asked_bytes", "delivered_bytes", "pairs_wrong", "rail_port_bytes", "rail_expected_bytes")
        totals = {name: sum(getattr(row, name) for row in analysis.run.bytes) for name in columns}
        cross_rail: dict[str, dict[str, int]] = {}
        for row in analysis.run.bytes:
            label = analysis.labels.get((row.fabric, row.policy), row.fabric)
            cross_rail.setdefault(label, {})[workload_label(row.interval)] = row.cross_rail_bytes
        return {
            "times": [row.as_dict() for row in analysis.times],
            "computing": list(_computing_lines(analysis.run)),
            "slowdown": slowdowns_table(analysis.slowdowns).to_dicts(),
            "bytes": {**totals, "cross_rail_bytes": cross_rail},
        }


def _computing_lines(run: Run) -> Iterator[str]:
    return computing_lines(run.scale, [(own.label, other.label) for own, other in pairs(run)])


def filled_formulas(run: Run, names: Mapping[Place, str], rows: Sequence[Row]) -> list[Markup]:
    """Return a line for each time: its equation with the values of this run, for each fabric where they differ."""
    fabrics: dict[tuple[str, str], dict[str, None]] = {}  # by time and formula
    for row in rows:
        for m in run.measurements:
            if m.formula and (m.interval.work, m.phase, m.metric) == (row.work, row.phase, row.metric):
                key = (plot_times.label(row), m.formula)
                fabrics.setdefault(key, {})[names[m.fabric, m.policy]] = None
    often = Counter(what for what, _ in fabrics)
    return [
        Markup("<strong>{}</strong>, {}").format(
            f"{what} on {', '.join(places)}" if often[what] > 1 else what,
            Markup(re.sub(r"\b([CT])_(\w+)", r"<var>\1<sub>\2</sub></var>", str(escape(formula)))),
        )
        for (what, formula), places in fabrics.items()
    ]


def formulas(run: Run) -> Iterator[Markup]:
    """Yield the symbols of the formulas with each fabric's values, and the cost of an all-to-all on rail-only."""
    values = Markup(
        "{}: <var>x</var> = {} GPUs in each of <var>y</var> = {} HB domains, <var>C<sub>F</sub></var> = {}/s ({}), "
        "<var>C<sub>S</sub></var> = {}/s ({}) for payload"
    )
    for f in run.fabrics:
        of_payload = (bps * payload_fraction(f.mtu) for bps in (f.hb_bps, f.rail_bps))
        rates = (text for bps in of_payload for text in (fmt.size(bps / 8), fmt.rate(bps)))
        yield values.format(f.label, f.rails, f.domains, *rates)
    cost = Markup(
        "All-to-all on {} over {}: <var>y</var>(<var>x</var>−1)<var>C<sub>S</sub></var> / "
        "(<var>x</var>(<var>y</var>−1)<var>C<sub>F</sub></var>) = {y}·{x1}·{s} / ({x}·{y1}·{h}) = {}"
    )
    for own, other in pairs(run):
        x = own.rails
        y = own.domains
        if y > 1 and x * (y - 1) / own.rail_bps >= (x - 1) / own.hb_bps:  # the rails are Eq. 2's slower part
            share = y * (x - 1) * own.rail_bps / (x * (y - 1) * own.hb_bps)
            s, h = (fmt.short(fmt.rate(bps)) for bps in (own.rail_bps, own.hb_bps))
            yield cost.format(own.label, other.label, fmt.percent(share), x=x, y=y, x1=x - 1, y1=y - 1, s=s, h=h)


def _side_by_side(analysis: Analysis) -> tuple[Row, ...]:
    """Return times of fabrics side by side; none where policies steered, which have tables of their own."""
    return () if analysis.run.is_steered or analysis.run.rails else analysis.times


def times_table(rows: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> Table:
    """Return fabrics side by side, each with measured, predicted and ratio; then the slow-down, if of one pair."""
    columns = [text("workload"), text("phase", plot_times.label)]
    for fabric in fabrics:
        if any(fabric in r.by_fabric for r in rows):
            parts = (
                ("measured", "median", "s"),
                ("predicted", "predicted", "s"),
                ("ratio", "displayed_ratio", "ratio"),
            )
            columns += [
                Column(t, partial(_of_spread, fabric, name), unit=unit, group=fabric) for t, name, unit in parts
            ]
            if any(row.by_fabric[fabric].with_latency for row in rows if fabric in row.by_fabric):
                named = partial(_of_spread, fabric, "with_latency")
                columns.append(Column("with latency", named, unit="s", group=fabric))
            columns.append(text("verdict", partial(_of_spread, fabric, "verdict"), group=fabric))
            if any(row.by_fabric[fabric].not_compared for row in rows if fabric in row.by_fabric):
                columns.append(text("not compared", partial(_of_spread, fabric, "not_compared"), group=fabric))
    return Table([*columns, *_slowdown_columns(slow, "rail-only slower by")], rows)


def _of_spread(fabric: str, name: str, row: Row) -> Any:
    return getattr(row.by_fabric[fabric], name) if fabric in row.by_fabric else None


def _judged_ratio(fabric: str, row: Row) -> str:
    """Return a row's ratio, with its verdict unless that is ok."""
    spread = row.by_fabric.get(fabric)
    if spread is None or not (spread.predicted or spread.not_compared):
        return fmt.NOTHING
    ratio = "" if spread.displayed_ratio is None else fmt.ratio(spread.displayed_ratio)
    return f"{ratio} {spread.verdict}".strip() if spread.verdict != "ok" else ratio


def _difference(value: float | None) -> str:
    """Return the difference between two fabrics as text; None: they are not compared."""
    return "not compared" if value is None else fmt.change(value)


def _difference_spread(slowdown: Slowdown) -> str:
    """Return between which values the repeats are, each repeat of one fabric over each of the other."""
    slow = slowdown.row.by_fabric[slowdown.rail_only].values
    fast = slowdown.row.by_fabric[slowdown.rail_optimized].values
    repeats = min(len(slow), len(fast))
    if repeats == 1:
        return SPREAD_UNKNOWN
    return f"{fmt.change(min(slow) / max(fast))} to {fmt.change(max(slow) / min(fast))}, {repeats} runs"


def _reasons_of_differences(rows: Sequence[Row], slow: Sequence[Slowdown]) -> dict[str, list[str]]:
    """Return the rows whose fabrics are not compared with each other, by reason; none without the column."""
    by_reason: dict[str, list[str]] = {}
    for slowdown in slow if _slowdown_columns(slow) else ():
        if slowdown.not_compared and slowdown.row in rows:
            name = f"{slowdown.row.workload} {slowdown.row.phase}".strip()
            by_reason.setdefault(slowdown.not_compared, []).append(name)
    return by_reason


def _reasons(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the rows that aren't compared with a prediction, by reason."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        name = f"{row.workload} {row.phase}".strip()
        for reason in dict.fromkeys(spread.not_compared for spread in row.by_fabric.values()):
            if reason:
                by_reason.setdefault(reason, []).append(name)
    return by_reason


def _slowdown_columns(slow: Sequence[Slowdown] | None, group: str = "") -> tuple[Column, ...]:
    """Return the columns of a row's slow-down, none if `slow` isn't of one pair of fabrics; None: rows are slow-downs.

    The nominal figure is the paper's for all-to-all, and says nothing of other traffic.
    """
    if slow is not None and len({(s.rail_only, s.rail_optimized) for s in slow}) != 1:
        return ()
    by_row = {(s.row.workload, s.row.phase, s.row.metric): s for s in slow or ()}

    def find(row: Any) -> Slowdown | None:
        return row if slow is None else by_row.get((row.workload, row.phase, row.metric))

    def nominal(row: Any) -> float | None:
        found = find(row)
        return found.nominal if found and found.is_all_to_all else None

    def difference(row: Any) -> str:
        slowdown = find(row)
        return _difference(slowdown.displayed) if slowdown else fmt.NOTHING

    def of(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(find(row), name, None)

    return (
        Column("measured", difference, group=group),
        Column("", of("measured"), key="measured", group=group),
        Column("formula", of("predicted"), fmt.change, group=group, key="predicted"),
        Column(Markup("C<sub>S</sub>/C<sub>F</sub>"), nominal, fmt.percent, group=group),
        Column("", of("nominal"), key="nominal_cs_over_cf", group=group),
        text("verdict", of("verdict"), group=group, key="verdict"),
    )


def slowdowns_table(slow: Sequence[Slowdown]) -> Table:
    """Return a row a pair of fabrics and time."""
    columns = (
        text("workload", lambda s: s.row.workload, key="workload"),
        text("phase", lambda s: s.row.phase, key="phase"),
        *(text("of", "rail_only", key="of"), text("over", "rail_optimized", key="over")),
        *(Column("", lambda s: s.row.metric, key="metric"), Column("", lambda s: list(s.row.kinds), key="kinds")),
        *_slowdown_columns(None),
    )
    return Table(columns, slow)


def others_table(rows: Sequence[Row]) -> Table:
    """Return measurements that are no times, measured or projected, such as throughput."""
    times = (*aggregate.TIME_METRICS, aggregate.SAME_SHAPE, aggregate.FULL_SIZE)
    columns = (
        *(text("workload", lambda x: x[0].workload), text("phase", lambda x: x[0].phase)),
        *(text("metric", lambda x: x[0].metric), text("fabric", lambda x: x[1])),
        Column("median", lambda x: fmt.quantity(x[2].median, x[0].unit)),
        Column("predicted", lambda x: fmt.quantity(x[2].predicted, x[0].unit)),
        *(Column("ratio", lambda x: x[2].displayed_ratio, unit="ratio"), Column("repeats", lambda x: len(x[2].values))),
        text("verdict", lambda x: x[2].verdict),
    )
    found = [
        (r, fabric, spread)
        for r in rows
        if r.metric not in times and r.workload != aggregate.HEARTBEATS
        for fabric, spread in r.by_fabric.items()
    ]
    return Table(columns, found).without_empty()


def bytes_table(analysis: Analysis) -> Table:
    """Return asked and delivered bytes. Where policies steer, the bytes expected at the rails' ports are not known."""
    steered = analysis.run.is_steered
    names = analysis.labels
    columns = (
        text("fabric", lambda c: names.get((c.fabric, c.policy), c.fabric)),
        text("workload", lambda c: workload_label(c.interval)),
        Column("repeat"),
        *(Column("asked", "asked_bytes", unit="B"), Column("delivered", "delivered_bytes", unit="B")),
        *(Column("pairs wrong"), Column("rail ports", "rail_port_bytes", unit="B")),
        Column("expected", lambda c: c.rail_expected_bytes or (None if steered else 0), unit="B"),
        Column("off", lambda c: fmt.deviation(c.rail_port_bytes, c.rail_expected_bytes)),
        Column("between rails", "cross_rail_bytes", unit="B"),
    )
    return Table(columns, analysis.run.bytes)


def terminal_times(rows: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> Table:
    """Return fabrics side by side for the terminal; if some rows are left to the report, then phases."""
    shown = fmt.rows_with_room(rows, _MAX_TIME_ROWS)
    if len(shown) < len(rows):
        shown = fmt.rows_with_room(sorted(rows, key=lambda row: bool(row.phase)), _MAX_TIME_ROWS)
    columns = [text("workload", lambda r: f"{r.workload} {r.phase}".strip())]
    for fabric in fabrics:
        columns.append(Column(fabric, partial(_of_spread, fabric, "median"), unit="s", together=fabric))
        columns.append(Column(_RATIO, partial(_judged_ratio, fabric), style="dim", together=fabric))
        with_latency = partial(_of_spread, fabric, "ratio_with_latency")
        if _has_latency(shown):
            columns.append(Column(_WITH_LATENCY, with_latency, unit="ratio", style="dim", together=fabric))
    if found := _slowdown_columns(slow):
        measured = partial(_short_difference, found[0])  # as wide as its title: "not compared" would split the table
        columns.append(replace(found[0], value=measured, title="difference", together="difference"))
        columns.append(replace(found[2], style="dim", together="difference"))
    return Table(columns, shown, _times_title(shown), more=len(rows) - len(shown))


def _short_difference(column: Column, row: Row) -> str:
    """Return the cell of a difference; "invalid" where one of the times is, which a line below the table explains."""
    cell = column.cell(row)
    return "invalid" if cell == _difference(None) else cell


def terminal_sweep(rows: Sequence[Row], fabrics: Sequence[str]) -> Table:
    """Return a line a fabric, where there are too many to stand beside each other: a sweep."""
    whole = [row for row in rows if not row.phase] or list(rows)
    latency = (Column(_WITH_LATENCY, lambda x: x[2].ratio_with_latency, unit="ratio"),)
    lines = [(row, f, row.by_fabric[f]) for row in whole for f in fabrics if f in row.by_fabric]
    shown = fmt.rows_with_room(lines, _MAX_TIME_ROWS)
    columns = (
        *(text("workload", lambda x: f"{x[0].workload} {x[0].phase}".strip()), text("fabric", lambda x: x[1])),
        Column("measured", lambda x: x[2].median, unit="s"),
        Column("predicted", lambda x: x[2].predicted, unit="s"),
        Column(_RATIO, lambda x: _judged_ratio(x[1], x[0])),
        *(latency if _has_latency(rows) else ()),
    )
    more = sum(len(row.by_fabric) for row in rows) - len(shown)
    return Table(columns, shown, _times_title(rows), more=more)


def _has_latency(rows: Sequence[Row]) -> bool:
    """Return whether any of these times has a prediction with latency; runs of earlier versions have none."""
    return any(spread.with_latency for row in rows for spread in row.by_fabric.values())


def _times_title(rows: Sequence[Row]) -> str:
    latency = f", {_WITH_LATENCY}: predicted with latency" if _has_latency(rows) else ""
    return f"Time ({_RATIO}: measured over predicted{latency})"


def _volumes(flows: Mapping[str, Mapping[Place, Sequence[Flow]]], names: Mapping[Place, str]) -> Plot | None:
    """Return a bar a workload; one for each fabric too where they delivered different amounts."""
    bars = dict[str, Sequence[Flow]]()
    for workload, places in flows.items():
        alike = len({tuple(sorted(kind_bytes(one_repeat(f)).items())) for f in places.values()}) == 1
        for place, rows in list(places.items())[: 1 if alike else None]:
            bars[workload if alike else f"{workload}, {names.get(place, place[0])}"] = rows
    return traffic.volumes(bars) if bars else None


def _heatmaps(
    run: Run, names: Mapping[Place, str], workload: str, by_place: Mapping[Place, Sequence[Flow]]
) -> list[tuple[str, Plot]]:
    """Return a heatmap for all fabrics that delivered the same between every pair, which names them all."""
    grids = {f.label: traffic.Grid(f.domains, f.rails) for f in run.fabrics if f.domains * f.rails <= _PAIRS_DRAWN}
    alike: dict[bytes, list[Place]] = {}
    for place, flows in by_place.items():
        if place[0] in grids:
            alike.setdefault(traffic.matrix(flows, grids[place[0]]).tobytes(), []).append(place)
    matrices = [traffic.matrix(by_place[places[0]], grids[places[0][0]]) for places in alike.values()]
    limits = traffic.byte_limits(*matrices) if any(m.any() for m in matrices) else None
    found = []
    for places in alike.values():
        # the fabric's own name where all its policies are among the places
        whole = {n for n, _ in places if run.is_steered and all(p in places for p in names if p[0] == n)}
        shown = dict.fromkeys(place[0] if place[0] in whole else names.get(place, place[0]) for place in places)
        name = f"{workload} on {' and '.join(shown)}"
        plot = traffic.heatmap(by_place[places[0]], grids[places[0][0]], name, limits)
        found.append((", ".join(shown), plot))
    return found


def _sweeps(analysis: Analysis) -> list[Plot]:
    """Return curves over what fabrics or workloads vary.

    Spec and records name both in the same order, as far as the run came. A fabric under another policy counts as one of
    another kind, so that a curve is one policy's.
    """
    run = analysis.run
    timed = analysis.times
    specs: Sequence[Mapping[str, Any]] = run.spec.get("fabrics") or []
    traits = {fabric.label: part for fabric, part in zip(run.fabrics, specs, strict=False)}
    if run.is_steered:
        fabrics = [
            (label, {**traits[fabric], "kind": f"{traits[fabric].get('kind', '')} {policy}"})
            for (fabric, policy), label in analysis.labels.items()
            if fabric in traits
        ]
    else:
        fabrics = [(analysis.labels[f.label, f.policy], {**traits[f.label]}) for f in run.fabrics if f.label in traits]
    workloads = list(zip(dict.fromkeys(r.workload for r in timed), run.spec.get("workloads") or [], strict=False))
    spreads = {(f, row.workload, row.phase): s for row in timed for f, s in row.by_fabric.items()}
    found = sweep.curves(fabrics, workloads, spreads)
    return [sweep.plot(curve, f"sweep-{number}") for number, curve in enumerate(found)]
