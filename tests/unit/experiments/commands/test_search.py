"""`search` on the command line: the fastest strategies, and one line for what can't be searched."""

from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments import cli
from railyard.experiments.commands.search import make_job
from railyard.results.theory.iteration.search import best_strategy, weigh
from tests.unit.experiments.command_errors import command_errors

JOB = ["search", "gpt-22b", "--gpus", "64", "--batch", "32"]


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The table: place, p, t, d, v, b, three pairs of three words, GB, seconds, and five terms."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line and line[0].isdigit() and len(line) == 6 + 9 + 2 + 5]


def test_the_fastest_come_first_and_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--top", "5"]) == 0
    found = rows(capsys)
    assert [row[0] for row in found] == ["1", "2", "3", "4", "5"]
    best = best_strategy(make_job("gpt-22b", "h100", 64, None, 32))
    assert float(found[0][16]) == pytest.approx(best.seconds, rel=1e-3)
    assert float(found[0][15]) == pytest.approx(best.gpu_bytes / 1e9, abs=0.1)
    times = [float(row[16]) for row in found]
    assert times == sorted(times)
    for row in found:
        p, t, d, _, b = map(int, row[1:6])
        across = [int(row[i]) * int(row[i + 2]) for i in (6, 9, 12)]
        assert across == [t, p, d]
        assert p * t * d == 64
        assert 32 % (d * b) == 0
        assert float(row[16]) == pytest.approx(sum(map(float, row[17:])), rel=2e-3)


def test_no_more_are_shown_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--top", "100000"]) == 0
    places = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.lstrip()[:1].isdigit()}
    assert len(places) == len(weigh(make_job("gpt-22b", "h100", 64, None, 32)).gpu_bytes)


def test_the_size_of_hb_domains_is_the_platform_s_unless_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_job("gpt-22b", "gb200-nvl72", 144, None, 4).cluster.domain_gpus == 72
    assert make_job("gpt-22b", "gb200-nvl72", 36, None, 4).cluster.domain_gpus == 36
    assert cli.main([*JOB, "--domain-gpus", "16", "--platform", "mi300x"]) == 0
    assert "on 64 GPUs (mi300x) in HB domains of 16" in capsys.readouterr().out


def test_own_platform_has_a_note_of_missing_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "hb_bps: 4_000_000_000_000\nrail_bps: 200_000_000_000\nflops: 1.0e+15\nmemory_bytes: 141_000_000_000\n"
        "domain_gpus: 16\nmatmul_efficiency: 0.6\n"
    )
    assert cli.main([*JOB, "--platform", str(mine)]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "file of mine" in line]
    assert "memory_bytes_per_s" in note
    assert "matmul_efficiency" not in note


IMPOSSIBLE = {
    "unknown model": ["gpt-9t", "--gpus", "64", "--batch", "32"],
    "mixture of experts": ["moe-1.3b-128", "--gpus", "64", "--batch", "32"],
    "unknown platform": [*JOB[1:], "--platform", "h1000"],
    "platform file that isn't there": [*JOB[1:], "--platform", "/none.yaml"],
    "part of an HB domain": ["gpt-22b", "--gpus", "65", "--batch", "32"],
    "HB domains that don't fit": [*JOB[1:], "--domain-gpus", "7"],
    "too little memory": ["gpt-1t", "--gpus", "8", "--batch", "8"],
    "nothing divides": ["gpt-22b", "--gpus", "56", "--batch", "1"],
    "top 0": [*JOB[1:], "--top", "0"],
    "no batch": ["gpt-22b", "--gpus", "64"],
}


def test_impossible_search_is_one_line(
    capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    cases = {case: ["search", *arguments] for case, arguments in IMPOSSIBLE.items()}
    data_regression.check(command_errors(capsys, cases))
