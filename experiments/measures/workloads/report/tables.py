"""Tables of times in the report: fabrics side by side, the slow-down of one beside another, bytes, other figures."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from railyard.results import format as fmt
from railyard.results.analysis import aggregate
from railyard.results.analysis.aggregate import Row, Spread, time_label
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.analysis.slowdowns import Slowdown
from railyard.results.format import workload_label
from railyard.results.measured import policies_in_turn
from railyard.results.runs.records import ByteCheck
from railyard.results.views.table import Column, Table, text

NOT_COMPARED = "not compared"


def times_table(rows: Sequence[Row], fabrics: Sequence[str], slowdowns: Sequence[Slowdown]) -> Table:
    """Return fabrics side by side, each with measured, predicted and ratio; then the slow-down, if of one pair."""
    columns = [text("workload"), text("phase", time_label)]
    for fabric in fabrics:
        spreads = [row.by_fabric[fabric] for row in rows if fabric in row.by_fabric]
        if spreads:
            columns += _fabric_columns(fabric, spreads)
    columns += slowdown_columns(slowdowns, "rail-only slower by")
    return Table(columns, rows)


def _fabric_columns(fabric: str, spreads: Sequence[Spread]) -> list[Column]:
    """Return the columns of one fabric, those that are empty left out."""
    columns = [
        Column("measured", partial(of_spread, fabric, "median"), unit="s", group=fabric),
        Column("predicted", partial(of_spread, fabric, "predicted"), unit="s", group=fabric),
        Column("ratio", partial(of_spread, fabric, "displayed_ratio"), unit="ratio", group=fabric),
    ]
    if any(spread.with_latency for spread in spreads):
        columns.append(Column("with latency", partial(of_spread, fabric, "with_latency"), unit="s", group=fabric))
    columns.append(text("verdict", partial(of_spread, fabric, "verdict"), group=fabric))
    if any(spread.not_compared for spread in spreads):
        columns.append(text("not compared", partial(of_spread, fabric, "not_compared"), group=fabric))
    return columns


def of_spread(fabric: str, name: str, row: Row) -> Any:
    """Return an attribute of a row's times on a fabric; None if it has none there."""
    spread = row.by_fabric.get(fabric)
    if spread is None:
        return None
    return getattr(spread, name)


def difference_text(value: float | None) -> str:
    """Return the difference between two fabrics as text; None: they are not compared."""
    if value is None:
        return NOT_COMPARED
    return fmt.change(value)


def slowdown_columns(slowdowns: Sequence[Slowdown] | None, group: str = "") -> tuple[Column, ...]:
    """Return the columns of a row's slow-down, none unless all are of one pair of fabrics; None: rows are slow-downs.

    The nominal figure is the paper's for all-to-all, and says nothing of other traffic.
    """
    if slowdowns is None:
        return _columns_of_slowdowns(lambda row: row, group)
    fabrics: set[tuple[str, str]] = set()
    by_row: dict[tuple[str, str, str], Slowdown] = {}
    for slowdown in slowdowns:
        fabrics.add((slowdown.rail_only, slowdown.rail_optimized))
        by_row[_identity(slowdown.row)] = slowdown
    if len(fabrics) != 1:
        return ()
    return _columns_of_slowdowns(lambda row: by_row.get(_identity(row)), group)


def _identity(row: Row) -> tuple[str, str, str]:
    return row.workload, row.phase, row.metric


def _columns_of_slowdowns(find: Callable[[Any], Slowdown | None], group: str) -> tuple[Column, ...]:
    """Return the columns. `find`: returns the slow-down of a row."""

    def nominal(row: Any) -> float | None:
        slowdown = find(row)
        if slowdown is None or not slowdown.is_all_to_all:
            return None
        return slowdown.nominal

    def difference(row: Any) -> str:
        slowdown = find(row)
        if slowdown is None:
            return fmt.NOTHING
        return difference_text(slowdown.displayed)

    def value_of(name: str) -> Callable[[Any], Any]:
        return lambda row: getattr(find(row), name, None)

    return (
        Column("measured", difference, group=group),
        Column("", value_of("measured"), key="measured", group=group),
        Column("formula", value_of("predicted"), fmt.change, group=group, key="predicted"),
        Column(Markup("C<sub>S</sub>/C<sub>F</sub>"), nominal, fmt.percent, group=group),
        Column("", value_of("nominal"), key="nominal_cs_over_cf", group=group),
        text("verdict", value_of("verdict"), group=group, key="verdict"),
    )


def slowdowns_table(slowdowns: Sequence[Slowdown]) -> Table:
    """Return a row a pair of fabrics and time."""
    columns = [
        text("workload", lambda slowdown: slowdown.row.workload, key="workload"),
        text("phase", lambda slowdown: slowdown.row.phase, key="phase"),
        text("of", "rail_only", key="of"),
        text("over", "rail_optimized", key="over"),
        Column("", lambda slowdown: slowdown.row.metric, key="metric"),
        Column("", lambda slowdown: list(slowdown.row.kinds), key="kinds"),
    ]
    columns += slowdown_columns(None)
    return Table(columns, slowdowns)


def others_table(rows: Sequence[Row]) -> Table:
    """Return measurements that are no times, measured or projected, such as throughput."""
    times = (*aggregate.TIME_METRICS, aggregate.SAME_SHAPE, aggregate.FULL_SIZE)
    columns = (
        text("workload", lambda cell: cell[0].workload),
        text("phase", lambda cell: cell[0].phase),
        text("metric", lambda cell: cell[0].metric),
        text("fabric", lambda cell: cell[1]),
        Column("median", lambda cell: fmt.quantity(cell[2].median, cell[0].unit)),
        Column("predicted", lambda cell: fmt.quantity(cell[2].predicted, cell[0].unit)),
        Column("ratio", lambda cell: cell[2].displayed_ratio, unit="ratio"),
        Column("repeats", lambda cell: len(cell[2].values)),
        text("verdict", lambda cell: cell[2].verdict),
    )
    cells: list[tuple[Row, str, Spread]] = []
    for row in rows:
        if row.metric not in times and row.workload != aggregate.HEARTBEATS:
            cells += [(row, fabric, spread) for fabric, spread in row.by_fabric.items()]
    return Table(columns, cells).without_empty()


def bytes_table(analysis: Analysis) -> Table:
    """Return asked and delivered bytes. Where policies steer, the bytes expected at the rails' ports are not known."""
    labels = analysis.labels
    # of steered routes, 0 stands for bytes that are not known
    expected_without_bytes = None if policies_in_turn(analysis.run) else 0

    def expected(row: ByteCheck) -> int | None:
        return row.rail_expected_bytes or expected_without_bytes

    columns = (
        text("fabric", lambda row: labels.get((row.fabric, row.policy), row.fabric)),
        text("workload", lambda row: workload_label(row.interval)),
        Column("repeat"),
        Column("asked", "asked_bytes", unit="B"),
        Column("delivered", "delivered_bytes", unit="B"),
        Column("pairs wrong"),
        Column("rail ports", "rail_port_bytes", unit="B"),
        Column("expected", expected, unit="B"),
        Column("off", lambda row: fmt.deviation(row.rail_port_bytes, row.rail_expected_bytes)),
        Column("between rails", "cross_rail_bytes", unit="B"),
    )
    return Table(columns, analysis.run.bytes)
