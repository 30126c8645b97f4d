"""The user's OpenFlow app of a run in the report: that it decided forwarding, and what it logged or raised."""

from pathlib import Path
from typing import Any

from rich.console import Console

from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import APP_FAILED, CONTROLLER
from railyard.results.views.report import Section, section
from railyard.results.views.table import Table, text


def _app_name(analysis: Analysis) -> str:
    """Return the name of the app's file; "" if Railyard's controller decided."""
    app: dict[str, str] = analysis.run.provenance.get(CONTROLLER) or {}
    return Path(app["file"]).name if app else ""


def _messages(analysis: Analysis) -> dict[str, int]:
    """Return what the app logged and raised, with how often at least: events come at 1, 10, 100, ... times."""
    messages: dict[str, int] = {}
    for event in analysis.run.events:
        if event.what == APP_FAILED:
            message = str(event.detail["text"])
            messages[message] = max(messages.get(message, 0), int(event.detail["times"]))
    return messages


@section("controller")
class _Controller(Section):
    """The user's OpenFlow app, and its warnings and exceptions."""

    title = "Controller"
    order = 8

    def applies(self, analysis: Analysis) -> bool:
        return bool(_app_name(analysis))

    def headline(self, analysis: Analysis) -> list[str]:
        return [_line(analysis)]

    def tables(self, analysis: Analysis) -> list[Table]:
        columns = (text("the app says", lambda row: row[0]), text("count, at least", lambda row: f"{row[1]:,}"))
        return [Table(columns, list(_messages(analysis).items()))]

    def show(self, analysis: Analysis, console: Console) -> None:
        if not self.applies(analysis):
            return
        console.print(_line(analysis), highlight=False, markup=False, soft_wrap=not console.is_terminal)
        for message, times in _messages(analysis).items():
            line = f"  {_app_name(analysis)}: {message} ({times:,} times or more)"
            console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)

    def summary(self, analysis: Analysis) -> dict[str, Any]:
        if not self.applies(analysis):
            return {}
        return {"controller": {"app": _app_name(analysis), "messages": _messages(analysis)}}


def _line(analysis: Analysis) -> str:
    return f"Forwarding at switches was decided by {_app_name(analysis)}, not by Railyard's controller."
