"""Collectives: what each sends, to which rank, and after which tasks."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.collectives import algorithm
from railyard.workloads.collectives.algorithm import (
    ALGORITHMS,
    SENDS_WAITING,
    SLICE_BYTES,
    Ring,
    collective_schedule,
    grid_shifts,
    shifts,
    whole_bytes,
)
from railyard.workloads.schedule import Phase, Program, Schedule
from railyard.workloads.tasks import Transfer

SIDE = st.integers(2, 5)
SIZE = st.integers(1, 300_000)
ALL = [name for name, algorithm in ALGORITHMS.items() if algorithm.collective]


def known(schedule: Schedule) -> list[set[int]]:
    """For each task, all tasks that are certain to be over when it starts."""
    over: list[set[int]] = []
    for task in schedule.tasks:
        over.append(set(task.after).union(*(over[i] for i in task.after)))
    return over


@given(domains=SIDE, rails=SIDE, size=SIZE)
def test_direct_all_to_all_gives_every_pair_its_bytes(domains: int, rails: int, size: int) -> None:
    schedule = collective_schedule("all-to-all", domains, rails, size)
    everyone = range(domains * rails)
    assert schedule.matrix == {(s, d): size for s in everyone for d in everyone if s != d}
    assert schedule.phases == (Phase("all-to-all", "collective", "all-to-all", rails, domains, size),)


@given(domains=SIDE, rails=SIDE, size=SIZE)
def test_in_rail_all_to_all_stays_on_its_rail(domains: int, rails: int, size: int) -> None:
    schedule = collective_schedule("all-to-all-in-rail", domains, rails, size)
    everyone = range(domains * rails)
    assert schedule.matrix == {(s, d): size for s in everyone for d in everyone if s != d and s % rails == d % rails}


@given(domains=st.integers(2, 4), rails=st.integers(2, 4), size=SIZE)
def test_two_phase_delivers_pairs_and_forwards_after_arrival(domains: int, rails: int, size: int) -> None:
    schedule = collective_schedule("all-to-all-two-phase", domains, rails, size)
    over = known(schedule)
    handed_over: defaultdict[int, set[int]] = defaultdict(set)
    for number, t in schedule.transfers:
        if t.src // rails == t.dst // rails:
            handed_over[t.dst].add(number)
        else:
            assert handed_over[t.src] <= over[number]
    everyone = range(domains * rails)
    inside = {(s, d): size * domains for s in everyone for d in everyone if s != d and s // rails == d // rails}
    across = {(s, d): size * rails for s in everyone for d in everyone if s != d and s % rails == d % rails}
    assert schedule.matrix == inside | across  # all for the neighbour's rank, then all that the domain has for a GPU


@given(domains=SIDE, rails=SIDE, data=SIZE)
def test_hierarchical_all_gather_moves_the_terms_of_equation_1(domains: int, rails: int, data: int) -> None:
    schedule = collective_schedule("all-gather-hierarchical", domains, rails, data)
    gathered = schedule.phases[0].data_bytes
    assert data <= gathered < data + domains * rails
    sent = {True: Counter[int](), False: Counter[int]()}
    for _, t in schedule.transfers:
        sent[t.src // rails == t.dst // rails][t.src] += t.bytes
    for gpu in range(domains * rails):
        assert sent[False][gpu] * domains * rails == (domains - 1) * gathered
        assert sent[True][gpu] * rails == (rails - 1) * gathered


@given(domains=SIDE, rails=SIDE, data=SIZE)
def test_all_reduce_is_reduce_scatter_and_all_gather(domains: int, rails: int, data: int) -> None:
    for suffix in ("ring", "hierarchical"):
        whole, *parts = (
            collective_schedule(f"{name}-{suffix}", domains, rails, data).matrix
            for name in ("all-reduce", "reduce-scatter", "all-gather")
        )
        assert whole == {pair: parts[0].get(pair, 0) + parts[1].get(pair, 0) for pair in parts[0] | parts[1]}


@pytest.mark.parametrize("chunk", [1000, 2 * SLICE_BYTES + 1])
def test_ring_forwards_only_received_data(chunk: int) -> None:
    """0 -> 1 -> 2 -> 3 -> 0, five steps; a chunk of two slices is handed on slice by slice."""
    program = Program(1, 4)
    phase = program.phase(Phase("r", "TP", "all-gather-ring", 4, 1, 4 * chunk))
    Ring((0, 1, 2, 3), 5, chunk).emit(program, phase)
    schedule = program.schedule("ring")
    slices = 1 if chunk < 2 * SLICE_BYTES else 2
    sends: defaultdict[int, list[tuple[int, Transfer]]] = defaultdict(list)
    for number, t in schedule.transfers:
        sends[t.src].append((number, t))
    for gpu, mine in sends.items():
        assert len(mine) == 5 * slices
        assert sum(t.bytes for _, t in mine) == 5 * chunk
        for place, (_, t) in enumerate(mine[slices:]):
            received, its = sends[(gpu - 1) % 4][place]
            assert received in t.after
            assert its.bytes == t.bytes


@given(gpus=st.integers(2, 5), steps=st.integers(1, 6), chunk=st.sampled_from([1000, 2 * SLICE_BYTES + 1]))
def test_a_ring_of_few_transfers_is_as_one_of_many(gpus: int, steps: int, chunk: int) -> None:
    def schedule() -> Schedule:
        program = Program(1, gpus)
        for number in range(2):  # the second run waits for what the first one leaves
            program.compute(number, 1.0, phase := program.phase(Phase("r", "TP", "all-gather-ring", gpus, 1, 0)))
            Ring(range(gpus), steps, chunk).emit(program, phase)
        return program.schedule("ring")

    few = schedule()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm, "FEW_TRANSFERS", 0)
        assert few.columns == schedule().columns


@given(domains=SIDE, rails=SIDE, in_flight=st.integers(1, 5))
def test_no_more_than_in_flight_are_under_way(domains: int, rails: int, in_flight: int) -> None:
    schedule = collective_schedule("all-to-all", domains, rails, 1000, in_flight)
    lag = min(in_flight, SENDS_WAITING)
    sent: defaultdict[int, list[int]] = defaultdict(list)
    received: defaultdict[int, list[int]] = defaultdict(list)
    for number, t in schedule.transfers:
        place = len(sent[t.src])
        expected = {sent[t.src][place - lag]} if place >= lag else set()
        assert set(t.after) == expected | ({received[t.src][place - in_flight]} if place >= in_flight else set())
        sent[t.src].append(number)
        received[t.dst].append(number)


@given(domains=st.integers(1, 6), rails=st.integers(1, 6))
def test_grid_rounds_are_permutations_all_inside_or_all_outside(domains: int, rails: int) -> None:
    grid = Program(domains, rails).grid
    everyone = [gpu for domain in grid for gpu in domain]
    rounds = [[(src, dst) for src, dst in pairs.tolist()] for pairs in grid_shifts(grid)]
    for pairs_of_round in rounds:
        assert sorted(s for s, _ in pairs_of_round) == sorted(d for _, d in pairs_of_round) == everyone
        assert len({s // rails == d // rails for s, d in pairs_of_round}) == 1
    assert Counter(pair for r in rounds for pair in r) == {(s, d): 1 for s in everyone for d in everyone if s != d}


def test_rounds_of_a_group_shift_by_one_more_each() -> None:
    assert [pairs.tolist() for pairs in shifts((7, 8, 9))] == [[[7, 8], [8, 9], [9, 7]], [[7, 9], [8, 7], [9, 8]]]
    assert shifts((7,)) == []


@pytest.mark.parametrize("collective", ALL)
def test_only_direct_all_to_all_crosses_rails(collective: str) -> None:
    schedule = collective_schedule(collective, 3, 4, 10_000)
    crossing = [(s, d) for s, d in schedule.matrix if s // 4 != d // 4 and s % 4 != d % 4]
    assert bool(crossing) == (collective == "all-to-all")


def test_whole_bytes_are_never_none() -> None:
    assert [whole_bytes(b) for b in (0.2, 1, 1.5, 7.0000001)] == [1, 1, 2, 7]


def test_point_to_point_is_no_collective_of_its_own() -> None:
    with pytest.raises(ValueError, match="point-to-point"):
        collective_schedule("point-to-point", 2, 2, 1000)
