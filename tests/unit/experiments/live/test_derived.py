"""The live page of a run without a recording, by the run's events and flows."""

import json
import webbrowser
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.core.records import IntervalId
from railyard.experiments.commands import report
from railyard.experiments.live import derived, recorded
from railyard.experiments.measures.faults.records import GOODPUT, RECOVERIES
from railyard.experiments.measures.jobs.records import JOB_RUNS, JobRun
from railyard.results import run_folder
from railyard.results.runs.records import Event, Flow, GoodputTrace, Run
from railyard.topologies.build.shaping import payload_fraction
from tests.unit.sample_runs import sample_run
from tests.unit.stand_ins import plan_of

SECOND = 1_000_000_000
OF = {"fabric": "rail-only", "target": "d0g1", "reroute": "on"}
WORKLOADS = [{"kind": "collective", "collective": "all-to-all", "bytes": "1MB"}]


def run_of(*flows: tuple[str, str, float, float], phase: str = "a") -> Run:
    """A run of 2x2 GPUs with flows of (src, dst, start s, end s), 1 MB each, and a cut that is repaired."""
    run = sample_run(2, 2, repeats=1)
    run.spec |= {"fabrics": [{"kind": "rail-only", "domains": 2, "rails": 2}], "workloads": WORKLOADS}
    run.spec["faults"] = []
    del run.fabrics[1:]
    interval = IntervalId("rail-only", "all-to-all")
    run.flows[:] = [
        Flow(interval, phase, "EP", src, dst, 10**6, 10**6, round(start * SECOND), round(end * SECOND))
        for src, dst, start, end in flows
    ]
    run.events[:] = [
        Event(SECOND, "workload", "started", interval.as_dict()),
        Event(3 * SECOND, "fault", "link-down", OF),
        Event(3 * SECOND + 1, "controller", "port-down", {"fabric": "rail-only", "switch": "rail1", "port": "d0g1"}),
        Event(4 * SECOND, "fault", "repair", OF),
        Event(4 * SECOND + 1, "controller", "port-up", {"fabric": "rail-only", "switch": "rail1", "port": "d0g1"}),
    ]
    run.rows(RECOVERIES)[1:] = []
    run.rows(GOODPUT).clear()
    return run


def shown(run: Run) -> dict[str, list[Any]]:
    """Return the data of what the page shows, by its kind."""
    found = defaultdict[str, list[Any]](list)
    for line in derived.record_of(run).splitlines():
        message = json.loads(line)
        found[message["kind"]].append(message["data"])
    return found


def test_rates_are_those_of_the_flows_on_the_policys_path() -> None:
    found = shown(run_of(("d0g0", "d1g1", 1.0, 2.5), ("d0g0", "d0g1", 1.1, 1.15)))
    links = [(link["a"], link["interface"], link["rate"]) for link in found["fabric"][0]["links"]]
    sent = dict[tuple[str, str], float]()
    for direction in (1, 2):
        for number, (node, interface, rate) in enumerate(links):
            bits = sum(sample["links"][direction][number] for sample in found["sample"]) / 1000 * rate * 0.2
            sent[node, f"{interface} {'to' if direction == 1 else 'from'}"] = bits / 8e6
    used = {key: mb for key, mb in sent.items() if mb > 0.01}
    assert used == {
        ("d0g0", "hb0 to"): pytest.approx(2, rel=0.1),
        ("d0g1", "hb0 from"): pytest.approx(2, rel=0.1),
        ("d0g1", "rail0 to"): pytest.approx(1, rel=0.1),
        ("d1g1", "rail0 from"): pytest.approx(1, rel=0.1),
    }


def test_faults_events_steps_and_phases_have_their_times() -> None:
    found = shown(run_of(("d0g0", "d1g0", 1.0, 2.0), phase="moe-a2a"))
    events = [(event["what"], event["ns"] // SECOND) for event in found["event"] if event["what"] != "first-packet"]
    assert events == [("inject", 3), ("port-down", 3), ("repair", 4), ("port-up", 4)]
    assert found["event"][0]["detail"] == {"kind": "link-down", "target": "d0g1"}
    steps = [step["text"] for step in found["step"]]
    assert steps == ["rail-only: all-to-all", "rail-only: link-down at d0g1, reroute on"]
    assert found["phase"] == [{"ns": SECOND, "names": ["moe-a2a"]}, {"ns": 2 * SECOND, "names": []}]


def test_a_link_has_no_carrier_until_the_port_is_up() -> None:
    found = shown(run_of(("d0g0", "d1g0", 1.0, 6.0)))
    names = [(link["a"], link["interface"]) for link in found["fabric"][0]["links"]]
    number = names.index(("d0g1", "rail0"))
    for sample in found["sample"]:
        assert sample["links"][0][number] == (not 3 * SECOND < sample["ns"] <= 4 * SECOND)


def rates_of(run: Run, direction: int) -> dict[tuple[str, str], list[float]]:
    """Return the bit/s of each link in every sample, 1 to the network or 2 from it."""
    found = shown(run)
    return {
        (link["a"], link["interface"]): [s["links"][direction][n] * link["rate"] / 1000 for s in found["sample"]]
        for n, link in enumerate(found["fabric"][0]["links"])
    }


def test_traffic_around_a_fault_is_on_its_detours() -> None:
    """Streams are recorded as sums alone: their pairs and paths follow from the fault."""
    run = run_of()
    row = replace(
        run.rows(RECOVERIES)[0], t_fault=3 * SECOND, t_repair=4 * SECOND, reroute_ms=10.0, primary_path_ms=10.0
    )
    run.rows(RECOVERIES)[:] = [row]
    times = tuple(20.0 * n for n in range(-75, 110))
    affected, others = 4e6, 2e6
    sums = tuple(0.0 if 0 <= t < 20 else affected for t in times)
    run.rows(GOODPUT)[:] = [
        GoodputTrace(row.interval, row.fault, row.target, times, tuple(s + others for s in sums), sums, 1e3)
    ]
    sent, wire = rates_of(run, 1), 1 / payload_fraction(1500)
    dead = sent["d0g1", "rail0"]
    before, during = slice(2, 5), slice(9, 12)
    assert min(dead[before]) > 1e6
    assert max(dead[during]) == 0, "its rail is down"
    assert min(sent["d0g0", "rail0"][during]) > max(sent["d0g0", "rail0"][before])
    rails = [values for (_, interface), values in sent.items() if interface == "rail0"]
    on_rails = [sum(values) for values in zip(*rails, strict=True)]
    for window in (before, during):
        assert on_rails[window] == [pytest.approx((affected + others) * wire, rel=0.05)] * 3


@pytest.mark.parametrize("reroute_ms", [None, 10.0])
def test_streams_of_a_script_share_its_goodput(reroute_ms: float | None) -> None:
    run = run_of()
    row = replace(run.rows(RECOVERIES)[0], interval=IntervalId("rail-only", script="one", reroute="on"))
    row = replace(row, t_fault=3 * SECOND, t_repair=4 * SECOND, reroute_ms=reroute_ms)
    run.rows(RECOVERIES)[:] = [row]
    times, bps = tuple(20.0 * n for n in range(-75, 110)), (4e6,) * 185
    run.rows(GOODPUT)[:] = [GoodputTrace(row.interval, row.fault, row.target, times, bps, bps, 1e3)]
    dead = rates_of(run, 1)["d0g1", "rail0"]
    assert (max(dead[9:12]) == 0) == (reroute_ms is not None)
    assert min(dead[2:5]) > 0


def test_uplinks_share_the_traffic_across_spines() -> None:
    plan = plan_of("rail-optimized", 2, 2, spines=2)
    crossed = derived._CrossedLinks(plan).crossed("d0g0", "d1g1")
    uplinks = [(direction, plan.links[n], share) for direction, n, share in crossed if plan.links[n].kind == "uplink"]
    assert sorted((direction, link.a.node, share) for direction, link, share in uplinks) == [
        (0, "rail0", 0.5), (0, "rail0", 0.5), (1, "rail1", 0.5), (1, "rail1", 0.5),
    ]  # fmt: skip


def test_the_option_open_makes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures_as_text: None) -> None:
    urls = list[str]()
    monkeypatch.setattr(webbrowser, "open", urls.append)
    run_folder.save(run_of(("d0g0", "d1g0", 1.0, 2.0)), tmp_path)
    report.command(tmp_path)
    assert not (tmp_path / recorded.PAGE).exists()
    report.command(tmp_path, show=True)
    assert urls == [(tmp_path / recorded.PAGE).as_uri()]


def test_without_its_specification_there_is_a_reason_and_no_page() -> None:
    run = run_of(("d0g0", "d1g0", 1.0, 2.0))
    run.spec["workloads"] = [{"kind": "of a plugin"}]
    with pytest.raises(BadInput, match=r"workloads\.0\.kind"):
        derived.record_of(run)


def test_jobs_are_steps_and_have_their_gpus() -> None:
    run = run_of(("d0g0", "d1g0", 1.0, 2.0))
    interval = IntervalId("rail-only", "all jobs", "dr")
    run.events.append(Event(5 * SECOND, "jobs", "started", interval.as_dict()))
    times = (0.0, 3, 1.0, 1.0, 0.1)
    run.rows(JOB_RUNS).append(JobRun(interval, "a", "together", "gpus", "d0g0 d1g0", *times, 100, 100, 0, 100))
    found = shown(run)
    assert found["step"][-1] == {"ns": 5 * SECOND, "text": "rail-only: all jobs"}
    (jobs,) = found["jobs"]
    assert (jobs["ns"], jobs["names"], jobs["gpus"]) == (5 * SECOND, ["a"], {"d0g0": 0, "d1g0": 0})
