"""The page of `check`: a cluster's GPUs, NICs and rails, its communicators, and what crosses rails."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console

from railyard.results.format import markdown_cell, size
from railyard.results.views.table import Column, Table, text
from railyard.workloads.cluster.check import GpuPlace, RailCheck
from railyard.workloads.cluster.rails import CommunicatorRoutes, Route, RoutedConnection
from railyard.workloads.cluster.records import BITS_OF_GB

MAX_CONNECTIONS: Final = 8
MAX_HOSTS: Final = 3
VERDICTS: Final = {
    "crosses": "Not ready for rails: {crossing} of {all} connections cross rails.",
    "ready": "Ready for rails: none of {all} connections crosses rails.",
    "unknown": "Not known: the files lack connections, or the NIC or rail of a side ({unknown} of {all} connections).",
    "none": "Not known: the files name no connection. NCCL_DEBUG=INFO logs them.",
}

EXPECTED_VERDICTS: Final = {
    "crosses": "Not ready for rails: {crossing} of {all} connections that the calls need cross rails, by their places.",
    "ready": "Ready for rails: none of {all} connections that the calls need crosses rails, by their places.",
    "unknown": "Not known: the files lack calls or places of ranks ({unknown} of {all} connections that calls need).",
    "none": "Not known: the calls need no connection.",
}
"""Verdicts on traces, which have no connections: those that follow from their calls."""


def headline(check: RailCheck) -> str:
    """Return the verdict in one sentence."""
    total = 0
    unknown = 0
    for routes in check.routes:
        total += len(routes.connections)
        unknown += routes.counts[Route.UNKNOWN]
    if check.cluster.ring_channels and not total and check.verdict != "unknown":
        crossing = len(check.crossing_channels)
        readiness = "Not ready" if crossing else "Ready"
        return f"{readiness} for rails: {crossing} of {len(check.cluster.ring_channels)} ring channels cross rails."
    verdicts = EXPECTED_VERDICTS if check.is_expected else VERDICTS
    return verdicts[check.verdict].format(crossing=len(check.crossing), all=total, unknown=unknown)


def tables(check: RailCheck) -> Iterator[Table]:
    """Yield the tables that have rows, in the order of the page."""
    for table in (
        _communicators(check),
        _crossing(check),
        _gpus(check),
        _settings(check),
        _bandwidths(check),
        _sources(check),
    ):
        if table.rows:
            yield table


def _communicators(check: RailCheck) -> Table:
    columns = [text("communicator", lambda row: row.communicator.name, key="communicator")]
    columns.append(Column("ranks", lambda row: row.communicator.size, key="ranks"))
    columns.append(Column("hosts", lambda row: len(row.communicator.hosts), key="hosts"))
    for title, route in (
        ("in domain", Route.DOMAIN),
        ("on rail", Route.RAIL),
        ("via PXN", Route.PXN),
        ("crossing", Route.CROSSING),
        ("unknown", Route.UNKNOWN),
    ):
        columns.append(Column(title, _counter(route), key=title.replace(" ", "_")))
    columns.append(text("on rail-only", _on_rail_only, key="rail_only"))
    columns.append(text("on rail-optimized", _on_rail_optimized, key="rail_optimized"))
    columns.append(text("collective", _calls, key="calls"))
    columns.append(Column("bytes", lambda row: row.communicator.call_bytes.total() or None, _bytes, key="bytes"))
    return Table(columns, check.routes, "Communicators: connections by route").without_empty()


def _counter(route: Route) -> Any:
    return lambda row: row.counts[route]


def _calls(row: CommunicatorRoutes) -> str:
    """Return how often each collective was called, by all ranks together."""
    return ", ".join(f"{collective} {count:,}" for collective, count in row.communicator.calls.items())


def _bytes(value: int | None) -> str:
    return "" if value is None else size(value)


def _on_rail_only(row: CommunicatorRoutes) -> str:
    if row.crossing:
        return "hangs, unless HB domains forward"
    return "works" if _is_known(row) else "not known"


def _on_rail_optimized(row: CommunicatorRoutes) -> str:
    if row.crossing:
        return "works, through the spines"
    return "works, without the spines" if _is_known(row) else "not known"


def _is_known(row: CommunicatorRoutes) -> bool:
    """Return whether all connections and their routes are known, and there is one."""
    return bool(row.connections) and not row.counts[Route.UNKNOWN] and not row.is_lacking


def _crossing(check: RailCheck) -> Table:
    columns = [
        Column("channel", lambda row: row.connection.channel, key="channel"),
        text("from", lambda row: _end(row, "src"), key="src"),
        Column("rail", lambda row: row.src_rail, key="src_rail"),
        text("to", lambda row: _end(row, "dst"), key="dst"),
        Column("to rail", lambda row: row.dst_rail, key="dst_rail"),
    ]
    shown = check.crossing[:MAX_CONNECTIONS]
    more = len(check.crossing) - len(shown)
    return Table(columns, shown, "Connections that cross rails", more=more, elsewhere="with --json")


def _end(row: RoutedConnection, side: str) -> str:
    rank = getattr(row.connection, side)
    member = getattr(row, side)
    return f"rank {rank}, {member.host} GPU {member.gpu}" if member else f"rank {rank}"


def _gpus(check: RailCheck) -> Table:
    columns = [
        text("hosts", _hosts, key="hosts"),
        Column("GPU", lambda row: row.gpu, key="gpu"),
        text("NIC", lambda row: ", ".join(row.nics) or "none seen", key="nics"),
        text("rail", lambda row: ", ".join(map(str, row.rails)), key="rails"),
        text("nearest NIC", lambda row: ", ".join(row.nearest), key="nearest"),
    ]
    table = Table(columns, check.gpus, "GPUs, the NICs that they use, and their rails")
    return table.without_empty()


def _hosts(row: GpuPlace) -> str:
    shown = ", ".join(row.hosts[:MAX_HOSTS])
    more = len(row.hosts) - MAX_HOSTS
    return f"{shown} and {more} more" if more > 0 else shown


def _settings(check: RailCheck) -> Table:
    columns = [
        text("setting", lambda row: row.setting.name, key="setting"),
        text("value", lambda row: row.value if row.processes else f"{row.value} (default)", key="value"),
        text("meaning", lambda row: row.meaning, key="meaning"),
    ]
    return Table(columns, check.settings if check.cluster.communicators else (), "Settings of NCCL that decide it")


def _bandwidths(check: RailCheck) -> Table:
    columns = [
        text("collective", lambda row: row.measured.collective or "not named", key="collective"),
        Column("size (B)", lambda row: row.measured.bytes, "{:,}".format, key="bytes"),
        Column("busbw (GB/s)", lambda row: _in_gb(row.measured.bus_bps), _gb, key="busbw_gbytes_per_s"),
        Column("expected", lambda row: _in_gb(row.expected_bps), _gb, key="expected_gbytes_per_s"),
        Column("share", lambda row: row.share, _share, key="share"),
    ]
    return Table(
        columns, check.bandwidths, "Bus bandwidth: measured by nccl-tests, and expected of the NICs"
    ).without_empty()


def _in_gb(bps: float | None) -> float | None:
    """Return a rate in bit/s as nccl-tests has it, in 10^9 byte/s."""
    return None if bps is None else bps / BITS_OF_GB


def _gb(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _sources(check: RailCheck) -> Table:
    columns = [
        text("file", lambda row: row.file, key="file"),
        text("formats", lambda row: ", ".join(row.formats), key="formats"),
        Column("lines", lambda row: row.lines or None, key="lines"),
        Column("understood", lambda row: row.understood or None, key="understood"),
        Column("unknown", lambda row: row.unknown, key="unknown"),
    ]
    return Table(columns, check.cluster.sources, "Files").without_empty()


def notes(check: RailCheck) -> Iterator[str]:
    """Yield what the files could not say: gaps, lines that no format knows, and warnings of NCCL's."""
    yield from check.cluster.gaps
    for source in check.cluster.sources:
        for sample in source.unknown_samples:
            yield f"{source.file}: not understood: {sample}"
    for warning, count in check.cluster.warnings.most_common(MAX_CONNECTIONS):
        yield f"NCCL warns: {warning} ({count} times)" if count > 1 else f"NCCL warns: {warning}"


def show(check: RailCheck, console: Console) -> None:
    """Print the page on the terminal."""
    style = {"crosses": "red", "ready": "green"}.get(check.verdict, "yellow")
    console.print(f"[bold {style}]{headline(check)}[/]" if style != "yellow" else headline(check), highlight=False)
    for finding in check.findings():
        console.print(f"- {finding}", highlight=False, markup=False)
    for table in tables(check):
        console.print()
        console.print(table.to_terminal())
    for note in notes(check):
        console.print(f"note: {note}", highlight=False, markup=False)


def to_dict(check: RailCheck) -> dict[str, Any]:
    """Return the page for JSON, with every connection that crosses."""
    crossing = Table(_crossing(check).columns, check.crossing)
    return {
        "verdict": check.verdict,
        "headline": headline(check),
        "findings": list(check.findings()),
        "communicators": _communicators(check).to_dicts(),
        "crossing": crossing.to_dicts(),
        "gpus": _gpus(check).to_dicts(),
        "settings": _settings(check).to_dicts(),
        "bandwidths": _bandwidths(check).to_dicts(),
        "files": _sources(check).to_dicts(),
        "notes": list(notes(check)),
    }


def markdown(check: RailCheck) -> bytes:
    """Return the page as Markdown, for a job's summary."""
    lines = [f"### {headline(check)}", ""]
    lines += [f"- {markdown_cell(finding)}" for finding in check.findings()]
    for table in tables(check):
        lines += ["", f"#### {table.title}", ""]
        lines += _markdown_rows(table)
    lines += [""] + [f"- {markdown_cell(note)}" for note in notes(check)]
    return ("\n".join(lines).rstrip() + "\n").encode()


def html(check: RailCheck) -> bytes:
    """Return the page as HTML, whole in itself."""
    # Jinja takes a tenth of a second to load, which a page on the terminal need not wait for
    from railyard.results.views.report import templates

    page = templates().get_template("cluster.html.j2")
    text = page.render(
        headline=headline(check), findings=list(check.findings()), tables=list(tables(check)), notes=list(notes(check))
    )
    return text.encode()


def _markdown_rows(table: Table) -> Sequence[str]:
    titles = [column.title for column in table.shown]
    rows = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for cells in table.cells:
        rows.append(f"| {' | '.join(map(markdown_cell, cells))} |")
    return rows
