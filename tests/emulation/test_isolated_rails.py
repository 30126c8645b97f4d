"""Isolated rails on packets: pairs without a path get no answer, and a communicator that crosses rails waits.

rail0 --+---------+
      d0g0      d1g0
        | hb0     | hb1       nothing forwards between rail0 and rail1
      d0g1      d1g1
rail1 --+---------+
"""

import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from railyard.core.errors import RailyardError
from railyard.experiments.commands.trace import assemble_path, verdict
from railyard.failure.connectivity.check import ConnectivityChecker
from railyard.failure.faults import Impact
from railyard.failure.oracle.reachability import Survivors
from railyard.results.analysis.run_analysis import BELIEVABLE
from railyard.topologies.addresses import Gpu
from railyard.topologies.measure.capture import Capture
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.waiting import unreachable_pairs, waiting_transfers
from railyard.workloads.replay.job import Windows
from railyard.workloads.replay.run import replay
from railyard.workloads.schedule import Schedule
from railyard.workloads.spec import build as build_workload
from railyard.workloads.spec import parse_workload
from tests.emulation.fabrics import build, eventually
from tests.emulation.runs import FABRIC, run_experiment, small_spec

WINDOWS = Windows(200_000, 200_000, 36_000)
CROSSING = ("d0g0", "d0g1", "d1g0", "d1g1")
ALIGNED = ("d0g0", "d0g1", "d1g1", "d1g0")


def ring(plan: Plan, gpus: Sequence[str]) -> Schedule:
    data = {"kind": "collective", "collective": "all-reduce", "gpus": list(gpus), "bytes": "2MB"}
    return build_workload(parse_workload(data), plan.spec, plan.rail_bps, plan.hb_bps).schedule


@pytest.mark.sandbox
@pytest.mark.parametrize(("kind", "reroute"), [("rail-only", False), ("rail-only", True), ("dual-plane", True)])
def test_only_pairs_of_a_domain_or_rail_are_answered(kind: str, reroute: bool) -> None:
    fabric = build(kind, 2, 3, policy="isolated", reroute=reroute, backups=reroute)
    expected = Survivors(fabric.net.plan, Impact()).reachable
    joined = {(a, b) for a, b in permutations(fabric.gpus, 2) if a.domain == b.domain or a.rank == b.rank}
    assert expected == joined

    def answered() -> set[tuple[Gpu, Gpu]]:
        with ConnectivityChecker(fabric.net) as checker:
            answers = checker.probe(expected, time.monotonic() + 5.0, 0.5) or {}
        return {pair for pair, has_answered in answers.items() if has_answered}

    assert eventually(lambda: answered() == joined)
    with Capture(fabric.net.plan) as capture:
        probes = capture.probe(Gpu(0, 1), Gpu(1, 0), 2)
    ways = [assemble_path(Gpu(0, 1), Gpu(1, 0), probe.observations) for probe in probes]
    assert verdict(ways, []) == "as the policy says"


@pytest.mark.sandbox
def test_a_ring_across_rails_waits_and_an_aligned_ring_ends() -> None:
    plan = build("rail-only", 2, 2, policy="isolated").net.plan
    aligned = ring(plan, ALIGNED)
    assert not unreachable_pairs(aligned, plan.spec)
    assert replay(aligned, WINDOWS, 1, 60.0).delivered_matrix == aligned.matrix
    crossing = ring(plan, CROSSING)
    waiting = waiting_transfers(crossing, plan.spec)
    begun = time.monotonic()
    done = replay(crossing, WINDOWS, 1, 3.0, unreachable=unreachable_pairs(crossing, plan.spec))
    assert 3 <= time.monotonic() - begun < 30
    assert done.delivered.keys() == {number for number, _ in crossing.transfers} - waiting
    assert waiting


@pytest.mark.sandbox
def test_a_pair_that_has_a_path_against_its_policy_is_an_error() -> None:
    """The fabric forwards, though the replay is given the unreachable pairs of one that doesn't."""
    plan = build("rail-only", 2, 2, policy="dr").net.plan
    crossing = ring(plan, CROSSING)
    with pytest.raises(RailyardError, match=r"g1 -> d[01]g0 connected"):
        replay(crossing, WINDOWS, 1, 3.0, unreachable=frozenset({(1, 2), (3, 0)}))


def test_a_run_passes_if_a_communicator_waits_as_predicted(tmp_path: Path) -> None:
    isolated = {**FABRIC, "policy": "isolated"}
    rings = []
    for name, gpus in (("crossing", CROSSING), ("aligned", ALIGNED)):
        rings.append(
            {"kind": "collective", "collective": "all-reduce", "name": name, "gpus": list(gpus), "duration": "200ms"}
        )
    stored = run_experiment(small_spec(fabrics=[isolated], workloads=rings), tmp_path)
    assert stored.failed_checks() <= {BELIEVABLE}
    (wait,) = stored.rows("waits.csv")
    assert (wait["workload"], wait["operation"], wait["pair"]) == ("crossing", "all-reduce", "d0g1 -> d1g0")
    assert (wait["pairs"], wait["arrived"]) == ("2", "0")
    timed = {row["workload"] for row in stored.rows("results.csv") if row["metric"] == "completion_time"}
    assert timed == {"aligned"}
    assert wait["line"] in " ".join(stored.output.split())
