"""What repeats the clicks of a live page: a saved experiment, command lines, and lines of a script."""

import re
import shlex
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.core.installation import RUN
from railyard.experiments.live import clicks
from railyard.experiments.live.clicks import Click, Clicks
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.measures.steering.spec import background_of, routing_of
from railyard.experiments.measures.workloads.spec import workloads_of
from railyard.experiments.spec.experiment import ExperimentSpec
from railyard.experiments.spec.faults import BaseFaultSpec, fault_dict
from railyard.experiments.spec.loading import load_any
from railyard.experiments.spec.parsing import parse
from railyard.failure.faults import FAULTS, Fault
from tests.unit.stand_ins import plan_of

FABRIC = {"kind": "rail-only", "domains": 2, "rails": 2}
WORKLOAD, BACKGROUND = clicks.DEFAULT_WORKLOAD, {"rails": [0], "load": 0.5}


@pytest.mark.parametrize("kind", FAULTS.names())
def test_a_fault_as_data_makes_the_same_fault(kind: str) -> None:
    plan = plan_of("rail-optimized")
    for target in list(FAULTS[kind].targets(plan))[:1]:
        fault = Fault(kind, target)
        spec = BaseFaultSpec.model_validate(clicks.as_dict(fault))
        assert spec.fault == fault


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["quickstart", "--live", "control", "-o", "seed=2"], ["quickstart", "-o", "seed=2"]),
        (["--live=control", "--save-script", "a.yaml", "quickstart"], ["quickstart"]),
        (["--live", "quickstart"], ["quickstart"]),
        (["quickstart", "--save-script=a.yaml", "--live"], ["quickstart"]),
    ],
)
def test_the_repeating_command_has_no_option_of_the_page(arguments: list[str], kept: list[str]) -> None:
    assert clicks.without_live(arguments) == kept


CLICK = st.tuples(st.sampled_from(("d0g0", "d0g1", "d1g0")), st.floats(0.01, 3), st.floats(0.01, 3))


@settings(max_examples=20)
@given(st.lists(CLICK, min_size=1, max_size=5))
def test_a_script_of_fast_clicks_can_be_run(given: list[tuple[str, float, float]]) -> None:
    now_s, clicked, plan = 100.0, [], plan_of()
    for target, lasts_s, pause_s in given:
        fault = Fault("link-down", target)
        clicked.append(clicks.Click(fault, fault.scope(plan), now_s, now_s + lasts_s))
        now_s += lasts_s + pause_s
    timed = clicks.script_of(clicked, now_s)
    assert [one.fault for one in timed] == [click.fault for click in clicked]
    assert all(abs(one.repair_s - lasts_s) < 0.2 for one, (_, lasts_s, _) in zip(timed, given, strict=True))
    faults = [fault_dict(one) for one in timed]
    parse({"name": "clicks", "fabrics": [FABRIC], "scripts": [{"name": "clicks", "faults": faults}]})


def clicked(experiment: dict[str, Any], *, fault: bool = False, **started: Any) -> Clicks:
    """Clicks on the page of an experiment: a cut that was repaired, and what was started."""
    found, plan = Clicks(experiment, policy="dr"), plan_of()
    if fault:
        cut = Fault("link-down", "d0g1")
        found.faults.append(Click(cut, cut.scope(plan), 10.0, 12.5))
    for what, value in started.items():
        found.start(what, value)
    return found


def repeated(command: str) -> ExperimentSpec:
    """Return the experiment that a command line runs."""
    words = shlex.split(command.removeprefix(f"{RUN} run "))
    return load_any(words[0], words[2::2])


def test_a_saved_experiment_has_the_traffic_beside_the_clicks() -> None:
    found = clicked({"name": "two", "fabrics": [FABRIC], "workloads": ["others"]}, fault=True, workload=WORKLOAD)
    spec = parse(yaml.safe_load(found.saved(20.0)))
    assert [(one.kind, one.target) for one in FaultsMeasure().scripts(spec)[0].faults] == [("link-down", "d0g1")]
    assert [one.kind for one in workloads_of(spec)] == ["collective"]


def test_policies_and_background_are_saved_with_a_workload() -> None:
    found = clicked({"name": "two", "fabrics": [FABRIC]}, background=BACKGROUND, policy="health-best")
    spec = parse(yaml.safe_load(found.saved(20.0)))
    routing = routing_of(spec)
    assert routing
    assert routing.policies == ("health-best",)
    assert [one.load for one in background_of(spec)] == [0.5]
    assert workloads_of(spec)


@pytest.mark.parametrize(("policy", "steered"), [("spine", "dr"), ("health-best", "health-best")])
def test_background_alone_is_steered_by_a_health_policy(policy: str, steered: str) -> None:
    found = clicked({"name": "two", "fabrics": [FABRIC]}, background=BACKGROUND)
    found.policy = policy
    routing = routing_of(parse(yaml.safe_load(found.saved(20.0))))
    assert routing
    assert routing.policies == (steered,)


def test_policies_beside_faults_are_saved_as_a_comment() -> None:
    found = clicked({"name": "two", "fabrics": [FABRIC]}, fault=True, policy="health-best")
    text = found.saved(20.0)
    assert not routing_of(parse(yaml.safe_load(text)))
    comment = "\n".join(re.findall(r"^# (.*)$", text, re.MULTILINE))
    assert "health-best" in str(yaml.safe_load(comment.partition("\n")[2])["routing"])


@pytest.mark.parametrize("name", ["recovery", "hot-rail", "collectives"])
def test_a_command_repeats_each_sort_of_click(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["railyard", "shell", name, "--live", "control"])
    experiment = load_any(name).resolved()
    cut = repeated(clicked(experiment, fault=True, workload=WORKLOAD).commands(20.0))
    assert [one.kind for one in FaultsMeasure().scripts(cut)[0].faults] == ["link-down"]
    assert [one.kind for one in workloads_of(cut)] == ["collective"]
    loaded = repeated(clicked(experiment, background=BACKGROUND).commands(20.0))
    assert background_of(loaded)
    assert routing_of(loaded)
    both = clicked(experiment, fault=True, background=BACKGROUND).commands(20.0).splitlines()
    assert [bool(routing_of(repeated(command))) for command in both] == [False, True]


def test_a_script_fabric_gets_lines_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["server.py", "3", "4"])
    found = clicked({"name": "script"}, fault=True, workload={**WORKLOAD, "bytes": "1MB"}, background=BACKGROUND)
    slow = Fault.of("link-slow", "d0g0", rate=0.5)
    found.faults.append(Click(slow, slow.scope(plan_of()), 11.0))
    workload, *lines, comment = found.commands(20.0).splitlines()
    assert workload.startswith("net.run(ry.Collective(collective='all-to-all', algorithm='direct'")
    assert lines == [
        "fault1 = net.fault('link-down', 'd0g1')",
        "fault2 = net.fault('link-slow', 'd0g0', rate=0.5)",
        "fault1.repair()",
    ]
    assert comment.startswith("# background {")


def test_command_without_clicks_repeats_no_click(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv in (["railyard", "shell", "quickstart"], ["server.py", "3", "4"]):
        monkeypatch.setattr(sys, "argv", argv)
        assert Clicks({"name": "two"}).commands(20.0) == ""
