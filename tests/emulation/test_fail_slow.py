"""A GPU or a link that gets slow under a job on packets is named by the detector, and nothing is left behind."""

from pathlib import Path

import pytest

from tests.emulation.runs import overrides, run_experiment

pytestmark = pytest.mark.long
# so slow that an iteration takes twice its time or longer, which a busy machine doesn't hide
RATIOS = {"gpu": 6, "rail": 6, "hb": 12}


def test_slow_gpu_and_links_are_named_on_packets(tmp_path: Path) -> None:
    items = [f"{{part: {part}, target: d1g2, ratio: {ratio}, iteration: 8}}" for part, ratio in RATIOS.items()]
    changes = overrides(
        f"fail_slow=[{', '.join(items)}]",
        "fail_slow_repeats=1",
        "fabrics.0.domains=4",
        "attempts=1",
        "fail_slow.*.iterations=14",
    )
    stored = run_experiment("fail-slow", tmp_path, *changes, within_s=200)
    stored.assert_only_the_machine_failed()
    cases = stored.summary["headline"]["fail_slow"]["cases"]
    assert [case["slow"] for case in cases] == ["GPU d1g2", "rail link d1g2", "HB link d1g2"]
    for case in cases:
        # a busy machine may make others slow too, but none as slow as this
        assert case["named"].partition(" (")[0].endswith("d1g2")
        assert case["reported"] >= 0
