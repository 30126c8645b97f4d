"""`predict busbw`: rows in nccl-tests' columns, which `check` reads; constants of an own output; bad options."""

import csv
import json
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments import cli
from railyard.results.theory.collectives.fit import links_of, platform_constants
from railyard.results.theory.collectives.times import OPERATIONS, bus_factor, collective_s
from railyard.topologies.platforms import PLATFORMS
from railyard.workloads.cluster.reading import read
from tests.unit.experiments.command_errors import command_errors

BUSBW = ["predict", "busbw"]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Write what nccl-tests would print on 2 x 4 H100 whose NICs give a tenth of their rate."""
    links = links_of(PLATFORMS["h100"])
    slow = links_of(PLATFORMS["h100"].model_copy(update={"rail_bps": PLATFORMS["h100"].rail_bps // 10}))
    lines = ["$ all_reduce_perf -b 1M -e 1G -f 2", "# Using devices"]
    for rank in range(8):
        lines.append(f"#  Rank  {rank} Group  0 Pid  {rank} on  node{rank // 4} device  {rank % 4} [0x10] NVIDIA H100")
    for exponent in range(20, 31):
        seconds = float(collective_s("all-reduce", 2**exponent, 4, 2, slow, platform_constants("h100")))
        busbw = float(bus_factor("all-reduce", 8)) * 2**exponent / seconds / 1e9
        lines.append(f" {2**exponent} {2**exponent // 4} float sum -1 {1e6 * seconds:.2f} 0.00 {busbw:.2f} 0")
    assert links != slow
    (tmp_path / "out.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "out.txt"


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, float]]:
    """Return the rows of the command as JSON."""
    assert cli.main([*BUSBW, "--json", *arguments]) == 0
    loaded: list[dict[str, float]] = json.loads(capsys.readouterr().out)["rows"]
    return loaded


def test_rows_are_an_output_of_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BUSBW, "--platform", "a100", "--gpus", "8", "--out", str(tmp_path)]) == 0
    (tmp_path / "out.txt").write_text(capsys.readouterr().out)
    bandwidths = read([str(tmp_path / "out.txt")]).bandwidths
    assert [row.bytes for row in bandwidths] == [2**exponent for exponent in range(20, 35)]
    assert {row.collective for row in bandwidths} == {"all-reduce"}
    assert bandwidths[10].bus_bps / 8e9 == pytest.approx(229, rel=0.03)  # 1 GiB as measured on 8 A100s
    with (tmp_path / "busbw.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 15
    assert (tmp_path / "busbw.png").stat().st_size > 5000


def test_ideal_form_is_the_full_rate(capsys: pytest.CaptureFixture[str]) -> None:
    ideal = rows(capsys, "--form", "ideal", "--gpus", "8")
    assert {round(row["busbw_gb_s"]) for row in ideal} == {450}
    assert all(row["low_us"] == row["time_us"] == row["high_us"] for row in ideal)


def test_forwarding_costs_an_all_to_all_time(capsys: pytest.CaptureFixture[str]) -> None:
    direct = rows(capsys, "--collective", "all-to-all", "--gpus", "64")
    forwarded = rows(capsys, "--collective", "all-to-all", "--gpus", "64", "--forwarding")
    assert all(1 < b["time_us"] / a["time_us"] < 1.25 for a, b in zip(direct, forwarded, strict=True))


@pytest.mark.parametrize("collective", OPERATIONS)
def test_wide_domains_are_said_to_be_extrapolated(
    collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two NVL72 by their short name have the constants of their links, and all collectives have rows."""
    options = ["--gpus", "144", "--collective", collective]
    short = rows(capsys, "--platform", "gb200", *options)
    assert short == rows(capsys, "--platform", "gb200-nvl72", *options)
    assert all(row["busbw_gb_s"] < row["ideal_busbw_gb_s"] * 1.3 for row in short)
    assert cli.main([*BUSBW, "--platform", "gb200", *options, "--out", str(tmp_path)]) == 0
    notes = capsys.readouterr().out
    assert "72 are extrapolated" in notes
    assert "constants of b200" in notes
    assert (f"{collective} is extrapolated" in notes) == (collective != "all-reduce")


def test_own_output_sets_the_constants(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's GPUs and hosts are the default; its slow NICs are found, and cost more hosts too."""
    own = rows(capsys, "--nccl", str(output))
    measured = {row.bytes: row.bus_bps / 8e9 for row in read([str(output)]).bandwidths}
    for row in own:
        if row["size_bytes"] in measured:
            assert row["busbw_gb_s"] == pytest.approx(measured[int(row["size_bytes"])], rel=0.05)
    more = rows(capsys, "--nccl", str(output), "--gpus", "32")
    assert more[-1]["time_us"] > 1.5 * own[-1]["time_us"]
    assert own[-1]["low_us"] < own[-1]["time_us"] < own[-1]["high_us"]


def test_bad_options_are_one_line(
    output: Path, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    no_ranks = output.with_name("rows.txt")
    no_ranks.write_text("$ all_reduce_perf\n 1048576 262144 float sum -1 30.00 30.00 60.00 0\n")
    cases = {
        "part of an HB domain": [*BUSBW, "--gpus", "20"],
        "unknown collective": [*BUSBW, "--collective", "all-reduces"],
        "unknown form": [*BUSBW, "--form", "idle"],
        "forwarding of an all-reduce": [*BUSBW, "--forwarding"],
        "no file": [*BUSBW, "--nccl", "none.txt"],
        "no ranks": [*BUSBW, "--nccl", str(no_ranks)],
        "no rows of the collective": [*BUSBW, "--nccl", str(output), "--collective", "all-gather"],
        "option of another prediction": ["predict", "fig8", "--gpus", "64"],
        "override": [*BUSBW, "-o", "domains=3"],
    }
    data_regression.check(command_errors(capsys, cases, names={str(output.parent): "FOLDER"}))
