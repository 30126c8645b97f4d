"""A GPU or a link that gets slow under a job on packets is named by the detector, and nothing is left behind."""

from pathlib import Path

import pytest

import railyard as ry
from railyard.experiments.measures.fail_slow.records import SLOW_CASES
from tests.emulation.runs import overrides, run_experiment

pytestmark = [pytest.mark.quiet, pytest.mark.long]
# so slow that an iteration takes twice its time or longer, which a busy machine doesn't hide
RATIOS = {"gpu": 6, "rail": 6, "hb": 12}


def test_slow_gpu_and_links_are_named_on_packets(tmp_path: Path) -> None:
    items = [f"{{part: {part}, target: d1g2, ratio: {ratio}, iteration: 8}}" for part, ratio in RATIOS.items()]
    changes = overrides(
        f"fail_slow=[{', '.join(items)}]",
        "fail_slow_repeats=1",
        "fabrics.0.domains=4",
        # at a rate as high as the machine carries alone, other tests are in each iteration time
        "fabrics.0.rail_rate=5Mbit",
        "attempts=1",
        "fail_slow.*.iterations=14",
    )
    stored = run_experiment("fail-slow", tmp_path, *changes, within_s=200)
    stored.assert_only_the_machine_failed()
    cases = stored.run.rows(SLOW_CASES)
    assert [(case.slow_part, case.target) for case in cases] == [(part, "d1g2") for part in RATIOS]
    # a busy machine may make others slow too, but none as slow as this
    wrong = [case for case in cases if not case.named.partition(" (")[0].endswith("d1g2") or case.reported < 0]
    results = ry.load(stored.folder)
    assert [case for case in wrong if case.interval not in results.analysis.judgement.disturbed] == []
    with ry.timing(results):
        assert wrong == []
