"""Tables on a narrow terminal: every name and number is whole."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.console import Console

from railyard.core.terminal import FittingTable
from railyard.experiments import cli
from railyard.experiments.predict.output import Predicted
from railyard.results.format import rows_with_room
from tests.unit.sample_runs import sample_run
from tests.unit.shown import screen

_WORD = st.text("abcdefghijklmnop0123456789.,-", min_size=1, max_size=14)
_TEXT = st.lists(_WORD, min_size=1, max_size=4).map(" ".join)


def printed(table: FittingTable, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().splitlines()


@given(
    st.lists(st.tuples(_TEXT, *[_WORD] * 6, _TEXT), min_size=1, max_size=5),
    st.sampled_from([40, 60, 80, 100]),
    st.booleans(),
)
def test_no_word_is_cut_and_no_line_too_long(rows: list[tuple[str, ...]], width: int, boxed: bool) -> None:
    look = {"box": SIMPLE_HEAD, "show_edge": False, "collapse_padding": True} if boxed else {"box": None}
    table = FittingTable(pad_edge=False, padding=(0, 1), **look)
    for n in range(8):
        table.add_column(f"column {n}", justify="right" if 0 < n < 7 else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    lines = printed(table, width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {word for row in rows for cell in row for word in cell.split()} <= words


def test_narrow_table_repeats_the_columns_that_name_a_row() -> None:
    table = FittingTable(box=None, pad_edge=False, title="costs", caption="sources")
    for name in ("gpus", "radix", "design", "switches", "transceivers", "cost_usd", "power_w"):
        table.add_column(name, justify="right")
    for radix in ("64", "128"):
        for design in ("rail-only", "rail-optimized"):
            table.add_row("32,768", radix, design, "2,560", "196,608", "152,829,952", "4,718,592")
    assert len(printed(table, 100)) == 7
    lines = printed(table, 60)
    assert sum("rail-optimized" in line for line in lines) == 4
    assert [line.split()[3:] for line in lines if "design" in line] == [
        ["switches", "transceivers"],
        ["cost_usd", "power_w"],
    ]
    assert [number for number, line in enumerate(lines) if "costs" in line] == [0]
    assert [number for number, line in enumerate(lines) if "sources" in line] == [len(lines) - 1]


def test_column_without_any_text_is_printed_beside_others() -> None:
    table = FittingTable(box=None, pad_edge=False)
    table.add_column("fault")
    table.add_column("")
    table.add_row("link-down at d0g1", "")
    assert [line.rstrip() for line in printed(table, 60)] == ["fault", "link-down at d0g1"]


@pytest.mark.parametrize(
    "line", ["list", "search gpt-1t --gpus 3072 --batch 3072", "predict table2", "predict moe-slowdown"]
)
def test_commands_cut_nothing_at_80_columns(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every name and number of a wide terminal is whole on one of 80 columns, where tables fit the width."""
    monkeypatch.setattr(Predicted, "save", lambda *_: ())  # figures take seconds
    monkeypatch.setattr(Console, "status", lambda *_, **__: nullcontext())  # on a slow machine it would be printed
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = {}
    for columns in (400, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(line.split()) == 0
        shown[columns] = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    words = {columns: Counter(re.findall(r"[^\s─]+", text)) for columns, text in shown.items()}
    assert sorted((words[400] - words[80]).elements()) == []
    assert shown[80].count("…") == shown[400].count("…")
    rows = [row for row in shown[80].splitlines() if re.search(r"\S {2,}\S", row)]
    assert rows
    assert max(map(len, rows)) <= 80


def headings(lines: Sequence[str], keys: str) -> str:
    """Return the words of a table's headings, block after block, without those of its key columns."""
    rules = [number for number, line in enumerate(lines) if line.startswith("──")]
    rows = [lines[number - 1] for number in rules]
    return " ".join(" ".join(re.sub(rf"^{keys}", "", row).split()) for row in rows if re.match(keys, row))


@pytest.mark.parametrize("width", [60, 100, 160])
def test_summary_has_every_column_at_every_width(width: int) -> None:
    """A table of a wide screen is split on a narrow one: all of its columns are there, in order, in lines that fit."""
    run = sample_run(repeats=1)
    run.measurements = [replace(row, predicted_with_latency=row.predicted) for row in run.measurements]
    lines = screen(run, width)
    assert headings(lines, "workload") == "rail-only m/p m/pl rail-optimized m/p m/pl difference formula"
    recovery = ["n", "detected", "installed", "1st", "packet", "ms", "target", "ms", "goodput", "lost", "no", "reroute"]
    assert headings(lines, "fault +fabric").split() == recovery
    assert max(map(len, lines)) <= width
    assert "m/pl: predicted with" in " ".join(" ".join(lines).split())
    # each mark stands below the heading of targets
    for number, line in enumerate(lines):
        if re.match(r"(link-down|rail-switch-crash|gpu-crash).*[✓✗]", line):
            heading = next(line for line in reversed(lines[:number]) if line.startswith("fault "))
            assert "target ms" in heading


def test_last_row_takes_the_place_of_a_note_about_it() -> None:
    assert [len(rows_with_room(range(count), 7)) for count in (0, 7, 8, 9)] == [0, 7, 8, 7]
