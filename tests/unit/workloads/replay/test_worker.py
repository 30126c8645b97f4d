"""The loop of a replay over real local sockets: what arrives, what is found wrong, and in which order things happen."""

import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railyard.workloads.replay.job import (
    PATTERN_BYTES,
    PATTERN_STRIDE,
    Channel,
    Delivered,
    Job,
    Outcome,
    PhaseEnd,
    PhaseTracker,
    Windows,
    connections,
    first_phases,
    jobs,
    owner,
)
from railyard.workloads.replay.run import Replay
from railyard.workloads.replay.worker import HEADER, Engine, _configured, pattern_of
from railyard.workloads.schedule import Schedule
from railyard.workloads.tasks import Compute, Task, Transfer
from tests.unit.workloads.schedules import PHASE, schedules

SEED = 5
NEVER = 1 << 62
FROM_FLOAT_NS = 1_000  # a computation's start is a float of seconds


def of_tasks(*tasks: Task, gpus: int = 4) -> Schedule:
    schedule = Schedule("s", gpus, 2, (PHASE,), tasks)
    schedule.check()
    return schedule


def job_of(schedule: Schedule, *local_gpus: int) -> Job:
    whole = jobs(schedule, 1, SEED, Windows(1, 1, 1))[0]
    return whole.model_copy(update={"local_gpus": frozenset(local_gpus)})


Reports = list[list[Delivered | PhaseEnd]]


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection; others of the kernel's sockets don't say when a byte leaves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def play(schedule: Schedule, workers: int, watched: Iterable[int] = ()) -> tuple[Outcome, Reports]:
    """With an engine in a thread for each worker: what all of them saw, and what each reported."""
    shares = jobs(schedule, workers, SEED, Windows(1, 1, 1), watched)
    with ExitStack() as stack:
        channels = {channel: connected() for channel in connections(schedule.tasks)}
        for end in (end for ends in channels.values() for end in ends):
            stack.enter_context(end).setblocking(False)
        engines = [
            Engine(
                job,
                {channel: ends[0] for channel, ends in channels.items() if channel.src in job.local_gpus},
                {channel: ends[1] for channel, ends in channels.items() if channel.dst in job.local_gpus},
            )
            for job in shares
        ]
        reports: Reports = [[] for _ in engines]
        with ThreadPoolExecutor(len(engines)) as pool:
            start, deadline = time.monotonic_ns(), time.monotonic_ns() + 20_000_000_000
            runs = [pool.submit(e.run, start, r.append, deadline) for e, r in zip(engines, reports, strict=True)]
            outcomes = [run.result() for run in runs]
    all_seen = Outcome()
    for seen in outcomes:
        all_seen.started_ns.update(seen.started_ns)
        all_seen.ended_ns.update(seen.ended_ns)
        all_seen.delivered.update(seen.delivered)
        all_seen.corrupt.extend(seen.corrupt)
        all_seen.broken.extend(seen.broken)
    return all_seen, reports


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def on_the_wire(number: int, size: int) -> bytes:
    """A transfer as it should look, by another road than the engine's."""
    once = pattern_of(SEED)[:PATTERN_BYTES]
    start = number * PATTERN_STRIDE % PATTERN_BYTES
    return HEADER.pack(number, size) + (once * (2 + size // len(once)))[start : start + size]


def receive(wire: bytes, schedule: Schedule) -> Outcome:
    """Return what G(0,1) sees if that comes from G(0,0), whose end then closes."""
    theirs, ours = socket.socketpair()
    ours.setblocking(False)

    def send() -> None:
        with theirs, suppress(OSError):  # the engine may be done before all is sent
            theirs.sendall(wire)

    with ours, ThreadPoolExecutor(1) as pool:
        pool.submit(send)
        seen = Engine(job_of(schedule, 1), {}, {Channel(0, 1): ours}).run(0, lambda _: None, NEVER)
        ours.close()
        return seen


@given(schedule=schedules(), workers=st.integers(1, 3))
def test_schedule_is_played_in_its_order(schedule: Schedule, workers: int) -> None:
    """All bytes, each verified, nothing before what it waits for, first come first served on each connection."""
    seen, reports = play(schedule, workers)
    assert (seen.broken, seen.corrupt) == ([], [])
    assert seen.delivered == {number: t.bytes for number, t in schedule.transfers}
    progress = [[message.size for message in reported if isinstance(message, Delivered)] for reported in reports]
    assert sum(reported[-1] for reported in progress) == sum(schedule.matrix.values())
    assert all(reported == sorted(reported) for reported in progress)
    for number, task in enumerate(schedule.tasks):
        begun = seen.started_ns[number] + FROM_FLOAT_NS
        assert begun >= max((freed_ns(schedule, wanted, owner(task), seen) for wanted in task.after), default=0)
        if isinstance(task, Compute):
            assert seen.ended_ns[number] - begun >= task.seconds * 1e9 - 2 * FROM_FLOAT_NS
    for channel in connections(schedule.tasks):
        local_gpus = [n for n, t in schedule.transfers if (t.src, t.dst, t.stripe) == channel]
        assert sorted(local_gpus, key=seen.started_ns.__getitem__) == sorted(local_gpus, key=seen.ended_ns.__getitem__)


def freed_ns(schedule: Schedule, number: int, here: int, seen: Outcome) -> int:
    """Return when a task was over as far as this GPU is concerned; of what it sent only the start is known."""
    task = schedule.tasks[number]
    return (seen.started_ns if isinstance(task, Transfer) and task.src == here else seen.ended_ns)[number]


def test_a_transfer_of_megabytes_goes_round_the_pattern() -> None:
    schedule = of_tasks(Transfer(0, 1, 3 * PATTERN_BYTES + 17, 0), Transfer(1, 0, 1, 0))
    seen, _ = play(schedule, 1)
    assert seen.delivered == {0: 3 * PATTERN_BYTES + 17, 1: 1}
    assert not seen.corrupt


def test_a_gap_of_computing_is_kept_and_not_stretched() -> None:
    schedule = of_tasks(Transfer(0, 2, 100, 0), Compute(2, 0.05, 0, (0,)), Transfer(2, 0, 100, 0, (1,)))
    seen, _ = play(schedule, 2)
    gap_ms = (seen.started_ns[2] - seen.ended_ns[0]) / 1e6
    assert 50 <= gap_ms < 1000


def test_gpus_that_wait_for_nothing_do_not_wait_for_others() -> None:
    schedule = of_tasks(Compute(0, 0.2, 0), Transfer(0, 1, 10, 0, (0,)), Transfer(0, 2, 10, 0), Transfer(1, 0, 10, 0))
    seen, _ = play(schedule, 1)
    assert max(seen.ended_ns[2], seen.ended_ns[3]) < seen.started_ns[1]


def test_hundreds_of_sends_in_a_row_from_one_gpu() -> None:
    """Each frees the next at once, to a GPU of its own."""
    count = 300
    tasks = [Transfer(0, 1 + n, 1, 0, (n - 1,) if n else ()) for n in range(count)]
    seen, _ = play(of_tasks(*tasks, gpus=count + 2), 1)
    assert len(seen.delivered) == count


def test_a_stripe_does_not_queue_behind_another_of_its_pair() -> None:
    """The first has no reader, so its bytes stay; the second passes meanwhile."""
    schedule = of_tasks(Transfer(0, 1, 5_000_000, 0), Transfer(0, 1, 10, 0, (), 1))
    ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
    with ExitStack() as stack:
        for end in (*ours, *theirs):
            stack.enter_context(end).setblocking(False)
        engine = Engine(job_of(schedule, 0), {Channel(0, 1): ours[0], Channel(0, 1, 1): ours[1]}, {})
        engine.run(0, lambda _: None, time.monotonic_ns() + 10_000_000)
        assert theirs[1].recv(1000) == on_the_wire(1, 10)


def test_others_wait_until_the_last_byte_has_left() -> None:
    """A receiver that doesn't read keeps bytes at their sender, whose kernel has taken all of them."""
    first, same_gpu = Transfer(0, 1, 90_000, 0), Transfer(0, 1, 10, 0, (0,))
    computing = Compute(0, 0.001, 0, (0,))
    schedule = Schedule("s", 4, 2, (PHASE, PHASE), (first, same_gpu, *later(0), *later(1), computing))
    channels = {Channel(0, dst): connected() for dst in (1, 2, 3)}
    with ExitStack() as stack:
        for end in (end for ends in channels.values() for end in ends):
            stack.enter_context(end).setblocking(False)
        ours, theirs = channels[Channel(0, 1)]
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        engine = Engine(job_of(schedule, 0), {channel: ends[0] for channel, ends in channels.items()}, {})
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(engine.run, 0, lambda _: None, NEVER)
            others = [channels[Channel(0, dst)][1] for dst in (2, 3)]
            assert not select.select(others, [], [], 0.1)[0]
            read_from_ns = time.monotonic_ns()
            theirs.setblocking(True)
            count = 2 * HEADER.size + 90_000 + 10
            while count:
                count -= len(theirs.recv(count))
            assert not run.result(5).broken
            started_ns = engine.outcome.started_ns
            assert started_ns[1] < read_from_ns < min(started_ns[number] for number in (2, 3, 4))
            assert all(select.select([other], [], [], 5)[0] for other in others)


def later(phase: int) -> list[Task]:
    return [Transfer(0, 2 + phase, 10, phase, (0,))]


@given(data=st.data(), size=st.integers(1, 600_000))
def test_wrong_byte_is_found_at_any_place(data: st.DataObject, size: int) -> None:
    schedule = of_tasks(Transfer(0, 1, 50, 0), Transfer(0, 1, size, 0), Transfer(0, 1, 50, 0))
    wire = bytearray(on_the_wire(1, size))
    wire[HEADER.size + data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    seen = receive(on_the_wire(0, 50) + wire + on_the_wire(2, 50), schedule)
    assert set(seen.corrupt) == {1}
    assert seen.delivered == {0: 50, 2: 50}
    assert seen.broken == []


def test_bytes_of_another_transfer_are_wrong_bytes() -> None:
    schedule = of_tasks(Transfer(0, 1, 50, 0), Transfer(0, 1, 50, 0))
    first, second = on_the_wire(0, 50), on_the_wire(1, 50)
    mixed_up = first[: HEADER.size] + second[HEADER.size :] + second[: HEADER.size] + first[HEADER.size :]
    assert receive(mixed_up, schedule).corrupt == [0, 1]


@pytest.mark.parametrize(
    ("number", "size"),
    [(9, 50), (1, 50), (2, 50), (0, 51), (3, 50)],
    ids=["no task", "to another GPU", "a computation", "more bytes", "of another stripe"],
)
def test_a_header_that_no_sender_writes_breaks_the_connection(number: int, size: int) -> None:
    striped = Transfer(0, 1, 50, 0, (), 1)
    schedule = of_tasks(Transfer(0, 1, 50, 0), Transfer(0, 2, 50, 0), Compute(0, 0.0, 0), striped)
    seen = receive(HEADER.pack(number, size) + bytes(60), schedule)
    (reason,) = seen.broken
    assert reason.startswith(f"d0g0 -> d0g1: the sender announced task {number} with {size} bytes")
    assert seen.delivered == {}


@pytest.mark.parametrize("cut", [0, 1, HEADER.size, HEADER.size + 1, HEADER.size + 99_999])
def test_sender_that_hangs_up_ends_the_replay_and_is_named(cut: int) -> None:
    schedule = of_tasks(Transfer(0, 1, 10, 0), Transfer(0, 1, 100_000, 0), Transfer(2, 1, 10, 0))
    seen = receive(on_the_wire(0, 10) + on_the_wire(1, 100_000)[:cut], schedule)
    assert seen.broken == ["d0g0 -> d0g1: the sender hung up"]
    assert seen.delivered == {0: 10}


@pytest.mark.parametrize("after", [(), (1,)])  # sends at the start, and while it takes in what came from another GPU
def test_receiver_that_hangs_up_ends_the_replay_and_is_named(
    after: tuple[int, ...], pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    schedule = of_tasks(Transfer(1, 0, 1, 0), Transfer(2, 0, 10, 0), Transfer(0, 1, 10, 0, after))
    other_theirs, other_ours = socket.socketpair()
    with other_ours, other_theirs:
        other_ours.setblocking(False)
        engine = Engine(job_of(schedule, 0), {Channel(0, 1): ours}, {Channel(2, 0): other_ours})
        other_theirs.sendall(on_the_wire(1, 10))
        theirs.close()
        seen = engine.run(0, lambda _: None, NEVER)
    assert seen.broken
    assert all(reason.startswith("d0g0 -> d0g1: ") for reason in seen.broken)
    assert 2 not in seen.delivered


def test_bytes_missing_at_the_deadline_are_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    schedule = of_tasks(Transfer(0, 1, 10, 0), Transfer(0, 1, 10, 0))
    ours, theirs = pair
    theirs.sendall(on_the_wire(0, 10))
    engine = Engine(job_of(schedule, 1), {}, {Channel(0, 1): ours})
    seen = engine.run(0, lambda _: None, time.monotonic_ns() + 10_000_000)
    assert seen.broken == ["1 transfers had not arrived at the deadline"]
    assert seen.delivered == {0: 10}


def test_matrix_of_a_replay_holds_correctly_received_bytes() -> None:
    schedule = of_tasks(Transfer(0, 1, 10, 0), Transfer(0, 1, 20, 0), Transfer(2, 1, 40, 0))
    done = Replay(schedule, 1_000_000_000, 3_500_000_000, {}, delivered={1: 20}, corrupt=(0,), broken=())
    assert done.delivered_matrix == {(0, 1): 20}
    assert done.seconds == 2.5


def of_phases(*names: str) -> Schedule:
    """One after the other, each from everybody to the GPU across."""
    tasks = [
        Transfer(gpu, (gpu + 2) % 4, 10, phase, (4 * phase - 4 + (gpu + 2) % 4,) if phase else ())
        for phase in range(len(names))
        for gpu in range(4)
    ]
    schedule = Schedule("s", 4, 2, tuple(replace(PHASE, name=name) for name in names), tuple(tasks))
    schedule.check()
    return schedule


@pytest.mark.parametrize("workers", [1, 2])
def test_watched_phase_ends_with_the_last_workers_part(workers: int) -> None:
    schedule = of_phases("a2a", "a2a", "reduce")
    assert first_phases(schedule) == {"a2a": 0, "reduce": 2}
    over: dict[int, list[int]] = {0: [], 2: []}
    seen, reports = play(schedule, workers, over)
    phases = PhaseTracker(schedule, {number: ended.append for number, ended in over.items()})
    for message in (message for reported in reports for message in reported if isinstance(message, PhaseEnd)):
        phases.receive(message)
    assert over == {number: [max(seen.ended_ns[4 * number + n] for n in range(4))] for number in over}


def test_a_phase_of_which_a_part_is_missing_is_not_over() -> None:
    over: list[int] = []
    phases = PhaseTracker(of_phases("a2a"), {0: over.append})
    phases.receive(PhaseEnd(phase=0, transfers=3, ended_ns=7))
    assert over == []
    phases.receive(PhaseEnd(phase=0, transfers=1, ended_ns=5))
    assert over == [7]


def test_unsent_bytes_are_closed_with_their_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, _configured(socket.socket()) as sender:
        linger = sender.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.calcsize("ii"))
        assert struct.unpack("ii", linger) == (1, 0)
        sender.connect_ex(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            with suppress(BlockingIOError):
                while sender.send(bytes(65536)):
                    pass
            sender.close()
            with pytest.raises(ConnectionResetError):
                _read_all(receiver)


def _read_all(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass
