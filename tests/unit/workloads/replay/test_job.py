"""Division of a schedule among workers, and the tasks that each of them waits for."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.plan import Plan
from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives.algorithm import run
from railyard.workloads.replay.job import (
    MAX_WINDOW_BYTES,
    MIN_FRAMES,
    Windows,
    connections,
    dependents,
    jobs,
    owner,
    windows_for_links,
)
from railyard.workloads.replay.queues import longest_queue_s
from railyard.workloads.schedule import Phase, Program, Schedule
from railyard.workloads.tasks import EXCHANGE_SLICE_BYTES, Compute, Task, Transfer
from tests.unit.workloads.schedules import SIDE, schedules

WINDOWS = Windows(1, 1, 1)


@given(domains=SIDE, rails=SIDE, workers=st.integers(1, 8))
def test_every_gpu_has_one_worker_and_every_domain_too(domains: int, rails: int, workers: int) -> None:
    schedule = Schedule("s", domains * rails, rails, (), ())
    hands = [job.local_gpus for job in jobs(schedule, workers, 1, WINDOWS)]
    assert sorted(gpu for hand in hands for gpu in hand) == list(range(domains * rails))
    assert len({gpu // rails for hand in hands for gpu in hand}) == sum(len({g // rails for g in h}) for h in hands)
    assert len(hands) == min(workers, domains)
    sizes = [len(hand) // rails for hand in hands]
    assert max(sizes) - min(sizes) <= 1


def test_all_workers_know_all_tasks_and_the_gpus_by_name() -> None:
    schedule = Schedule("s", 4, 2, (), (Transfer(3, 0, 1, 0),))
    first, second = jobs(schedule, 2, seed=5, windows=WINDOWS)
    assert [sorted(first.local_gpus), sorted(second.local_gpus)] == [[0, 1], [2, 3]]
    assert first.tasks == second.tasks == schedule.tasks
    assert first.gpus[3] == Gpu(1, 1)


@given(schedule=schedules())
def test_a_connection_for_each_stripe_of_each_pair_that_sends(schedule: Schedule) -> None:
    found = connections(schedule.tasks)
    assert found == sorted(set(found))
    assert {(channel.src, channel.dst) for channel in found} == schedule.matrix.keys()
    assert set(found) == {(t.src, t.dst, t.stripe) for _, t in schedule.transfers}


def _waits_for_departure(task: Task, other: Transfer) -> bool:
    """Return what docs/workloads.md says: all wait, but for the next transfer to the same GPU in the same phase."""
    return isinstance(task, Compute) or (task.phase, task.dst) != (other.phase, other.dst)


@pytest.mark.parametrize("phase_of_computing", [0, 1])
def test_computing_after_a_send_waits_until_its_bytes_left(phase_of_computing: int) -> None:
    tasks = (
        Transfer(0, 2, 5, phase=0),
        Compute(0, 0.1, phase_of_computing, after=(0,)),
        Transfer(0, 2, 5, phase=0, after=(0,)),
    )
    (job,) = jobs(Schedule("s", 4, 2, (), tasks), 1, 1, WINDOWS)
    waits = dependents(job)
    assert waits.on_departure == {0: [1]}
    assert waits.on_done == {0: [2]}


@given(schedule=schedules(), workers=st.integers(1, 3))
def test_task_starts_once_all_its_dependencies_ended(schedule: Schedule, workers: int) -> None:
    """Played without sockets: a transfer is sent, leaves, and is then received, one event at a time."""
    shares = [dependents(job) for job in jobs(schedule, workers, 1, WINDOWS)]
    waits = {number: left for share in shares for number, left in share.counts.items()}
    assert sorted(waits) == list(range(len(schedule.tasks)))
    ready = deque(number for number, left in waits.items() if left == 0)
    sent, left_gpu, received = set[int](), set[int](), set[int]()
    while ready:
        number = ready.popleft()
        task = schedule.tasks[number]
        for wanted in task.after:
            other = schedule.tasks[wanted]
            comes_here = isinstance(other, Transfer) and other.dst == owner(task)
            leaves = isinstance(other, Transfer) and _waits_for_departure(task, other)
            assert wanted in (received if comes_here else left_gpu if leaves else sent)
        freed = []
        sent.add(number)
        freed += [n for share in shares for n in share.on_done.get(number, [])]
        if isinstance(task, Transfer):
            left_gpu.add(number)
            received.add(number)
            freed += [n for share in shares for each in share[2:] for n in each.get(number, [])]
        for waiting in freed:
            waits[waiting] -= 1
            assert waits[waiting] >= 0
            if waits[waiting] == 0:
                ready.append(waiting)
    assert sent == set(range(len(schedule.tasks)))


@given(rate=st.integers(1, 10**12), more=st.integers(0, 10**12), mtu=st.integers(1280, 9000))
def test_window_grows_with_link_rate_within_its_bounds(rate: int, more: int, mtu: int) -> None:
    window = windows_for_links(rate, 1, mtu).hb
    assert max(MIN_FRAMES * mtu, 4 * EXCHANGE_SLICE_BYTES) <= window <= MAX_WINDOW_BYTES
    assert window <= windows_for_links(1, rate + more, mtu).rail


@pytest.mark.parametrize(("rate", "window"), [(1_000_000, 128_100), (80_000_000, 150_000), (10**9, 200_000)])
def test_a_window_is_15_ms_of_a_link_of_medium_rate(rate: int, window: int) -> None:
    assert windows_for_links(rate, rate, 9000) == Windows(window, window, 36_000)


@given(hb=st.integers(1, 10**12), rail=st.integers(1, 10**12), mtu=st.integers(1280, 9000), stripes=st.integers(1, 64))
def test_stripes_share_a_window_of_which_each_has_a_few_frames(hb: int, rail: int, mtu: int, stripes: int) -> None:
    windows = windows_for_links(hb, rail, mtu)
    for in_domain, whole in ((True, windows.hb), (False, windows.rail)):
        assert windows.per_connection(in_domain, 1) == whole
        one = windows.per_connection(in_domain, stripes)
        assert one >= MIN_FRAMES * mtu
        assert stripes * one <= max(whole, stripes * MIN_FRAMES * mtu)
        assert stripes * (one + 1) > whole


def queue_s(fabric: FabricSpec, algorithm: str, size: float, windows: Windows, rail_bps: int = 1_000_000) -> float:
    program = Program(fabric.domains, fabric.rails)
    run(program, Phase("a", "EP", algorithm, fabric.rails, fabric.domains, size), program.grid)
    return longest_queue_s(program.schedule("a"), Plan(fabric, rail_bps, 12 * rail_bps), windows)


@given(domains=st.integers(2, 6), rails=st.integers(2, 4), size=st.integers(1, 100_000), window=st.integers(1, 100_000))
def test_a_byte_waits_for_all_windows_at_both_ends_of_its_rail(
    domains: int, rails: int, size: int, window: int
) -> None:
    fabric = FabricSpec(kind="rail-only", domains=domains, rails=rails)
    waiting = (domains - 1) * min(size, window) / (1_000_000 / 8 * payload_fraction(fabric.mtu))
    found = queue_s(fabric, "all-to-all-in-rail", size, Windows(1, window, 1))
    assert found == pytest.approx(2 * waiting)
    assert queue_s(fabric, "all-to-all-in-rail", size, Windows(1, window, 1), 500_000) == pytest.approx(2 * found)


@given(domains=st.integers(2, 4), rails=st.integers(2, 4), window=st.integers(1, 50_000))
def test_forwarded_or_spine_traffic_waits_in_more_queues(domains: int, rails: int, window: int) -> None:
    """Direct all-to-all: y (x - 1) pairs cross a rail switch's uplinks, of which one may have all."""
    windows = Windows(window, window, 1)
    only, optimized = (FabricSpec(kind=kind, domains=domains, rails=rails) for kind in ("rail-only", "rail-optimized"))
    straight, in_rail = ("all-to-all", "all-to-all-in-rail")
    assert queue_s(only, straight, 1e6, windows) > queue_s(only, in_rail, 1e6, windows)
    per_port = rails * (domains - 1) * window  # at a GPU's rail port
    per_switch = domains * (rails - 1) * (domains - 1) * window
    uplink = domains / optimized.spine_count  # rails' rates
    expected = 2 * (per_port + per_switch / uplink) / (1_000_000 / 8 * payload_fraction(optimized.mtu))
    assert queue_s(optimized, straight, 1e6, windows) == pytest.approx(expected)


def test_nothing_waits_where_nothing_is_sent() -> None:
    plan = Plan(FabricSpec(kind="rail-only", domains=2, rails=2), 1_000_000, 12_000_000)
    assert longest_queue_s(Schedule("s", 4, 2, (), ()), plan, WINDOWS) == 0
