"""The example plugin docs/examples/latency.py on packets: a measure of a plugin is in every output of a run."""

import csv
import json
from pathlib import Path

import yaml

from railyard.results import run_folder
from tests.emulation.plugins import EXAMPLES, RUN_S
from tests.emulation.programs import RUN_EXPERIMENT, finished

SPEC = {
    "name": "latency",
    "attempts": 1,
    "fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "10Mbit", "hb_rate": "40Mbit"}],
    "latencies": [{"count": 10}],
    "latency_repeats": 2,
}
PHASES = ["domain", "rail", "across rails"]


def test_measure_of_a_plugin_is_in_every_output(tmp_path: Path, slow: float) -> None:
    folder = tmp_path / "out"
    (tmp_path / "latency.yaml").write_text(yaml.safe_dump(SPEC))
    argv = [*RUN_EXPERIMENT, "run", str(tmp_path / "latency.yaml"), "--plugin", str(EXAMPLES / "latency.py")]
    done = finished([*argv, "--out", str(folder), "--live"], RUN_S * slow)
    assert (folder / "summary.json").exists(), done.stdout + done.stderr
    run = run_folder.load(folder)

    with (folder / "results.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["metric"] == "round_trip"]
    assert [(row["repeat"], row["phase"]) for row in rows] == [(n, phase) for n in "01" for phase in PHASES]
    assert all(float(row["value"]) > 0 and row["verdict"] for row in rows)
    assert [load.interval.repeat for load in run.loads] == [0, 1]

    summary = json.loads((folder / "summary.json").read_text())
    (check,) = [check for check in summary["checks"] if check["name"] == "every datagram is sent back"]
    assert check["passed"]
    (target,) = summary["headline"]["measure_targets"]["latency"]
    assert target["limits"] == {"median": 5}
    assert (target["measured"] is not None) == (target["not_judged"] < 2)

    report = (folder / "report.html").read_text()
    for section in ("latency", "measure-targets"):
        assert f'<section id="{section}">' in report

    results = [event.detail["result"] for event in run.events if event.what == "step"]
    assert [result.count("across rails") for result in results] == [0, 1, 1]

    messages = [json.loads(line) for line in (folder / "live.jsonl").read_text().splitlines()]
    answered = [m["data"] for m in messages if m["kind"] == "event" and m["data"]["what"] == "latency-answered"]
    assert [event["detail"]["dst"] for event in answered] == ["d0g1", "d1g0", "d1g1"] * 2
    assert "latency-answered" in messages[0]["data"]["sentences"]
