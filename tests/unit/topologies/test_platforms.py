"""Platforms are files: those that come with Railyard, and the user's own."""

from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.topologies.plan import make_plan, read_active_plan, write_active_plan
from railyard.topologies.platforms import PLATFORMS, SYSTEMS
from railyard.topologies.spec import parse_fabric
from tests.unit.messages import messages

MINE = """# mine
hb_bps: 4_000_000_000_000
rail_bps: 200_000_000_000
flops: 1.0e+15
memory_bytes: 141_000_000_000
domain_gpus: 16
"""


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_names_its_source_on_line_1(name: str) -> None:
    first = (SYSTEMS / f"{name}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "data sheet" in first
    assert PLATFORMS[name].name == name


@pytest.mark.parametrize(
    ("name", "ratio", "domain_gpus"),
    [
        ("a100", 12, 8),
        ("h100", 9, 8),
        ("h200", 9, 8),
        ("h800", 4, 8),
        ("gh200", 9, 256),
        ("b200", 18, 8),
        ("b300", 9, 8),
        ("gb200-nvl72", 18, 72),
        ("gb300-nvl72", 9, 72),
        ("mi300x", 9, 8),
    ],
)
def test_the_figures_that_decide_a_result(name: str, ratio: float, domain_gpus: int) -> None:
    assert (PLATFORMS[name].ratio, PLATFORMS[name].domain_gpus) == (ratio, domain_gpus)


def test_peaks_by_precision() -> None:
    """NVIDIA's data sheets, dense: FP8 is twice BF16, FP4 four times on GB200 and six times on GB300."""
    assert PLATFORMS["a100"].precisions == ("bf16",)
    assert PLATFORMS["h100"].peak_flops("fp8") == 1979e12
    for name, times in (("gb200", 4), ("gb300", 6)):
        platform = PLATFORMS[name]
        assert platform.name == f"{name}-nvl72"
        peaks = [platform.peak_flops(precision) / platform.flops for precision in platform.precisions]
        assert peaks == [1, 2, 2, times]
    with pytest.raises(BadInput, match="nvfp4"):
        PLATFORMS["h100"].peak_flops("nvfp4")


def test_a_platform_of_your_own_is_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    platform = PLATFORMS[str(mine)]
    assert (platform.name, platform.ratio, platform.flops) == ("mine", 20, 1e15)
    plan = make_plan(parse_fabric({"kind": "rail-only", "platform": str(mine)}), 10_000_000)
    assert plan.hb_bps == 200_000_000


EDITS = {
    "word as rate": ("4_000_000_000_000", "fast"),
    "no memory": ("141_000_000_000", "0"),
    "efficiency of 1.2": ("domain_gpus", "memory_efficiency: 1.2\ndomain_gpus"),
    "efficiency of almost 0": ("domain_gpus", "memory_efficiency: 1.0e-300\ndomain_gpus"),
    "negative latency": ("domain_gpus", "rail_latency_s: -1.0\ndomain_gpus"),
    "unknown key": ("domain_gpus", "domain_gpu"),
    "rails above the HB domain": ("rail_bps: 200_000", "rail_bps: 5_000_000"),
    "almost no operations": ("flops: 1.0e+15", "flops: 1.0e-300"),
    "infinite operations": ("flops: 1.0e+15", "flops: .inf"),
    "missing key": ("flops: 1.0e+15\n", ""),
    "unknown precision": ("domain_gpus", "low_precision_flops: {fp16: 1.0e+15}\ndomain_gpus"),
    "no YAML": ("# mine", "{"),
}


def test_bad_file_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_regression: DataRegressionFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    def parse(edit: tuple[str, str]) -> None:
        Path("mine.yaml").write_text(MINE.replace(*edit))
        parse_fabric({"kind": "rail-only", "platform": "mine.yaml"})

    raised = messages(parse, EDITS)
    data_regression.check({case: message.replace(f"{tmp_path}/", "") for case, message in raised.items()})


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"platform: '/none\.yaml' can't be read: No such file"):
        parse_fabric({"kind": "rail-only", "platform": "/none.yaml"})


def test_a_file_is_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller is a process with a working folder of its own."""
    (tmp_path / "mine.yaml").write_text((SYSTEMS / "h100.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_fabric({"kind": "rail-only", "platform": "./mine.yaml"}), 50_000_000)
    monkeypatch.chdir("/")
    monkeypatch.setattr("railyard.topologies.plan.PLAN_FILE", tmp_path / "plan.json")
    write_active_plan(plan)
    assert read_active_plan() == plan
    assert plan.hb_bps == round(plan.rail_bps * PLATFORMS["h100"].ratio)
