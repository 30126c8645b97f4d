"""Failure scripts in the report."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from rich.console import Console
from rich.text import Text

from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults import plot as fault_script
from railyard.experiments.measures.faults.analysis import ScriptRow, checks_text
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS
from railyard.experiments.measures.faults.section import CONTROLLER_STEPS
from railyard.experiments.measures.faults.texts import first_packet_text
from railyard.results import format as fmt
from railyard.results.analysis.aggregate import grouped
from railyard.results.analysis.fidelity import Judgement
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views.report import Card, Section
from railyard.results.views.table import Column, Table, text, texts


class ScriptsSection(Section):
    """Failure scripts: faults that overlap, with connectivity checks between them."""

    title = "Failure scripts"
    order = 62
    template = "scripts.html.j2"

    def applies(self, analysis: Analysis) -> bool:
        """Return True for a run with failure scripts."""
        return bool(stats.script_rows(analysis))

    def cards(self, analysis: Analysis) -> Iterator[Card]:
        """Yield the connectivity checks of each script on each fabric."""
        for (script, fabric, reroute), runs in grouped(
            stats.script_rows(analysis), "script", "fabric", "reroute"
        ).items():
            checks = [check for s in runs for check in s.connectivity_checks if check.done]
            if checks:
                matching = sum(not c.mismatch_count for c in checks)
                suffix = ", reroute off" * (reroute == "off")
                title = f"{script} on {fabric}{suffix}: connectivity checks as the oracle expects"
                yield Card(title, f"{matching} of {len(checks)}", "", f"{len(runs)} repeats" * (len(runs) > 1))

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the table of scripts, the checks that failed, and the worst repeats, drawn."""
        drawn = []
        failed = [c for c in analysis.run.rows(CONNECTIVITY_CHECKS) if c.done and c.mismatch_count]
        columns = (
            *texts("script", "fabric"),
            *(text("after", "last_event"), text("what", lambda c: "; ".join(c.mismatches.splitlines()))),
            *map(Column, ("repeat", "broken", "pairs", "reachable", "answered", "not recovered", "unexpected answers")),
            Column("failed parts forwarding", "forwarding_failed_parts"),
        )
        for script, repeats in worst_repeats(stats.script_rows(analysis)):
            count_text = f", the worst of {repeats}" if repeats > 1 else ""
            name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}{count_text}"
            drawn.append((name, fault_script.script_timeline(script), script_faults_table(script)))
        return {
            "scripts": scripts_table(stats.script_rows(analysis), analysis.judgement),
            "failed_checks": Table(columns, failed),
            "drawn": drawn,
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a line a script and fabric, its repeats together."""
        rows = sorted(stats.script_rows(analysis), key=lambda s: (s.script, s.fabric, s.reroute))
        for (script, fabric, reroute), runs in grouped(rows, "script", "fabric", "reroute").items():
            faults = sum(len(s.faults) for s in runs)
            lost = fmt.size(sum(s.lost_bytes for s in runs))
            checks = [check for s in runs for check in s.connectivity_checks]
            checks_summary = f"connectivity checks: {checks_text(checks)}; " if checks else ""
            returning = sum(s.probes_lost_after_repair for s in runs)
            return_text = f", {returning} probes lost after repairs" if returning else ""
            outcome = f"{faults} faults (n={len(runs)}), {checks_summary}{lost} lost{return_text}"
            line = Text.assemble(f"{script} on {fabric}, reroute {reroute}: ", (outcome, "bold"))
            console.print(line, highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return a row for each script, fabric and repeat."""
        return {"scripts": scripts_table(stats.script_rows(analysis), analysis.judgement).to_dicts()}


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
    zero = script.faults[0].t_fault if script.faults else 0
    alone = script.repaired_alone
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
