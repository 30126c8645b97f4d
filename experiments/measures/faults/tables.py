"""Tables of recovery from faults: first packets beside their targets, steps, repeats, published times of others."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from railyard.core.records import RESTORED, IntervalId, Recovered, Recovery
from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults import targets as goals
from railyard.experiments.measures.faults.analysis import RecoveryRow, Side, verdict
from railyard.experiments.measures.faults.states import FirstPacket
from railyard.experiments.measures.faults.targets import PUBLISHED_SYSTEMS, Published, times_slower
from railyard.experiments.measures.faults.texts import (
    first_packet_text,
    goodput_text,
    missing_first_packet,
    row_goodput_text,
)
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import Row
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.repeats import Figure, median_and_p95, median_p95_ms
from railyard.results.analysis.targets import Target
from railyard.results.views.table import Column, Table, text
from railyard.results.views.targets import MARKS

_MS: Final = "\u00a0ms"
_FIRST_PACKET: Final = "1st packet ms"
_GOODPUT: Final = "goodput in ms, median / p95"
CONTROLLER_STEPS: Final = (
    Column("detected", "detect_ms", fmt.milliseconds),
    Column("decided", "decided_ms", fmt.milliseconds),
    Column("installed", "reroute_ms", fmt.milliseconds),
)
"""Columns of the controller's steps after a fault."""


class Line(NamedTuple):
    """A line of a table: a fault's first packets on a side (None: either), and their target.

    `judged`: those of intervals in which the machine was not disturbed; None if there are none.
    """

    row: RecoveryRow
    side: Side | None
    first: Figure
    judged: Figure | None
    target: Target | None
    is_first_line: bool  # the first of its row's lines

    @property
    def met(self) -> bool | None:
        """Result of the target; None where there is none, or nothing that it can be judged by."""
        if self.target is None or self.judged is None:
            return None
        return not self.target.missed(self.judged)

    @property
    def result(self) -> str:
        """The result in words; empty without a target."""
        if self.target is None:
            return ""
        return {True: "met", False: "not met", None: "not judged"}[self.met]

    @property
    def limits(self) -> str | None:
        """The target's limits, with their unit; None without a target."""
        if self.target is None:
            return None
        return self.target.limits_text


def lines_of(row: RecoveryRow, both_sides: bool, disturbed: Collection[IntervalId] = ()) -> list[Line]:
    """Return a line a side, if asked for `both_sides` or each has a target of its own; else one for the slower.

    First packets in `disturbed` intervals are not judged.
    """
    undisturbed = [repeat for repeat in row.repeats if repeat.interval not in disturbed]
    judged = replace(row, repeats=tuple(undisturbed))
    has_target = row.reroute == "on" and not missing_reason(row)
    lines: list[Line] = []
    for side in _shown_sides(row, both_sides):
        first = _first_packets(row, side)
        assert first is not None
        target = None
        if has_target:
            target = goals.first_packet_target(row.fault, side)
        lines.append(Line(row, side, first, _first_packets(judged, side), target, not lines))
    return lines


def _shown_sides(row: RecoveryRow, both_sides: bool) -> Sequence[Side | None]:
    """Return the sides that have lines of their own; None for a line of either."""
    has_targets_by_side = (
        goals.first_packet_target(row.fault, None) is None and goals.first_packet_target(row.fault, "far") is not None
    )
    probed = [side for side in stats.SIDES if side in row.sides]
    if probed and (has_targets_by_side or (both_sides and len(probed) > 1)):
        return probed
    return [None]


def _first_packets(row: RecoveryRow, side: Side | None) -> Figure | None:
    """Return the statistics of first packets on a side; None without repeats."""
    if not row.repeats:
        return None
    if side is None:
        return row.steps["first_packet_ms"]
    return row.sides.get(side)


def missing_reason(row: RecoveryRow) -> str:
    """Return why a fault has no first packets to speak of; empty if it has."""
    state = missing_first_packet(row)
    if state in (FirstPacket.NOT_PROBED, FirstPacket.NONE_LOST):
        return state
    return ""


def first_packets_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """Return a row a fault, fabric, rerouting and side: when packets flowed again, beside the target."""

    def p95(line: Line) -> str:
        if missing_first_packet(line.row):
            return fmt.NOTHING
        return str(median_and_p95(line.first)[1])

    columns = (
        text("fault", lambda line: line.row.name),
        text("fabric", lambda line: line.row.fabric),
        text("reroute", lambda line: line.row.reroute),
        text("side", lambda line: line.side or ""),
        text("fidelity", lambda line: verdict(line.row.repeats, judgement)),
        Column("n", lambda line: line.first.n),
        Column("median", lambda line: missing_first_packet(line.row) or median_and_p95(line.first)[0]),
        Column("p95", p95),
        Column("target", "limits"),
        text("is", "result"),
    )
    lines: list[Line] = []
    for row in rows:
        lines += lines_of(row, True, judgement.disturbed)
    return Table(columns, lines, is_never_bad=lambda x: x.row.reroute == "on")


def steps_table(rows: Sequence[RecoveryRow]) -> Table:
    """Return a row a fault, fabric and rerouting: the controller's steps, goodput, the return and the cost.

    Dashes where no other GPU was affected, so that there was nothing to recover.
    """

    def median(title: str, step: str) -> Column:
        def cell(row: RecoveryRow) -> str:
            ms = row.steps[step].median
            has_no_step = missing_reason(row) or (row.reroute == "off" and step != "detect_ms")
            if ms is None and has_no_step:
                return fmt.NOTHING
            return fmt.milliseconds(ms)

        return Column(title, cell, group="medians")

    def recovered(row: RecoveryRow) -> str:
        states: set[Recovered] = set(row.values("recovered"))
        if len(states) == 1 and not states & {Recovered.YES, Recovered.NO}:
            return states.pop()
        return f"{row.recovered(Recovered.YES)} of {len(row.repeats)}"

    def withdrawn(row: RecoveryRow) -> str:
        statistics = row.steps["primary_path_ms"]
        if row.reroute == "off" or statistics.median == 0:
            return fmt.NOTHING
        return median_p95_ms(statistics)

    columns = (
        *(text("fault", "name"), text("fabric"), text("reroute")),
        Column("recovered", recovered),
        *(median("detected", "detect_ms"), median("decided", "decided_ms"), median("installed", "reroute_ms")),
        *_goodput_back(rows),
        Column("after repair", lambda row: row_goodput_text(row, "goodput_after_repair_ms"), group=_GOODPUT),
        Column("detours withdrawn", withdrawn, group="after repair, ms"),
        *_costs(lambda row, column: row.total(column), group="in all repeats"),
    )
    return Table(columns, rows, is_never_bad=lambda row: row.reroute == "on")


def _goodput_back(rows: Sequence[RecoveryRow]) -> tuple[Column, ...]:
    """Return the column of when goodput was back: at 95% of before, or at the share that a fault leaves of the rails.

    Its heading has the share; where the rows differ in it, a column of its own has.
    """
    shares = sorted({row.goodput_share for row in rows}) or [RESTORED]

    def time(row: RecoveryRow) -> str:
        return row_goodput_text(row, "goodput_ms")

    def share(row: RecoveryRow) -> str:
        return fmt.percent(row.goodput_share, 0)

    if len(shares) == 1:
        return (Column(f"back to {fmt.percent(shares[0], 0)}", time, group=_GOODPUT),)
    return Column("back to", share, group=_GOODPUT), Column("goodput back", time, group=_GOODPUT)


def _costs(total: Callable[[Any, str], int], group: str = "") -> tuple[Column, ...]:
    """Return the columns of what was lost: `total` of a row and a column of recovery.csv."""
    return (
        Column("probes lost", lambda r: total(r, "probes_lost"), "{:,}".format, group=group),
        Column("after repair", lambda r: total(r, "probes_lost_after_repair"), "{:,}".format, group=group),
        Column("bytes lost", lambda r: total(r, "lost_bytes"), fmt.size, group=group),
        Column("conns lost", lambda r: total(r, "connections_lost"), group=group),
    )


def repeats_table(rows: Iterable[RecoveryRow]) -> Table:
    """Return every repeat of one fault."""
    fabrics: dict[Recovery, str] = {}
    for row in rows:
        fabrics |= dict.fromkeys(row.repeats, row.fabric)

    def side(title: str, name: Side) -> Column:
        def cell(r: Recovery) -> str:
            if not stats.pairs_probed(r, name) or r.is_unaffected:
                return fmt.NOTHING
            return fmt.milliseconds(getattr(r, f"{name}_side_ms"))

        return Column(title, cell)

    def goodput(title: str, step: str) -> Column:
        return Column(title, lambda r: goodput_text(r, step))

    def withdrawn(r: Recovery) -> str | None:
        if r.reroute == "off":
            return None
        return fmt.milliseconds(r.primary_path_ms)

    columns = (
        *(text("fabric", fabrics.__getitem__), text("reroute"), text("target")),
        Column("repeat"),
        *CONTROLLER_STEPS,
        *(Column("first packet", first_packet_text), side("source side", "source"), side("far side", "far")),
        *(goodput("goodput", "goodput_ms"), goodput("after repair", "goodput_after_repair_ms")),
        Column("detours withdrawn", withdrawn),
        *_costs(getattr),
    )
    return Table(columns, list(fabrics), is_never_bad=lambda r: r.reroute == "on")


def published_table(rows: Iterable[RecoveryRow]) -> Table:
    """Compare faults that affected other GPUs, with rerouting on, with published systems."""

    def times(system: Published) -> Column:
        def cell(row: RecoveryRow) -> str:
            ratio = times_slower(system, row.steps["first_packet_ms"].median)
            if ratio is None:
                return fmt.NOTHING
            return f"{ratio:,.1f} times"

        return Column(f"{system.name}'s {system.ms:g} ms is", cell)

    columns = (
        *(text("fault", "name"), text("fabric")),
        Column("n", lambda r: r.steps["first_packet_ms"].n),
        Column("first packet", lambda r: median_p95_ms(r.steps["first_packet_ms"], _MS)),
        Column("goodput back", lambda r: row_goodput_text(r, "goodput_ms", partial(median_p95_ms, unit=_MS))),
        *map(times, PUBLISHED_SYSTEMS),
    )
    shown: list[RecoveryRow] = []
    for row in rows:
        if row.reroute == "on" and row.steps["first_packet_ms"].median != 0 and not row.unprobed:
            shown.append(row)
    return Table(columns, shown)


def heartbeats_table(rows: Iterable[Row]) -> Table:
    """Return the cost of heartbeats: a row for each figure and fabric."""
    columns = (
        *(text("figure", lambda x: x[0].metric.replace("_", " ")), text("fabric", lambda x: x[1])),
        Column("median", lambda x: fmt.quantity(x[2].median, x[0].unit)),
        Column("n", lambda x: len(x[2].values)),
    )
    cells: list[tuple[Row, str, Any]] = []
    for row in rows:
        cells += [(row, fabric, spread) for fabric, spread in row.by_fabric.items()]
    return Table(columns, cells)


class _FaultLine(NamedTuple):
    """A line of the terminal's table: a fault on a fabric, or one side of it.

    `row`: with rerouting, if there is one. `on`: its line with rerouting. `off`: its row without, at its first line.
    """

    row: RecoveryRow
    on: Line | None
    off: RecoveryRow | None

    @property
    def name(self) -> str:
        """The fault's name, with the side of the line where the sides have lines of their own."""
        if self.on is None or self.on.side is None:
            return self.row.name
        return f"{self.row.name}, {self.on.side}"

    @property
    def first_packet(self) -> str:
        """Median and 95th percentile of first packets, or why there are none."""
        if self.on is None:
            return fmt.NOTHING
        state = missing_first_packet(self.row)
        if state:
            return state
        # 0 in every repeat: no probe of this side was lost
        if self.on.first.most == 0:
            return FirstPacket.NONE_LOST
        return median_p95_ms(self.on.first)

    @property
    def limits(self) -> str:
        """The limits of the target of first packets."""
        if self.on is None or self.on.limits is None:
            return fmt.NOTHING
        return self.on.limits.removesuffix(_MS)

    @property
    def mark(self) -> str:
        """The mark of a target that is met, missed or not judged; empty without a target."""
        if self.on is None or self.on.target is None:
            return ""
        return MARKS[self.on.met]

    def step(self, name: str) -> str:
        """Return the median of a step with rerouting, once for both sides."""
        if self.on is None:
            return fmt.NOTHING
        if not self.on.is_first_line:
            return ""
        if name in stats.GOODPUT_STEPS:
            return row_goodput_text(self.row, name, _median_text)
        ms = self.row.steps[name].median
        if missing_reason(self.row) and not ms:
            return fmt.NOTHING
        return fmt.milliseconds(ms)

    @property
    def connections_lost(self) -> str:
        """The TCP connections that were lost with rerouting, once for both sides."""
        if self.on is None:
            return fmt.NOTHING
        if not self.on.is_first_line:
            return ""
        return str(self.row.total("connections_lost"))

    @property
    def goodput_without_rerouting(self) -> str:
        """The median of the time until goodput was back without rerouting."""
        if self.off is None:
            return fmt.NOTHING
        return row_goodput_text(self.off, "goodput_ms", _median_text)


def _median_text(figure: Figure) -> str:
    return fmt.milliseconds(figure.median)


def terminal_table(rows: Sequence[RecoveryRow], judgement: Judgement) -> Table:
    """Return the table: with rerouting the first packet beside its target, and the steps; without it goodput alone."""

    def step(title: str, name: str) -> Column:
        return Column(title, lambda line: line.step(name))

    def fidelity(line: _FaultLine) -> str:
        worst = verdict(line.row.repeats, judgement)
        if worst == "ok":
            return ""
        return worst

    columns = (
        text("fault", "name"),
        text("fabric", lambda line: line.row.fabric),
        Column("n", lambda line: len(line.row.repeats)),
        step("detected", "detect_ms"),
        step("installed", "reroute_ms"),
        Column(_FIRST_PACKET, "first_packet"),
        Column("target ms", "limits", together="target"),
        Column("", "mark", together="target"),
        step("goodput", "goodput_ms"),
        Column("conns\nlost", "connections_lost"),
        Column("no reroute", "goodput_without_rerouting"),
        Column("fidelity", fidelity),
    )
    lines = _fault_lines(rows, judgement)
    # a run without rerouting has no first packets to show: their column is left out with the other empty ones
    kept_columns: set[str] = set()
    if any(line.on for line in lines):
        kept_columns.add(_FIRST_PACKET)
    title = "Recovery from the fault (1st packet: median / p95; the rest: medians)"
    return Table(columns, lines, title).without_empty(kept_columns)


def _fault_lines(rows: Sequence[RecoveryRow], judgement: Judgement) -> list[_FaultLine]:
    """Return the lines of all faults, with and without rerouting in one line."""
    by_fault: dict[tuple[str, str], dict[str, RecoveryRow]] = {}
    for row in rows:
        by_fault.setdefault((row.name, row.fabric), {})[row.reroute] = row
    lines: list[_FaultLine] = []
    for by_reroute in by_fault.values():
        off = by_reroute.get("off")
        if "on" not in by_reroute:
            lines.append(_FaultLine(by_reroute["off"], None, off))
            continue
        for line in lines_of(by_reroute["on"], False, judgement.disturbed):
            lines.append(_FaultLine(line.row, line, off if line.is_first_line else None))
    return lines
