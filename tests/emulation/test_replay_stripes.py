"""A pair's transfers in stripes: over connections of their own, complete, and no slower together than in one piece."""

from itertools import pairwise

import pytest

from railyard.topologies.addresses import Gpu
from railyard.workloads.jobs.transfers import transfers_schedule
from railyard.workloads.matrix.traffic_matrix import traffic_matrix
from railyard.workloads.replay.job import PORT, windows_for_links
from railyard.workloads.replay.run import Replay, replay
from railyard.workloads.schedule import Phase, Schedule
from railyard.workloads.tasks import Transfer
from tests.emulation.fabrics import RAIL_BPS, Fabric, at_best, build

pytestmark = pytest.mark.sandbox

SIZE = 24_000_000  # 2 s of a rail
SOURCE, DESTINATION = Gpu(0, 0), Gpu(1, 1)
PAIR = (0, 3)


def callers(fabric: Fabric) -> frozenset[str]:
    """Addresses and ports of those who are connected to the destination's replay."""
    lines = fabric.in_node(DESTINATION.name, "ss", "-Htn", "state", "established", f"( sport = :{PORT} )").splitlines()
    return frozenset(line.split()[3] for line in lines)


def play(fabric: Fabric, stripes: int, rounds: int = 1) -> tuple[Replay, frozenset[str]]:
    """(what happened, everyone who was connected to the destination meanwhile)."""
    schedule = transfers_schedule(2, 2, [PAIR], SIZE // rounds, stripes, rounds)
    plan, seen = fabric.net.plan, set[str]()
    windows = windows_for_links(plan.hb_bps, RAIL_BPS, plan.spec.mtu)
    done = replay(schedule, windows, 1, 60.0, lambda delivered: seen.update(callers(fabric)))
    assert (done.broken, done.corrupt) == ((), ())
    assert done.delivered_matrix == schedule.matrix
    assert int(traffic_matrix(schedule)[PAIR]) == SIZE
    return done, frozenset(seen)


def test_stripes_have_own_connections_and_equal_times() -> None:
    fabric = build("rail-only", 2, 2)

    def ratio() -> float:
        whole, alone = play(fabric, stripes=1)
        striped, several = play(fabric, stripes=4)
        assert (len(alone), len(several)) == (1, 4)
        assert {caller.rsplit(":", 1)[0] for caller in several} == {SOURCE.ip}
        return striped.seconds / whole.seconds

    at_best(ratio, lambda found: 1 / 1.5 < found < 1.5)


def test_rounds_and_phases_begin_at_the_end_of_the_previous() -> None:
    """A round when its bytes have arrived, a phase when its own have left the GPU, which the kernel takes at once."""
    fabric = build("rail-only", 2, 2)
    done, several = play(fabric, stripes=2, rounds=4)
    assert len(several) == 2, "the same connections for every round"
    runs = [[n for n, t in done.schedule.transfers if t.phase == phase] for phase in range(len(done.schedule.phases))]
    for before, after in pairwise(runs):
        assert max(done.spans[n][1] for n in before) < min(done.spans[n][0] for n in after)

    size, phase = 150_000, Phase("any", "PP", "", 1, 2, 1)
    tasks = (Transfer(0, 2, size, 0), Transfer(0, 2, 10, 1, (0,), 1))
    windows = windows_for_links(fabric.net.plan.hb_bps, RAIL_BPS, 9000)
    (begun, _), (next_begun, _) = replay(Schedule("s", 4, 2, (phase, phase), tasks), windows, 1).spans.values()
    assert (next_begun - begun) / 1e9 > 0.8 * size * 8 / RAIL_BPS
