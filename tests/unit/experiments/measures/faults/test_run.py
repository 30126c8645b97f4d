"""Records of faults and scripts on a built fabric, and scripts beside a workload."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from railyard.core.errors import CheckFailed, RailyardError
from railyard.core.records import ConnectivityCheck, IntervalId, Recovered, Recovery
from railyard.experiments.measures.faults import run as fault_script
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, GOODPUT, RECOVERIES
from railyard.experiments.measures.faults.run import FaultInjector
from railyard.experiments.measures.faults.spec import ScriptSpec
from railyard.experiments.measures.workloads import replay as workload_replay
from railyard.experiments.measures.workloads.turn import Workload
from railyard.experiments.spec.faults import FaultSpec, fault_dict
from railyard.failure.analysis.evaluate import FaultRun, recovered
from railyard.failure.faults import Fault
from railyard.failure.scenario.run import ScriptRun
from railyard.failure.script import Script, Timed
from railyard.results.analysis.fidelity import judge
from railyard.results.analysis.limits import FAULT_LATE
from railyard.results.runs.records import Run
from railyard.workloads.replay.run import Aborted, Replay
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build, parse_workload
from tests.unit.stand_ins import plan_of, run_of, session_of

SECOND = 1_000_000_000
CUT = Fault("link-down", "d0g1")


def fault_run(fault: Fault = CUT, fault_ns: int = 2 * SECOND) -> FaultRun:
    row = Recovery(
        IntervalId(), fault.kind, fault.target, fault_ns, fault_ns + 2 * SECOND,
        detect_ms=1.0, decided_ms=1.5, reroute_ms=2.0, first_packet_ms=3.0, source_side_ms=0.5, far_side_ms=3.0,
        goodput_ms=20.0, goodput_after_repair_ms=0.0, primary_path_ms=5.0, source_side_probed=2,
        far_side_probed=1, above_max_flow=0, lost_bytes=9,
        probes_lost=4, probes_lost_after_repair=1, connections_lost=1, recovered=Recovered.YES,
    )  # fmt: skip
    return FaultRun(fault, row, (-20.0, 0.0), (2.0, 1.0), (1.0, 0.0))


def script_of(seen: tuple[FaultRun, ...], connectivity_checks: tuple[ConnectivityCheck, ...] = ()) -> ScriptRun:
    return ScriptRun(SECOND, seen, connectivity_checks, (5.0, 6.0, 7.0))


class Scene:
    """A breaker whose engine answers `seen`; how that was called is in `asked`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seen: ScriptRun, reroute: str = "on") -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.meanwhile: Callable[[Any], None] = lambda phases: None

        def run_script(*arguments: Any, **_: Any) -> ScriptRun:
            self.asked.append(arguments)
            self.meanwhile(next((phases for phases in arguments if isinstance(phases, dict)), {}))
            return seen

        monkeypatch.setattr(fault_script, "run_script", run_script)
        self.run, (self.session, controller) = run_of(), session_of(plan_of())
        self.controller: Any = controller
        self.injector = FaultInjector(self.session, reroute, "checker", self.run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first_packet_ms", "late", "probed", "goodput_ms", "streams", "expected"),
    [
        (3.0, 0, 3, 20.0, True, Recovered.YES),
        (None, 0, 3, 20.0, True, Recovered.NO),
        (3.0, 0, 3, None, True, Recovered.NO),
        (3.0, 1, 3, 20.0, True, Recovered.NO),
        (3.0, 0, 3, 0.0, True, Recovered.YES),
        (3.0, 0, 3, None, False, Recovered.YES),
        (None, 0, 3, None, False, Recovered.NO),
        (None, 0, 0, 20.0, True, Recovered.YES),
        (None, 0, 0, None, True, Recovered.NO),
        (0.0, 0, 3, 0.0, True, Recovered.UNAFFECTED),
        (None, 0, 0, 0.0, True, Recovered.UNAFFECTED),
        (None, 0, 0, None, False, Recovered.NOT_MEASURED),
    ],
)
def test_recovery_needs_packets_and_goodput(
    first_packet_ms: float | None, late: int, probed: int, goodput_ms: float | None, streams: bool, expected: Recovered
) -> None:
    row = fault_run().recovery
    row = replace(row, first_packet_ms=first_packet_ms, probes_lost=round(first_packet_ms or 0), goodput_ms=goodput_ms)
    row = replace(row, source_side_probed=probed, far_side_probed=0, has_streams=streams)
    assert recovered(row, late) is expected


def test_a_fault_leaves_a_row_a_trace_and_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, script_of((fault_run(),)), "off")
    scene.injector.inject(FaultSpec(kind="link-down", target="d0g1"), 4, 1, None, lambda _: None)
    (_, script, selections, _, checker, *_) = scene.asked[0]
    assert script == Script("", (Timed(CUT, 1.0, 2.0),))
    assert (len(selections), checker) == (1, "checker")
    assert selections[0].probes
    (row,) = scene.run.rows(RECOVERIES)
    assert (row.reroute, row.repeat, row.policy, row.script) == ("off", 4, "dr", "")
    assert replace(row, interval=IntervalId()) == fault_run().recovery
    (trace,) = scene.run.rows(GOODPUT)
    assert (trace.t_ms, trace.bps, trace.affected_bps) == ((-20.0, 0.0), (2.0, 1.0), (1.0, 0.0))
    assert (trace.repair_ms, trace.script) == (2000.0, "")
    assert [(e.monotonic_ns, e.source, e.what) for e in scene.run.events] == [
        (2 * SECOND, "fault", "link-down"),
        (4 * SECOND, "fault", "repair"),
    ]


@pytest.mark.parametrize("late_s", [0.04, 0.31])
def test_a_late_injection_is_named_and_degrades(monkeypatch: pytest.MonkeyPatch, late_s: float) -> None:
    scene = Scene(monkeypatch, replace(script_of((fault_run(),)), late_s=(late_s,)))
    scene.injector.inject(FaultSpec(kind="link-down", target="d0g1"), 4, 1, None, lambda _: None)
    found = [finding for finding in judge(scene.run).evidence if finding.limit is FAULT_LATE]
    expected = ["link-down d0g1 was injected 0.31 s late"] if late_s > 0.05 else []
    assert [finding.text for finding in found] == expected
    assert all(finding.verdict == "degraded" for finding in found)


def test_script_records_a_row_per_fault_and_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Fault("rail-switch-hang", "rail1")
    scene = Scene(monkeypatch, script_of((fault_run(), fault_run(hang, 3 * SECOND))))
    faults = [{"kind": "link-down", "target": "d0g1"}, {"kind": "rail-switch-hang", "target": "rail1", "at": "2s"}]
    spec = ScriptSpec.model_validate({"name": "two", "faults": faults})
    scene.injector.inject(spec, 2, 7, None, lambda _: None)
    assert [(row.fault, row.script, row.repeat) for row in scene.run.rows(RECOVERIES)] == [
        ("link-down", "two", 2),
        ("rail-switch-hang", "two", 2),
    ]
    (trace,) = scene.run.rows(GOODPUT)
    assert (trace.fault, trace.target, trace.script) == ("link-down", "d0g1", "two")
    assert (trace.t_ms, trace.bps) == ((-1000.0, -980.0, -960.0), (5.0, 6.0, 7.0)), "from the script's begin"
    reported = scene.run.events[0]
    assert (reported.source, reported.what, reported.detail["seed"]) == ("script", "two", 7)
    assert [ScriptSpec.model_validate({"name": "two", "faults": reported.detail["faults"]})] == [spec], "to be replayed"


@pytest.mark.parametrize("is_done", [True, False])
def test_connectivity_checks_are_recorded_with_their_interval(monkeypatch: pytest.MonkeyPatch, is_done: bool) -> None:
    check = ConnectivityCheck(
        IntervalId(), 5, "inject link-down d0g1", 1, 12, 10, 9, 1, 0, 1, "two lines", done=is_done
    )
    scene = Scene(monkeypatch, script_of((fault_run(),), (check,)))
    scene.injector.inject(FaultSpec(kind="link-down", target="d0g1"), 0, 1, None, lambda _: None)
    (row,) = scene.run.rows(CONNECTIVITY_CHECKS)
    assert (row.fabric, row.interval.part, row.reroute) == ("a fabric", "link-down d0g1", "on")
    assert replace(row, interval=IntervalId()) == check


def test_nothing_breaks_while_detours_of_an_earlier_fault_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, script_of((fault_run(),)))
    monkeypatch.setattr(fault_script, "RESTORE_S", 0.1)
    scene.session.on_event(1, "rerouted", {"routes": 3, "detours": 3})
    fault = FaultSpec(kind="link-down", target="d0g1")
    with pytest.raises(CheckFailed, match="3 detours"):
        scene.injector.inject(fault, 0, 1, None, lambda _: None)
    assert scene.asked == []
    withdrawn = threading.Timer(0.02, scene.session.on_event, [2, "rerouted", {"routes": 3, "detours": 0}])
    monkeypatch.setattr(fault_script, "RESTORE_S", 10.0)
    withdrawn.start()
    scene.injector.inject(fault, 0, 1, None, lambda _: None)
    assert len(scene.asked) == 1


def test_fabric_is_restored_after_the_last_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, before = Scene(monkeypatch, script_of((fault_run(),))), {"d0g0": frozenset({"route 1", "route 2"})}
    now = {"d0g0": before["d0g0"] | {"interface hole-rail0, set down"}}
    monkeypatch.setattr(fault_script, "RESTORE_S", 0.1)
    monkeypatch.setattr("railyard.experiments.run.machines.snapshot_state", lambda nodes: dict(now))
    with pytest.raises(CheckFailed, match=r"d0g0 still has interface hole-rail0"):
        scene.injector.check_restored(before)
    monkeypatch.setattr(fault_script, "RESTORE_S", 10.0)
    mended = threading.Timer(0.02, now.update, [before])
    mended.start()
    scene.injector.check_restored(before)
    mended.join()
    assert now == before
    monkeypatch.setattr(fault_script, "RESTORE_S", 0.1)
    scene.session.on_event(1, "rerouted", {"routes": 3, "detours": 3})
    with pytest.raises(CheckFailed, match="3 detours"):
        scene.injector.check_restored(before)


def test_fault_of_the_registry_starts_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, script_of((fault_run(Fault("registry-crash", "registry")),)))
    did: list[str] = []
    scene.controller.start_health = lambda spec: did.append(spec.registry)
    scene.controller.stop_health = lambda: did.append("stopped")
    scene.meanwhile = lambda _: did.append("broken")
    spec = FaultSpec.model_validate({"kind": "registry-crash", "target": "registry", "registry": "etcd"})
    scene.injector.inject(spec, 0, 1, None, lambda _: None)
    assert did == ["etcd", "broken", "stopped"]


@pytest.mark.parametrize(
    "timed",
    [
        Timed(Fault.of("link-gray", "d0g1", loss=0.15), 0.6, 1.5),
        Timed(Fault.of("rail-switch-reboot", "rail0", down="250ms"), 1.0, 0.7),
        Timed(CUT, 0.1, 1.0, "moe-a2a"),
    ],
)
def test_random_fault_can_be_repeated_as_a_script(timed: Timed) -> None:
    spec = ScriptSpec.model_validate({"name": "again", "faults": [fault_dict(timed)], "during": "moe"})
    assert spec.script(plan_of(), 1).faults == (timed,)


MOE = {"kind": "moe", "bytes": "100KB"}


class Beside(Scene):
    """A script during a workload: its replay tells of all phases in the 2nd second, and ends when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seen: ScriptRun) -> None:
        super().__init__(monkeypatch, seen)
        plan = self.session.plan
        schedule, scale, *_ = build(parse_workload(MOE), plan.spec, plan.rail_bps, plan.hb_bps)
        self.workload = Workload("moe", schedule, scale, True)
        self.error: Exception | None = None
        self.waits_for_abort, self.aborted = False, False
        monkeypatch.setattr(workload_replay, "replay", self._replay)

    def _replay(
        self,
        schedule: Schedule,
        windows: object,
        seed: int,
        deadline_s: float,
        started: Callable[[int], None],
        abort: threading.Event,
        watched: Mapping[int, Callable[[int], None]],
        places: object,
        unreachable: object,
    ) -> Replay:
        if self.error:
            raise self.error
        started(SECOND)
        if self.waits_for_abort:
            self.aborted = abort.wait(10)
        for ended in watched.values():
            ended(2 * SECOND)
        spans = dict.fromkeys(range(len(schedule.tasks)), (SECOND, 5 * SECOND))
        delivered = {n: t.bytes for n, t in schedule.transfers}
        return Replay(schedule, SECOND, 5 * SECOND, spans, delivered, (), ())

    def play(self) -> Run:
        faults = [{"kind": "link-down", "target": "d0g1", "at": "100ms", "after": "moe-a2a"}]
        spec = ScriptSpec.model_validate({"name": "cut", "faults": faults, "during": "moe"})
        self.injector.inject(spec, 0, 1, self.workload, lambda _: None)
        return self.run


def test_script_waits_for_phases_of_its_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, ended = Beside(monkeypatch, script_of((fault_run(),))), list[int]()
    scene.meanwhile = lambda phases: ended.append(phases["moe-a2a"].result())
    run = scene.play()
    assert ended == [2 * SECOND]
    (_, script, selections, _, checker, *_) = scene.asked[0]
    assert (selections[0].streams, selections[0].affected, checker) == ((), frozenset(), None)
    assert selections[0].probes
    assert script.faults[0].after == "moe-a2a"
    whole = [m for m in run.measurements if m.metric == "iteration_time"]
    assert [(m.workload, m.script, m.value, m.predicted) for m in whole] == [("moe", "cut", 4.0, None)]
    assert [(b.workload, b.script, b.pairs_wrong, b.rail_expected_bytes) for b in run.bytes] == [("moe", "cut", 0, 0)]
    assert {(f.workload, f.script) for f in run.flows} == {("moe", "cut")}


def test_fault_after_the_workloads_end_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Beside(monkeypatch, script_of((fault_run(fault_ns=6 * SECOND),)))
    with pytest.raises(CheckFailed, match=r"link-down at d0g1 .* after the end of moe.* 4\.0 s"):
        scene.play()


def test_workload_that_cannot_start_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Beside(monkeypatch, script_of((fault_run(),)))
    scene.error = RailyardError("replay: no route")
    with pytest.raises(RailyardError, match="replay: no route"):
        scene.play()


def test_workload_that_does_not_start_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Beside(monkeypatch, script_of((fault_run(),)))
    monkeypatch.setattr(fault_script, "CONNECT_S", 0.05)

    def never(*_: object, abort: threading.Event, **__: object) -> Replay:
        assert abort.wait(10)
        raise Aborted("replay: aborted")

    monkeypatch.setattr(workload_replay, "replay", never)
    with pytest.raises(RailyardError, match="moe did not begin"):
        scene.play()


def test_an_interrupted_script_ends_its_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Beside(monkeypatch, script_of((fault_run(),)))
    scene.waits_for_abort = True

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    scene.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        scene.play()
    assert scene.aborted
