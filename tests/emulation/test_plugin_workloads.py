"""One run with seven example plugins: workloads, an algorithm, measure, section, placement policy and arrival process.

rail-only, and rail-optimized with a spine: 3 domains of 2 GPUs, rails of 7 Mbit/s, HB domains of 28 Mbit/s
"""

import pytest

from railyard.experiments.measures.jobs.records import JOB_RUNS, TOGETHER
from railyard.results.runs.records import Measurement
from tests.emulation.runs import Stored, run_experiment
from tests.unit.traces import TRACES

PLUGINS = (
    "broadcast.py", "ring_attention.py", "rail_first.py", "latency.py", "link_errors.py", "high_rails.py", "waves.py",
)  # fmt: skip
SEND = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "100ms"}
TRACE = {"kind": "trace", "path": str(TRACES / "ring"), "duration": "100ms"}
SIDES = {"domains": 3, "rails": 2, "rail_rate": "7Mbit", "hb_rate": "28Mbit"}
SPEC = {
    "name": "plugins",
    "attempts": 1,
    "repeats": 1,
    "fabrics": [{"kind": "rail-only", **SIDES}, {"kind": "rail-optimized", **SIDES}],
    "workloads": [
        {"kind": "broadcast", "bytes": "300KB"},
        {"kind": "broadcast", "bytes": "300KB", "root": "d1g1"},
        {"kind": "ring-attention", "bytes": "300KB", "compute": "500ms"},
        {"kind": "collective", "collective": "all-to-all", "algorithm": "rail-first", "bytes": "50KB"},
    ],
    "latencies": [{"count": 10}],
    "latency_repeats": 2,
    "jobs": [
        {"name": "sending", "on": [0], "workload": SEND, "domains": 2, "rails": 1, "placement": "high-rails"},
        {"name": "traced", "on": [0], "workload": TRACE, "domains": 2, "rails": 2, "placement": "packed"},
    ],
    "arrivals": {"kind": "waves", "size": 1, "every": "300ms"},
}
PAYLOAD = 0.99268  # of a frame of 9,000 bytes
PHASES = ["domain", "rail", "across rails"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return run_experiment(SPEC, tmp_path_factory.mktemp("plugins"), "--live", plugins=PLUGINS)


def times_of(stored: Stored, workload: str, fabric: str = "rail-only") -> dict[str, Measurement]:
    """Return the completion times of a workload by their phases."""
    rows = [row for row in stored.run.measured("completion_time") if (row.workload, row.fabric) == (workload, fabric)]
    return {row.phase: row for row in rows}


@pytest.mark.parametrize("root", ["d0g0", "d1g1"])
def test_broadcast_reaches_every_gpu_as_predicted(stored: Stored, root: str) -> None:
    name = f"broadcast from {root}"
    flows = [flow for flow in stored.run.flows if (flow.workload, flow.fabric) == (name, "rail-only")]
    others = {f"d{domain}g{rank}" for domain in range(3) for rank in range(2)} - {root}
    assert {flow.dst: flow.delivered for flow in flows} == dict.fromkeys(others, 300_000)
    assert {flow.kind for flow in flows} == {"broadcast"}
    times = times_of(stored, name)
    assert times["over the rail"].predicted == pytest.approx(2 * 2.4 / (7 * PAYLOAD), rel=1e-4), "two copies leave"
    assert times["in HB domains"].predicted == pytest.approx(2.4 / (28 * PAYLOAD), rel=1e-4)


def test_workload_is_compared_with_its_own_prediction(stored: Stored) -> None:
    times = times_of(stored, "ring-attention")
    assert set(times) == {""}
    assert times[""].predicted == pytest.approx(0.5 + 2.4 / (7 * PAYLOAD), rel=1e-4)  # computing takes longer
    assert times[""].formula.startswith("(y-2) max(send, compute) + send")
    assert times[""].not_compared == ""


def test_algorithm_uses_no_spine_and_is_predicted_alike(stored: Stored) -> None:
    checks = [check for check in stored.run.bytes if check.workload == "all-to-all-rail-first"]
    assert [check.fabric for check in checks] == ["rail-only", "rail-optimized"]
    assert {check.delivered_bytes for check in checks} == {6 * (2 * 2 + 3) * 50_000}  # over rails and in HB domains
    assert {check.cross_rail_bytes for check in checks} == {0}
    predicted = {times_of(stored, "all-to-all-rail-first", check.fabric)[""].predicted for check in checks}
    assert len(predicted) == 1
    assert predicted != {None}


def test_every_byte_arrives_and_the_report_has_the_new_kind(stored: Stored) -> None:
    stored.assert_no_byte_is_missing()
    assert "broadcast 1.500 MB" in stored.text("report.html").replace("\xa0", " ")  # in the figure of traffic by kind


def test_section_of_a_plugin_is_in_report_and_summary(stored: Stored) -> None:
    errors = stored.summary["headline"]["link_errors"]
    assert {(row["fabric"], row["link"]) for row in errors} == {(link.fabric, link.link) for link in stored.run.links}
    assert errors
    assert '<section id="link-errors">' in stored.text("report.html")


def test_measure_of_a_plugin_is_in_every_output(stored: Stored) -> None:
    rows = [row for row in stored.rows("results.csv") if row["metric"] == "round_trip"]
    order = [(row["fabric"], row["repeat"], row["phase"]) for row in rows]
    assert order == [(fabric, n, phase) for fabric in ("rail-only", "rail-optimized") for n in "01" for phase in PHASES]
    assert all(float(row["value"]) > 0 and row["verdict"] for row in rows)
    for section in ("latency", "measure-targets"):
        assert f'<section id="{section}">' in stored.text("report.html")
    (check,) = [check for check in stored.summary["checks"] if check.get("unit") == "datagrams"]
    assert check["passed"]
    targets = stored.summary["headline"]["measure_targets"]["latency"]
    assert [target["limits"] for target in targets] == [{"median": 5}] * 2
    assert all((target["measured"] is not None) == (target["not_judged"] < 2) for target in targets)
    results = [event.detail["result"] for event in stored.run.events if event.what == "step"]
    assert sum(result.count("across rails") for result in results) == 4


def test_live_page_shows_the_events_of_a_plugin(stored: Stored) -> None:
    messages = stored.lines("live.jsonl")
    events = [message["data"] for message in messages if message["kind"] == "event"]
    answered = [event["detail"]["dst"] for event in events if event["what"] == "latency-answered"]
    assert answered == ["d0g1", "d1g0", "d1g1"] * 4
    assert "latency-answered" in messages[0]["data"]["sentences"]


def test_jobs_have_the_gpus_and_starts_of_plugins(stored: Stored) -> None:
    """The second job is a recorded one, on the GPUs that the first leaves."""
    rows = stored.run.rows(JOB_RUNS)
    together = [(row.job, row.gpus, row.start_s) for row in rows if row.mode == TOGETHER]
    assert together == [("sending", "d0g1 d1g1", 0.0), ("traced", "d0g0 d1g0 d2g0 d2g1", 0.3)]
    assert all(row.delivered_bytes == row.asked_bytes > 0 for row in rows)


def test_live_page_shows_the_jobs_of_each_replay(stored: Stored) -> None:
    shown = [message["data"] for message in stored.lines("live.jsonl") if message["kind"] == "jobs"]
    assert [jobs["names"] for jobs in shown] == [["sending"], ["traced"], ["sending", "traced"]]
    assert shown[-1]["gpus"] == {"d0g1": 0, "d1g1": 0, "d0g0": 1, "d1g0": 1, "d2g0": 1, "d2g1": 1}
