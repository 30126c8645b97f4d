"""The example plugin docs/examples/split_policy.py on packets: a rail link and a rail switch fail, all pairs recover.

d0g0 d0g1 d0g2    d1g0 d1g1 d1g2    d2g0 d2g1 d2g2      three HB domains, rail<g> joins d0g<g>, d1g<g>, d2g<g>
"""

from pathlib import Path

import pytest

from tests.emulation.plugins import assert_recovered, recovery_spec, run_with_plugin

FAULTS_IN_TURN = (
    {"kind": "link-down", "target": "d0g1", "at": "500ms", "repair": "1s"},
    {"kind": "rail-switch-crash", "target": "rail2", "at": "2500ms", "repair": "1500ms"},
)
SPEC = recovery_spec({"kind": "rail-only", "rails": 3, "policy": "split"}, FAULTS_IN_TURN, algorithm="direct")


@pytest.mark.long
def test_plugin_policy_carries_traffic_and_recovers(tmp_path: Path, slow: float) -> None:
    run = run_with_plugin("split_policy.py", SPEC, tmp_path, slow)
    assert {fabric.policy for fabric in run.fabrics} == {"split"}
    assert_recovered(run, faults=2)
