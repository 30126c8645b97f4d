"""Failure scripts in the report."""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from railyard.core.records import ConnectivityCheck, Recovery
from railyard.experiments.measures.faults import analysis as stats
from railyard.experiments.measures.faults.analysis import ScriptRow, checks_text
from railyard.experiments.measures.faults.script_plot import script_timeline
from railyard.experiments.measures.faults.tables import CONTROLLER_STEPS
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
            done = [check for check in _checks_of(runs) if check.done]
            if done:
                suffix = ", reroute off" * (reroute == "off")
                title = f"{script} on {fabric}{suffix}: connectivity checks as the oracle expects"
                repeats_text = f"{len(runs)} repeats" * (len(runs) > 1)
                yield Card(title, f"{stats.matching_checks(done)} of {len(done)}", "", repeats_text)

    def parts(self, analysis: Analysis) -> dict[str, Any]:
        """Return the table of scripts, the checks that failed, and the worst repeats, drawn."""
        drawn = []
        failed = stats.failed_checks(analysis.run)
        columns = (
            *texts("script", "fabric"),
            *(text("after", "last_event"), text("what", lambda c: "; ".join(c.mismatches.splitlines()))),
            *map(Column, ("repeat", "broken", "pairs", "reachable", "answered", "not recovered", "unexpected answers")),
            Column("failed parts forwarding", "forwarding_failed_parts"),
        )
        for script, repeats in worst_repeats(stats.script_rows(analysis)):
            name = f"{script.script} on {script.fabric}, reroute {script.reroute}, repeat {script.repeat}"
            if repeats > 1:
                name += f", the worst of {repeats}"
            drawn.append((name, script_timeline(script), script_faults_table(script)))
        return {
            "scripts": scripts_table(stats.script_rows(analysis), analysis.judgement),
            "failed_checks": Table(columns, failed),
            "drawn": drawn,
        }

    def show(self, analysis: Analysis, console: Console) -> None:
        """Print a line a script and fabric, its repeats together."""
        rows = sorted(stats.script_rows(analysis), key=lambda s: (s.script, s.fabric, s.reroute))
        for (script, fabric, reroute), runs in grouped(rows, "script", "fabric", "reroute").items():
            line = Text.assemble(f"{script} on {fabric}, reroute {reroute}: ", (_outcome_text(runs), "bold"))
            console.print(line, highlight=False)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        """Return a row for each script, fabric and repeat."""
        return {"scripts": scripts_table(stats.script_rows(analysis), analysis.judgement).to_dicts()}


def _checks_of(runs: Sequence[ScriptRow]) -> list[ConnectivityCheck]:
    """Return the connectivity checks of several runs of a script."""
    return list(chain.from_iterable(run.connectivity_checks for run in runs))


def _outcome_text(runs: Sequence[ScriptRow]) -> str:
    """Return faults, connectivity checks and losses of the repeats of a script in a few words."""
    faults = 0
    lost_bytes = 0
    lost_after_repair = 0
    for run in runs:
        faults += len(run.faults)
        lost_bytes += run.lost_bytes
        lost_after_repair += run.probes_lost_after_repair
    outcome = f"{faults} faults (n={len(runs)}), "
    checks = _checks_of(runs)
    if checks:
        outcome += f"connectivity checks: {checks_text(checks)}; "
    outcome += f"{fmt.size(lost_bytes)} lost"
    if lost_after_repair:
        outcome += f", {lost_after_repair} probes lost after repairs"
    return outcome


def scripts_table(scripts: Sequence[ScriptRow], judgement: Judgement) -> Table:
    """Return a row a script, fabric and repeat."""

    def slowest(script: ScriptRow) -> str:
        recovered = [fault for fault in script.faults if fault.first_packet_ms is not None]
        if not recovered:
            return fmt.NOTHING
        fault = max(recovered, key=attrgetter("first_packet_ms"))
        return f"{fmt.milliseconds(fault.first_packet_ms)}: {fault.fault} {fault.target}"

    def until_repair(script: ScriptRow) -> int:
        return sum(fault.first_packet_ms is None and fault.is_probed for fault in script.faults)

    def checks(script: ScriptRow) -> str | None:
        if not script.connectivity_checks:
            return None
        return checks_text(script.connectivity_checks)

    def done(script: ScriptRow) -> int:
        return sum(check.done for check in script.connectivity_checks)

    def connections_lost(script: ScriptRow) -> int:
        # each fault has those of the whole script
        return max((fault.connections_lost for fault in script.faults), default=0)

    columns = (
        text("script", key="script"),
        text("fabric", key="fabric"),
        text("reroute", key="reroute"),
        text("fidelity", lambda s: stats.verdict(s.faults, judgement), key="verdict"),
        Column("repeat", key="repeat"),
        Column("faults", lambda s: len(s.faults), key="faults"),
        Column("until their repair", until_repair),
        Column("slowest first packet", slowest),
        Column("connectivity checks", checks),
        Column("", lambda s: len(s.connectivity_checks), key="connectivity_checks"),
        Column("", done, key="connectivity_checks_done"),
        Column("", lambda s: stats.matching_checks(s.connectivity_checks), key="connectivity_checks_passed"),
        Column("lost after repair", "probes_lost_after_repair", key="probes_lost_after_repair"),
        Column("bytes lost", "lost_bytes", fmt.size, key="lost_bytes"),
        Column("conns lost", connections_lost, key="connections_lost"),
    )
    return Table(columns, scripts)


def script_faults_table(script: ScriptRow) -> Table:
    """Return every fault of one repeat of a script, in the order of time."""
    zero_ns = min((fault.t_fault for fault in script.faults), default=0)
    alone = script.repaired_alone

    def lost_after_repair(fault: Recovery) -> int | None:
        if fault not in alone:
            return None
        return fault.probes_lost_after_repair

    columns = (
        *texts("fault", "target"),
        Column("at", lambda r: (r.t_fault - zero_ns) / 1e9, unit="s"),
        Column("for", lambda r: (r.t_repair - r.t_fault) / 1e9, unit="s"),
        *CONTROLLER_STEPS,
        Column("first packet", first_packet_text),
        Column("probes lost"),
        Column("after repair", lost_after_repair),
    )
    return Table(columns, script.faults)


def worst_repeats(scripts: Sequence[ScriptRow]) -> Iterator[tuple[ScriptRow, int]]:
    """Yield the worst repeat of each script on each fabric, with rerouting and without, and how many there were.

    The worst has the worst connectivity check (mismatches, then fewest answers), then the slowest first packet.
    """

    def severity(script: ScriptRow) -> tuple[float, float, float]:
        worst_check = (0.0, -inf)
        for check in script.connectivity_checks:
            if check.done:
                worst_check = max(worst_check, (float(check.mismatch_count), -float(check.answered)))
        slowest_ms = 0.0
        for fault in script.faults:
            if fault.is_probed:
                first_ms = inf if fault.first_packet_ms is None else fault.first_packet_ms
                slowest_ms = max(slowest_ms, first_ms)
        return (*worst_check, slowest_ms)

    for group in grouped(scripts, "script", "fabric", "reroute").values():
        yield max(group, key=severity), len(group)
