"""Clicks of the live page: requests, the saved script, and a sample of links."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.experiments.live import controls
from railyard.experiments.live.controls import Controls
from railyard.experiments.live.sampler import link_sample, structure
from railyard.experiments.spec.faults import BaseFaultSpec
from railyard.failure.faults import FAULTS, Fault
from railyard.topologies.measure.counters import PortStats
from tests.unit.stand_ins import plan_of


def test_without_a_fabric_a_click_is_refused() -> None:
    shown: list[tuple[str, dict[str, Any]]] = []
    clicks = Controls(lambda what, fault: shown.append((what, fault)), {"name": "two"})
    assert clicks.carry_out({"do": "inject"}) == {"error": "no fabric is up at the moment"}
    assert shown == []


@pytest.mark.parametrize("kind", FAULTS.names())
def test_a_fault_as_data_makes_the_same_fault(kind: str) -> None:
    plan = plan_of("rail-optimized")
    for target in list(FAULTS[kind].targets(plan))[:1]:
        fault = Fault(kind, target)
        spec = BaseFaultSpec.model_validate(controls.as_dict(fault))
        assert spec.fault == fault


def test_every_fault_of_a_fabric_is_offered_at_an_element() -> None:
    shown = structure("two", plan_of("rail-optimized"))
    names = {host["name"] for host in shown["hosts"]} | set(shown["inner"]) | set(shown["control"])
    links = {(link["layer"], link["target"]) for link in shown["links"]}
    for fault in shown["faults"]:
        for target in fault["targets"]:
            assert (fault["layer"], target) in links if fault["layer"] else target in names, (fault["kind"], target)


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
    assert controls._without_live(arguments) == kept


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
