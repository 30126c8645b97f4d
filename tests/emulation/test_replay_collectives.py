"""Workloads on packets: what arrives equals the matrix, and crosses the expected ports."""

from typing import Any

import pytest

from railyard.experiments.measures.workloads.replay import run_workload
from railyard.experiments.measures.workloads.turn import Turn, Workload
from railyard.experiments.run.session import FabricSession
from railyard.results.runs.records import ByteCheck, Run
from railyard.workloads.collectives.algorithm import ALGORITHMS, algorithms_of, collectives
from railyard.workloads.matrix.traffic_matrix import cross_rail_bytes
from railyard.workloads.spec import build as schedule_of
from railyard.workloads.spec import parse_workload
from tests.emulation.fabrics import Fabric, at_best, build
from tests.unit.path_choices import POLICIES

pytestmark = pytest.mark.sandbox

FRAME = 9000
HEADERS = 0.03  # acknowledgements, handshakes and the last frame of a transfer, of all bytes
SPECS = [
    {"kind": "collective", "collective": name, "algorithm": algorithm}
    for name in collectives()
    for algorithm in algorithms_of(name)
]
SIZES = {"all-to-all": "150KB", "all-gather": "1500KB", "reduce-scatter": "1500KB", "all-reduce": "1500KB"}


def run_on(fabric: Fabric, data: dict[str, Any]) -> tuple[ByteCheck, Workload, Run]:
    """Replay a workload as an experiment does; the counts of its bytes, and all that was recorded."""
    plan = fabric.net.plan
    schedule, scale, *_ = schedule_of(parse_workload(data), plan.spec, plan.rail_bps, plan.hb_bps)
    workload = Workload(schedule.name, schedule, scale, data["kind"] != "collective")
    run = Run("test", {}, {}, "")
    run_workload(Turn(FabricSession("fabric", fabric.net, fabric.controller), workload, 0, 7, run))
    return run.bytes[0], workload, run


def assert_arrived(check: ByteCheck, workload: Workload, run: Run) -> None:
    """All of it, once, between the right GPUs, and through the rail switches no more and no less.

    What TCP sends again, lost or not, is counted there once more.
    """
    assert (check.pairs_wrong, check.delivered_bytes) == (0, check.asked_bytes), workload.label
    found: dict[tuple[str, str], int] = {}
    for flow in run.flows:
        found[flow.src, flow.dst] = found.get((flow.src, flow.dst), 0) + flow.delivered
    rails = workload.schedule.rails
    names = {n: f"d{n // rails}g{n % rails}" for n in range(workload.schedule.gpus)}
    assert found == {(names[s], names[d]): size for (s, d), size in workload.schedule.matrix.items()}, workload.label
    again = sum(load.retransmits + load.needless_retransmits for load in run.loads) * FRAME
    least, most = (1 - HEADERS) * check.rail_expected_bytes, (1 + HEADERS) * check.rail_expected_bytes + again
    assert least < check.rail_port_bytes < most, workload.label


def test_all_algorithms_are_tried() -> None:
    tried = [algorithms_of(data["collective"])[data["algorithm"]] for data in SPECS]
    known = [name for name, algorithm in ALGORITHMS.items() if algorithm.collective]
    assert sorted(tried) == sorted(known)


@pytest.mark.parametrize("kind", sorted(POLICIES))
@pytest.mark.parametrize("side", [2, 3])
def test_every_collective_arrives_as_its_matrix_says(kind: str, side: int) -> None:
    fabric = build(kind, side, side)
    for data in SPECS:
        check, workload, run = run_on(fabric, {**data, "bytes": SIZES[data["collective"]]})
        assert_arrived(check, workload, run)
        crossing = cross_rail_bytes(workload.schedule)
        assert crossing == 0 or data["algorithm"] == "direct"
        if kind == "rail-optimized":
            assert (check.cross_rail_bytes > crossing) == (crossing > 0)  # with headers, by the uplinks' counters
        assert [m.metric for m in run.measurements if m.predicted] == ["completion_time"]


STAGES = {"tensor": 1, "pipeline": 2, "data": 8, "micro_batch": 1, "global_batch": 16}
DEEPSEEK = {"kind": "moe", "model": "deepseek-v3", "parallelism": {**STAGES, "expert": 8}}
CHUNKS = {**STAGES, "tensor": 2, "data": 4, "virtual_stages": 2, "global_batch": 8, "expert": 4}
MIXTRAL = {"kind": "moe", "model": "mixtral-8x7b", "parallelism": CHUNKS, "all_to_alls": 8}


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
def test_only_experts_of_several_domains_send_between_rails(kind: str) -> None:
    """Groups of 8 GPUs lie in two domains, and groups of 4 in one each: two tensor-parallel groups, in two chunks."""
    fabric = build(kind, 4, 4)
    for data in ({"kind": "gpt"}, DEEPSEEK, MIXTRAL):
        check, workload, run = run_on(fabric, {**data, "compute": 0.05, "duration": "1s"})
        assert_arrived(check, workload, run)
        spines = kind == "rail-optimized"
        assert (check.cross_rail_bytes > 0) == (spines and data is DEEPSEEK)
        assert [m.metric for m in run.measurements].count("iteration_time") == 1


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
def test_uneven_experts_and_transfers_go_directly_between_rails(kind: str) -> None:
    """On rail-only by dr: what is forwarded goes through rails once, as on spines, and through HB domains before."""
    fabric = build(kind, 3, 3)
    for data in (
        {"kind": "moe", "skew": 1, "compute": 0.05, "all_to_alls": 2, "bytes": "100KB"},
        {"kind": "transfers", "to": "shuffled", "stripes": 3, "rounds": 2, "bytes": "500KB"},
    ):
        check, workload, run = run_on(fabric, data)
        assert_arrived(check, workload, run)
        crossing = cross_rail_bytes(workload.schedule)
        assert crossing > 0
        assert (check.cross_rail_bytes > crossing) == (
            kind == "rail-optimized"
        )  # with headers, by the uplinks' counters


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized"])
def test_collectives_over_shared_nics_arrive_by_their_ports(kind: str) -> None:
    fabric = build(kind, 2, 4, gpus_per_nic=2)
    for collective, algorithm in (("all-reduce", "hierarchical"), ("all-to-all", "direct")):
        data = {"kind": "collective", "collective": collective, "algorithm": algorithm, "bytes": SIZES[collective]}
        assert_arrived(*run_on(fabric, data))


@pytest.mark.quiet
@pytest.mark.long
def test_allreduce_over_shared_nics_takes_its_prediction() -> None:
    fabric = build("rail-only", 2, 4, gpus_per_nic=2, rail_rate="20Mbit", hb_rate="240Mbit")
    data = {"kind": "collective", "collective": "all-reduce", "duration": "1.5s"}

    def ratio() -> float:
        """Return measured over predicted."""
        _, _, run = run_on(fabric, data)
        (measured,) = (m for m in run.measurements if m.predicted)
        return measured.value / (measured.predicted or 0)

    at_best(ratio, lambda measured: 0.97 <= measured <= 1.05)
