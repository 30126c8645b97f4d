"""Conditions of a run in the report: scale and projections, the evidence of fidelity, provenance, how to read it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple

from railyard.results import format as fmt
from railyard.results.analysis.aggregate import FULL_SIZE, SAME_SHAPE, TIME_METRICS, Row, grouped, time_label
from railyard.results.analysis.limits import LIMITS
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.format import workload_label
from railyard.results.plots import evidence
from railyard.results.runs.records import LinkCheck, record_kinds
from railyard.results.views.report import Section, section, sections
from railyard.results.views.table import Column, Table, text, text_table

_NAMES: Final = {
    "gpus": "GPUs",
    "domain_gpus": "GPUs per HB domain",
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "data": "data parallelism",
    "micro_batches": "micro-batches",
    "all_to_alls": "all-to-alls",
    "collectives_per_stage_and_micro_batch": "collectives per stage and micro-batch",
    "rail_bytes_per_s": "rail rate, for payload",
    "hb_bytes_per_s": "HB rate, for payload",
    "bytes_per_transfer": "bytes of a transfer",
}
_MS: Final = "{:.1f}\u00a0ms".format
_PROJECTED: Final = {SAME_SHAPE: "same shape", FULL_SIZE: "full size"}


@section("scale")
class _Scale(Section):
    """What was scaled down, and what the emulated times mean on the real cluster."""

    title = "Scale"
    order = 70
    template = "scale.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.run.scale) or any(row.metric in _PROJECTED for row in analysis.rows)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        fabrics = list(analysis.labels.values())
        return {"scale": scale_parts(analysis.run.scale), "projections": projections_table(analysis.rows, fabrics)}


def scale_parts(scale: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table for each workload, or several where its fabrics differ. `kept`: share of the computing time."""
    parts: list[dict[str, Any]] = []
    for scaled in scale:
        fabric = ", ".join(filter(None, (scaled["fabric"], scaled.get("replacement"))))
        # fabrics whose collectives use different algorithms share a table: their factors are the same
        like = {key: scaled[key] for key in ("workload", "platform", "compute_kept", "factors")}
        for part in parts:
            if part["like"] == like:
                part["fabrics"].append(fabric)
                break
        else:
            kept = float(scaled["compute_kept"])
            parts.append({**like, "like": like, "kept": kept, "fabrics": [fabric], "table": _factors(scaled, kept)})
    return parts


def _factors(scaled: Mapping[str, Any], kept: float) -> Table:
    """Return a row a factor; computing, of which an experiment may keep a part only, is the last."""
    rows: list[tuple[str, str, str, str]] = []
    for name, factor in scaled["factors"].items():
        title = _NAMES.get(name, name.replace("_", " "))
        real = _scaled_quantity(name, factor["real"])
        emulated = _scaled_quantity(name, factor["emulated"])
        rows.append((title, real, emulated, factor_text(factor["factor"])))
    rows.append(("computing time, before it is scaled", "100%", fmt.short(fmt.percent(kept)), factor_text(kept)))
    return text_table(("what", "real", "emulated", "factor"), rows, numbers=1)


def _scaled_quantity(name: str, value: float) -> str:
    """Return a quantity that was scaled as text, by the name of its factor."""
    if name.endswith("_bytes_per_s"):
        return fmt.short(fmt.rate(value * 8))
    if value == int(value):
        return f"{int(value):,}"
    if value < 1e-4:
        return f"{value:.3g}"
    return fmt.digits(value)


def factor_text(ratio: float) -> str:
    """Emulated over real: 1/96 -> `÷ 96`, 4.735 -> `× 4.735`."""
    if ratio == 1:
        return "same"
    if ratio > 1 or ratio == 0:
        return f"×\u00a0{fmt.short(fmt.digits(ratio))}"
    return f"÷\u00a0{fmt.short(fmt.digits(1 / ratio))}"


def projections_table(rows: Sequence[Row], fabrics: Sequence[str]) -> Table:
    """Return, for each workload, phase and fabric, the emulated time, of the same shape, and at full size (medians)."""
    projected: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row.metric in _PROJECTED:
            projected[row.workload, row.phase, row.metric] = row
    timed: list[Row] = []
    for row in rows:
        if row.metric in TIME_METRICS and (row.workload, row.phase, SAME_SHAPE) in projected:
            timed.append(row)

    def emulated_s(fabric: str, row: Row) -> float | None:
        return _median_s(row, fabric)

    def projected_s(fabric: str, metric: str, row: Row) -> float | None:
        return _median_s(projected.get((row.workload, row.phase, metric)), fabric)

    metrics = {metric for _, _, metric in projected}
    columns = [text("workload"), text("phase", time_label)]
    for fabric in fabrics:
        if not any(fabric in row.by_fabric for row in timed):
            continue
        columns.append(Column("emulated", partial(emulated_s, fabric), unit="s", group=fabric))
        for metric, title in _PROJECTED.items():
            if metric in metrics:
                columns.append(Column(title, partial(projected_s, fabric, metric), unit="s", group=fabric))
        columns.append(text("verdict", partial(_verdict_on, fabric), group=fabric))
    return Table(columns, timed)


def _median_s(row: Row | None, fabric: str) -> float | None:
    """Return the median of a time on a fabric; None if it wasn't measured there."""
    if row is None or fabric not in row.by_fabric:
        return None
    return row.by_fabric[fabric].median


def _verdict_on(fabric: str, row: Row) -> str:
    """Return the verdict of a time on a fabric."""
    if fabric not in row.by_fabric:
        return fmt.NOTHING
    return row.by_fabric[fabric].verdict


@section("fidelity")
class _Fidelity(Section):
    """The evidence of the verdict."""

    title = "Fidelity"
    order = 80
    template = "fidelity.html.j2"

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        limits = (
            text("quantity"),
            text("why these limits", "why"),
            Column("degraded above", lambda x: x.show(x.degraded)),
            Column("invalid above", lambda x: x.show(x.invalid)),
        )
        return {
            "evidence": evidence.evidence(analysis.judgement.evidence),
            "limits": Table(limits, LIMITS),
            "links": links_table(analysis.run.links),
            "loads": loads_table(analysis),
        }


def links_table(links: Sequence[LinkCheck]) -> Table:
    """Return, by fabric and class, how many links were measured, and how far off their median and the worst are."""
    rows: list[_LinkClass] = []
    for _, sample in sorted(grouped(links, "fabric", "link_class").items()):
        first = sample[0]
        worst = max(sample, key=lambda link: abs(link.measured_bps - link.expected_bps))
        rows.append(
            _LinkClass(
                fabric=first.fabric,
                link_class=first.link_class,
                links=len(sample),
                expected_bps=first.expected_bps,
                median_bps=median(link.measured_bps for link in sample),
                worst_deviation=fmt.deviation(worst.measured_bps, worst.expected_bps),
            )
        )
    columns = (
        text("fabric"),
        text("link class"),
        Column("measured links", "links"),
        Column("expected", "expected_bps", unit="bit/s"),
        Column("median", "median_bps", unit="bit/s"),
        Column("off", lambda row: fmt.deviation(row.median_bps, row.expected_bps)),
        Column("worst off", "worst_deviation"),
    )
    return Table(columns, rows)


class _LinkClass(NamedTuple):
    """The measured links of one class of a fabric."""

    fabric: str
    link_class: str
    links: int
    expected_bps: float
    median_bps: float
    worst_deviation: str


def loads_table(analysis: Analysis) -> Table:
    """Return the load of the machine in every interval, with its verdict."""
    names = analysis.labels
    verdicts = analysis.judgement.intervals
    columns = (
        text("fabric", lambda x: names.get((x.fabric, x.policy), x.fabric)),
        text("workload", lambda x: workload_label(x.interval)),
        text("verdict", lambda x: verdicts.get(x.interval)),
        Column("repeat"),
        Column("busy", "cpu_busy", fmt.percent, group="CPU"),
        Column("foreign", "cpu_foreign", fmt.percent, group="CPU"),
        Column("stolen", "cpu_stolen", fmt.percent, group="CPU"),
        Column("throttled", "cpu_throttled", fmt.percent, group="CPU"),
        Column("busy", "busy_100ms", fmt.percent, group="worst 100 ms"),
        Column("foreign", "foreign_100ms", fmt.percent, group="worst 100 ms"),
        Column("stolen", "stolen_100ms", fmt.percent, group="worst 100 ms"),
        Column("lag p99", "lag_p99_ms", _MS),
        Column("time in pauses", "paused", fmt.percent),
        Column("longest pause", "pause_ms", _MS),
        Column("segments", show="{:,}".format),
        Column("retransmits", show="{:,}".format),
        Column("needless", "needless_retransmits", "{:,}".format),
        Column("drops", show="{:,}".format),
        Column("faulted", lambda x: "on purpose" if x.transfers_faulted else "no"),
    )
    return Table(columns, analysis.run.loads)


@section("provenance")
class _Provenance(Section):
    """Software and machine of the run."""

    title = "Provenance"
    order = 90

    def tables(self, analysis: Analysis) -> list[Table]:
        rows = list(_flatten(analysis.run.provenance))
        return [Table((text("what", lambda row: row[0]), text("value", _value_text)), rows)]


def _value_text(row: tuple[str, object]) -> str:
    """Return the value of a key of the provenance as text."""
    key, value = row
    if isinstance(value, float) and key.endswith(("_s", "seconds", " s")):
        return fmt.seconds(value)
    if isinstance(value, float):
        return fmt.digits(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return fmt.or_dash(str)(value)


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@section("reading")
class _Reading(Section):
    """Formulas and figures of the page."""

    title = "Reading the figures"
    order = 95
    template = "reading.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.run.fabrics)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        metrics: set[str] = set()
        operations: set[str] = set()
        for row in analysis.times:
            metrics.add(row.metric)
            operations.update(row.operations)
        labelled_kinds = [kind for kind in record_kinds().values() if kind.has_labels]
        explanations = [section.explanation(analysis) for _, section in sections()]
        return {
            "metrics": metrics,
            "operations": operations,
            "has_slowdowns": any(slowdown.is_all_to_all for slowdown in analysis.slowdowns),
            "has_faults": any(map(analysis.run.rows, labelled_kinds)),
            "explanations": list(filter(None, explanations)),
        }
