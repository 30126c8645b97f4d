"""Rows from the reports of ranks: times, shares, convergence, effects of a fault."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from railyard.core.errors import CheckFailed
from railyard.experiments.measures.allreduce.records import allreduce_interval
from railyard.experiments.measures.allreduce.reports import (
    BIN_NS,
    InjectedFault,
    cut,
    lost_rails,
    mean_rail_s,
    merge_turns,
    nic_rates,
    point,
    settled_after,
)
from railyard.workloads.allreduce.engine.jobs import Migration, RankReport
from railyard.workloads.allreduce.workload import check_complete

MS: Final = 1_000_000
PLACE = (allreduce_interval("tcp+tcp, 4 nodes", "nezha", 64 * 2**20), 64 * 2**20, 4000)
INJECTED = InjectedFault(
    allreduce_interval("tcp+tcp, 4 nodes", "nezha", 2**24, 2),
    "link-down",
    "tcp0 of n1",
    0,
    2**24,
    4000,
    215 * MS,
    600 * MS,
)


def rank(number: int, rows: Sequence[tuple[float, ...]], late_ms: int = 0) -> RankReport:
    """An operation each 100 ms, that lasts 80 ms and `late_ms`; begun by rank 1 a millisecond later."""
    count = range(len(rows))
    return RankReport(
        rank=number,
        starts_ns=[(100 * n + number) * MS for n in count],
        ends_ns=[(100 * n + 80 + late_ms) * MS for n in count],
        shares=list(rows),
        rail_seconds=[tuple(0.08 * (share > 0) for share in row) for row in rows],
        copies={"result": 4000 * len(rows)},
    )


def test_point_has_the_operations_after_learning() -> None:
    rows = [(4000.0, 0.0)] * 4 + [(1600.0, 2400.0)] * 16
    timed = [rank(0, rows), rank(1, rows, late_ms=5)]
    checked = [replace(rank(number, rows[:3]), wrong=number) for number in range(2)]
    found = point(*PLACE, timed, checked, [(4, 16)], predicted_s=0.08, credit_s=0.004)
    assert found.credit_share == pytest.approx(0.05)
    assert (found.operations, found.measured) == (20, 16)
    assert found.mean_s == pytest.approx(0.085), "from the first start to the last end"
    assert found.shares == pytest.approx((0.4, 0.6))
    assert found.settled_after == 3 + 4, "it learnt from those that were checked, too"
    assert (found.wrong, found.checked) == (1, 2 * 3 * 1000)
    assert found.copied == pytest.approx(1.0)
    assert found.relative_spread == 0.0


def test_rail_time_is_from_the_last_start_to_its_last_end() -> None:
    one = replace(rank(0, [(1.0, 1.0)]), rail_seconds=[(0.09, 0.05)])
    other = replace(rank(1, [(1.0, 1.0)]), rail_seconds=[(0.06, 0.08)])  # begins a millisecond later
    assert mean_rail_s([one, other], [True]) == pytest.approx((0.089, 0.08))


def test_unused_rail_took_no_time() -> None:
    ranks = [replace(rank(number, [(1.0, 0.0)] * 3), rail_seconds=[(0.09, 0.0)] * 3) for number in range(2)]
    assert mean_rail_s(ranks, [False, True, True]) == pytest.approx((0.09, 0.0))


def test_turns_are_merged_into_one_point() -> None:
    first = [rank(0, [(4000.0, 0.0)] * 3), rank(1, [(4000.0, 0.0)] * 3)]
    second = [rank(0, [(2000.0, 2000.0)] * 2), rank(1, [(2000.0, 2000.0)] * 2, late_ms=5)]
    timed = merge_turns([first, second])
    assert [len(report.ends_ns) for report in timed] == [5, 5]
    found = point(*PLACE, timed, first, [(2, 1), (1, 1)], predicted_s=None)
    assert (found.operations, found.measured) == (5, 2)
    assert found.mean_s == pytest.approx((0.080 + 0.085) / 2)
    assert found.shares == pytest.approx((0.75, 0.25))
    assert found.typical_s == pytest.approx((0.080 + 0.085) / 2)
    assert found.copied == pytest.approx(1.0), "of all operations, whether they count or not"


@pytest.mark.parametrize(
    ("rows", "after"),
    [
        ([(1.0, 0.0)] * 10, 0),
        ([(1.0, 0.0)] * 6 + [(0.5, 0.5)] * 14, 6),
        ([(1.0, 0.0)] * 6 + [(0.5, 0.5)] * 2 + [(0.515, 0.485)] * 12, 6),
        ([(1.0, 0.0), (0.0, 1.0)] * 10, None),
        ([(1.0, 0.0)] * 6 + [(0.5, 0.5)] * 100 + [(0.3, 0.7)] * 20 + [(0.5, 0.5)] * 200, 6),
        ([(1.0, 0.0)] * 90 + [(0.5, 0.5)] * 15, 90),
        ([(1.0, 0.0)] * 101 + [(0.5, 0.5)] * 15, 0),
        ([(1.0, 0.0)] * 5 + [()] + [(1.0, 0.0)] * 14, 6),
        ([], None),
    ],
)
def test_shares_settle_at_their_last_change(rows: list[tuple[float, ...]], after: int | None) -> None:
    assert settled_after(rows) == after


def test_operations_that_ended_early_name_their_rank() -> None:
    check_complete([rank(0, [(1.0,)])])
    with pytest.raises(CheckFailed, match="rank 1: rank 2 is gone"):
        check_complete([rank(0, [(1.0,)]), RankReport(1, errors=["rank 2 is gone"])])


BEFORE: Final[tuple[float, ...]] = (2000.0, 2000.0)
WHILE: Final[tuple[float, ...]] = (0.0, 4000.0)


def ranks_with_fault(moved_ms: float | None = 250.0) -> list[RankReport]:
    """Ten operations; the fault falls into the third, the repair before the seventh, from the ninth on all is back."""
    rows = [BEFORE] * 3 + [WHILE] * 5 + [BEFORE] * 2
    migrations = [] if moved_ms is None else [Migration((0,), 0.240, moved_ms / 1e3)]
    counts: list[tuple[int, tuple[int, ...]]] = [(n * 10 * MS, (1000 * min(n, 22), 1000 * n)) for n in range(100)]
    whole = [replace(rank(n, rows), migrations=migrations, rail_bytes_over_time=counts) for n in range(2)]
    return [whole[0], replace(whole[1], ends_ns=[end + 40 * MS * (n == 2) for n, end in enumerate(whole[1].ends_ns)])]


def test_fault_is_timed_from_injection_and_from_repair() -> None:
    found = cut(INJECTED, ranks_with_fault())
    assert found.inside
    assert found.detect_ms == pytest.approx(25.0)
    assert found.migrate_ms == pytest.approx(35.0)
    assert found.home_ms == pytest.approx(200.0)
    assert (found.median_s, found.worst_s) == pytest.approx((0.08, 0.12))
    assert (found.wrong, found.error, found.operations) == (0, "", 10)


def test_loss_of_a_rail_makes_two_events_of_all_nodes() -> None:
    first, second = ranks_with_fault()
    later = replace(
        second, migrations=[Migration((0,), 0.245, 0.26), Migration((0,), 1.0, 1.1), Migration((0, 1), 2, 3)]
    )
    assert list(lost_rails([first, later], ["tcp0", "tcp1"])) == [
        (240 * MS, "rail-lost", {"rails": "tcp0"}),
        (260 * MS, "migrated", {"rails": "tcp0", "nodes": 2, "ms": 20.0}),
        (1000 * MS, "rail-lost", {"rails": "tcp0"}),
        (1100 * MS, "migrated", {"rails": "tcp0", "nodes": 1, "ms": 100.0}),
        (2000 * MS, "rail-lost", {"rails": "tcp0, tcp1"}),
        (3000 * MS, "migrated", {"rails": "tcp0, tcp1", "nodes": 1, "ms": 1000.0}),
    ]


def test_rail_unused_before_its_fault_has_no_return_time() -> None:
    assert cut(INJECTED, ranks_with_fault()).carried
    idle = [replace(report, shares=[WHILE] * len(report.shares)) for report in ranks_with_fault()]
    found = cut(INJECTED, idle)
    assert (found.carried, found.home_ms) == (False, None)
    learnt = [replace(report, shares=[WHILE] * 9 + [BEFORE]) for report in ranks_with_fault()]
    assert cut(INJECTED, learnt).home_ms is None, "what begins to be used after the repair isn't back"


def test_steps_that_never_came_are_none() -> None:
    ranks = ranks_with_fault()
    assert cut(INJECTED, ranks_with_fault(None)).migrate_ms is None
    assert cut(INJECTED, [ranks[0], replace(ranks[1], migrations=[])]).migrate_ms is None, "one rank never knew"
    late = replace(INJECTED, t_fault=190 * MS, t_repair=900 * MS)
    assert not cut(late, ranks).inside
    assert cut(replace(INJECTED, t_repair=950 * MS), ranks).home_ms is None
    earlier = [replace(r, migrations=[Migration((0,), 0.1, 0.11), *r.migrations]) for r in ranks]
    assert cut(INJECTED, earlier).detect_ms == pytest.approx(25.0), "an earlier repeat's isn't this one's"


def test_nic_rates_are_binned_around_the_fault() -> None:
    dead, alive = nic_rates(INJECTED, ranks_with_fault()[1], ["tcp0", "tcp1"])
    assert (dead.link, alive.link, dead.repair_ms) == ("tcp0", "tcp1", 385.0)
    assert 0.0 in dead.t_ms
    assert all(b - a == pytest.approx(BIN_NS / MS) for a, b in zip(dead.t_ms, dead.t_ms[1:], strict=False))
    assert alive.bps == pytest.approx([800_000.0] * len(alive.bps))
    after = dead.bps[dead.t_ms.index(20.0) :]
    assert after == pytest.approx([0.0] * len(after))
    assert nic_rates(INJECTED, RankReport(0), ["tcp0"]) == []
