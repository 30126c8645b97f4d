"""`cost` on the command line: Table II by one call, each price, and one line for what can't be built."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments import cli
from railyard.results.published.figures.rail_only import table2
from tests.unit.experiments.command_errors import command_errors

TABLE_2 = ["--gpus", "32768,65536", "--domain-gpus", "256", "--radix", "64,128,256"]


def rows(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a command as JSON."""
    assert cli.main(["cost", *arguments, "--json"]) == 0
    loaded: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return loaded


def test_table_2_is_a_single_call(capsys: pytest.CaptureFixture[str]) -> None:
    by_design = {(row["gpus"], row["radix"], row["design"]): row for row in rows(capsys, TABLE_2)}
    assert len(by_design) == 3 * len(table2.printed())
    for printed in table2.printed():
        wide = by_design[printed.gpus, printed.radix, "rail-optimized"]
        narrow = by_design[printed.gpus, printed.radix, "rail-only"]
        assert wide["switches"] == printed.switches_rail_optimized
        assert narrow["switches"] == printed.switches_rail_only
        assert wide["transceivers"] == printed.transceivers_rail_optimized
        assert narrow["transceivers"] == printed.transceivers_rail_only
        assert narrow["usd_saved_pct"] == pytest.approx(printed.cost_saving_pct, abs=0.5)
        assert narrow["w_saved_pct"] == pytest.approx(printed.power_saving_pct, abs=0.5)
        assert narrow["least_saved_pct"] <= narrow["usd_saved_pct"] <= narrow["most_saved_pct"]


def test_1024_h100_save_a_tier_from_128_ports_on(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 128 GPUs a rail are two switches' worth of 64 ports, and one of 128."""
    assert cli.main(["cost", "--gpus", "1024"]) == 0
    small = capsys.readouterr().out
    assert "128 ports" in small
    assert f"{100 * 128 * 7 / (8 * 127 * 9):.1f}% longer (h100" in small
    wide, narrow, planes = rows(capsys, ["--gpus", "1024", "--radix", "128"])
    assert (wide["switches"], narrow["switches"], planes["switches"]) == (24, 8, 8)
    assert wide["cost_usd"] == 24 * 128 * 694 + 4096 * 199
    assert narrow["power_w"] == 8 * 128 * 18 + 2048 * 9


def test_own_prices_replace_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--port-usd", "1", "--transceiver-usd", "0", "--port-w", "0", "--transceiver-w", "2"]
    wide, narrow, _ = rows(capsys, ["--gpus", "1024", "--radix", "128", *prices])
    assert (wide["cost_usd"], wide["power_w"]) == (24 * 128, 4096 * 2)
    assert narrow["usd_saved_pct"] == pytest.approx(narrow["most_saved_pct"])
    assert narrow["w_saved_pct"] == pytest.approx(narrow["least_saved_pct"])


def test_shared_nics_are_as_many_fewer_ports(capsys: pytest.CaptureFixture[str]) -> None:
    """1,024 GPUs, two to a NIC, in HB domains of 8 need what 512 GPUs in HB domains of 4 do."""
    shared = rows(capsys, ["--gpus", "1024", "--gpus-per-nic", "2"])
    alone = rows(capsys, ["--gpus", "512", "--domain-gpus", "4"])
    names = ("design", "tiers", "switches", "transceivers", "cost_usd", "power_w")
    assert [[row[name] for name in names] for row in shared] == [[row[name] for name in names] for row in alone]
    assert {(row["gpus"], row["domain_gpus"]) for row in shared} == {(1024, 8)}


@pytest.mark.parametrize(("platform", "rate"), [("a100", "200 Gbit/s"), ("h100", "")])
def test_note_says_where_a_nic_has_another_rate(platform: str, rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", "--gpus", "1024", "--platform", platform]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: prices")]
    assert (f"has {rate}" in note) == bool(rate)


IMPOSSIBLE = {
    "part of an HB domain": ["--gpus", "1000", "--domain-gpus", "64"],
    "fewer than an HB domain": ["--gpus", "4"],
    "NICs of other domains": ["--gpus", "1024", "--gpus-per-nic", "3"],
    "odd radix": ["--gpus", "1024", "--radix", "63"],
    "radix too small": ["--gpus", "1024", "--radix", "2"],
    "no number": ["--gpus", "1k"],
    "thousands of digits": ["--gpus", 5000 * "9"],
    "nothing between commas": ["--gpus", "1024,,2048"],
    "nothing has a price": ["--gpus", "1024", "--port-usd", "0", "--transceiver-usd", "0"],
    "negative price": ["--gpus", "1024", "--port-usd", "-1"],
    "price without end": ["--gpus", "1024", "--port-usd", "inf"],
    "no GPUs": ["--radix", "64"],
}


def test_impossible_cluster_is_one_line(
    capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    data_regression.check(command_errors(capsys, {case: ["cost", *words] for case, words in IMPOSSIBLE.items()}))
