"""Uplinks on packets: round robin loads them evenly, a hash doesn't, and both deliver everything.

  spine0   spine1            each rail switch has an uplink to both
rail0   rail1   rail2        d0g0, d1g0 on rail0, d0g1, d1g1 on rail1, ...
"""

import pytest

from railyard.experiments.measures.workloads.records import UPLINK_BYTES, UPLINK_IMBALANCE
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import Run
from tests.emulation.runs import ALL_TO_ALL, run_experiment, small_spec

FABRIC = {"kind": "rail-optimized", "domains": 2, "rails": 3, "rail_rate": "7Mbit"}
FABRICS = [{**FABRIC, "policy": "spine"}, {**FABRIC, "policy": "round-robin"}]
SPEC = small_spec(fabrics=FABRICS, workloads=[{**ALL_TO_ALL, "duration": "1s"}], repeats=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    stored = run_experiment(SPEC, tmp_path_factory.mktemp("uplinks"))
    assert "flows collide on uplinks" in stored.output, stored.output
    return stored.run


def test_round_robin_loads_uplinks_evenly_and_a_hash_does_not(run: Run) -> None:
    """Each rail switch has 4 flows for its 2 uplinks: in turn 2 each. Two hashes that do the same: 0.3% at most."""
    found = {(m.policy, m.repeat): m for m in run.measurements if m.metric == UPLINK_IMBALANCE}
    assert len(found) == 4
    assert all(found["round-robin", repeat].value < 1.02 for repeat in (0, 1))
    assert {found["round-robin", repeat].predicted for repeat in (0, 1)} == {1.0}
    hashed = [found["spine", repeat].value for repeat in (0, 1)]
    assert max(hashed) > 1.2
    assert all(value <= 2 for value in hashed)


def test_a_time_is_judged_by_the_load_that_its_uplinks_had(run: Run) -> None:
    """Two of three bytes of a GPU's rail port change rails; a loaded machine makes a time longer, never shorter."""
    judgement = judge(run)
    loads = {m.interval: m.value for m in run.measurements if m.metric == UPLINK_IMBALANCE}
    times = [m for m in run.measurements if m.metric == "completion_time"]
    assert len(times) == 4
    for row in times:
        explained = max(1, loads[row.interval] * 2 / 3) if row.policy == "spine" else 1
        assert row.explained_least == pytest.approx(explained)
        assert explained <= row.explained_most < 1.05 * explained  # with latency
        assert row.ratio is not None
        assert row.ratio > 0.96 * explained
        if row.ratio > 1.05 * row.explained_most:
            assert judgement.of_row(row) != "ok"


def test_every_byte_is_counted_at_the_uplinks(run: Run) -> None:
    """Each of 6 GPUs sends to 2 GPUs on other rails of the other domain, and headers add some percent."""
    assert all(check.pairs_wrong == 0 and check.delivered_bytes == check.asked_bytes for check in run.bytes)
    payload = sum(flow.bytes for flow in run.flows if flow.src[1] != flow.dst[1] and flow.src[3] != flow.dst[3])
    events = [event.detail["bytes"] for event in run.events if event.what == UPLINK_BYTES]
    assert len(events) == 4
    out = sum(sum(sizes) for by_switch in events for name, sizes in by_switch.items() if name.endswith(" out"))
    assert payload < out < 1.1 * payload
