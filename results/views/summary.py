"""The run in short: summary.json, and one screen in the terminal."""

from typing import Any, Final

from rich.console import Console
from rich.text import Text

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.targets import missed_targets
from railyard.results.views import format as fmt
from railyard.results.views.report import sections

_COLOUR: Final = {"ok": "green", "degraded": "yellow", "invalid": "red"}
_MAX_REASONS: Final = 3


def summarise(analysis: Analysis) -> dict[str, Any]:
    """Return the content of summary.json: verdict, reasons, checks and headline figures. Times in s, rates in bit/s."""
    run, judgement = analysis.run, analysis.judgement
    headline: dict[str, Any] = {}
    for _, section in sections():
        headline |= section.summary(analysis)
    return {
        "name": run.name,
        "title": run.spec.get("title", run.name),
        "started_utc": run.started_utc,
        "duration_s": run.duration_s,
        "seed": run.spec.get("seed"),
        "interrupted": run.interrupted,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "findings": [f.as_dict() for f in judgement.evidence if f.verdict != "ok"],
        "intervals": [{**interval.as_dict(), "verdict": verdict} for interval, verdict in judgement.intervals.items()],
        "passed": analysis.passed,
        "checks": [check.as_dict() for check in analysis.checks],
        "targets_missed": missed_targets(analysis.target_outcomes),
        "headline": headline,
    }


def print_summary(analysis: Analysis, console: Console) -> None:
    """Print the same on one screen of 100 columns by 40 lines; what doesn't fit is in report.html."""
    run, judgement = analysis.run, analysis.judgement
    state = " [bold red]interrupted[/]" if run.interrupted else ""
    verdict = f"[bold {_COLOUR[judgement.verdict]}]{judgement.verdict}[/]"
    console.print(f"[bold]{run.name}[/]{state}  fidelity {verdict}  {fmt.seconds(run.duration_s)}", highlight=False)
    for reason in judgement.reasons[:_MAX_REASONS]:
        console.print(Text(f"  {reason}"), no_wrap=True, overflow="ellipsis", highlight=False)
    if len(judgement.reasons) > _MAX_REASONS:
        console.print(f"  … and {len(judgement.reasons) - _MAX_REASONS} more", highlight=False)
    for _, section in sections():
        section.show(analysis, console)
    for check in analysis.checks:
        mark = Text("✓ ", style="green") if check.passed else Text("✗ ", style="bold red")
        line = Text.assemble(mark, check.name, (f": {check.detail}", "dim"))
        console.print(line, no_wrap=True, overflow="ellipsis", highlight=False)
    measured = [o for o in analysis.target_outcomes if o.met is not None and not o.target.claim]
    if measured:
        names = missed_targets(measured)
        line = Text(f"recovery targets met: {len(measured) - len(names)} of {len(measured)}")
        line.append(f"; not: {'; '.join(names)}" if names else "", "bold red")
        console.print(line, no_wrap=True, overflow="ellipsis", highlight=False)
