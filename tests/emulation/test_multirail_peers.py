"""Others' engines between the nodes of a multi-rail fabric, and training over Gloo and over Railyard.

n0    n1    n2
|+----|+----|+---- rail1 (tcp, 100 Mbit/s)
+-----+-----+----- rail0 (tcp, 100 Mbit/s)
"""

import time

import pytest

from railyard.core.errors import BadInput
from railyard.failure.faults import Fault
from railyard.topologies.multirail.net import MultirailNet
from railyard.topologies.multirail.plan import make_multirail_plan
from railyard.topologies.multirail.spec import parse_multirail
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport, latencies_s
from railyard.workloads.allreduce.engine_kind import PeerRanks
from railyard.workloads.allreduce.engines.gloo import GlooRanks
from railyard.workloads.allreduce.engines.mpi import MpiRanks
from railyard.workloads.allreduce.engines.mptcp import MptcpRanks
from railyard.workloads.allreduce.peers.training import DdpRanks, Training, TrainingResult
from tests.emulation.fabrics import datapath, inject

pytestmark = pytest.mark.sandbox
NODES = 3
SIZE = 1 << 20
RING = 2 * (2 * (NODES - 1) / NODES) * SIZE
"""Bytes that a node sends and receives for an allreduce, without headers."""
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "broadcast")


def built() -> MultirailNet:
    rails = [{"kind": "tcp", "rate": "100Mbit", "setup": 0, "cpu": 0}] * 2
    spec = parse_multirail({"kind": "multi-rail", "nodes": NODES, "rails": rails})
    net = MultirailNet(make_multirail_plan(spec), datapath())
    net.start()
    return net


def skip_without(engine: type[PeerRanks]) -> None:
    if missing_requirement := engine.missing_requirement():
        pytest.skip(str(missing_requirement))


def right(reports: list[RankReport], count: int) -> list[RankReport]:
    """All of them went through, with numpy's sums."""
    for report in reports:
        assert not report.errors
        assert report.wrong == 0
        assert len(report.ends_ns) == len(report.starts_ns) == len(report.shares) == len(report.rail_seconds) == count
    assert len(latencies_s(reports)) == count
    return reports


def play_all(ranks: PeerRanks) -> list[RankReport]:
    """Return every collective, with a length that doesn't divide; and what the nodes tell of a large allreduce."""
    for collective in COLLECTIVES:
        right(ranks.run(Operations(collective, "float32", 4 * 10_001, count=2, seed=1, check=True)), 2)
    return right(ranks.run(Operations("allreduce", "int32", SIZE, count=2, seed=2, check=True)), 2)


def carried(reports: list[RankReport]) -> list[float]:
    """Return by rail, the part of the bytes that the nodes' NICs moved."""
    moved = [sum(column) for column in zip(*(shares for report in reports for shares in report.shares), strict=True)]
    return [each / sum(moved) for each in moved]


def test_gloo_sums_on_its_rail() -> None:
    skip_without(GlooRanks)
    with GlooRanks(built(), [1]) as ranks:
        reports = play_all(ranks)
        assert carried(reports)[1] > 0.99
        moved = [after - before for before, after in zip(*ends(reports[0]), strict=True)]
        assert 0.7 * 2 * RING < moved[1] < 1.3 * 2 * RING  # others may begin before this one counts
        bad = ranks.run(Operations("allreduce", "uint32", 64, count=2, seed=1))  # Gloo has no such sum
        assert all(len(report.errors) == 1 and not report.ends_ns for report in bad)
        with pytest.raises(BadInput, match="collective"):
            ranks.run(Operations("alreduce", "int32", 64, count=2, seed=1))


def ends(report: RankReport) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return report.rail_bytes_over_time[0][1], report.rail_bytes_over_time[-1][1]


def test_mpi_stripes_over_its_rails() -> None:
    skip_without(MpiRanks)
    net = built()
    with MpiRanks(net, rails=[1]) as ranks:
        reports = right(ranks.run(Operations("allreduce", "float64", 4096, count=20, seed=2, check=True)), 20)
        assert carried(reports)[1] > 0.99
    with MpiRanks(net, rails=[0, 1]) as ranks:
        assert all(0.3 < part < 0.7 for part in carried(play_all(ranks)))


def test_mptcp_uses_all_rails_and_survives_a_cut() -> None:
    skip_without(MptcpRanks)
    net = built()
    with MptcpRanks(net) as ranks:
        assert all(0.1 < part < 0.9 for part in carried(play_all(ranks)))
        ranks.pause()
        time.sleep(0.1)
        ranks.resume()
        right(ranks.run(Operations("allreduce", "int32", SIZE, count=2, seed=3, check=True)), 2)
        lasting = Operations("allreduce", "int32", SIZE, count=8, seed=4, check=True)
        ranks.begin([lasting] * NODES)
        time.sleep(0.15)
        inject(net, Fault("link-down", "tcp0 of n1"))
        right(ranks.finish(), lasting.count)
        ranks.pause()  # who is asleep can be ended too


def test_ddp_training_over_all_rails_reaches_gloos_weights() -> None:
    skip_without(DdpRanks)
    with DdpRanks(built()) as ranks:
        training = Training(steps=30, width=64, bucket_mb=0.05)
        gloo, ours = ranks.train("gloo", training), ranks.train("railyard", training, policy="equal")
        for theirs, mine in zip(gloo, ours, strict=True):
            assert mine.losses == pytest.approx(theirs.losses, rel=1e-3, abs=1e-5)
            assert mine.weights == pytest.approx(theirs.weights, rel=1e-3, abs=1e-4)
            assert mine.weights == ours[0].weights
        assert mean_loss(ours, slice(-10, None)) < mean_loss(ours, slice(10))
        with pytest.raises(BadInput, match="did you mean 'gloo'"):
            ranks.train("glo", training)  # type: ignore[arg-type]


def mean_loss(trained: list[TrainingResult], steps: slice) -> float:
    losses = [loss for each in trained for loss in each.losses[steps]]
    return sum(losses) / len(losses)
