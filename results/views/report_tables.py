"""The report's tables as text: columns, and rows of cells that are already formatted. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, Final

from markupsafe import Markup

from railyard.results.analysis.aggregate import (
    FULL_SIZE,
    HEARTBEATS,
    SAME_SHAPE,
    TIME_METRICS,
    Row,
    Slowdown,
    Spread,
    labels,
)
from railyard.results.plots.times import label
from railyard.results.runs.fidelity import LIMITS, Judgement
from railyard.results.runs.records import LinkCheck, Run
from railyard.results.views import format as fmt
from railyard.results.views.format import workload_label
from railyard.workloads.spec import traffic_kind

_SLOW_COLUMNS: Final = ("measured", "formula", Markup("C<sub>S</sub>/C<sub>F</sub>"))


@dataclass(frozen=True, slots=True)
class Table:
    """`numbers`: from which column on the cells are numbers, set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int
    groups: tuple[tuple[str, int], ...] = ()  # headings over several columns: text, how many columns


def headline_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return whole workloads, and phases whose kind of traffic is a headline (all but TP, PP and DP)."""
    chosen = tuple(r for r in rows if not r.phase or any(traffic_kind(kind).is_headline for kind in r.kinds))
    return chosen or tuple(rows)


def times_table(rows: Sequence[Row], fabrics: Sequence[str], slow: Sequence[Slowdown]) -> Table:
    """Fabrics side by side, each with measured, predicted and their ratio; then the slow-down, if of one pair."""
    present = [f for f in fabrics if any(f in r.by_fabric for r in rows)]
    alone = len({(s.rail_only, s.rail_optimized) for s in slow}) == 1
    first = {(s.workload, s.phase, s.metric): s for s in slow} if alone else {}
    body = []
    for row in rows:
        cells = [row.workload, label(row)]
        for fabric in present:
            cells += _time_cells(row.by_fabric.get(fabric))
        if first:
            cells += _slow_cells(first.get((row.workload, row.phase, row.metric)))
        body.append(tuple(cells))
    columns = ("workload", "phase", *("measured", "predicted", "ratio") * len(present))
    groups = (("", 2), *((f, 3) for f in present))
    if first:
        columns += _SLOW_COLUMNS
        groups += (("rail-only slower by", 3),)
    return Table(columns, tuple(body), 2, groups)


def _time_cells(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return (fmt.NOTHING,) * 3
    return fmt.seconds(spread.median), fmt.seconds(spread.predicted), fmt.ratio(spread.ratio)


def _slow_cells(slow: Slowdown | None) -> tuple[str, str, str]:
    """The nominal figure is the paper's for all-to-all, and says nothing of other traffic."""
    if slow is None:
        return (fmt.NOTHING,) * 3
    nominal = fmt.percent(slow.nominal) if slow.is_all_to_all else fmt.NOTHING
    return fmt.change(slow.measured), fmt.change(slow.predicted), nominal


def slowdowns_table(slow: Sequence[Slowdown]) -> Table:
    """A row a pair of fabrics and time: for runs with several pairs."""
    body = tuple((s.workload, s.phase, s.rail_only, s.rail_optimized, *_slow_cells(s)) for s in slow)
    return Table(("workload", "phase", "of", "over", *_SLOW_COLUMNS), body, 4)


def others_table(rows: Sequence[Row]) -> Table:
    """Measurements that are no times, measured or projected: throughput and whatever else the experiment took down."""
    body = tuple(
        (r.workload, r.phase, r.metric, fabric, *_plain(spread, r.unit), str(len(spread.values)))
        for r in rows
        if r.metric not in (*TIME_METRICS, SAME_SHAPE, FULL_SIZE) and r.workload != HEARTBEATS
        for fabric, spread in r.by_fabric.items()
    )
    columns = ("workload", "phase", "metric", "fabric", "median", "predicted", "ratio", "repeats")
    return _without_empty(Table(columns, body, 4))


def _without_empty(table: Table) -> Table:
    """Without columns in which no row has anything."""
    kept = [i for i in range(len(table.columns)) if any(row[i] not in ("", fmt.NOTHING) for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(tuple(table.columns[i] for i in kept), rows, sum(i < table.numbers for i in kept))


def _plain(spread: Spread, unit: str) -> tuple[str, str, str]:
    return fmt.quantity(spread.median, unit), fmt.quantity(spread.predicted, unit), fmt.ratio(spread.ratio)


def fabrics_table(run: Run) -> Table:
    """What the drawings and their captions don't say."""
    steered = list_text(run.policies)
    columns = ("fabric", "policy", "datapath", "switches", "HB", "rail", "uplink", "MTU", "built in", "down in")
    body = tuple(
        (
            *(f.label, f"{steered} in turn" if steered else f.policy, f.datapath, str(len(f.switches))),
            *(fmt.rate(f.hb_bps), fmt.rate(f.rail_bps), fmt.rate(f.uplink_bps) if f.spines else fmt.NOTHING),
            *(str(f.mtu), fmt.seconds(f.build_s), fmt.seconds(f.stop_s)),
        )
        for f in run.fabrics
    )
    return Table(columns, body, 3)


def list_text(names: Sequence[str]) -> str:
    """`a`; `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def bytes_table(run: Run) -> Table:
    """Where policies steer, the bytes expected at the rails' ports are not known."""
    steered, names = run.is_steered, labels(run)
    columns = (
        "fabric",
        "workload",
        "repeat",
        "asked",
        "delivered",
        "pairs wrong",
        "rail ports",
        "expected",
        "off",
        "between rails",
    )
    body = tuple(
        (
            *(
                names.get((c.fabric, c.policy), c.fabric),
                workload_label(c.interval),
                str(c.repeat),
                fmt.size(c.asked_bytes),
                fmt.size(c.delivered_bytes),
                str(c.pairs_wrong),
            ),
            *(
                fmt.size(c.rail_port_bytes),
                fmt.NOTHING if steered and not c.rail_expected_bytes else fmt.size(c.rail_expected_bytes),
                _off(c.rail_port_bytes, c.rail_expected_bytes),
            ),
            fmt.size(c.cross_rail_bytes),
        )
        for c in run.bytes
    )
    return Table(columns, body, 2)


def _off(value: float, expected: float) -> str:
    return f"{value / expected - 1:+.2%}" if expected else fmt.NOTHING


def links_table(links: Sequence[LinkCheck]) -> Table:
    """By fabric and class: how many were measured, and how far off the median and the worst of them are."""
    body = []
    ordered = sorted(links, key=lambda x: (x.fabric, x.link_class))
    for (fabric, name), group in groupby(ordered, key=lambda x: (x.fabric, x.link_class)):
        sample = list(group)
        middle = median(x.measured_bps for x in sample)
        worst = max(sample, key=lambda x: abs(x.measured_bps - x.expected_bps))
        expected = fmt.rate(sample[0].expected_bps), fmt.rate(middle), _off(middle, sample[0].expected_bps)
        body.append((fabric, name, str(len(sample)), *expected, _off(worst.measured_bps, worst.expected_bps)))
    columns = ("fabric", "link class", "measured links", "expected", "median", "off", "worst off")
    return Table(columns, tuple(body), 2)


def loads_table(run: Run, judgement: Judgement) -> Table:
    names = labels(run)
    body = tuple(
        (
            *(
                names.get((x.fabric, x.policy), x.fabric),
                workload_label(x.interval),
                judgement.intervals.get(x.interval, fmt.NOTHING),
                str(x.repeat),
            ),
            *(fmt.percent(x.cpu_busy), fmt.percent(x.cpu_foreign), f"{x.lag_p99_ms:.1f}{chr(0xA0)}ms"),
            *(f"{x.segments:,}", f"{x.retransmits:,}", f"{x.drops:,}", "on purpose" if x.transfers_faulted else "no"),
        )
        for x in run.loads
    )
    columns = ("fabric", "workload", "verdict", "repeat", "CPU busy", "others' CPU", "lag p99")
    return Table((*columns, "segments", "retransmits", "drops", "faulted"), body, 3)


def limits_table() -> Table:
    body = tuple((x.quantity, x.why, x.show(x.degraded), x.show(x.invalid)) for x in LIMITS)
    return Table(("quantity", "why these limits", "degraded above", "invalid above"), body, 2)


def provenance_table(provenance: Mapping[str, Any]) -> Table:
    return Table(("what", "value"), tuple((k, _value(k, v)) for k, v in flatten(provenance).items()), 2)


def flatten(data: object, prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, keys joined by dots; anything else gets the key "value"."""
    if not isinstance(data, Mapping):
        return {prefix or "value": data}
    found: dict[str, object] = {}
    for key, value in data.items():
        found |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def _value(key: str, value: object) -> str:
    if value is None:
        return fmt.NOTHING
    if isinstance(value, float):
        timed = key.endswith(("_s", "seconds", " s"))
        return fmt.seconds(value) if timed else fmt.digits(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
