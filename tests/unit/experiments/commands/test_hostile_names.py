"""Names in a run's records that would control a terminal, look like markup, or are HTML: they are shown as text."""

import dataclasses
import io
import json
import warnings
from typing import Any

import pytest
from rich.table import Table

from railyard.experiments import cli
from railyard.experiments.commands import ps
from railyard.experiments.options import PrintableConsole
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.views import report
from tests.unit.sample_runs import sample_run

pytestmark = pytest.mark.usefixtures("figures_as_text")

HOSTILE = "[/x]\x1b]0;title\x07\u202e<img src=x onerror=alert(1)>"
SHOWN = "[/x]\\x1b]0;title\\x07\\u202e<img src=x onerror=alert(1)>"
NAMES = {"quickstart", "gpt", "link-down", "rail1", "rail-only", "Rail-only beside rail-optimized"}


def with_names(data: Any) -> Any:
    """Return the records with `HOSTILE` after every text that is one of `NAMES`."""
    if isinstance(data, str):
        return data + HOSTILE if data in NAMES else data
    if isinstance(data, dict):
        return {with_names(key): with_names(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(with_names(item) for item in data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = [f.name for f in dataclasses.fields(data) if f.init]
        return dataclasses.replace(data, **{field: with_names(getattr(data, field)) for field in fields})
    return data


def test_names_in_records_are_text_in_summary_and_report() -> None:
    sink = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # characters that the font of a plot lacks
        analysis = Analysis(with_names(sample_run(2, 2, 1)))
        report.print_summary(analysis, PrintableConsole(file=sink, width=120))
        html = report.render(analysis)
    assert not set("\x1b\x07\u202e") & set(sink.getvalue())
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


@pytest.mark.parametrize("text", [HOSTILE, "[/]", "[bold", "[link=file:///etc]a", "[rail 1]", "a\nb", "104.3\u00a0s"])
def test_terminal_shows_any_text_unchanged(text: str) -> None:
    """In a line and in a table, and still with colours where the terminal has some."""
    table = Table()
    table.add_column(text, no_wrap=True)
    table.add_row(text)
    for shown in (text, table):
        sink = io.StringIO()
        PrintableConsole(file=sink, width=200).print(shown, highlight=False)
        for line in text.replace(HOSTILE, SHOWN).split("\n"):
            assert line in sink.getvalue()
    coloured = io.StringIO()
    PrintableConsole(file=coloured, force_terminal=True, color_system="standard").print(f"[bold red]a[/] {HOSTILE}")
    assert coloured.getvalue().startswith("\x1b[1;31ma\x1b[0m ")
    assert "\x1b]" not in coloured.getvalue()


def test_ps_prints_runs_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        ps.LiveRun("quickstart", "a", "/r/a", 7, "ada", 1.5),
        ps.LiveRun("x", "b", "/r/b", 8, "bob", 0.0, refused="no"),
    ]
    monkeypatch.setattr(ps, "find", lambda: runs)
    assert cli.main(["ps", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == {
        "name": "a", "experiment": "quickstart", "pid": 7, "user": "ada", "started_s": 1.5, "where": "/r/a",
        "refused": "", "nodes": [],
    }  # fmt: skip
    assert second["refused"] == "no"


def test_only_plain_names_of_runs_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user chooses the name of a run, and root's shell takes what is completed as typed."""
    odd = ["a b", "$(reboot)", "`reboot`", "a;reboot", "a|b", "~", "-o", "a\nb", "é", "", "a'b", "*", "a&", "{a,b}"]
    names = ["20261124T033000Z-quickstart", "shell-quick.start_2", *odd]
    monkeypatch.setattr(ps, "find", lambda: [ps.LiveRun("x", name, "/", 1, "user", 0.0) for name in names])
    assert ps.live_run_names() == names[:2]
