"""Logs of clusters, of every version's text: ranks, NICs and rails, and the routes of all connections."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, Route
from railyard.workloads.cluster.reading import read
from tests.unit.workloads.cluster.logs import LoggedCluster

P4D = LoggedCluster(gpus=8, nics=4, is_old=True, network="AWS Libfabric", prefix="[1,0]<stdout>:")
VARIANTS = {
    "rails": LoggedCluster(gpus=4, nics=4),
    "shared NICs": P4D,
    "PXN": LoggedCluster(hosts=3, proxies=True),
    "crossing": LoggedCluster(shift=1),
    "one host": LoggedCluster(hosts=1),
    "interleaved": LoggedCluster(interleaved=True),
    "timestamps": LoggedCluster(prefix="[2026-04-28 14:14:42] "),
}


def check_of(folder: Path, *texts: str, rails: RailMap | None = None) -> RailCheck:
    """Return the check of logs with these texts, a file each."""
    for number, text in enumerate(texts):
        (folder / f"{number}.log").write_text(text)
    return RailCheck(read([str(folder)]), rails or RailMap())


def routes_of(check: RailCheck) -> Counter[Route]:
    return sum((routes.counts for routes in check.routes), Counter())


@pytest.mark.parametrize("logged", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_connection_is_classed(logged: LoggedCluster, tmp_path: Path) -> None:
    check = check_of(tmp_path, logged.text())
    assert routes_of(check) == logged.routes()
    (communicator,) = check.cluster.communicators
    assert communicator.size == len(communicator.members) == len(communicator.initialized) == logged.size
    assert [communicator.rings[nic] for nic in range(logged.nics)] == [
        tuple(logged.ring(n)) for n in range(logged.nics)
    ]
    (source,) = check.cluster.sources
    assert (source.lines, source.unknown) == (source.understood, 0)


@settings(max_examples=25)
@given(
    hosts=st.integers(1, 4),
    nics=st.integers(1, 4),
    per_nic=st.integers(1, 2),
    shift=st.integers(0, 3),
    proxies=st.booleans(),
    is_old=st.booleans(),
    interleaved=st.booleans(),
)
def test_routes_are_those_of_an_independent_count(
    tmp_path_factory: pytest.TempPathFactory, nics: int, per_nic: int, **keys: int
) -> None:
    logged = LoggedCluster(nics=nics, gpus=nics * per_nic, **keys)  # type: ignore[arg-type]
    check = check_of(tmp_path_factory.mktemp("logs"), logged.text())
    assert routes_of(check) == logged.routes()
    assert (check.verdict == "crosses") == bool(logged.routes()[Route.CROSSING])


def test_rails_go_by_nics_and_not_by_gpu_numbers(tmp_path: Path) -> None:
    """As p4d.24xlarge: eight GPUs share four NICs. A ring enters a host at one GPU of a NIC and leaves at the other."""
    check = check_of(tmp_path, P4D.text())
    between = [
        connection for routes in check.routes for connection in routes.connections if connection.src_rail is not None
    ]
    assert {connection.route for connection in between} == {Route.RAIL}
    assert sum(connection.crosses_by_gpu_number for connection in between) == len(between) == 8
    assert [(place.gpu, place.rails) for place in check.gpus] == [(gpu, (gpu // 2,)) for gpu in range(8)]
    assert check.gpus[0].hosts == ("node0", "node1")


def test_logs_of_each_process_are_joined(tmp_path: Path) -> None:
    logged = LoggedCluster()
    files: dict[str, list[str]] = {}
    for line in logged.lines():
        files.setdefault(line.split()[0], []).append(line)
    assert len(files) == logged.size
    check = check_of(tmp_path, *("\n".join(lines) for lines in files.values()))
    assert len(check.cluster.communicators) == 1
    assert routes_of(check) == logged.routes()


def test_a_missing_side_leaves_the_route_unknown(tmp_path: Path) -> None:
    logged = LoggedCluster()
    text = "\n".join(line for line in logged.lines() if line.startswith("node0"))
    check = check_of(tmp_path, text)
    assert routes_of(check)[Route.UNKNOWN] == logged.routes()[Route.RAIL]
    assert check.verdict == "unknown"


def test_a_communicator_without_connections_is_not_ready(tmp_path: Path) -> None:
    logged = LoggedCluster()
    lines = [line for line in logged.lines() if " via " not in line]
    check = check_of(tmp_path, "\n".join(lines))
    assert check.verdict == "unknown"
    assert any("comm 0" in finding for finding in check.findings())


def test_a_map_of_the_cabling_decides_the_rails(tmp_path: Path) -> None:
    """NIC 1 of node1 is plugged into rail 0: its connections cross, whatever its number."""
    crossed = RailMap(by_nic={"mlx5_0": 0, "mlx5_1": 1}, by_host={"node1": {"mlx5_0": 1, "mlx5_1": 0}})
    check = check_of(tmp_path, LoggedCluster().text(), rails=crossed)
    assert routes_of(check)[Route.CROSSING] == LoggedCluster().routes()[Route.RAIL]
    assert check_of(tmp_path, LoggedCluster(shift=1).text(), rails=crossed).verdict == "ready"


def test_nics_that_the_map_lacks_are_named(tmp_path: Path) -> None:
    check = check_of(tmp_path, LoggedCluster().text(), rails=RailMap(by_nic={"mlx5_0": 0}))
    assert check.verdict == "unknown"
    assert check.unmapped_nics == ("mlx5_1 of node0", "mlx5_1 of node1")
    assert any("--rails has no rail for mlx5_1 of node0" in finding for finding in check.findings())


def test_communicators_without_id_are_separated(tmp_path: Path) -> None:
    """Two groups of tensor parallelism at the same time, before NCCL logged ids: each on one host."""
    groups = [LoggedCluster(hosts=1, is_old=True, prefix="").text() for _ in range(2)]
    check = check_of(tmp_path, groups[0], groups[1].replace("node0", "node1"))
    assert [communicator.hosts for communicator in check.cluster.communicators] == [("node0",), ("node1",)]
    assert check.cluster.gaps


def test_gpus_that_processes_all_call_0_are_numbered_by_bus(tmp_path: Path) -> None:
    text = LoggedCluster().text()
    for gpu in range(1, 4):
        text = text.replace(f"cudaDev {gpu} nvmlDev {gpu} ", "cudaDev 0 nvmlDev 0 ")
    assert [place.gpu for place in check_of(tmp_path, text).gpus] == [0, 1, 2, 3]


def test_an_initialization_that_hangs_is_named(tmp_path: Path) -> None:
    lines = [line for line in LoggedCluster().lines() if not ("COMPLETE" in line and "rank 5" in line)]
    check = check_of(tmp_path, "\n".join(lines))
    assert check.routes[0].missing == (5,)
    assert any("rank 5" in finding for finding in check.findings())


def test_ranks_that_are_dealt_out_over_hosts_are_named(tmp_path: Path) -> None:
    findings = list(check_of(tmp_path, LoggedCluster(interleaved=True).text()).findings())
    assert any("0 on node0, 1 on node1, 2 on node0" in finding for finding in findings)
    assert not any("node0" in finding for finding in check_of(tmp_path, LoggedCluster().text()).findings())


def test_lines_that_no_version_has_are_counted_and_kept(tmp_path: Path) -> None:
    logged = LoggedCluster()
    text = logged.text() + logged.line(0, "Warp drive engaged") + "\nloss 2.71\n"
    (source,) = check_of(tmp_path, text).cluster.sources
    assert (source.unknown, source.unknown_samples) == (1, ["Warp drive engaged"])
    assert source.lines == source.understood + 1


def test_settings_and_warnings_are_taken(tmp_path: Path) -> None:
    logged = LoggedCluster(settings=("NCCL_CROSS_NIC set by environment to 1.", "NCCL_PXN_DISABLE set to 1"))
    warning = "node0:100:200 [0] transport.cc:384 NCCL WARN Cannot initialize CollNet\n"
    check = check_of(tmp_path, logged.text() + warning * 2)
    in_use = {setting.setting.name: (setting.value, setting.processes) for setting in check.settings}
    assert in_use == {"NCCL_CROSS_NIC": ("1", 8), "NCCL_PXN_DISABLE": ("1", 8)}
    assert check.cluster.warnings == {"Cannot initialize CollNet": 2}
