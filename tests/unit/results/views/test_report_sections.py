"""Report sections: a section of a plugin, and what a definition must have. Tables in their three renderings."""

import re
from io import StringIO
from operator import itemgetter
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from railyard.core import plugins
from railyard.core.plugins import BadDefinition
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.results.views.report import SECTIONS, Section, section, sections
from railyard.results.views.table import Column, Table, text
from tests.emulation.programs import ROOT
from tests.unit.sample_runs import sample_run
from tests.unit.shown import print_summary, render, summarise

pytestmark = pytest.mark.usefixtures("figures_as_text")


def test_section_of_a_plugin_is_in_all_three_views() -> None:
    plugins.load(ROOT / "docs/examples/link_errors.py")
    run = sample_run(2, 2, 1)
    run.records[GOODPUT.name], run.records[RECOVERIES.name], run.flows = [], [], []  # fewer figures to draw
    page = render(run)
    (table,) = re.findall(r'<section id="link-errors">\s*<h2>Link errors</h2>(.*?)</section>', page, re.DOTALL)
    assert table.count("<tr>") == 1 + len(run.links)
    assert page.count('<a href="#link-errors">Link errors</a>') == 1
    assert page.index('id="workloads"') < page.index('id="link-errors"') < page.index('id="fidelity"')
    rows = summarise(run)["headline"]["link_errors"]
    assert rows == sorted(rows, key=itemgetter("error"), reverse=True)
    assert len(rows) == len(run.links)
    out = StringIO()
    print_summary(run, Console(file=out, width=100))
    assert "worst link: " in out.getvalue()


def test_section_without_title_or_template_is_refused() -> None:
    class Untitled(Section):
        """Nothing."""

        template: ClassVar[str] = "none.html.j2"

    with pytest.raises(BadDefinition, match=r"title is missing; template none\.html\.j2"):
        section("untitled")(Untitled)
    assert "untitled" not in SECTIONS


def test_built_in_sections_have_distinct_orders_and_titles() -> None:
    orders = [definition.order for _, definition in sections()]
    titles = [definition.title for _, definition in sections()]
    assert len(set(orders)) == len(set(titles)) == len(titles)


@given(st.lists(st.tuples(st.text(), st.none() | st.floats(0, 1e9))))
def test_renderings_of_a_table_agree(rows: list[tuple[str, float | None]]) -> None:
    columns = (
        text("name", lambda x: x[0], key="name"),
        Column("time", lambda x: x[1], unit="s", key="time_s"),
        Column("", lambda x: len(x[0]), key="length"),
    )
    table = Table(columns, rows)
    assert table.to_dicts() == [{"name": name, "time_s": time, "length": len(name)} for name, time in rows]
    assert [column.title for column in table.shown] == ["name", "time"]
    assert table.to_html().count("<td") == 2 * len(rows)
    assert table.to_terminal().row_count == len(rows)


@pytest.mark.parametrize(
    ("width", "blocks"),
    [
        (16, [["first"], ["second"], ["third"]]),
        (30, [["first"], ["second", "third"]]),
        (100, [["first", "second", "third"]]),
    ],
)
def test_narrow_terminal_splits_the_table_and_keeps_every_column(width: int, blocks: list[list[str]]) -> None:
    columns = (
        text("key", lambda _: "k"),
        Column("first", lambda _: "x" * 9),
        Column("second", lambda _: "y" * 9, together="pair"),
        Column("third", lambda _: "z" * 9, together="pair"),
        Column("report", lambda _: "x", on_terminal=False),
    )
    table = Table(columns, [None])
    out = StringIO()
    Console(file=out, width=width).print(table.to_terminal())
    titles = [line.split() for line in out.getvalue().splitlines() if "key" in line]
    assert titles == [["key", *block] for block in blocks]
    assert table.to_html().count("<td") == 5


def test_never_is_red_only_for_a_failure() -> None:
    columns = (text("reroute", lambda row: row), Column("first packet", lambda row: None, lambda value: "never"))
    html = Table(columns, ["on", "off"], is_never_bad=lambda row: row == "on").to_html()
    assert re.findall(r'<td>(on|off)</td><td class="(n bad|n)">never', html) == [("on", "n bad"), ("off", "n")]
