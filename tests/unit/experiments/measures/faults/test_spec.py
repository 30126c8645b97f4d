"""Scripts, random faults and heartbeats as an experiment's file has them."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.spec.experiment import ExperimentSpec, nominal_plan
from railyard.experiments.spec.faults import fault_dict
from railyard.experiments.spec.parsing import parse
from railyard.failure.faults import Fault
from railyard.failure.script import Script, Timed
from tests.unit.core.test_machine import FULL
from tests.unit.error_messages import message_of

BOTH = """
name: mine
fabrics: [{kind: rail-only}, {kind: rail-optimized, domains: 3, rails: 2}]
workloads: [{kind: moe, bytes: 100KB}]
"""
ALONE = "{name: mine, fabrics: [{kind: rail-only}], faults: [%s]}"


def spec_of(text: str) -> ExperimentSpec:
    return parse(yaml.safe_load(BOTH + text))


def scripts_of(text: str) -> ExperimentSpec:
    return spec_of(f"scripts: [{text}]")


WRONG: dict[str, str] = {
    "script without faults": "scripts: [{name: a}]",
    "listed and random faults": "scripts: [{name: a, faults: [{kind: link-down, target: d0g1}], random_faults: {}}]",
    "name with a space": "scripts: [{name: A b, random_faults: {}}]",
    "name twice": "scripts: [{name: a, random_faults: {}}, {name: a, random_faults: {}}]",
    "on an unknown fabric": "scripts: [{name: a, random_faults: {}, on: [2]}]",
    "on a fabric twice": "scripts: [{name: a, random_faults: {}, on: [0, 0]}]",
    "on no fabric": "scripts: [{name: a, random_faults: {}, on: []}]",
    "longer than its workload": "scripts: [{name: a, random_faults: {count: 5}, during: moe-1.3b-128, on: [1]}]",
    "during an unknown workload": "scripts: [{name: a, random_faults: {}, during: moo}]",
    "target beyond the fabric": "scripts: [{name: a, faults: [{kind: link-down, target: d3g1}]}]",
    "too soon": "scripts: [{name: a, faults: [{kind: link-down, target: d0g1, at: 499ms}]}]",
    "after a phase of nothing": "scripts: [{name: a, faults: [{kind: link-down, target: d0g1, after: pp}]}]",
    "after an unknown phase":
        "scripts: [{name: a, faults: [{kind: link-down, target: d0g1, after: moe}], during: moe-1.3b-128}]",
    "hidden fault":
        "scripts: [{name: a, faults: [{kind: gpu-crash, target: d0g1}, {kind: link-slow, target: d0g1, at: 2s}]}]",
    "two registries":
        "scripts: [{name: a, faults: [{kind: registry-crash, target: registry}, "
        "{kind: registry-crash, target: registry, at: 9s, registry: etcd}]}]",
    "short mean interval": "scripts: [{name: a, random_faults: {mean_interval: 49ms}}]",
    "many at once": "scripts: [{name: a, random_faults: {max_concurrent: 17}}]",
    "groups one by one": "scripts: [{name: a, random_faults: {max_concurrent: 1}}]",
    "no random fault": "scripts: [{name: a, random_faults: {count: 0}}]",
    "many random faults": "scripts: [{name: a, random_faults: {count: 501}}]",
    "share above 1": "scripts: [{name: a, random_faults: {group_share: 1.5}}]",
    "longer duration first": "scripts: [{name: a, random_faults: {duration: [2s, 1s]}}]",
    "empty mix": "scripts: [{name: a, random_faults: {mix: {}}}]",
    "weight of 0": "scripts: [{name: a, random_faults: {mix: {link-down: 0}}}]",
    "mix that can break nothing": "scripts: [{name: a, random_faults: {mix: {spine-crash: 1}}}]",
    "heartbeats as a number": "heartbeats: 5",
    "heartbeats on": "heartbeats: on",
    "short period": "heartbeats: {period: 4ms}",
    "large multiplier": "heartbeats: {multiplier: 11}",
    "heartbeats with a slip": "heartbeats: {perod: 1s}",
    "no repeat": "script_repeats: 0",
    "steering beside": "scripts: [{name: a, random_faults: {}}]\nrouting: {policies: [dr]}",
}  # fmt: skip
WRONG_FAULTS: dict[str, str] = {
    "fault on an unknown fabric": "{kind: link-down, target: d0g1, on: [1]}",
    "target of another kind": "{kind: controller-crash, target: d0g1}",
    "registry of a link": "{kind: link-down, target: d0g1, registry: etcd}",
    "unknown registry": "{kind: registry-crash, target: registry, registry: consul}",
    "fault twice": "{kind: link-gray, target: d0g1}, {kind: link-gray, target: d0g2}, "
        "{kind: link-gray, target: d0g1, loss: 0.2}",
}  # fmt: skip


def test_invalid_faults_and_scripts_are_refused_in_one_line(data_regression: DataRegressionFixture) -> None:
    messages = {case: message_of(BadInput, partial(spec_of, text)) for case, text in WRONG.items()}
    for case, fault in WRONG_FAULTS.items():
        data = yaml.safe_load(ALONE % fault)
        messages[case] = message_of(BadInput, partial(parse, data))
    data_regression.check(messages)


ALL = """
scripts:
  - {name: cut, faults: [{kind: link-down, target: d0g1, at: 10ms, after: moe-a2a}], during: moe-1.3b-128, on: [0]}
  - name: away
    faults: [{kind: controller-crash, target: controller}, {kind: registry-crash, target: registry, at: 5s}]
  - name: wild
    random_faults:
      {count: 7, mix: {link-down: 2, gpu-crash: 1}, group_share: 0, duration: [300ms, 1s],
       mean_interval: 250ms, max_concurrent: 1}
heartbeats: {period: 50ms}
script_repeats: 2
"""


def test_a_resolved_experiment_is_the_same_when_read_back() -> None:
    spec = spec_of(ALL)
    written = yaml.safe_dump(spec.resolved())
    assert parse(yaml.safe_load(written)) == spec
    assert spec.resolved()["heartbeats"] == {"period": "50ms", "multiplier": 3}
    assert spec_of("heartbeats: off").resolved()["heartbeats"] == "off"


def counts(spec: ExperimentSpec) -> tuple[int, int]:
    """Return the numbers of runs and of injections."""
    return FaultsMeasure().steps(spec), FaultsMeasure().counts(spec).faults


def test_scripts_are_counted_by_fabric_and_by_fault() -> None:
    spec = spec_of(ALL)
    assert [[script.label for script in FaultsMeasure().items_on(spec, n)] for n in (0, 1)] == [
        ["cut", "away", "wild"],
        ["away", "wild"],
    ]
    assert counts(spec) == ((3 + 2) * 2 * 2, (1 + 2 + 7 + 2 + 7) * 2 * 2)


def test_some_are_run_fewer_times_than_others() -> None:
    faults = [{"kind": "link-down", "target": "d0g1"}, {"kind": "gpu-crash", "target": "d0g1", "repeats": 5}]
    keys = {
        "faults": faults,
        "scripts": [{"name": "a", "random_faults": {"count": 3}, "repeats": 2}],
        "reroute": ["on"],
    }
    data = {"name": "mine", "fabrics": [{"kind": "rail-only"}], **keys}
    assert counts(parse(data)) == (3, 5)
    many = parse({**data, "fault_repeats": 20, "script_repeats": 20})
    assert counts(many) == (20 + 5 + 2, 20 + 5 + 2 * 3)


def test_faults_become_a_script_with_their_times() -> None:
    spec = spec_of(ALL)
    cut, away, _ = FaultsMeasure().scripts(spec)
    plan = nominal_plan(spec.gpu_fabrics[0])
    assert cut.script(plan, 1) == Script("cut", (Timed(Fault("link-down", "d0g1"), 0.01, 2.0, "moe-a2a"),))
    assert [timed.fault.kind for timed in away.script(plan, 1).faults] == ["controller-crash", "registry-crash"]
    assert (cut.registry, away.registry) == (None, "embedded")


def test_a_storm_is_drawn_from_its_seed_and_its_mix() -> None:
    spec = spec_of(ALL)
    wild, plan = FaultsMeasure().scripts(spec)[2], nominal_plan(spec.gpu_fabrics[0])
    drawn = wild.script(plan, 3)
    assert (drawn.name, len(drawn.faults), wild.injections) == ("wild", 7, 7)
    assert {timed.fault.kind for timed in drawn.faults} <= {"link-down", "gpu-crash"}
    assert drawn == wild.script(plan, 3)
    assert drawn != wild.script(plan, 4)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), every=st.sampled_from(["50ms", "400ms", "3s"]))
def test_what_a_storm_breaks_can_be_played_as_a_list_of_faults(seed: int, every: str) -> None:
    data: dict[str, Any] = {"name": "mine", "fabrics": [{"kind": "rail-only"}]}
    short = {"count": 30, "duration": ["200ms", "200ms"], "mean_interval": every, "max_concurrent": 8}
    spec = parse({**data, "scripts": [{"name": "a", "random_faults": short}]})
    drawn = FaultsMeasure().scripts(spec)[0].script(nominal_plan(spec.gpu_fabrics[0]), seed)
    listed = parse({**data, "scripts": [{"name": "a", "faults": [fault_dict(timed) for timed in drawn.faults]}]})
    played = FaultsMeasure().scripts(listed)[0].script(nominal_plan(spec.gpu_fabrics[0]), seed)
    assert [timed.fault for timed in played.faults] == [timed.fault for timed in drawn.faults]
    assert [timed.repair_s for timed in played.faults] == [timed.repair_s for timed in drawn.faults]


def test_a_storm_is_the_same_however_its_kinds_are_ordered() -> None:
    plan = nominal_plan(spec_of("").gpu_fabrics[0])
    one, other = (
        FaultsMeasure().scripts(scripts_of("{name: a, random_faults: {mix: " + mix + "}}"))[0].script(plan, 3)
        for mix in ("{link-silent: 1, gpu-hang: 1}", "{gpu-hang: 1, link-silent: 1}")
    )
    assert one == other


def test_a_storm_whose_mix_breaks_a_registry_has_one() -> None:
    spec = scripts_of("{name: a, random_faults: {mix: {registry-crash: 1}}}")
    assert FaultsMeasure().scripts(spec)[0].registry == "embedded"


@pytest.mark.parametrize("where", ["faults: [%s]", "scripts: [{name: a, faults: [%s]}]"])
def test_fault_of_etcd_needs_etcd(where: str) -> None:
    machine = replace(FULL, programs={})
    etcd = "{kind: registry-crash, target: registry, registry: etcd}"
    assert list(FaultsMeasure().missing_requirements(spec_of(where % etcd), machine))
    embedded = "{kind: registry-crash, target: registry}"
    assert not list(FaultsMeasure().missing_requirements(spec_of(where % embedded), machine))


def test_the_same_may_break_on_two_fabrics_in_two_ways() -> None:
    gray: dict[str, Any] = {"kind": "link-gray", "target": "d0g1", "on": [0]}
    keys = {
        "fabrics": [{"kind": "rail-only"}, {"kind": "rail-only"}],
        "faults": [gray, {**gray, "on": [1], "loss": 0.2}],
    }
    assert len(FaultsMeasure().faults(parse({"name": "mine", **keys}))) == 2


def test_faults_one_after_the_other_may_be_at_one_place() -> None:
    one: dict[str, Any] = {"kind": "gpu-crash", "target": "d0g1"}
    later = {**one, "at": "4.5s"}
    data = {"name": "mine", "fabrics": [{"kind": "rail-only"}], "scripts": [{"name": "a", "faults": [one, later]}]}
    assert len(FaultsMeasure().scripts(parse(data))[0].faults) == 2
