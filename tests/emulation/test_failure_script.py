"""A script on packets: overlapping faults, heartbeats that find silent parts, a connectivity check at each step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from railyard.controller.processes.clients import HeartbeatProcess
from railyard.core.errors import CheckFailed
from railyard.experiments.run.session import FabricSession, built
from railyard.failure.connectivity.check import ConnectivityChecker
from railyard.failure.faults import FAULTS, Fault
from railyard.failure.pairs import affected_pairs, select_script_pairs
from railyard.failure.scenario.run import ScriptRun, run_script
from railyard.failure.script import Script, Timed
from railyard.results.runs.records import Run
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.emulation.fabrics import RAIL_BPS, Fabric, datapath, eventually

pytestmark = pytest.mark.sandbox

SCRIPT = Script(
    "overlapping",
    (
        Timed(Fault("link-silent", "d0g1"), 0.6, 2.4),
        Timed(Fault("rail-switch-crash", "rail2"), 1.6, 2.4),
        Timed(Fault("gpu-crash", "d2g0"), 1.6, 1.2),
    ),
)


@contextmanager
def beating(session: FabricSession) -> Iterator[None]:
    """Send heartbeats, and report silent parts to the controller."""

    def hear(at: int, what: str, detail: dict[str, Any]) -> None:
        if what == "silence":
            session.controller.on_heartbeats(detail)

    # beside other tests, some come later than the usual 60 ms
    heartbeat_process = HeartbeatProcess(session.plan, period_s=0.05, on_event=hear)
    try:
        yield
    finally:
        heartbeat_process.stop()


def play(session: FabricSession) -> ScriptRun:
    selections = select_script_pairs(
        session.plan, [affected_pairs(timed.fault, session.plan) for timed in SCRIPT.faults]
    )
    with ConnectivityChecker(session.net) as checker:
        return run_script(session.net, SCRIPT, selections, session.events, checker)


@pytest.mark.long
def test_overlapping_faults_are_rerouted_without_a_lost_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(parse_fabric({"kind": "rail-only", "domains": 3, "rails": 3}), RAIL_BPS)
    with built("fabric", plan, datapath(), True, Run("test", {}, {}, "")) as session, beating(session):
        fabric = Fabric(session.net, session.controller)
        routes = fabric.routes()
        seen = play(session)
        assert [check.mismatches for check in seen.connectivity_checks] == [""] * len(seen.connectivity_checks)
        acts = {check.last_event: check for check in seen.connectivity_checks}
        assert "inject link-silent d0g1" in acts
        worst = next(check for check in seen.connectivity_checks if check.broken == 3)
        assert worst.reachable < worst.pairs, "a GPU is dead"
        assert seen.connectivity_checks[-1].answered == seen.connectivity_checks[-1].pairs
        silent, switch, gpu = seen.faults
        assert (seen.faults[0].recovery.lost_bytes, seen.faults[0].recovery.connections_lost) == (0, 0)
        assert abs(switch.recovery.t_fault - gpu.recovery.t_fault) < 1e9  # before the first repair
        for run in seen.faults:
            assert run.recovery.detect_ms is not None
            probed = run.recovery.source_side_probed + run.recovery.far_side_probed
            assert (run.recovery.first_packet_ms is None) == (probed == 0), "not counted: pairs without any path"
        assert silent.recovery.source_side_ms is not None
        assert silent.recovery.far_side_ms is not None
        fabric.await_routes(routes, session.events)

        definition = type(FAULTS["gpu-crash"])
        monkeypatch.setattr(definition, "inject", lambda *_: None)
        monkeypatch.setattr(definition, "symptoms", lambda *_: (False,))
        with pytest.raises(CheckFailed, match="gpu-crash at d2g0 had no effect"):
            play(session)
        monkeypatch.undo()
        fabric.await_routes(routes, session.events)
        eventually(lambda: fabric.all_arrive(0.2))
