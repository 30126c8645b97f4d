"""Section of the report on allreduces over several rails."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from railyard.core.records import IntervalId
from railyard.experiments.measures.allreduce import plots, tables
from railyard.experiments.measures.allreduce.analysis import believable_results_of, by_fabric, results_of
from railyard.experiments.measures.allreduce.records import AllreduceResults
from railyard.experiments.measures.allreduce.targets import performance
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import Card, Section, spread_text
from railyard.results.views.table import Table
from railyard.results.views.targets import targets_table

SLOW_MOTION_NOTE: Final = (
    "figures with a factor under slow motion were measured while time passed that many times slower, and are given in "
    "the fabric's own time; faults and DDP aren't slowed down"
)
_AGREEMENT_NOTE: Final = "m/p is nezha's; agreement with theory counts every policy that has a prediction"


class AllreduceSection(Section):
    """Times of allreduces by size and policy, faults of rails, trainings."""

    title = "Performance targets"
    order = 30
    template = "allreduce.html.j2"
    is_page_part = False

    def applies(self, analysis: Analysis) -> bool:
        """Return whether the run has multi-rail fabrics."""
        return bool(analysis.derived(results_of))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield each target that was measured."""
        for outcome in analysis.derived(performance):
            if not outcome.samples:
                continue
            title = outcome.name
            if outcome.fabric:
                title += f" ({outcome.fabric})"
            sign = "≤"
            if outcome.target.least is not None:
                sign = "≥"
            spread = ""
            # a value of None never came
            values = [value for value in outcome.values if value is not None]
            if values:
                spread = spread_text(values, outcome.target.text)
            yield Card(title, outcome.text, f"target {sign} {outcome.target.limits_text}", spread, outcome.verdict)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the tables and figures of its template."""
        results = analysis.derived(results_of)
        believable = analysis.derived(believable_results_of)
        doubtful = analysis.derived(doubtful_intervals)
        latencies = []
        for fabric in by_fabric(results):
            table = tables.benchmark_table(fabric, believable, doubtful.invalid, doubtful.coarse)
            latencies.append((fabric.rails.label, plots.latency(fabric), table, tables.starts_text(fabric)))
        rates = []
        faults = [(trace.fabric, trace.interval.part) for trace in results.rates]
        for label, fault in dict.fromkeys(faults):
            plot = plots.nic_rates(results, label, fault)
            if plot:
                rates.append((f"{label}: {fault}", plot))
        slow_motion_note = ""
        if _is_slowed(results):
            slow_motion_note = SLOW_MOTION_NOTE
        return {
            "multirail": {
                "targets": targets_table(analysis.derived(performance), "Performance targets"),
                "latencies": latencies,
                "thresholds": tables.thresholds_table(believable),
                "shares": plots.shares(results),
                "channels": plots.channels(results),
                "gains": tables.gains_table(believable),
                "table_1": tables.table_1(believable),
                "cuts": tables.cuts_table(results.cuts),
                "rates": rates,
                "speeds": plots.trainings(results),
                "trainings": tables.trainings_table(believable),
                "ddp_runs": tables.ddp_runs_table(results, analysis.judgement.intervals),
                "losses": plots.losses(results),
                "slow_motion_note": slow_motion_note,
                "fabrics": tables.fabrics_table(results),
                "skipped": results.skipped,
            }
        }

    def links(self, analysis: Analysis) -> dict[str, str]:
        """Return the elements of the page that have something to show."""
        results = analysis.derived(results_of)
        titles = {"multirail": self.title}
        if results.points:
            titles["sizes"] = "By size"
        if results.cuts:
            titles["cuts"] = "Rail faults"
        if results.trainings:
            titles["trainings"] = "Trainings"
        if results.ddp_runs:
            titles["ddp"] = "DDP"
        return titles | {"rails": "Rails"}

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print every table that has rows, and notes on what it shows."""
        if not analysis.derived(results_of):
            return
        for table in _printed_tables(analysis):
            if table.rows:
                console.print(table.to_terminal())
                console.print()
        for note in _notes(analysis):
            console.print(Text(note, style="dim"), highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return all targets, and the policies that were skipped."""
        targets = [outcome.as_dict() for outcome in analysis.derived(performance)]
        skipped = [asdict(policy) for policy in analysis.derived(results_of).skipped]
        return {"targets": targets, "skipped": skipped}


class DoubtfulIntervals(NamedTuple):
    """Intervals of points, without their repeat: those that are invalid, and those that are below resolution."""

    invalid: frozenset[IntervalId]
    coarse: frozenset[IntervalId]


def doubtful_intervals(analysis: Analysis) -> DoubtfulIntervals:
    """Return the intervals that are not compared with predictions; for Analysis.derived."""
    judgement = analysis.judgement
    invalid: set[IntervalId] = set()
    for interval, interval_verdict in judgement.intervals.items():
        if interval_verdict == "invalid":
            invalid.add(replace(interval, repeat=0))
    coarse: set[IntervalId] = set()
    for (interval, *_), row_verdict in judgement.rows.items():
        if row_verdict == "below resolution":
            coarse.add(replace(interval, repeat=0))
    return DoubtfulIntervals(frozenset(invalid), frozenset(coarse))


def _is_slowed(results: AllreduceResults) -> bool:
    return tables.is_slowed((*results.points, *results.trainings))


def _printed_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield the tables of the terminal, in their order."""
    results = analysis.derived(results_of)
    believable = analysis.derived(believable_results_of)
    doubtful = analysis.derived(doubtful_intervals)
    for fabric in by_fabric(results):
        yield tables.benchmark_table(fabric, believable, doubtful.invalid, doubtful.coarse)
    paper_table = tables.table_1(believable)
    if paper_table:
        yield paper_table
    yield tables.thresholds_table(believable)
    yield tables.gains_table(believable)
    yield tables.cuts_table(results.cuts)
    yield tables.trainings_table(believable)
    yield tables.ddp_runs_table(results, analysis.judgement.intervals)
    measured = [outcome for outcome in analysis.derived(performance) if outcome.samples]
    yield targets_table(measured, "Performance targets")


def _notes(analysis: Analysis) -> Iterator[str]:
    """Yield the notes below the tables of the terminal."""
    results = analysis.derived(results_of)
    if _is_slowed(results):
        yield f"{tables.SLOW_MOTION}: {SLOW_MOTION_NOTE}"
    if analysis.derived(doubtful_intervals).invalid:
        yield "?: the machine was measured there, and not the fabric"
    if results.points and (analysis.agreement.compared or analysis.agreement.invalid):
        yield _AGREEMENT_NOTE
    outcomes = analysis.derived(performance)
    quantities = {outcome.target.quantity for outcome in outcomes}
    measured = {outcome.target.quantity for outcome in outcomes if outcome.samples}
    if quantities != measured:
        yield f"not measured: {len(quantities - measured)} of {len(quantities)} performance targets"
    for skipped in results.skipped:
        yield f"not run: {skipped.policy} on {skipped.fabric}: {skipped.why}"
