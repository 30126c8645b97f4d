"""`search` on the command line: the fastest strategies, and one line for what can't be searched."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments import cli
from railyard.experiments.commands.search import load_shape
from railyard.results.format import digits
from railyard.results.theory.step.hardware import make_hardware
from railyard.results.theory.step.search import weigh
from railyard.results.theory.step.space import Space
from railyard.results.theory.step.step_time import StepTime
from railyard.results.theory.step.strategy import Recipe
from railyard.topologies.platforms import PLATFORMS
from tests.unit.experiments.command_errors import command_errors

JOB = ["search", "gpt-22b", "--gpus", "64", "--batch", "32"]
PLAIN = ["--precision", "bf16", "--overlap", "data"]


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The table: place, seven dimensions, four of the recipe, GB, seconds, tokens/s/GPU, MFU and three shares."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line and line[0].isdigit() and len(line) == 19]


def test_the_fastest_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--top", "5"]) == 0
    table = rows(capsys)
    assert [row[0] for row in table] == ["1", "2", "3", "4", "5"]
    clusters = [make_hardware("h100", 64, precision=precision) for precision in PLATFORMS["h100"].precisions]
    weighed = weigh(load_shape("gpt-22b", None, fused=True), Recipe(32), clusters, Space({}))
    first = weighed.order()[0]
    assert float(table[0][13]) == pytest.approx(weighed.seconds[first], rel=1e-3)
    assert float(table[0][12]) == pytest.approx(weighed.gpu_bytes[first] / 1e9, abs=0.1)
    assert table[0][8] == "fp8"
    times = [float(row[13]) for row in table]
    assert times == sorted(times)
    for row in table:
        t, c, p, d, _, _, b = map(int, row[1:8])
        assert t * c * p * d == 64
        assert 32 % (d * b) == 0
        assert sum(float(share.rstrip("%")) for share in row[16:]) == pytest.approx(100, abs=0.2)


def test_variants_of_a_layout_are_listed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*JOB, *PLAIN, "--fix", "b=1,d=4", "--top", "1000"]
    assert cli.main(few) == 0
    layouts = [tuple(row[1:6]) for row in rows(capsys)]
    assert len(layouts) == len(set(layouts))
    assert cli.main([*few, "--variants"]) == 0
    variants = [tuple(row[1:6]) for row in rows(capsys)]
    assert len(variants) > len(layouts)
    assert set(variants) == set(layouts)


def test_fixed_strategy_is_the_only_row(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--fix", "t=8,p=2,v=3,b=1", "--recompute", "none", "--zero", "1"]
    assert cli.main([*JOB, *PLAIN, *fixed, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["precision"], row["overlap"]) == ("bf16", ["data"])
    assert (row["tensor"], row["pipeline"], row["data"], row["virtual_stages"]) == (8, 2, 4, 3)
    terms = sum(row[field.name] for field in fields(StepTime))
    assert terms == pytest.approx(row["step_s"])
    assert row["low_s"] < row["step_s"] < row["high_s"]
    assert row["outside_of_measured"] == []
    assert row["tokens_per_gpu"] == pytest.approx(32 * 2048 / row["step_s"] / 64)
    assert cli.main([*JOB, *PLAIN, *fixed]) == 0
    assert "from 1 strategy that divides and fits" in capsys.readouterr().out


def test_more_overlap_is_faster_and_less_sure(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = [*JOB, "--precision", "bf16", "--fix", "t=8,p=2,v=3,b=1", "--recompute", "none", "--zero", "1", "--json"]
    times: list[float] = []
    for overlap in ("none", "data", "data,tensor=0.5", "data,tensor", "data,tensor,pipeline"):
        assert cli.main([*fixed, "--overlap", overlap]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        times.append(row["step_s"])
        if overlap == "data":
            plain_high_s = row["high_s"]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 5
    assert row["high_s"] == pytest.approx(plain_high_s)


def test_explained_strategy_has_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "llama3-405b", "--gpus", "8192", "--explain", "t=5,p=16,v=8"]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.count("left out: ") == 6
    assert "left out: t=5 divides no strategy of this model and cluster; nearest: 4 or 8" in out
    assert "a step on 8,160 GPUs" in out
    assert "128 attention heads" in out


def test_explained_strategy_is_completed_by_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--fix", "t=8,p=2", "--json", "--top", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert cli.main([*JOB, "--explain", "t=8,p=2"]) == 0
    out = capsys.readouterr().out
    assert "left out" not in out
    assert f"{digits(row['low_s'], 3)} to {digits(row['high_s'], 3)} s" in out
    layout = f"t=8 c=1 p=2 d=4 e=1 v={row['virtual_stages']} b={row['micro_batch']}"
    recompute = {"none": "no"}.get(row["recompute"], row["recompute"])
    assert f"{layout}, {row['precision']}, {recompute} recomputation" in out


def test_days_and_unmeasured_hardware_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tokens", "1T", "--platform", "mi300x"]) == 0
    out = capsys.readouterr().out
    assert "1 T tokens take" in out
    assert "outside of" in out


def test_json_has_the_days_that_tokens_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tokens", "1T", "--json", "--top", "1"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["days"] == pytest.approx(1e12 / (32 * 2048) * row["step_s"] / 86_400)
    assert row["low_days"] < row["days"] < row["high_days"]


def test_file_with_unfused_attention_stays_unfused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = (Path(__file__).parents[4] / "docs/examples/models/modern.yaml").read_text()
    for attention in ("true", "false"):
        file.write_text(f"{text}fused_attention: {attention}\n")
        assert load_shape(str(file), None, fused=True).fused_attention == (attention == "true")
        assert not load_shape(str(file), None, fused=False).fused_attention
    # the papers' models have no such key
    assert load_shape("gpt-22b", None, fused=True).fused_attention


def test_own_output_with_slow_nics_takes_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An output whose bus bandwidth is a tenth of the NICs' rate, on two hosts of eight."""
    lines = [f"#  Rank  {n} Group  0 Pid  {n} on  node{n // 8} device  {n % 8} [0x10] NVIDIA H100" for n in range(16)]
    lines += [f" {2**n} {2**n // 64} float none -1 1.00 0.00 {40 * 2**n / (2**n + 2**25):.2f} 0" for n in range(20, 32)]
    output = tmp_path / "out.txt"
    output.write_text("\n".join(["$ all_gather_perf", *lines]) + "\n")
    seconds: list[float] = []
    for options in ([], ["--nccl", str(output)]):
        assert cli.main([*JOB, "--fix", "t=16,p=1", "--json", "--top", "1", *options]) == 0
        seconds.append(float(json.loads(capsys.readouterr().out)[0]["step_s"]))
    assert seconds[0] < seconds[1] / 2
    assert cli.main([*JOB, "--nccl", "none.txt"]) == 2


def test_jobs_take_evenly_of_each_domain() -> None:
    assert make_hardware("gb200-nvl72", 144).domain_gpus == 72
    assert make_hardware("gb200-nvl72", 36).domain_gpus == 36
    assert make_hardware("gb200-nvl72", 256).domain_gpus == 64


def test_own_platform_and_domain_size_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "hb_bps: 4_000_000_000_000\nrail_bps: 200_000_000_000\nflops: 1.0e+15\nmemory_bytes: 141_000_000_000\n"
        "domain_gpus: 16\nmatmul_efficiency: 0.6\n"
    )
    assert cli.main([*JOB, "--platform", str(mine), "--domain-gpus", "32"]) == 0
    assert "in HB domains of 32" in capsys.readouterr().out


IMPOSSIBLE = {
    "unknown model": ["gpt-9t", "--gpus", "64", "--batch", "32"],
    "list of layers": ["vgg-11", "--gpus", "64", "--batch", "32"],
    "unknown platform": [*JOB[1:], "--platform", "h1000"],
    "platform file that isn't there": [*JOB[1:], "--platform", "/none.yaml"],
    "platform without the number format": [*JOB[1:], "--precision", "nvfp4"],
    "unknown number format": [*JOB[1:], "--precision", "fp6"],
    "unknown recomputation": [*JOB[1:], "--recompute", "some"],
    "unknown overlap": [*JOB[1:], "--overlap", "data,tensors"],
    "share of another overlap than tensor": [*JOB[1:], "--overlap", "data=0.5"],
    "share of an overlap above 1": [*JOB[1:], "--overlap", "tensor=2"],
    "overlap that is there twice": [*JOB[1:], "--overlap", "data,data"],
    "none with another overlap": [*JOB[1:], "--overlap", "none,data"],
    "overlap with an empty share": [*JOB[1:], "--overlap", "tensor="],
    "GPUs that use NVL72 unevenly": [*JOB[1:], "--gpus", "100", "--platform", "gb200"],
    "GPUs of an NVL72 that nothing divides": ["llama3-8b", "--gpus", "72", "--platform", "gb300-nvl72"],
    "a million GPUs": ["llama3-70b", "--gpus", "1000000"],
    "gradients of 3 bytes": [*JOB[1:], "--gradient-bytes", "3"],
    "unknown dimension": [*JOB[1:], "--fix", "q=8"],
    "dimension without a number": [*JOB[1:], "--fix", "t=all"],
    "dimension with a raised number": [*JOB[1:], "--fix", "t=²"],
    "dimension of thousands of digits": [*JOB[1:], "--fix", "t=" + 5000 * "9"],
    "explanation as JSON": [*JOB[1:], "--explain", "t=8", "--json"],
    "fixed dimension that doesn't divide": [*JOB[1:], "--fix", "t=5,p=2"],
    "fixed dimensions that don't divide together": [*JOB[1:], "--fix", "t=8,d=16"],
    "dimension that is fixed twice": [*JOB[1:], "--fix", "t=8,t=4"],
    "fixed dimension where nothing divides": ["gpt-22b", "--gpus", "88", "--batch", "1", "--fix", "t=8"],
    "part of an HB domain": ["gpt-22b", "--gpus", "65", "--batch", "32"],
    "HB domains that don't fit": [*JOB[1:], "--domain-gpus", "7"],
    "too little memory": ["gpt-1t", "--gpus", "8", "--batch", "8"],
    "nothing divides": ["gpt-22b", "--gpus", "88", "--batch", "1"],
    "tokens that are no number": [*JOB[1:], "--tokens", "many"],
    "top 0": [*JOB[1:], "--top", "0"],
    "no GPUs": ["gpt-22b"],
}


def test_impossible_search_is_one_line(
    capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    cases = {case: ["search", *arguments] for case, arguments in IMPOSSIBLE.items()}
    data_regression.check(command_errors(capsys, cases))
