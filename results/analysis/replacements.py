"""Failed GPUs and domains that were replaced under a running job (Rail-only IV-C): a row a case, way and fabric."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from railyard.results.analysis.aggregate import labels
from railyard.results.analysis.recovery import Figure, figure
from railyard.results.runs.fidelity import ORDER, Judgement
from railyard.results.runs.records import Replacement, Run, Verdict

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
        """The same by the model."""
        return _ratio(self.medians["after_predicted_s"], self.medians["before_predicted_s"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for summary.json."""
        head = {name: getattr(self, name) for name in ("case", "method", "fabric", "failed", "replaced_by", "verdict")}
        ratios = {"after_over_before": self.slowdown, "after_over_before_predicted": self.predicted_slowdown}
        spread = {f"{name.rpartition('_')[0]}_ms": found.as_dict() for name, found in self.figures.items()}
        medians = {f"{name}_median": value for name, value in self.medians.items()}
        return {**head, "repeats": self.n, **medians, **spread, **ratios}


def replacement_name(case: str, way: str, failed: str = "") -> str:
    """Return the name of its script. `failed`: where a fabric has several of that case and way."""
    return f"{case} by {way}" + (f", {failed}" if failed else "")


def replacement_rows(run: Run, judgement: Judgement) -> tuple[ReplacementRow, ...]:
    """Return rows in the order in which they were first run, each with its worst verdict before, during and after."""
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
