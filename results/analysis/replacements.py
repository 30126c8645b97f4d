"""Failed GPUs and domains that were replaced under a running job (Rail-only IV-C): a row a case, way and fabric."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table as TerminalTable

from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.recovery import Figure, figure
from railyard.results.runs.fidelity import ORDER, Judgement
from railyard.results.runs.records import Replacement, Run, Verdict
from railyard.results.views import format as fmt
from railyard.results.views.recovery_text import median_and_p95, median_p95_ms
from railyard.results.views.report_tables import Table
from railyard.results.views.terminal import Column, fit_to_width

SPREAD_COLUMNS: Final = {
    "replaced_ms": "replaced",
    "state_transfer_ms": "state transfer",
    "interruption_ms": "interruption",
    "after_s": "iteration after",
}
"""Fields whose median and 95th percentile are shown, and how sure those are."""
INTERVAL_PARTS: Final = ("before", "replacement", "after")
_MEDIANS: Final = (
    "detect_ms", "optical_links_down_ms", "replaced_ms", "state_transfer_ms", "state_transfer_predicted_ms",
    "interruption_ms", "iterations_lost", "moved_bytes", "before_s", "after_s", "before_predicted_s",
    "after_predicted_s",
)  # fmt: skip


@dataclass(frozen=True)
class ReplacementRow:
    """The repeats of a case; `medians` by field, None where no repeat has a value."""

    case: str
    method: str
    fabric: str
    n: int
    failed: str
    replaced_by: str
    verdict: Verdict
    medians: dict[str, float | None]
    figures: dict[str, Figure]  # of `SPREAD_COLUMNS`, all in ms

    @property
    def slowdown(self) -> float | None:
        """An iteration after, over one before."""
        return _ratio(self.medians["after_s"], self.medians["before_s"])

    @property
    def predicted_slowdown(self) -> float | None:
        return _ratio(self.medians["after_predicted_s"], self.medians["before_predicted_s"])

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        head = {name: getattr(self, name) for name in ("case", "method", "fabric", "failed", "replaced_by", "verdict")}
        ratios = {"after_over_before": self.slowdown, "after_over_before_predicted": self.predicted_slowdown}
        spread = {f"{name.rpartition('_')[0]}_ms": found.as_dict() for name, found in self.figures.items()}
        medians = {f"{name}_median": value for name, value in self.medians.items()}
        return {**head, "repeats": self.n, **medians, **spread, **ratios}


def replacement_name(case: str, way: str, failed: str = "") -> str:
    """Return the name of its script. `failed`: where a fabric has several of that case and way."""
    return f"{case} by {way}" + (f", {failed}" if failed else "")


def replacement_rows(run: Run, judgement: Judgement) -> tuple[ReplacementRow, ...]:
    """In the order in which they were first run. The verdict is the worst of before, during and after it."""
    names = labels(run)
    groups: defaultdict[tuple[str, str, str, str], list[Replacement]] = defaultdict(list)
    for t in run.replacements:
        groups[t.case, t.method, names.get((t.fabric, t.policy), t.fabric), t.failed].append(t)
    return tuple(
        ReplacementRow(
            *(case, method, fabric),
            n=len(group),
            failed=failed,
            replaced_by=", ".join(dict.fromkeys(t.replaced_by for t in group)),
            verdict=_verdict(group, judgement),
            medians=_medians(group),
            figures=_figures(group),
        )
        for (case, method, fabric, failed), group in groups.items()
    )


def _verdict(group: Sequence[Replacement], judgement: Judgement) -> Verdict:
    """The worst of the replacement, and before and after it."""
    intervals = (replace(t.interval, part=part) for t in group for part in INTERVAL_PARTS)
    return max((judgement.intervals.get(i, "ok") for i in intervals), key=ORDER.index, default="ok")


def _medians(group: Sequence[Replacement]) -> dict[str, float | None]:
    known = {name: [v for t in group if (v := getattr(t, name)) is not None] for name in _MEDIANS}
    return {name: median(values) if values else None for name, values in known.items()}


def _figures(group: Sequence[Replacement]) -> dict[str, Figure]:
    values = {
        name: [getattr(t, name) * (1e3 if name.endswith("_s") else 1.0) for t in group] for name in SPREAD_COLUMNS
    }
    return {name: found for name, samples in values.items() if (found := figure(samples))}


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def steps_table(rows: Sequence[ReplacementRow]) -> Table:
    """The replacement of each failure, its steps from the fault on, and its cost."""
    columns = ("case", "way", "fabric", "failed", "replaced by", "fidelity", "n", "detected", "links off", "replaced")
    body = tuple(
        (
            *(row.case, row.method, row.fabric, row.failed, row.replaced_by, row.verdict, str(row.n)),
            *(
                _ms(row.medians[name])
                for name in ("detect_ms", "optical_links_down_ms", "replaced_ms", "interruption_ms")
            ),
            *(f"{row.medians['iterations_lost']:g}", fmt.size(row.medians["moved_bytes"])),
        )
        for row in rows
    )
    return Table((*columns, "interruption", "iterations lost", "moved"), body, 6)


def iterations_table(rows: Sequence[ReplacementRow]) -> Table:
    """Times of the state transfer and of an iteration, beside the model."""
    columns = ("measured", "predicted", "before", "predicted", "after", "predicted", "after / before", "predicted")
    groups = (("", 4), ("state transfer", 2), ("iteration time", 6))
    names = ("before_s", "before_predicted_s", "after_s", "after_predicted_s")
    body = tuple(
        (
            *(row.case, row.method, row.fabric, row.failed),
            *(_ms(row.medians[name]) for name in ("state_transfer_ms", "state_transfer_predicted_ms")),
            *(fmt.seconds(row.medians[name]) for name in names),
            *(fmt.ratio(row.slowdown), fmt.ratio(row.predicted_slowdown)),
        )
        for row in rows
    )
    return Table(("case", "way", "fabric", "failed", *columns), body, 4, groups)


def spread_table(rows: Sequence[ReplacementRow]) -> Table:
    """A row for each figure: median and 95th percentile with their 95% confidence intervals."""
    body = tuple(
        (*(row.case, row.method, row.fabric, row.failed, SPREAD_COLUMNS[name]), str(found.n), *median_and_p95(found))
        for row in rows
        for name, found in row.figures.items()
    )
    return Table(("case", "way", "fabric", "failed", "figure", "n", "median", "p95"), body, 5)


def terminal_table(console: Console, rows: Sequence[ReplacementRow]) -> TerminalTable:
    """Medians, in as many columns as fit; the failed part where rows differ in that alone."""
    alike = Counter((row.case, row.method, row.fabric) for row in rows)

    def column(name: str, cell: Callable[[ReplacementRow], str], drop: int = 0, text: bool = False) -> Column:
        return Column(name, tuple(cell(row) for row in rows), drop, text)

    columns = (
        column("case", lambda r: r.case, text=True),
        column("way", lambda r: r.method, text=True),
        column("fabric", lambda r: r.fabric, text=True),
        column("failed", lambda r: r.failed if alike[r.case, r.method, r.fabric] > 1 else "", text=True),
        column("replaced\nms", lambda r: median_p95_ms(r.figures["replaced_ms"]), 3),
        column("interruption\nms", lambda r: median_p95_ms(r.figures["interruption_ms"])),
        column("iter.\nlost", lambda r: f"{r.medians['iterations_lost']:g}"),
        column("moved", lambda r: fmt.size(r.medians["moved_bytes"]), 1),
        column("iteration\nbefore", lambda r: fmt.seconds(r.medians["before_s"]), 2),
        column("after", lambda r: fmt.seconds(r.medians["after_s"]), 2),
        column("after /\nbefore", lambda r: fmt.ratio(r.slowdown)),
        column("pre-\ndicted", lambda r: fmt.ratio(r.predicted_slowdown), 1),
        column("fidelity", lambda r: "" if r.verdict == "ok" else r.verdict),
    )
    shown = [c for c in columns if any(cell not in ("", fmt.NOTHING) for cell in c.cells)]
    return fit_to_width(console, "GPU and domain replacements (median / p95; else medians)", shown, 0)


def _ms(ms: float | None) -> str:
    return fmt.NOTHING if ms is None else fmt.milliseconds(ms)
