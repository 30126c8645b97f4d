"""Conditions of a run in the report: scale and projections, the evidence of fidelity, provenance, how to read it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pandas as pd

from railyard.results import format as fmt
from railyard.results.analysis.aggregate import FULL_SIZE, SAME_SHAPE, TIME_METRICS, Row, time_label
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
        return bool(analysis.run.scale or any(row.metric in _PROJECTED for row in analysis.rows))

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        fabrics = list(analysis.labels.values())
        return {"scale": scale_parts(analysis.run.scale), "projections": projections_table(analysis.rows, fabrics)}


def scale_parts(scale: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table for each workload, or several where its fabrics differ. `kept`: share of the computing time."""
    parts: list[dict[str, Any]] = []
    for scaled in scale:
        fabric = ", ".join(filter(None, (scaled["fabric"], scaled.get("replacement"))))
        like = {key: scaled[key] for key in ("workload", "platform", "compute_kept", "factors")}  # whatever algorithm
        same = next((part for part in parts if part["like"] == like), None)
        if same:
            same["fabrics"].append(fabric)
        else:
            kept = float(scaled["compute_kept"])
            parts.append({**like, "like": like, "kept": kept, "fabrics": [fabric], "table": _factors(scaled, kept)})
    return parts


def _factors(scaled: Mapping[str, Any], kept: float) -> Table:
    """Return a row a factor; computing, of which an experiment may keep a part only, is the last."""

    def show(name: str, value: float) -> str:
        if name.endswith("_bytes_per_s"):
            return fmt.short(fmt.rate(value * 8))
        if value == int(value):
            return f"{int(value):,}"
        return fmt.digits(value) if value >= 1e-4 else f"{value:.3g}"

    rows = [
        (_NAMES.get(n, n.replace("_", " ")), show(n, f["real"]), show(n, f["emulated"]), factor_text(f["factor"]))
        for n, f in scaled["factors"].items()
    ]
    rows.append(("computing time, before it is scaled", "100%", fmt.short(fmt.percent(kept)), factor_text(kept)))
    return text_table(("what", "real", "emulated", "factor"), rows, numbers=1)


def factor_text(ratio: float) -> str:
    """Emulated over real: 1/96 -> `÷ 96`, 4.735 -> `× 4.735`."""
    if ratio == 1:
        return "same"
    sign, value = ("×", ratio) if ratio > 1 or ratio == 0 else ("÷", 1 / ratio)
    return f"{sign}\u00a0{fmt.short(fmt.digits(value))}"


def projections_table(rows: Sequence[Row], fabrics: Sequence[str]) -> Table:
    """Return, for each workload, phase and fabric, the emulated time, of the same shape, and at full size (medians)."""
    projected = {(r.workload, r.phase, r.metric): r for r in rows if r.metric in _PROJECTED}
    timed = [r for r in rows if r.metric in TIME_METRICS and (r.workload, r.phase, SAME_SHAPE) in projected]

    def cell(fabric: str, metric: str, row: Row) -> float | None:
        found = projected.get((row.workload, row.phase, metric)) if metric else row
        return found.by_fabric[fabric].median if found and fabric in found.by_fabric else None

    def verdict(fabric: str, row: Row) -> str:
        return row.by_fabric[fabric].verdict if fabric in row.by_fabric else fmt.NOTHING

    titles = {"": "emulated"} | {m: name for m, name in _PROJECTED.items() if any(m == p for *_, p in projected)}
    columns = list[Column]()
    for fabric in (fabric for fabric in fabrics if any(fabric in r.by_fabric for r in timed)):
        columns += (Column(name, partial(cell, fabric, m), unit="s", group=fabric) for m, name in titles.items())
        columns.append(text("verdict", partial(verdict, fabric), group=fabric))
    return Table([text("workload"), text("phase", time_label), *columns], timed)


@section("fidelity")
class _Fidelity(Section):
    """The evidence of the verdict."""

    title = "Fidelity"
    order = 80
    template = "fidelity.html.j2"

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        limits = (
            *(text("quantity"), text("why these limits", "why")),
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
    frame = pd.DataFrame(links, columns=["fabric", "link_class", "link", "expected_bps", "measured_bps", "dilation"])
    frame["error"] = (frame.measured_bps - frame.expected_bps).abs()
    groups = [(*key, found) for key, found in frame.groupby(["fabric", "link_class"])]
    columns = (
        *(text("fabric", lambda x: x[0]), text("link class", lambda x: x[1])),
        Column("measured links", lambda x: len(x[2])),
        Column("expected", lambda x: x[2].expected_bps.iloc[0], unit="bit/s"),
        Column("median", lambda x: x[2].measured_bps.median(), unit="bit/s"),
        Column("off", lambda x: fmt.deviation(x[2].measured_bps.median(), x[2].expected_bps.iloc[0])),
        Column("worst off", lambda x: fmt.deviation(*x[2].loc[x[2].error.idxmax(), ["measured_bps", "expected_bps"]])),
    )
    return Table(columns, groups)


def loads_table(analysis: Analysis) -> Table:
    """Return the load of the machine in every interval, with its verdict."""
    names = analysis.labels
    verdicts = analysis.judgement.intervals
    columns = (
        text("fabric", lambda x: names.get((x.fabric, x.policy), x.fabric)),
        text("workload", lambda x: workload_label(x.interval)),
        text("verdict", lambda x: verdicts.get(x.interval)),
        Column("repeat"),
        *(
            Column(title, f"cpu_{title}", fmt.percent, group="CPU")
            for title in ("busy", "foreign", "stolen", "throttled")
        ),
        *(Column(what, f"{what}_100ms", fmt.percent, group="worst 100 ms") for what in ("busy", "foreign", "stolen")),
        Column("lag p99", "lag_p99_ms", _MS),
        *(Column("time in pauses", "paused", fmt.percent), Column("longest pause", "pause_ms", _MS)),
        *(Column(name, show="{:,}".format) for name in ("segments", "retransmits")),
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
        def value(row: tuple[str, object]) -> str:
            key, found = row
            if isinstance(found, float):
                return (fmt.seconds if key.endswith(("_s", "seconds", " s")) else fmt.digits)(found)
            return ", ".join(map(str, found)) if isinstance(found, list | tuple) else fmt.or_dash(str)(found)

        rows = list(_flatten(analysis.run.provenance))
        return [Table((text("what", lambda row: row[0]), text("value", value)), rows)]


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
        timed = analysis.times
        return {
            "metrics": {row.metric for row in timed},
            "operations": {operation for row in timed for operation in row.operations},
            "has_slowdowns": any(s.is_all_to_all for s in analysis.slowdowns),
            "has_faults": any(analysis.run.rows(kind) for kind in record_kinds().values() if kind.has_labels),
            "explanations": list(filter(None, (section.explanation(analysis) for _, section in sections()))),
        }
