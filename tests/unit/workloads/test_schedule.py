"""Tasks in arrays are those that the same rules give one by one, and take as long at line rate."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railyard.topologies.spec import FabricSpec
from railyard.workloads.collectives import algorithm as algorithms
from railyard.workloads.collectives.algorithm import ALGORITHMS, Exchange, Ring, collective_schedule
from railyard.workloads.columns import Columns
from railyard.workloads.matrix import traffic_matrix
from railyard.workloads.matrix.traffic_matrix import bytes_by_kind, line_rate_duration_s
from railyard.workloads.schedule import Phase, Program, Rates, Schedule, TooManyTasks

RATES = Rates(hb=30e6, rail=2.5e6)
NAMES = sorted(name for name, a in ALGORITHMS.items() if a.collective)
# pipelined rings have no tasks in arrays
IN_ARRAYS = [name for name in NAMES if ALGORITHMS[name].algorithm != "pipelined"]
PHASE = Phase("a", "collective", "", 1, 1, 1)


def emit_exchange(exchange: Exchange, program: Program, phase: int, in_flight: int) -> None:
    """Reference: one transfer at a time."""
    sent: defaultdict[int, list[int]] = defaultdict(list)
    received: defaultdict[int, list[int]] = defaultdict(list)
    rounds = [pairs.tolist() for pairs in exchange.rounds]
    parts = algorithms.sliced(algorithms.whole_bytes(exchange.size))
    for number, (part, pairs) in enumerate((part, pairs) for part in parts for pairs in rounds):
        lag = min(in_flight, algorithms.SENDS_WAITING)
        for src, dst in pairs:
            after = program.last(src) if number < lag else (sent[src][number - lag],)
            if number >= in_flight:
                after = (*after, received[src][number - in_flight])
            task = program.send(src, dst, part, phase, after)
            sent[src].append(task)
            received[dst].append(task)
    for gpu in sent:
        program.wait_for(gpu, sent[gpu][-in_flight:] + received[gpu][-in_flight:])


def emit_ring(ring: Ring, program: Program, phase: int, in_flight: int = 8) -> None:
    """Reference: one transfer at a time."""
    group, chunk = ring.group, algorithms.whole_bytes(ring.chunk)
    if len(group) < 2:
        return
    slices = (chunk - chunk // 2, chunk // 2) if chunk >= 2 * algorithms.SLICE_BYTES else (chunk,)
    received: dict[tuple[int, int], int] = {}
    last_sent: dict[int, int] = {}
    for step in range(ring.steps):
        received_now: dict[tuple[int, int], int] = {}
        for part, size in enumerate(slices):
            for place, src in enumerate(group):
                dst = group[(place + 1) % len(group)]
                ready = program.last(src) if step == 0 else (received[src, part],)
                own_previous = (last_sent[src],) if src in last_sent else ()
                task = program.send(src, dst, size, phase, (*ready, *own_previous))
                last_sent[src] = received_now[dst, part] = task
        received = received_now
    for gpu in group:
        program.wait_for(gpu, (last_sent[gpu], *(received[gpu, part] for part in range(len(slices)))))


def step(domains: int, rails: int, sizes: Sequence[tuple[str, float]], in_flight: int) -> Schedule:
    """Collectives one after the other, each after some computing."""
    program = Program(domains, rails)
    for name, size in sizes:
        phase = algorithms.whole_phase("a", "collective", name, rails, domains, size)
        algorithms.run(program, phase, program.grid, compute_s=0.5, in_flight=in_flight)
    return program.schedule("s")


collectives = st.tuples(st.sampled_from(IN_ARRAYS), st.sampled_from([1.0, 1000.0, 250_000.0, 3e6]))


@given(st.integers(2, 4), st.integers(2, 4), st.lists(collectives, min_size=1, max_size=2), st.sampled_from([1, 3, 8]))
def test_array_tasks_equal_the_scalar_reference(
    domains: int, rails: int, sizes: list[tuple[str, float]], in_flight: int
) -> None:
    with patch.object(Exchange, "emit", emit_exchange), patch.object(Ring, "emit", emit_ring):
        expected = step(domains, rails, sizes, in_flight)
    with patch.object(algorithms, "FEW_TRANSFERS", 0):
        in_arrays = step(domains, rails, sizes, in_flight)
    assert isinstance(in_arrays.tasks, Columns)
    for found in (in_arrays, step(domains, rails, sizes, in_flight)):
        assert tuple(found.tasks) == tuple(expected.tasks)
        assert (list(found.matrix.items()), bytes_by_kind(found)) == (
            list(expected.matrix.items()),
            bytes_by_kind(expected),
        )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["rail-only", "rail-optimized", "single-switch", "dual-plane"]),
    st.integers(2, 4),
    st.integers(2, 4),
    collectives,
)
def test_batches_take_exactly_as_long_as_single_tasks(
    kind: str, domains: int, rails: int, collective: tuple[str, float]
) -> None:
    found = collective_schedule(collective[0], domains, rails, collective[1])
    fabric = FabricSpec.model_validate({"kind": kind, "domains": domains, "rails": rails})
    with patch.object(traffic_matrix, "MIN_BATCH", 0):
        batched = line_rate_duration_s(found, RATES, fabric)
    assert batched == line_rate_duration_s(replace(found, tasks=tuple(found.tasks)), RATES, fabric)


@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].per_rail])
def test_all_rails_take_the_time_of_one(name: str) -> None:
    """A probe of an algorithm that keeps rails apart has a single one."""
    durations = {line_rate_duration_s(collective_schedule(name, 5, rails, 10**7), RATES) for rails in (1, 2, 4)}
    assert len(durations) == 1


def test_a_transfer_of_too_many_bytes_is_refused() -> None:
    program = Program(1, 2)
    number = program.phase(PHASE)
    with pytest.raises(TooManyTasks, match="must send fewer than"):
        program.send(0, 1, 2**62, number, ())
    none = np.zeros((1, 0), dtype=np.int64)
    for sizes in (np.array([2**80], dtype=object), np.array([2**62])):
        with pytest.raises(TooManyTasks, match="must send fewer than"):
            program.send_all(np.array([[0, 1]]), sizes, number, (), none)
