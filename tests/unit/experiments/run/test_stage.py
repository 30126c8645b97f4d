"""Records of a fabric that an experiment built, and of the machine's load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from railyard.core import provenance
from railyard.core.errors import BadInput
from railyard.core.host_load import LoadSample, MachineLoad
from railyard.core.records import IntervalId
from railyard.experiments.measures.faults.measure import FaultsMeasure
from railyard.experiments.run import machines
from railyard.experiments.run.session import FabricSession, built
from railyard.experiments.spec.faults import MIN_AT_S
from railyard.experiments.spec.parsing import parse
from railyard.failure.analysis.evaluate import WARM_UP_S
from railyard.results.runs.records import Event, Load
from railyard.topologies.measure.counters import Counters
from railyard.topologies.plan import Plan
from tests.unit.core.test_machine import FULL
from tests.unit.stand_ins import plan_of, run_of, session_of


class Net:
    """Stand-in for a FabricNet: builds nothing, and says when it was started and stopped."""

    def __init__(self, plan: Plan, datapath: str, controller: "Controller", backups: bool) -> None:
        self.plan, self.datapath, self.controller, self.backups = plan, datapath, controller, backups
        self.build_s = self.stop_s = 0.0
        self.switch_buffers = True
        self.steps: list[str] = []

    def start(self) -> None:
        self.steps.append("start")
        self.build_s = 1.5
        self.controller.tell(5, "ready", {})

    def stop(self) -> None:
        self.steps.append("stop")
        self.stop_s = 0.5


class Controller:
    def __init__(self, reroute: bool, on_event: Callable[[int, str, dict[str, Any]], None], user_app: str = "") -> None:
        self.reroute, self.tell, self.user_app = reroute, on_event, user_app


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "FabricNet", Net)
    monkeypatch.setattr(machines, "ControllerProcess", Controller)


def test_fabric_is_recorded_once_with_events_of_each_build() -> None:
    run, plan = run_of(), plan_of("rail-optimized", domains=3, spines=3)
    for reroute in (True, False):
        with built("one", plan, "netdev", reroute, run) as on:
            net: Any = on.net
            assert (net.steps, net.backups, net.controller.reroute) == (["start"], reroute, reroute)
            net.controller.tell(7, "port-down", {"switch": "rail0"})
            assert on.events() == [(5, "ready", {}), (7, "port-down", {"switch": "rail0"})]
        assert net.steps == ["start", "stop"]
    (fabric,) = run.fabrics
    assert (fabric.label, fabric.kind, fabric.domains, fabric.rails) == ("one", "rail-optimized", 3, 2)
    assert (fabric.policy, fabric.spines, fabric.uplink_bps) == ("spine", 3, 100_000_000)
    assert fabric.switches == ("rail0", "rail1", "spine0", "spine1", "spine2")
    assert (fabric.build_s, fabric.stop_s, fabric.datapath) == (1.5, 0.5, "netdev")
    reported = [Event(5, "controller", "ready", {"fabric": "one"})]
    reported += [Event(7, "controller", "port-down", {"fabric": "one", "switch": "rail0"})]
    assert run.events == reported * 2
    assert run.provenance == {"switch_buffers": True}


def test_a_fabric_without_spines_has_no_uplinks() -> None:
    run = run_of()
    with built("one", plan_of("rail-only"), "netdev", True, run):
        pass
    assert (run.fabrics[0].spines, run.fabrics[0].uplink_bps) == (0, 0)


def test_fabric_is_stopped_and_events_kept_after_an_error() -> None:
    run, nets = run_of(), list[Any]()

    def fail(on: FabricSession) -> None:
        nets.append(on.net)
        raise RuntimeError

    with pytest.raises(RuntimeError), built("one", plan_of(), "netdev", True, run) as on:
        fail(on)
    assert nets[0].steps == ["start", "stop"]
    assert [event.what for event in run.events] == ["ready"]


def test_a_watched_stretch_has_its_own_losses_and_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([Counters(100, 10, 1, 4), Counters(1100, 13, 3, 9)])
    monkeypatch.setattr(machines, "count", lambda net: next(counted))

    class Meter:
        load = MachineLoad(0.5, 0.1, 2.0)

        def __init__(self, late_s: float) -> None: ...

        def take_samples(self) -> list[LoadSample]:
            return []

        def __enter__(self) -> "Meter":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(machines, "LoadMeter", Meter)
    run, (quiet, _) = run_of(), session_of(plan_of())
    on = FabricSession(quiet.label, quiet.net, quiet.controller)
    with on.watch().record_load(run, IntervalId("a fabric", "moe", repeat=2), faulted=True):
        pass
    assert run.loads == [
        Load(
            IntervalId("a fabric", "moe", repeat=2),
            0.5,
            0.1,
            2.0,
            3,
            1000,
            2,
            transfers_faulted=True,
            needless_retransmits=5,
        )
    ]


def test_a_fault_before_anything_flows_is_refused() -> None:
    data = {"name": "mine", "fabrics": [{"kind": "rail-only"}]}
    fault = {"kind": "link-down", "target": "d0g1", "at": "499ms"}
    with pytest.raises(BadInput, match=r"faults\.0\.at: '499ms' must be 500ms or more"):
        parse({**data, "faults": [fault]})
    assert FaultsMeasure().faults(parse({**data, "faults": [{**fault, "at": "500ms"}]}))[0].at == MIN_AT_S > WARM_UP_S


def test_provenance_names_machine_and_versions() -> None:
    found = provenance.provenance(FULL, "netdev", "no module", 7)
    assert (found["kernel"], found["ovs"], found["datapath"]) == ("6.1.0-28-amd64", "3.1.0", "netdev")
    assert found["seed"] == 7
    assert found["libraries"].keys() == set(provenance.LIBRARIES)
    assert all(version[0].isdigit() for version in found["libraries"].values())


def test_provenance_outside_a_checkout_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "PROJECT", tmp_path)
    found = provenance.provenance(FULL, "netdev", "", 1)
    assert (found["git_commit"], found["git_changed"]) == ("", False)
