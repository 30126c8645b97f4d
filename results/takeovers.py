"""Failed GPUs and domains that were replaced under a running job (Rail-only IV-C): a row a case, way and fabric."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table as ScreenTable

from results import format as fmt
from results.aggregate import labels
from results.fidelity import ORDER, Judgement
from results.records import Run, Takeover, Verdict
from results.report_tables import Table
from results.screen import Column, fitted

_MEDIANS: Final = (
    "detect_ms", "light_off_ms", "taken_over_ms", "state_ms", "state_predicted_ms", "interruption_ms",
    "iterations_lost", "moved_bytes", "before_s", "after_s", "before_predicted_s", "after_predicted_s",
)  # fmt: skip


@dataclass(frozen=True)
class TakeoverRow:
    """The repeats of a case; `medians` by the column of takeover.csv, None where no repeat has a value."""

    case: str
    way: str
    fabric: str
    n: int
    failed: str
    replaced_by: str
    verdict: Verdict
    medians: dict[str, float | None]

    @property
    def slower(self) -> float | None:
        """An iteration after, over one before."""
        return _over(self.medians["after_s"], self.medians["before_s"])

    @property
    def slower_predicted(self) -> float | None:
        return _over(self.medians["after_predicted_s"], self.medians["before_predicted_s"])

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        head = {name: getattr(self, name) for name in ("case", "way", "fabric", "failed", "replaced_by", "verdict")}
        ratios = {"after_over_before": self.slower, "after_over_before_predicted": self.slower_predicted}
        return {**head, "repeats": self.n, **{f"{k}_median": v for k, v in self.medians.items()}, **ratios}


def takeover_rows(run: Run, judgement: Judgement) -> tuple[TakeoverRow, ...]:
    """In the order in which they were first run. The verdict is the worst of the stretches before and after."""
    names = labels(run)
    groups: defaultdict[tuple[str, str, str], list[Takeover]] = defaultdict(list)
    for t in run.takeovers:
        groups[t.case, t.way, names.get((t.fabric, t.policy), t.fabric)].append(t)
    return tuple(
        TakeoverRow(
            *key,
            n=len(group),
            failed=_names(group, "failed"),
            replaced_by=_names(group, "replaced_by"),
            verdict=_verdict(group, judgement),
            medians=_medians(group),
        )
        for key, group in groups.items()
    )


def _verdict(group: Sequence[Takeover], judgement: Judgement) -> Verdict:
    """Each case has a fabric of its own, with its spares, which is called after both."""
    whats = {(t.fabric, f"{t.case} by {t.way}", t.repeat) for t in group}
    stretches = {(f"{f}, {what}", f"{what}: {when}", n) for f, what, n in whats for when in ("before", "after")}
    found = (verdict for stretch, verdict in judgement.stretches.items() if stretch in stretches)
    return max(found, key=ORDER.index, default="ok")


def _names(group: Sequence[Takeover], field: str) -> str:
    return ", ".join(dict.fromkeys(getattr(t, field) for t in group))


def _medians(group: Sequence[Takeover]) -> dict[str, float | None]:
    known = {name: [v for t in group if (v := getattr(t, name)) is not None] for name in _MEDIANS}
    return {name: median(values) if values else None for name, values in known.items()}


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def steps_table(rows: Sequence[TakeoverRow]) -> Table:
    """What took whose place, and when, from the fault on; then what it cost."""
    columns = ("case", "way", "fabric", "failed", "replaced by", "fidelity", "n", "detected", "light off", "taken over")
    body = tuple(
        (
            *(row.case, row.way, row.fabric, row.failed, row.replaced_by, row.verdict, str(row.n)),
            *(_ms(row.medians[name]) for name in ("detect_ms", "light_off_ms", "taken_over_ms", "interruption_ms")),
            *(f"{row.medians['iterations_lost']:g}", fmt.size(row.medians["moved_bytes"])),
        )
        for row in rows
    )
    return Table((*columns, "job stood", "iterations lost", "moved"), body, 6)


def iterations_table(rows: Sequence[TakeoverRow]) -> Table:
    """How long moving the state and an iteration took, beside the model."""
    columns = ("measured", "predicted", "before", "predicted", "after", "predicted", "after / before", "predicted")
    groups = (("", 3), ("state moved in", 2), ("iteration time", 6))
    names = ("before_s", "before_predicted_s", "after_s", "after_predicted_s")
    body = tuple(
        (
            *(row.case, row.way, row.fabric),
            *(_ms(row.medians[name]) for name in ("state_ms", "state_predicted_ms")),
            *(fmt.seconds(row.medians[name]) for name in names),
            *(fmt.ratio(row.slower), fmt.ratio(row.slower_predicted)),
        )
        for row in rows
    )
    return Table(("case", "way", "fabric", *columns), body, 3, groups)


def screen_table(console: Console, rows: Sequence[TakeoverRow]) -> ScreenTable:
    """What fits of it: medians."""

    def column(name: str, cell: Callable[[TakeoverRow], str], drop: int = 0, text: bool = False) -> Column:
        return Column(name, tuple(cell(row) for row in rows), drop, text)

    columns = (
        column("case", lambda r: r.case, text=True),
        column("way", lambda r: r.way, text=True),
        column("fabric", lambda r: r.fabric, text=True),
        column("taken\nover", lambda r: _ms(r.medians["taken_over_ms"]), 3),
        column("job\nstood", lambda r: _ms(r.medians["interruption_ms"])),
        column("iter.\nlost", lambda r: f"{r.medians['iterations_lost']:g}"),
        column("moved", lambda r: fmt.size(r.medians["moved_bytes"]), 1),
        column("iteration\nbefore", lambda r: fmt.seconds(r.medians["before_s"]), 2),
        column("after", lambda r: fmt.seconds(r.medians["after_s"]), 2),
        column("after /\nbefore", lambda r: fmt.ratio(r.slower)),
        column("pre-\ndicted", lambda r: fmt.ratio(r.slower_predicted), 1),
        column("fidelity", lambda r: "" if r.verdict == "ok" else r.verdict),
    )
    shown = [c for c in columns if any(cell not in ("", fmt.NOTHING) for cell in c.cells)]
    return fitted(console, "Failed for good, and replaced: medians", shown, 0)


def _ms(ms: float | None) -> str:
    return fmt.NOTHING if ms is None else fmt.milliseconds(ms)
