"""The terminal view of a live run."""

from rich.console import Console

from railyard.experiments.commands import watch
from railyard.experiments.live.sampler import LinkSample
from tests.unit.stand_ins import plan_of


def test_a_row_for_each_node_and_the_dead_links() -> None:
    plan, out = plan_of(rail_rate="100Mbit"), Console(width=80, record=True)
    samples = [
        LinkSample(link.a.node != "d0g1" or link.kind == "hb", 500 if link.kind == "rail" else 0, 250, 9000, 2)
        for link in plan.links
    ]
    out.print(watch.view("mine", plan.links, samples))
    lines = out.export_text().splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["NODE", "hb0", "hb1", "rail0", "rail1"]
    assert lines[4].split()[1:4] == ["2", "of", "2"]
    assert "100Mbit" in lines[4]
    assert lines[-1] == "no carrier: d0g1:rail0"
    assert "50%" in lines[-3]


def test_an_idle_fabric_has_no_units() -> None:
    plan, out = plan_of(), Console(width=80, record=True)
    out.print(watch.view("mine", plan.links, [LinkSample(True, 0, 0, 0, 0)] * len(plan.links)))
    text = out.export_text()
    assert "0bit" not in text
    assert "no carrier" not in text
