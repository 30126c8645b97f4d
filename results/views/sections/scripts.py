"""Failure scripts and replacements of GPUs and domains in the report."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from rich.console import Console
from rich.text import Text

from railyard.results import format as fmt
from railyard.results.analysis import recovery as stats
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.recovery import ReplacementRow, ScriptRow, checks_text
from railyard.results.analysis.recovery_states import first_packet_text
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.plots import recovery
from railyard.results.plots import recovery as fault_script
from railyard.results.views.report import SPREAD_UNKNOWN, Card, Section, section
from railyard.results.views.sections.faults import CONTROLLER_STEPS
from railyard.results.views.table import Column, Table, text, texts


@section("scripts")
class _Scripts(Section):
    """Failure scripts: faults that overlap, with connectivity checks between them."""

    title = "Failure scripts"
    order = 62
    template = "scripts.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.script_rows)

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        for (script, fabric, reroute), runs in grouped(analysis.script_rows, "script", "fabric", "reroute").items():
            checks = [check for s in runs for check in s.connectivity_checks if check.done]
            if checks:
                matching, suffix = sum(not c.mismatch_count for c in checks), ", reroute off" * (reroute == "off")
                title = f"{script} on {fabric}{suffix}: connectivity checks as the oracle expects"
                yield Card(title, f"{matching} of {len(checks)}", "", f"{len(runs)} repeats" * (len(runs) > 1))

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        drawn, failed = [], [c for c in analysis.run.connectivity_checks if c.done and c.mismatch_count]
        columns = (
            *texts("script", "fabric"),
            *(text("after", "last_event"), text("what", lambda c: "; ".join(c.mismatches.splitlines()))),
            *map(Column, ("repeat", "broken", "pairs", "reachable", "answered", "not recovered", "unexpected answers")),
            Column("failed parts forwarding", "forwarding_failed_parts"),
        )
        for script, repeats in worst_repeats(analysis.script_rows):
            count_text = f", the worst of {repeats}" if repeats > 1 else ""
            name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}{count_text}"
            drawn.append((name, fault_script.script_timeline(script), script_faults_table(script)))
        return {
            "scripts": scripts_table(analysis.script_rows, analysis.judgement),
            "failed_checks": Table(columns, failed),
            "drawn": drawn,
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a line a script and fabric, its repeats together."""
        rows = sorted(analysis.script_rows, key=lambda s: (s.script, s.fabric, s.reroute))
        for (script, fabric, reroute), runs in grouped(rows, "script", "fabric", "reroute").items():
            faults, lost = sum(len(s.faults) for s in runs), fmt.size(sum(s.lost_bytes for s in runs))
            checks = [check for s in runs for check in s.connectivity_checks]
            checks_summary = f"connectivity checks: {checks_text(checks)}; " if checks else ""
            returning = sum(s.probes_lost_after_repair for s in runs)
            return_text = f", {returning} probes lost after repairs" if returning else ""
            outcome = f"{faults} faults (n={len(runs)}), {checks_summary}{lost} lost{return_text}"
            line = Text.assemble(f"{script} on {fabric}, reroute {reroute}: ", (outcome, "bold"))
            console.print(line, highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"scripts": scripts_table(analysis.script_rows, analysis.judgement).to_dicts()}


def scripts_table(scripts: Sequence[ScriptRow], judgement: Judgement) -> Table:
    """Return a row a script, fabric and repeat."""

    def slowest(s: ScriptRow) -> str:
        known = [(r.first_packet_ms, -n, r) for n, r in enumerate(s.faults) if r.first_packet_ms is not None]
        ms, _, found = max(known, default=(None, 0, None))
        return f"{fmt.milliseconds(ms)}: {found.fault} {found.target}" if found else fmt.NOTHING

    def matched(s: ScriptRow) -> int:
        return sum(c.done and not c.mismatch_count for c in s.connectivity_checks)

    columns = (
        *(text(name, key=name) for name in ("script", "fabric", "reroute")),
        text("fidelity", lambda s: stats.verdict(s.faults, judgement), key="verdict"),
        Column("repeat", key="repeat"),
        Column("faults", lambda s: len(s.faults), key="faults"),
        Column("until their repair", lambda s: sum(r.first_packet_ms is None and r.is_probed for r in s.faults)),
        Column("slowest first packet", slowest),
        Column("connectivity checks", lambda s: checks_text(s.connectivity_checks) if s.connectivity_checks else None),
        Column("", lambda s: len(s.connectivity_checks), key="connectivity_checks"),
        Column("", lambda s: sum(c.done for c in s.connectivity_checks), key="connectivity_checks_done"),
        Column("", matched, key="connectivity_checks_passed"),
        Column("lost after repair", "probes_lost_after_repair", key="probes_lost_after_repair"),
        Column("bytes lost", "lost_bytes", fmt.size, key="lost_bytes"),
        Column("conns lost", lambda s: max((r.connections_lost for r in s.faults), default=0), key="connections_lost"),
    )
    return Table(columns, scripts)


def script_faults_table(script: ScriptRow) -> Table:
    """Return every fault of one repeat of a script, in the order of time."""
    zero, alone = script.faults[0].t_fault if script.faults else 0, script.repaired_alone
    columns = (
        *texts("fault", "target"),
        Column("at", lambda r: (r.t_fault - zero) / 1e9, unit="s"),
        Column("for", lambda r: (r.t_repair - r.t_fault) / 1e9, unit="s"),
        *CONTROLLER_STEPS,
        Column("first packet", first_packet_text),
        Column("probes lost"),
        Column("after repair", lambda r: r.probes_lost_after_repair if r in alone else None),
    )
    return Table(columns, script.faults)


def worst_repeats(scripts: Sequence[ScriptRow]) -> Iterator[tuple[ScriptRow, int]]:
    """Yield the worst repeat of each script on each fabric, with rerouting and without, and how many there were.

    The worst has the worst connectivity check (mismatches, then fewest answers), then the slowest first packet.
    """

    def severity(script: ScriptRow) -> tuple[float, float, float]:
        checks = [(float(c.mismatch_count), -float(c.answered)) for c in script.connectivity_checks if c.done]
        first_ms = [inf if r.first_packet_ms is None else r.first_packet_ms for r in script.faults if r.is_probed]
        return (*max(checks, default=(0.0, -inf)), max(first_ms, default=0.0))

    for group in grouped(scripts, "script", "fabric", "reroute").values():
        yield max(group, key=severity), len(group)


@section("replacements")
class _Replacements(Section):
    """GPUs and domains that failed under a running job and were replaced."""

    title = "Replacements"
    order = 64
    template = "replacements.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        return bool(analysis.replacement_rows)

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        for row in analysis.replacement_rows:
            found = row.figures["interruption_ms"]
            known = found.n > 1 and found.least is not None and found.most is not None
            yield Card(
                f"{row.case} on {row.fabric}, replaced by {row.method}: interruption of the job",
                fmt.milliseconds(found.median),
                f"iteration after / before {fmt.ratio(_slowdown(row))}, theory {fmt.ratio(row.predicted_slowdown)}",
                f"{_ms(found.least)} to {_ms(found.most)}, {found.n} runs" if known else SPREAD_UNKNOWN,
                row.verdict,
            )

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        rows = analysis.replacement_rows
        return {
            "steps": [replacement_steps_table(rows), iterations_table(rows), spread_table(rows)],
            "plots": recovery.replacements(analysis.run.events),
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        if analysis.replacement_rows:
            console.print(replacements_table(analysis.replacement_rows).to_terminal())

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        return {"replacements": [row.as_dict() for row in analysis.replacement_rows]}


_ms = fmt.or_dash(fmt.milliseconds)
_NAMES = (text("case"), text("way", "method"), *texts("fabric", "failed"))


def _median(title: str, field: str, show: Callable[[Any], str], group: str = "") -> Column:
    return Column(title, lambda row: row.medians[field], show, group=group)


def replacement_steps_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return the replacement of each failure, its steps from the fault on, and its cost."""
    columns = (
        *_NAMES,
        *(text("replaced by"), text("fidelity", "verdict")),
        *(Column("n"), _median("detected", "detect_ms", _ms)),
        *(_median("links off", "optical_links_down_ms", _ms), _median("replaced", "replaced_ms", _ms)),
        _median("interruption", "interruption_ms", _ms),
        *(_median("iterations lost", "iterations_lost", "{:g}".format), _median("moved", "moved_bytes", fmt.size)),
    )
    return Table(columns, rows)


def _slowdown(row: ReplacementRow) -> float | None:
    """Return an iteration's time after the replacement over that before; None if one of them is invalid."""
    return None if row.verdict == "invalid" else row.slowdown


def iterations_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return times of the state transfer and of an iteration, beside the model."""
    transfer, iteration = "state transfer", "iteration time"
    columns = (
        *_NAMES,
        _median("measured", "state_transfer_ms", _ms, transfer),
        _median("predicted", "state_transfer_predicted_ms", _ms, transfer),
        _median("before", "before_s", fmt.seconds, iteration),
        _median("predicted", "before_predicted_s", fmt.seconds, iteration),
        _median("after", "after_s", fmt.seconds, iteration),
        _median("predicted", "after_predicted_s", fmt.seconds, iteration),
        Column("after / before", _slowdown, fmt.ratio, group=iteration),
        Column("predicted", "predicted_slowdown", fmt.ratio, group=iteration),
    )
    return Table(columns, rows)


def spread_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return a row for each figure: median and 95th percentile with their 95% confidence intervals."""

    def of_first(column: Column) -> Column:
        return replace(column, value=lambda x: column.get(x[0]))

    columns = (
        *map(of_first, _NAMES),
        text("figure", lambda x: stats.SPREAD_COLUMNS[x[1]]),
        Column("n", lambda x: x[2].n),
        Column("median", lambda x: stats.median_and_p95(x[2])[0]),
        Column("p95", lambda x: stats.median_and_p95(x[2])[1]),
    )
    return Table(columns, [(row, name, found) for row in rows for name, found in row.figures.items()])


def replacements_table(rows: Sequence[ReplacementRow]) -> Table:
    """Return medians for the terminal; the failed part where rows differ in that alone."""
    alike = Counter((row.case, row.method, row.fabric) for row in rows)
    columns = (
        *_NAMES[:3],
        text("failed", lambda r: r.failed if alike[r.case, r.method, r.fabric] > 1 else ""),
        Column("replaced\nms", lambda r: stats.median_p95_ms(r.figures["replaced_ms"])),
        Column("interruption\nms", lambda r: stats.median_p95_ms(r.figures["interruption_ms"])),
        _median("iter.\nlost", "iterations_lost", "{:g}".format),
        _median("moved", "moved_bytes", fmt.size),
        _median("iteration\nbefore", "before_s", fmt.seconds),
        _median("after", "after_s", fmt.seconds),
        Column("after /\nbefore", _slowdown, fmt.ratio),
        Column("pre-\ndicted", "predicted_slowdown", fmt.ratio),
        Column("fidelity", lambda r: "" if r.verdict == "ok" else r.verdict),
    )
    return Table(columns, rows, "GPU and domain replacements (median / p95; else medians)").without_empty()
