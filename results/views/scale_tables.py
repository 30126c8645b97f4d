"""What was scaled down, and what the emulated times mean on the real cluster, as tables. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from railyard.results.analysis.aggregate import FULL_SIZE, SAME_SHAPE, TIME_METRICS, Row
from railyard.results.plots.times import label
from railyard.results.views import format as fmt
from railyard.results.views.report_tables import Table

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
    "seconds": "seconds",
}
_PROJECTED: Final = {SAME_SHAPE: "same shape", FULL_SIZE: "full size"}
_SAME: Final = "same"


@dataclass(frozen=True, slots=True)
class ScalePart:
    """The factors of one workload, and the fabrics that they hold for. `kept`: share of the computing time."""

    workload: str
    platform: str
    kept: float
    fabrics: tuple[str, ...]
    table: Table


def scale_parts(scale: Iterable[Mapping[str, Any]]) -> tuple[ScalePart, ...]:
    """Return a table for each workload, or several where its fabrics differ."""
    alike: list[tuple[str, Mapping[str, Any], list[str]]] = []
    for scaled in scale:
        name, fabric = scaled["workload"], ", ".join(filter(None, (scaled["fabric"], scaled.get("replacement"))))
        same = next((fabrics for known, like, fabrics in alike if known == name and _alike(like, scaled)), None)
        if same is None:
            alike.append((name, scaled, [fabric]))
        else:
            same.append(fabric)
    return tuple(
        ScalePart(name, s["platform"], float(s["compute_kept"]), tuple(fabrics), _factors(s))
        for name, s, fabrics in alike
    )


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whichever algorithm a fabric takes for it."""
    return all(one[key] == other[key] for key in ("platform", "compute_kept", "factors"))


def _factors(scaled: Mapping[str, Any]) -> Table:
    """A row a factor; computing, of which an experiment may keep a part only, is the last."""
    body = [
        (_NAMES.get(name, name.replace("_", " ")), *_both(name, f["real"], f["emulated"]), _factor(f["factor"]))
        for name, f in scaled["factors"].items()
    ]
    kept = float(scaled["compute_kept"])
    body.append(("computing time, before it is scaled", "100%", fmt.short(fmt.percent(kept)), _factor(kept)))
    return Table(("what", "real", "emulated", "factor"), tuple(body), 1)


def _both(name: str, *values: float) -> tuple[str, ...]:
    show = _rate if name.endswith("_bytes_per_s") else _plain
    return tuple(show(v) for v in values)


def _rate(bytes_per_s: float) -> str:
    return fmt.short(fmt.rate(bytes_per_s * 8))


def _plain(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return fmt.digits(value) if value >= 1e-4 else f"{value:.3g}"


def _factor(ratio: float) -> str:
    """Emulated over real: 1/96 -> `÷ 96`, 4.735 -> `× 4.735`."""
    if ratio == 1:
        return _SAME
    return f"×{chr(0xA0)}{_trim(ratio)}" if ratio > 1 or ratio == 0 else f"÷{chr(0xA0)}{_trim(1 / ratio)}"


def _trim(value: float) -> str:
    return fmt.short(fmt.digits(value))


def projections_table(rows: Sequence[Row], fabrics: Sequence[str]) -> Table | None:
    """Workloads and phases down; for each fabric the emulated time, of the same shape, and at full size (medians)."""
    projected = {(r.workload, r.phase, r.metric): r for r in rows if r.metric in _PROJECTED}
    metrics = [m for m in _PROJECTED if any(m == metric for *_, metric in projected)]
    timed = [r for r in rows if r.metric in TIME_METRICS and (r.workload, r.phase, SAME_SHAPE) in projected]
    if not timed:
        return None
    present = [f for f in fabrics if any(f in r.by_fabric for r in timed)]
    body = []
    for row in timed:
        sides = [row, *(projected.get((row.workload, row.phase, metric)) for metric in metrics)]
        cells = [_median(side, fabric) for fabric in present for side in sides]
        body.append((row.workload, label(row), *cells))
    columns = ("workload", "phase", *("emulated", *(_PROJECTED[m] for m in metrics)) * len(present))
    return Table(columns, tuple(body), 2, (("", 2), *((f, 1 + len(metrics)) for f in present)))


def _median(row: Row | None, fabric: str) -> str:
    spread = row.by_fabric.get(fabric) if row else None
    return fmt.seconds(spread.median) if spread else fmt.NOTHING
