"""Lines of NCCL's log that only some versions, plugins and failures write; found in logs of others, shortened here."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from railyard.core.errors import BadInput
from railyard.workloads.cluster.check import RailCheck
from railyard.workloads.cluster.rails import RailMap, Route
from railyard.workloads.cluster.reading import read


def check_of(folder: Path, lines: Iterable[str], rails: RailMap | None = None) -> RailCheck:
    (folder / "a.log").write_text("\n".join(lines) + "\n")
    return RailCheck(read([str(folder / "a.log")]), rails or RailMap())


def line(rank: int, text: str) -> str:
    """Return a line of a rank; there is one on each host."""
    return f"node{rank}:{10 + rank}:{20 + rank} [0] NCCL INFO {text}"


def initialized(rank: int, ranks: int, pointer: str) -> str:
    return line(rank, f"comm {pointer} rank {rank} nranks {ranks} cudaDev 0 busId 1b000 commId 0x7 - Init COMPLETE")


def connection(src: int, dst: int, nics: tuple[int, int], suffix: str = "") -> list[str]:
    """Return the two lines of a connection of channel 0. `nics`: of the sender and of the receiver."""
    name = f"Channel 00/0 : {src}[0] -> {dst}[0]"
    sender = line(src, f"{name} [send] via NET/IB/{nics[0]}{suffix}")
    return [sender, line(dst, f"{name} [receive] via NET/IB/{nics[1]}{suffix}")]


def test_ports_of_a_device_are_nics_of_their_own(tmp_path: Path) -> None:
    lines = connection(0, 1, (1, 1))
    for rank in range(2):
        lines.append(line(rank, "NET/IB : Using [0]mlx4_0:1/IB [1]mlx4_0:2/IB ; OOB ib0:10.0.0.1<0>"))
        lines.append(initialized(rank, 2, "0x5"))
    ports = {"mlx4_0:1": 0, "mlx4_0:2": 3}
    (routed,) = check_of(tmp_path, lines, RailMap(by_nic=ports)).routes[0].connections
    assert (routed.route, routed.src_rail) == (Route.RAIL, 3)


def test_nics_of_a_plugin_that_was_given_up_are_dropped(tmp_path: Path) -> None:
    lines = [
        line(0, "NET/OFI Selected Provider is verbs;ofi_rxm (found 58 nics)"),
        line(0, "plugin/net.cc:118 -> 2"),
        line(0, "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"),
    ]
    check = check_of(tmp_path, lines)
    assert [nic.name for nic in check.cluster.hosts["node0"].nics.values()] == ["mlx5_0", "mlx5_1"]
    assert check.cluster.sources[0].unknown == 0


def test_heads_of_a_collnet_tree_must_share_a_rail(tmp_path: Path) -> None:
    lines = [initialized(rank, 3, "0x5") for rank in range(3)]
    for rank, nic in enumerate((1, 1, 0)):
        lines.append(line(rank, f"CollNet 00/0 : {rank} [receive] via COLLNET/SHARP/{nic}/GDRDMA"))
    check = check_of(tmp_path, lines)
    assert check.routes[0].counts == Counter({Route.RAIL: 1, Route.CROSSING: 1})
    assert check.crossing[0].connection.src == 1


def test_connections_of_rccl_name_their_communicator(tmp_path: Path) -> None:
    """The second communicator of each process is the later one; the first one's connection names it."""
    lines = []
    for rank in range(2):
        for pointer, identity in (("0x5", "0x7"), ("0x6", "0x8")):
            lines.append(initialized(rank, 2, pointer).replace("commId 0x7", f"commId {identity}"))
    lines += connection(0, 1, (0, 1), suffix="/GDRDMA comm 0x5 nRanks 02")
    first, second = check_of(tmp_path, lines).routes
    assert first.counts == Counter({Route.CROSSING: 1})
    assert not second.connections


def test_an_excerpt_of_a_process_is_a_communicator(tmp_path: Path) -> None:
    lines = []
    for gpu in range(4):
        text = f"Channel 01/1 : {4 + gpu}[{gpu}] -> {gpu}[{gpu}] [receive] via NET/IB/{gpu}/GDRDMA/Shared"
        lines.append(f"node0:9:{20 + gpu} [{gpu}] NCCL INFO {text}")
    check = check_of(tmp_path, lines)
    (communicator,) = check.cluster.communicators
    assert (communicator.size, len(communicator.members)) == (8, 4)
    assert check.verdict == "unknown"
    assert list(check.findings()) == []


def test_lines_without_a_thread_keep_their_host(tmp_path: Path) -> None:
    check = check_of(tmp_path, ["node7:15326 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0"])
    assert check.cluster.communicators[0].hosts == ("node7",)


def test_older_outputs_of_nccl_tests_have_an_error_column(tmp_path: Path) -> None:
    lines = [
        "./all_reduce_perf -b 8",
        "   33554432   8388608   float   sum   43233   0.78   0.79  0e+00   43279   0.78",
    ]
    (row,) = check_of(tmp_path, lines).cluster.bandwidths
    assert (row.bytes, row.bus_bps, row.wrong) == (33554432, 0.79 * 8e9, 0)


def test_log_of_a_later_version_is_read_with_a_note(tmp_path: Path) -> None:
    lines = [line(0, "NCCL version 3.7.1+cuda14.0"), *connection(0, 1, (0, 0))]
    (gap,) = check_of(tmp_path, lines).cluster.gaps
    assert "version 3.7.1+cuda14.0 is none of" in gap


def test_log_of_another_grammar_is_refused(tmp_path: Path) -> None:
    lines = [line(0, "NCCL version 3.7.1+cuda14.0"), line(0, "lane 0 of 8: rank 0 joins rank 1 by NIC 3")]
    with pytest.raises(BadInput, match=r"a\.log.*3\.7\.1"):
        check_of(tmp_path, lines)


def test_ring_without_all_connections_is_not_ready(tmp_path: Path) -> None:
    lines = [initialized(rank, 3, "0x5") for rank in range(3)]
    sides = [connection(src, (src + 1) % 3, (0, 0)) for src in range(3)]
    assert check_of(tmp_path, [*lines, *sides[0], *sides[1], *sides[2]]).verdict == "ready"
    check = check_of(tmp_path, [*lines, *sides[0], *sides[1]])
    assert check.routes[0].partly_connected == (0, 2)
    assert check.verdict == "unknown"
    assert any("rank 0, rank 2" in finding for finding in check.findings())


def test_channel_without_connections_is_not_ready(tmp_path: Path) -> None:
    lines = [*connection(0, 1, (0, 0)), *connection(1, 0, (0, 0))]
    lines += [line(0, f"Channel 0{channel}/02 :    0   1") for channel in range(2)]
    lines += [initialized(rank, 2, "0x5") for rank in range(2)]
    assert check_of(tmp_path, lines).verdict == "unknown"
    assert check_of(tmp_path, [*lines[:5], *lines[6:]]).verdict == "ready"


def test_sends_join_only_their_own_ranks(tmp_path: Path) -> None:
    lines = [initialized(rank, 3, "0x5") for rank in range(3)]
    lines += [text.replace("Channel 00/0", "Channel 00/1") for text in connection(0, 1, (0, 0))]
    assert check_of(tmp_path, lines).verdict == "ready"


@pytest.mark.parametrize("size", [2, 2**32, 10**30])
def test_damaged_lines_end_soon(size: int, tmp_path: Path) -> None:
    """Sizes, ranks and counts that no job has, as of a file with wrong bytes."""
    lines = [initialized(rank, size, "0x5") for rank in (0, 7)]
    lines += connection(0, 1, (0, 0))
    lines.append(line(0, "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth0:10.0.0.2<0>"))
    lines.append(line(0, f"NET/OFI Selected Provider is efa (found {10**30} nics)"))
    check = check_of(tmp_path, lines)
    assert check.verdict == "unknown"
    assert list(check.findings())
    assert len(check.cluster.hosts["node0"].nics) == 2


@pytest.mark.parametrize(("hosts", "route"), [((0, 0), Route.DOMAIN), ((0, 1), Route.UNKNOWN)])
def test_unknown_transport_is_in_the_domain_of_a_host(hosts: tuple[int, int], route: Route, tmp_path: Path) -> None:
    """As a line of the network that is cut off before its NIC's number."""
    lines = [initialized(rank, 2, "0x5").replace("node1:", f"node{hosts[1]}:") for rank in range(2)]
    lines.insert(0, line(0, "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB"))
    (routed,) = check_of(tmp_path, lines).routes[0].connections
    assert routed.route is route


def test_colours_of_a_terminal_are_left_out(tmp_path: Path) -> None:
    coloured = [f"\x1b[31m{text.replace('INFO', chr(27) + '[1;32mINFO')}\x1b[0m" for text in connection(0, 1, (1, 1))]
    (routed,) = check_of(tmp_path, coloured).routes[0].connections
    assert routed.route is Route.RAIL
