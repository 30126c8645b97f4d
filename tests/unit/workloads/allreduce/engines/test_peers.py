"""Other engines without running them: missing requirements, chosen NICs, and causes of death."""

import importlib.util
import shutil
import socket
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from railyard.core.errors import BadInput, RailyardError
from railyard.topologies.multirail import commands as kernel
from railyard.topologies.multirail.plan import MultirailPlan, make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce.engine import worker
from railyard.workloads.allreduce.engine.jobs import Operations, ProcessPlacement, RankConfig
from railyard.workloads.allreduce.engine.worker import count_bytes, run_on_engine
from railyard.workloads.allreduce.engine_kind import PeerRanks, layout
from railyard.workloads.allreduce.engines.gloo import GlooRanks
from railyard.workloads.allreduce.engines.mpi import MpiRanks
from railyard.workloads.allreduce.engines.mptcp import AnyAddress, MptcpRanks, one_rail
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
