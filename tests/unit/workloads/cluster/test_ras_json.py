"""NCCL RAS as JSON."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, Route
from railyard.workloads.cluster.reading import read

CALLS = {"Broadcast": 0, "Reduce": 0, "AllGather": 5, "ReduceScatter": 0, "AllReduce": 7}
RUNNING = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def ras_rank(rank: int, **changed: Any) -> dict[str, Any]:
    """Return a rank of a communicator with two GPUs of each host."""
    place = {"host": f"10.0.0.{rank // 2}", "pid": 100 + rank, "cuda_dev": 0, "nvml_dev": rank % 2}
    return {"rank": rank, **place, "status": RUNNING, "collective_counts": CALLS, **changed}


def write(path: Path, ranks: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None) -> str:
    communicator = {"hash": "0xae94423cfbb2ef4a", "size": 4, "ranks": ranks, "missing_ranks": missing or []}
    report = {"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [communicator]}
    path.write_text(json.dumps(report))
    return str(path)


def check_of(*paths: str) -> RailCheck:
    return RailCheck(read(paths), RailMap())


def test_ranks_of_a_report_have_places_and_calls(tmp_path: Path) -> None:
    check = check_of(write(tmp_path / "ras.json", [ras_rank(rank) for rank in range(4)]))
    (communicator,) = check.cluster.communicators
    assert communicator.calls == {"all-reduce": 4 * 7, "all-gather": 4 * 5}
    # a ring for each of both GPUs has two connections between the hosts
    assert check.routes[0].counts == Counter({Route.RAIL: 4, Route.DOMAIN: 2})
    assert check.verdict == "ready"
    assert check.is_expected
    assert not list(check.findings())
    assert not check.cluster.gaps


def test_ranks_that_are_missing_failed_or_behind_are_named(tmp_path: Path) -> None:
    dead = {"unresponsive": True, "considered_dead": True}
    ranks = [
        ras_rank(0),
        ras_rank(1, status={**RUNNING, "async_error": 6, "abort_flag": True}),
        ras_rank(2, collective_counts={**CALLS, "AllReduce": 6}),
    ]
    missing = ras_rank(3, status=dead)
    del missing["collective_counts"]
    check = check_of(write(tmp_path / "ras.json", ranks, [missing]))
    expected = [("rank 3", "dead"), ("rank 1", "error 6"), ("rank 1", "aborted"), ("rank 2", "AllReduce 6 times")]
    assert len(check.cluster.reports) == len(expected)
    for report, (rank, state) in zip(check.cluster.reports, expected, strict=True):
        assert f"0xae94423cfbb2ef4a: {rank} (GPU {int(rank[-1]) % 2} of" in report
        assert state in report
    assert check.cluster.communicators[0].hosts == ("10.0.0.0", "10.0.0.1")


def test_connections_of_a_log_of_the_job_are_taken_instead(tmp_path: Path) -> None:
    report = write(tmp_path / "ras.json", [ras_rank(rank) for rank in range(4)])
    lines: list[str] = []
    for rank in range(4):
        name = f"10.0.0.{rank // 2}:{100 + rank}:7 [0] NCCL INFO"
        place = f"comm 0x5 rank {rank} nranks 4 cudaDev 0 nvmlDev {rank % 2} busId 1{rank}000 commId 0xae94423cfbb2ef4a"
        lines += [
            f"{name} {place} - Init START",
            f"{name} Channel 00/0 : {rank}[0] -> {(rank + 1) % 4}[0] [send] via NET/IB/{rank % 2}",
            f"{name} Channel 00/0 : {(rank - 1) % 4}[0] -> {rank}[0] [receive] via NET/IB/{rank % 2}",
            f"{name} {place} - Init COMPLETE",
        ]
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    check = check_of(report, str(tmp_path / "nccl.log"))
    (routes,) = check.routes
    assert routes.counts == Counter({Route.CROSSING: 4})
    assert not check.is_expected


@pytest.mark.parametrize("communicators", [7, [{"hash": "0x1"}], [{"hash": "0x1", "size": 2, "ranks": [{"rank": 0}]}]])
def test_wrong_reports_are_refused(communicators: object, tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(json.dumps({"communicators_count": 1, "communicators": communicators}))
    with pytest.raises(BadInput, match="no list"):
        check_of(str(tmp_path / "ras.json"))
