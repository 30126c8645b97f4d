"""Clicks of the live page: requests, the saved script, and a sample of links."""

import http.client
import json
import os
import threading
from itertools import pairwise, permutations
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.experiments.live import page
from railyard.experiments.live.controls import Controls
from railyard.experiments.live.launch import opened_page
from railyard.experiments.live.paths import Links, describe_path
from railyard.experiments.live.phases import PhaseProgress
from railyard.experiments.live.sampler import link_sample, structure
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.run import observers
from railyard.experiments.spec.loading import load_any
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import Event
from railyard.topologies.forwarding import hops
from railyard.topologies.measure.counters import PortStats
from railyard.workloads.spec import build, parse_workload
from tests.unit.failure.test_script import World, world
from tests.unit.sample_runs import sample_run
from tests.unit.stand_ins import plan_of

__all__ = ["world"]
CUT = {"kind": "link-down", "target": "d0g1"}
FABRIC = {"kind": "rail-only", "domains": 2, "rails": 2}


def test_without_a_fabric_a_click_is_refused() -> None:
    shown: list[tuple[str, dict[str, Any]]] = []
    control = Controls(lambda what, fault, ns=None: shown.append((what, fault)), {"name": "two"})
    assert control.carry_out({"do": "inject"}).keys() == {"error"}
    assert shown == []


def test_every_fault_of_a_fabric_is_offered_at_an_element() -> None:
    shown = structure("two", plan_of("rail-optimized"))
    places = {("", name) for name in (*map(itemgetter("name"), shown["hosts"]), *shown["inner"], *shown["control"])}
    places |= set(map(itemgetter("layer", "target"), shown["links"]))
    for fault in shown["faults"]:
        for target in fault["targets"]:
            assert (fault["layer"] or "", target) in places, (fault["kind"], target)


@given(before=st.integers(0, 2**40), more=st.integers(0, 2**30), rate=st.integers(10**6, 10**11))
def test_a_sample_is_the_share_of_the_rate(before: int, more: int, rate: int) -> None:
    first, second = (PortStats(True, (count, count, 0, 0, 0, 0), 7, 3) for count in (before, before + more))
    sample = link_sample(first, second, rate, 0.2)
    assert (sample.up, sample.queue, sample.drops) == (True, 7, 0)
    assert sample.to_network == sample.from_network == round(more * 8 * 1000 / (rate * 0.2))


def test_a_new_or_missing_interface_has_no_traffic() -> None:
    counters = (9, 9, 0, 0, 0, 0)
    assert link_sample(PortStats(True, counters), None, 10**6, 0.2).up is False
    assert link_sample(None, PortStats(True, counters), 10**6, 0.2).to_network == 0
    assert link_sample(PortStats(True, counters), PortStats(True, (1, 1, 0, 0, 0, 0)), 10**6, 0.2).to_network == 0


def ask(task: dict[str, Any], do: str, **fault: Any) -> tuple[int, dict[str, Any]]:
    """Send a click as the page does; return the status and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", task["port"], timeout=30)
    body, headers = json.dumps({"do": do, **fault}), {"content-type": "application/json"}
    connection.request("POST", f"/{task['token']}/control", body, headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


BOMB = "[&a [x, x], " + ", ".join(f"&{b} [{f'*{a}, ' * 9}]" for a, b in pairwise("abcdefghijkl")) + "]"


@pytest.mark.parametrize(
    "text", [BOMB, f"{{kind: {BOMB}}}", "[" * 2000, "!!int ''", "2020-13-01", "!!bool x", "9" * 500]
)
@pytest.mark.parametrize("what", ["workload", "background", "policy"])
def test_a_hostile_text_is_refused(what: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    control = Controls(lambda *_: None, {"name": "two"})
    with control.on(SimpleNamespace(plan=plan_of()), lambda *_: None):  # type: ignore[arg-type]
        error = control.carry_out({"do": "start", "what": what, "text": text})["error"]
    assert error.startswith(what)
    assert len(error) < 10_000
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("odd", [[1], {"a": 1}, None, 1.5, "\x1b[31m" * 1000])
def test_odd_values_of_a_request_are_named(odd: object, capfd: pytest.CaptureFixture[str]) -> None:
    control = Controls(lambda *_: None, {"name": "two"})
    with control.on(SimpleNamespace(plan=plan_of()), lambda *_: None):  # type: ignore[arg-type]
        for request in (
            {"do": odd},
            {"do": "start", "what": odd},
            {"do": "stop", "what": odd},
            {"do": "start", "what": "workload", "text": odd},
            {"do": "inject", **CUT, "kind": odd},
            {"do": "inject", **CUT, "target": odd},
            {"do": "repair", **CUT, "at": odd},
            {"do": "inject", **CUT, "\ud800": odd},
        ):
            assert "error" in control.carry_out(request)
    assert capfd.readouterr().err == ""


def test_a_defect_of_a_control_is_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    control = Controls(lambda *_: None, {"name": "two"})
    monkeypatch.setattr(control, "_carry_out", lambda request: 1 / 0)
    assert control.carry_out({"do": "x" * 1000}) == {"error": "ZeroDivisionError: division by zero"}
    (line,) = capfd.readouterr().err.splitlines()
    assert "failed: ZeroDivisionError" in line
    assert len(line) <= 300


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "repair of what isn't broken": ("repair", CUT),
    "unknown kind of fault": ("inject", {"kind": "link-dwn", "target": "d0g1"}),
    "target that isn't there": ("inject", {"kind": "link-down", "target": "d9g9"}),
    "unknown action": ("explode", CUT),
    "unknown traffic": ("start", {"what": "music"}),
    "half of YAML": ("start", {"what": "workload", "text": "{kind"}),
    "rail that isn't there": ("start", {"what": "background", "text": "{rails: [9], load: 0.5}"}),
    "stop of what doesn't run": ("stop", {"what": "workload"}),
}


def test_clicks_inject_repair_and_are_saved(
    world: World, tmp_path: Path, data_regression: DataRegressionFixture
) -> None:
    script, events, net = tmp_path / "clicks.yaml", list[Event](), SimpleNamespace(plan=plan_of())
    with opened_page("control", script) as opened:
        assert opened.task
        task = opened.task | {name: os.dup(opened.task[name]) for name in ("listener", "diagnosis")}
        with page.served(task, {"name": "two", "fabrics": [FABRIC]}):
            with observers.fabric("rail-only", net, events):  # type: ignore[arg-type]
                status, answer = ask(task, "inject", **CUT)
                assert (status, answer["active"]) == (200, [CUT])
                assert "error" in ask(task, "inject", **CUT)[1]
                assert ask(task, "repair", **CUT)[1]["active"] == []
                assert [fault.kind for fault in FaultsMeasure().scripts(load_any(str(script)))[0].faults] == [
                    "link-down"
                ]
                errors = {case: ask(task, do, **request)[1]["error"] for case, (do, request) in REFUSED.items()}
                data_regression.check(errors)
                assert ask(task, "pause")[1]["paused"]
                assert not ask(task, "resume")[1]["paused"]
                world.toothless.add("d1g0")
                assert "had no effect" in ask(task, "inject", kind="gpu-crash", target="d1g0")[1]["error"]
                assert ask(task, "inject", **CUT)[0] == 200
            assert not world.broken
    assert [event.what for event in events if event.source == "live"][:5] == [
        "inject", "repair", "pause", "resume", "inject",
    ]  # fmt: skip
    (saved,) = yaml.safe_load(script.read_text())["scripts"]
    assert list(map(itemgetter("kind", "target"), saved["faults"])) == [("link-down", "d0g1")] * 2


def test_a_held_run_is_not_interactive_and_a_hold_is_recorded() -> None:
    run, control = sample_run(), Controls(lambda *_: None, {"name": "two"})
    control.carry_out({"do": "pause"})  # between two fabrics
    net: Any = SimpleNamespace(plan=plan_of())
    with control.on(net, lambda ns, what, detail: run.events.append(page.click_event("rail-only", ns, what, detail))):
        control.carry_out({"do": "resume"})
    assert [event.what for event in run.events if event.source == "live"] == ["pause", "resume"]
    assert not run.is_interactive


def test_no_check_of_an_interactive_run_passes() -> None:
    run = sample_run()
    run.events.append(page.click_event("rail-only", 5, "inject", CUT))
    checks = Analysis(run).checks
    assert checks[0].name.endswith("changed by hand")
    assert not any(check.passed for check in checks)


@pytest.mark.parametrize(("kind", "policy"), [("rail-only", "dr"), ("rail-only", "rd"), ("rail-optimized", "spine")])
def test_a_path_follows_the_next_hops(kind: str, policy: str) -> None:
    plan = plan_of(kind, 3, 3, policy=policy, **({"spines": 1} if policy == "spine" else {}))
    links = Links(plan)
    for src, dst in permutations(plan.gpus, 2):
        path = plan.spec.paths(src, dst)[0].path
        steps = {hop.a: ("hb0" if hop.side == "hb" else "rail0", hop.b) for hop in hops(path, src, dst)}
        found = describe_path(plan, links, src, dst, lambda here, *_, steps=steps: steps.get(here))
        assert found["gpus"] == [src.name, *(gpu.name for _, gpu in steps.values())]
        ends = [plan.links[number].a.node for number in found["links"] if plan.links[number].kind != "uplink"]
        assert ends == [name for a, (_, b) in steps.items() for name in (a.name, b.name)]
        crosses = policy == "spine" and src.domain != dst.domain and src.rank != dst.rank
        uplinks = len(found["links"]) - len(ends)
        assert uplinks == (2 if crosses else 0)
        assert set(found["policy_links"]) == set(found["links"])
        assert not found["problem"]


def test_a_missing_route_and_a_loop_are_named() -> None:
    plan = plan_of()
    a, b, c = plan.gpus[:3]
    assert describe_path(plan, Links(plan), a, c, lambda *_: None)["problem"].startswith("no route")
    around = describe_path(plan, Links(plan), a, c, lambda here, *_: ("hb0", b if here == a else a))
    assert around["problem"] == "a loop of 8 hops"


def test_phases_begin_after_the_phases_they_depend_on() -> None:
    plan, seen, ended = plan_of(), list[list[str]](), list[int]()
    spec = parse_workload(yaml.safe_load("{kind: moe, model: moe-1.3b-128, duration: 8s, all_to_alls: 2}"))
    schedule = build(spec, plan.spec, plan.rail_bps, plan.hb_bps).schedule
    progress = PhaseProgress(schedule, lambda ns, names: seen.append(names), {0: ended.append})
    progress.started(1)
    for number, end in progress.watched.items():
        end(10 + number)
    assert all(len(names) == 1 for names in seen[:-1])
    assert seen[-1] == []
    assert ended == [10]


def test_a_held_run_waits_before_its_next_step() -> None:
    control = Controls(lambda what, fault, ns=None: None, {"name": "two"})
    control.wait_while_paused()
    control.carry_out({"do": "pause"})
    step = threading.Thread(target=control.wait_while_paused)
    step.start()
    step.join(0.1)
    assert step.is_alive()
    control.carry_out({"do": "resume"})
    step.join(30)
    assert not step.is_alive()
