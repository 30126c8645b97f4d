"""Sessions: health scores that active faults share, and the records of a fabric, of a fault and of the load."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from railyard.controller.health.estimator import HealthSpec
from railyard.core.errors import BadInput
from railyard.core.host_load import LoadSample, MachineLoad
from railyard.core.records import IntervalId
from railyard.experiments.run import machines
from railyard.experiments.run.session import FabricSession, built
from railyard.experiments.spec.faults import MIN_AT_S
from railyard.failure.analysis.evaluate import WARM_UP_S
from railyard.failure.faults import Fault
from railyard.results.runs.records import Event, Load, Run
from railyard.topologies.measure.counters import Counters
from railyard.topologies.plan import Plan
from tests.unit.stand_ins import plan_of, run_of, session_of


class Controller:
    """Notes when health scores were started and stopped."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def start_health(self, spec: HealthSpec) -> None:
        self.operations.append(f"start {spec.registry}")

    def stop_health(self) -> None:
        self.operations.append("stop")


def session_with(controller: Controller) -> FabricSession:
    return FabricSession("rail-only", cast(Any, None), cast(Any, controller))


def test_scores_last_until_the_end_of_their_last_fault() -> None:
    controller = Controller()
    session = session_with(controller)
    first = session.health_scores("embedded")
    second = session.health_scores("embedded")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert controller.operations == ["start embedded"]
    second.__exit__(None, None, None)
    assert controller.operations == ["start embedded", "stop"]


def test_another_registry_beside_an_active_one_is_refused() -> None:
    controller = Controller()
    session = session_with(controller)
    with (
        session.health_scores("embedded"),
        pytest.raises(BadInput, match=r"^registry: 'etcd' can't run beside embedded"),
        session.health_scores("etcd"),
    ):
        pass
    assert controller.operations == ["start embedded", "stop"]


def test_fault_without_a_registry_needs_no_scores() -> None:
    controller = Controller()
    with session_with(controller).health_scores(None):
        assert controller.operations == []


def test_injection_and_repair_are_recorded_together() -> None:
    run = Run("mine", {}, {}, "now")
    session = session_with(Controller())
    session.record_fault(run, IntervalId("rail-only"), Fault("link-down", "d0g1"), 10, 30)
    assert [(event.monotonic_ns, event.what, event.detail["target"]) for event in run.events] == [
        (10, "link-down", "d0g1"),
        (30, "repair", "d0g1"),
    ]
    assert session.faults == [(Fault("link-down", "d0g1"), 10, 30)]


class Net:
    """Stand-in for a FabricNet: builds nothing, and says when it was started and stopped."""

    def __init__(self, plan: Plan, datapath: str, controller: "BuiltController", backups: bool) -> None:
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


class BuiltController:
    def __init__(self, reroute: bool, on_event: Callable[[int, str, dict[str, Any]], None], user_app: str = "") -> None:
        self.reroute, self.tell, self.user_app = reroute, on_event, user_app


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "FabricNet", Net)
    monkeypatch.setattr(machines, "ControllerProcess", BuiltController)


@pytest.mark.usefixtures("nothing_is_built")
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


@pytest.mark.usefixtures("nothing_is_built")
def test_fabric_is_recorded_whose_label_begins_another() -> None:
    run = run_of()
    for label in ("rail-only 2x4", "rail-only"):
        with built(label, plan_of("rail-only"), "netdev", True, run):
            pass
    assert [fabric.label for fabric in run.fabrics] == ["rail-only 2x4", "rail-only"]


@pytest.mark.usefixtures("nothing_is_built")
def test_fabric_is_stopped_and_events_kept_after_an_error() -> None:
    run = run_of()
    nets = list[Any]()

    def fail(on: FabricSession) -> None:
        nets.append(on.net)
        raise RuntimeError

    with pytest.raises(RuntimeError), built("one", plan_of(), "netdev", True, run) as on:
        fail(on)
    assert nets[0].steps == ["start", "stop"]
    assert [event.what for event in run.events] == ["ready"]
    # a fabric without spines has no uplinks
    assert (run.fabrics[0].spines, run.fabrics[0].uplink_bps) == (0, 0)


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
    interval = IntervalId("a fabric", "moe", repeat=2)
    assert run.loads == [Load(interval, 0.5, 0.1, 2.0, 3, 1000, 2, transfers_faulted=True, needless_retransmits=5)]


def test_faults_begin_after_the_warm_up() -> None:
    assert MIN_AT_S > WARM_UP_S
