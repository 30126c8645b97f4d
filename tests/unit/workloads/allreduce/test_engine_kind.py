"""Engines in a fabric, as far as no fabric is needed: requirements, addresses, costs, and reports of ranks."""

import importlib.util
import shutil
import socket
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from railyard.core.errors import BadInput, RailyardError
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.multirail import commands as kernel
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce.balancing.costs import paper_rail
from railyard.workloads.allreduce.balancing.policy import make_planner
from railyard.workloads.allreduce.engine import worker
from railyard.workloads.allreduce.engine.group import Group
from railyard.workloads.allreduce.engine.jobs import Operations, ProcessPlacement, RankConfig, RankReport, latencies_s
from railyard.workloads.allreduce.engine.worker import count_bytes, run_on_engine, run_operations
from railyard.workloads.allreduce.engine_kind import PORT, PeerRanks, layout, placement, predicted_s, rails_of
from railyard.workloads.allreduce.engines.gloo import GlooRanks
from railyard.workloads.allreduce.engines.mpi import MpiRanks
from railyard.workloads.allreduce.engines.mptcp import AnyAddress, MptcpRanks, one_rail
from tests.unit.workloads.allreduce.multirail_net import on_all
from tests.unit.workloads.messages import CheckMessages

NET_DEV = """Inter-|   Receive                                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
 rail1:    1000   10    0    0    0     0          0         0      500    7    0    0    0     0       0          0
    lo:       9    1    0    0    0     0          0         0        9    1    0    0    0     0       0          0
 rail0: 4000000   11    0    0    0     0          0         0 60000001    8    0    0    0     0       0          0
"""
CONNECT = """import socket, sys
from railyard.core.worker import Failed, Pipe
from railyard.workloads.allreduce.engine.jobs import Join, Rank
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1] + "/ranks.sock")
    pipe = Pipe(sock, [Join])
    pipe.send(Rank(number=0))
    pipe.receive()
    {then}
"""


class Net(NamedTuple):
    plan: MultirailPlan


def net(nodes: int = 2) -> Any:
    rails = [
        {"kind": "tcp", "rate": "100Mbit", "setup": "1ms", "cpu": "1us"},
        {"kind": "glex", "rate": "200Mbit", "setup": "2ms", "cpu": "1us"},
    ]
    return Net(make_multirail_plan(parse_multirail({"kind": "multi-rail", "nodes": nodes, "rails": rails})))


class OneRank(PeerRanks):
    """A single rank that runs `then` once it has its settings."""

    program = "one rank"
    then = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", CONNECT.format(then=self.then), self._folder]


def test_missing_engines_are_named_with_their_install_commands(
    monkeypatch: pytest.MonkeyPatch, check_messages: CheckMessages
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(kernel, "has_mptcp", lambda: False)
    check_messages({engine.__name__: engine(net()).start for engine in (GlooRanks, MpiRanks, MptcpRanks)})


def test_unknown_rail_is_refused() -> None:
    with pytest.raises(BadInput, match="rails: 2 "):
        GlooRanks(net(), [2])


def test_dilated_fabric_has_longer_rank_timeouts() -> None:
    usual = net()
    slow: Any = Net(usual.plan.dilated(10))
    assert GlooRanks(usual, [0]).timeouts.operation_s == 60
    assert GlooRanks(slow, [0]).timeouts.operation_s == 600


def test_failed_start_shows_the_programs_last_output() -> None:
    class Broken(PeerRanks):
        program = "broken"

        def command(self) -> list[str]:
            return [sys.executable, "-c", "raise SystemExit('libbroken.so: no such file')"]

    with pytest.raises(RailyardError, match=r"broken: .* / libbroken\.so: no such file"):
        Broken(net(), [0]).start()


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("sys.exit('out of memory')", r"one rank: rank 0 died / out of memory"),
        (
            "pipe.send(Failed(why='no way to rank 1'))",
            "no way to rank 1",
        ),
    ],
)
def test_rank_that_cant_join_is_an_error(then: str, message: str) -> None:
    ranks = OneRank(net(), [0])
    ranks.then = then
    ranks.layout = replace(ranks.layout, nodes=tuple(row[:1] for row in ranks.layout.nodes))
    with pytest.raises(RailyardError, match=message):
        ranks.start()


def test_nic_counters_give_bytes_by_rail() -> None:
    assert count_bytes(NET_DEV, 2) == (64_000_001, 1500)


def test_shares_are_in_proportion_to_nic_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        def call(self, collective: str, array: Any, root: int) -> Any:
            return array

    counts = iter([(5, 5), (35, 15), (35, 15)])
    monkeypatch.setattr(worker, "count_bytes", lambda text, rails: next(counts))
    config = RankConfig(0, layout(net().plan), ProcessPlacement())
    report = run_on_engine(Idle(), config, Operations("allreduce", "int32", 1000, count=2, seed=1))
    assert report.shares == [(750, 250), (0, 0)]
    assert report.rail_seconds[1] == (0, 0)


def test_failing_engine_ends_its_operations_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        """The one that all begin with, and two more, go well."""

        calls = 0

        def call(self, collective: str, array: Any, root: int) -> Any:
            self.calls += 1
            if self.calls > 3:
                raise OverflowError("too much")
            return array

    monkeypatch.setattr(worker, "count_bytes", lambda text, rails: (0,) * rails)
    config = RankConfig(0, layout(net().plan), ProcessPlacement())
    report = run_on_engine(Failing(), config, Operations("allreduce", "int32", 64, count=9, seed=1))
    assert report.errors == ["OverflowError: too much"]
    assert len(report.starts_ns) == len(report.ends_ns) == 2


def test_mptcp_is_one_rail_as_fast_as_all() -> None:
    whole = layout(net().plan)
    (rail,) = one_rail(whole).rails
    assert rail.rate == pytest.approx(sum(each.rate for each in whole.rails))
    assert rail.setup_s == whole.rails[0].setup_s
    assert rail.cpu_s_per_byte == pytest.approx(0.5e-6)
    assert one_rail(whole).size == 2


def test_mptcp_listener_binds_all_addresses() -> None:
    with AnyAddress(socket.AF_INET, socket.SOCK_STREAM) as listener, AnyAddress() as caller:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listener.bind(("127.0.0.1", port))
        caller.bind(("127.0.0.1", 0))
        assert listener.getsockname() == ("0.0.0.0", port)
        assert caller.getsockname()[0] == "127.0.0.1"


RAILS = [{"kind": "tcp", "rate": "100Mbit"}, {"kind": "sharp", "rate": "50Mbit", "setup": "5us", "cpu": 0}]
PLAN = make_multirail_plan(parse_multirail({"kind": "multi-rail", "nodes": 3, "rails": RAILS, "scale": 20}))


def test_rails_have_payload_rates_and_the_papers_defaults() -> None:
    tcp, sharp = rails_of(PLAN)
    assert tcp.rate == pytest.approx(100e6 / 8 * payload_fraction(PLAN.spec.mtu))
    assert tcp.setup_s == paper_rail("tcp").setup_s
    assert tcp.cpu_s_per_byte == pytest.approx(20 * paper_rail("tcp").cpu_s_per_byte)
    assert (sharp.name, sharp.cpu_s_per_byte) == ("sharp1", 0.0)
    assert sharp.setup_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("rates", "weights"),
    [
        ({"tcp": "auto", "glex": "auto"}, (100, 128)),
        ({"tcp": "auto", "sharp": "auto"}, (50, 50)),
        ({"tcp": "100Mbit", "glex": "50Mbit"}, (2, 1)),
        ({"tcp": "60Mbit", "glex": "auto"}, (2.664, 5.029)),  # one that is given, and one that moves as much to scale
    ],
)
@pytest.mark.parametrize("dilation", [1, 10])
def test_mrib_uses_nominal_rates(rates: dict[str, str], weights: tuple[float, float], dilation: int) -> None:
    described = [{"kind": kind, "rate": rate} for kind, rate in rates.items()]
    scale = {} if any(rate.endswith("bit") for rate in rates.values()) else {"scale": 50}
    spec = parse_multirail({"kind": "multi-rail", "nodes": 4, "rails": described, **scale})
    rails, sent = rails_of(make_multirail_plan(spec).dilated(dilation)), 2**22
    parts = [part.length / sent for part in make_planner("mrib", rails, 4).plan(sent, 1)]
    assert parts == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-3)
    by_hand = "weights:" + ":".join(str(round(1000 * weight)) for weight in weights)
    assert predicted_s("mrib", rails, 4, sent) == pytest.approx(predicted_s(by_hand, rails, 4, sent), rel=1e-3)


def test_layout_and_placement_have_each_nodes_nics() -> None:
    where = layout(PLAN)
    assert where.nodes[1] == tuple((f"198.18.1.{node + 1}", PORT) for node in range(3))
    assert where.aggregators == (None, ("198.18.1.254", PORT))
    assert (placement(PLAN, 2).namespace, placement(PLAN, 2).devices) == ("n2", ("rail0", "rail1"))
    assert placement(PLAN, None, 1).namespace == "agg1"


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "all_gather", "broadcast"])
def test_report_has_a_row_per_operation_and_counts_errors(collective: str) -> None:
    asked = Operations(collective, "int32", 12_000, count=4, seed=5, check=True)

    def body(group: Group) -> tuple[RankReport, RankReport]:
        other = Operations(collective, "int32", 12_000, count=1, seed=5 + group.rank, check=True)
        return run_operations(group, asked), run_operations(group, other)

    out = on_all("tcp tcp", 2, body)
    reports = [first for first, _ in out]
    assert [report.wrong for report in reports] == [0, 0]
    assert [report.errors for report in reports] == [[], []]
    for report in reports:
        assert [len(rows) for rows in (report.starts_ns, report.ends_ns, report.shares, report.rail_seconds)] == [4] * 4
        assert all(share > 0 for row in report.shares for share in row)
        for row, start_ns, end_ns in zip(report.rail_seconds, report.starts_ns, report.ends_ns, strict=True):
            assert all(0 <= seconds <= (end_ns - start_ns) / 1e9 for seconds in row)
        assert report.copies["result"] > 0
        times, moved = zip(*report.rail_bytes_over_time, strict=True)
        assert list(times) == sorted(times)
        assert [sorted(column) for column in zip(*moved, strict=True)] == [list(c) for c in zip(*moved, strict=True)]
    assert len(latencies_s(reports)) == 4
    assert sum(report.wrong for _, report in out) > 1000  # ranks that don't agree on the seed don't agree on the sum
