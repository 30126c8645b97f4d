"""The multi-rail engine in a fabric's namespaces: what comes out is numpy's sum, whatever breaks in the middle of it.

n0    n1    n2
|+----|+----|+---- rail1 (sharp, 100 Mbit/s) ---- agg1
+-----+-----+----- rail0 (tcp, 100 Mbit/s)
"""

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from railyard.failure.faults import Fault
from railyard.topologies.build import namespaces
from railyard.topologies.measure.counters import TRAFFIC, PortReader
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import Nic, parse_multirail
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport, Timeouts, latencies_s
from railyard.workloads.allreduce.engines.railyard import Ranks
from tests.emulation.fabrics import datapath, eventually, inject, repair

pytestmark = pytest.mark.sandbox
NODES = 3
SETUP_S = 0.02
LASTING = Operations("allreduce", "int32", 400_004, count=20, seed=1, check=True)  # some 30 ms each
ONE = Operations("allreduce", "int32", 400_004, count=1, seed=2, check=True)


def built(rails: Sequence[str] = ("tcp", "sharp"), setup: str = "100us", nodes: int = NODES) -> MultirailNet:
    described = [{"kind": kind, "rate": "100Mbit", "setup": setup} for kind in rails]
    spec = parse_multirail({"kind": "multi-rail", "nodes": nodes, "rails": described})
    net = MultirailNet(make_multirail_plan(spec), datapath())
    net.start()
    return net


def begin(ranks: Ranks, operations: Operations) -> None:
    """Begin operations on all ranks; return in the middle of one of the first."""
    with closing(PortReader(["n1"])) as reader:

        def sent() -> int:
            return sum(stats.traffic[TRAFFIC.index("tx_bytes")] for stats in reader.read()["n1"].values())

        before = sent()
        ranks.begin([operations] * NODES)
        eventually(lambda: sent() > before + operations.size_bytes)


def assert_right(reports: Sequence[RankReport], operations: Operations) -> None:
    assert [report.errors for report in reports] == [[]] * len(reports)
    assert [report.wrong for report in reports] == [0] * len(reports)
    assert len(latencies_s(reports)) == operations.count


@pytest.mark.alone
def test_every_collective_and_policy_gives_numpys_results() -> None:
    net = built()
    asked = [
        *(Operations("allreduce", "int32", size, 2, seed=size, check=True) for size in (0, 4, 4004, 1_000_004)),
        Operations("allreduce", "float32", 100_004, 12, seed=3, check=True),
        Operations("all_gather", "float64", 8 * 1001, 2, seed=4, check=True),
        Operations("reduce_scatter", "int8", 10_007, 2, seed=5, check=True),
        Operations("broadcast", "complex64", 8 * 1001, 2, seed=6, check=True),
    ]
    with Ranks(net, "nezha") as ranks:
        for policy in ("", "slicing", "mrib", "single:tcp0", "nezha"):
            for operations in asked:
                reports = ranks.run(replace(operations, policy=policy))
                assert_right(reports, operations)
                if operations.collective == "allreduce":
                    assert {sum(row) for report in reports for row in report.shares} == {operations.size_bytes}
            ranks.pause()
            time.sleep(0.1)  # far longer than beats may be missing
            ranks.resume()
        assert [report.migrations for report in reports] == [[]] * NODES, "no pause is taken for a dead rail"


def test_rail_that_dies_in_an_operation_costs_no_element() -> None:
    net = built()
    breaks = [
        (0, "int32", Fault("link-down", "tcp0 of n1")),
        (1, "float32", Fault("link-silent", "sharp1 of n2")),
        (1, "int32", Fault("link-down", "sharp1 of agg1")),
        (0, "float32", Fault("rail-switch-crash", "rail0")),
    ]
    with Ranks(net, "equal") as ranks:

        def both_carry() -> bool:
            reports = ranks.run(ONE)
            assert_right(reports, ONE)
            return all(all(row) for report in reports for row in report.shares)

        def broken_in_time(lasting: Operations, breaks_it: Callable[[], object]) -> tuple[bool, list[RankReport]]:
            """False if this process was kept waiting until all was over, or nearly."""
            assert eventually(both_carry)
            begin(ranks, lasting)
            breaks_it()
            broken_ns = time.monotonic_ns()
            reports = ranks.finish()
            assert_right(reports, lasting)
            return broken_ns < min(report.starts_ns[-3] for report in reports), reports

        for rail, dtype, fault in breaks:
            tries = 1
            while not (found := broken_in_time(replace(LASTING, dtype=dtype), partial(inject, net, fault)))[0]:
                repair(net, fault)
                assert (tries := tries + 1) <= 5
            reports = found[1]
            assert all((rail,) in [moved.rails for moved in report.migrations] for report in reports)
            assert reports[0].shares[-1][rail] == 0
            repair(net, fault)
        assert eventually(both_carry)


def test_other_rail_carries_on_when_a_nic_disappears() -> None:
    """Neither its connections nor a socket for the next ones can be had: in an operation and between two."""
    net = built()
    with Ranks(net, "equal") as ranks:
        assert_right(ranks.run(ONE), ONE)
        lasting = replace(LASTING, count=40)
        begin(ranks, lasting)
        with namespaces.inside("n1"):
            namespaces.run(["ip", "link", "del", Nic(0, 1).interface])
        reports = ranks.finish()
        assert_right(reports, lasting)
        assert all((0,) in [moved.rails for moved in report.migrations] for report in reports)
        time.sleep(0.2)
        reports = ranks.run(ONE)
        assert_right(reports, ONE)
        assert {report.shares[0] for report in reports} == {(0, ONE.size_bytes)}


@pytest.mark.alone
def test_two_of_three_rails_carry_on_after_a_rail_fails() -> None:
    """
    n0   n1   n2   n3
    ||+--||+--||+--||+---- rail2 (glex)
    |+---|+---|+---|+----- rail1 (sharp) ---- agg1
    +----+----+----+------ rail0 (tcp)
    """
    net = built(["tcp", "sharp", "glex"], nodes=4)
    with Ranks(net, "nezha") as ranks:
        for dtype, size, count in (("int32", 4004, 10), ("float32", 100_004, 40), ("int32", 1_000_004, 30)):
            asked = Operations("allreduce", dtype, size, count, seed=size, check=True)
            reports = ranks.run(asked)
            assert_right(reports, asked)
        assert all(reports[0].shares[-1])
        asked = replace(asked, policy="equal")  # shares that don't depend on times
        ranks.begin([asked] * 4)
        time.sleep(0.3)
        inject(net, Fault("link-down", "glex2 of n3"))
        reports = ranks.finish()
        assert_right(reports, asked)
        assert all((2,) in [moved.rails for moved in report.migrations] for report in reports)
        assert [bool(share) for share in reports[0].shares[-1]] == [True, True, False]


def test_hung_dead_and_deviating_ranks_are_named_on_all() -> None:
    net = built(["tcp"])
    with Ranks(net, "nezha", Timeouts(operation_s=1.5)) as ranks:
        assert_right(ranks.run(ONE), ONE)
        os.kill(ranks.processes[2].pid, signal.SIGSTOP)
        ranks.begin([ONE] * NODES)
        eventually(lambda: len(select.select(ranks.processes[:2], [], [], 0)[0]) == 2)  # the others have given up
        os.kill(ranks.processes[2].pid, signal.SIGKILL)
        reports = ranks.finish()
        assert all("rank 2 never came" in report.errors[0] for report in reports[:2])
        assert reports[2].errors == ["rank 2 died"]
    with Ranks(net, "nezha") as ranks:
        begin(ranks, LASTING)
        os.kill(ranks.processes[1].pid, signal.SIGKILL)
        assert all("rank 1" in report.errors[0] for report in ranks.finish())
    with Ranks(net, "nezha") as ranks:
        ranks.begin([ONE, ONE, Operations("allreduce", "int64", 400_000, 1, seed=1)])
        reported = {report.errors[0] for report in ranks.finish()}
        assert len(reported) == 1
        assert "rank 2: allreduce of 50000 int64" in reported.pop()


def test_every_message_waits_for_its_set_up() -> None:
    net = built(["glex"], setup=f"{SETUP_S * 1000:g}ms")
    asked = Operations("allreduce", "float32", 1000, count=3, seed=1)
    with Ranks(net, "single") as ranks:
        assert min(latencies_s(ranks.run(asked))) >= 2 * (NODES - 1) * SETUP_S
