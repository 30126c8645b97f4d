"""Pacing of a rail's sender by its clock, and connections that keep to it."""

import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from railyard.workloads.allreduce.transport.links import CATCH_UP_S, DATA, LEAD_S, Framed, Header, Links, Pacer


def test_message_waits_for_earlier_ones_and_its_set_up() -> None:
    pacer = Pacer(setup_s=0.1, cpu_s_per_byte=1e-3)
    pacer.start_message(ready_at=5.0)
    assert pacer.free_at == pytest.approx(5.1)
    pacer.note_sent(200, now=5.1)
    pacer.start_message(ready_at=5.2)  # the one before is through at 5.3 only
    assert pacer.free_at == pytest.approx(5.4)


def test_late_sender_catches_up_and_idle_one_does_not() -> None:
    late = Pacer(cpu_s_per_byte=1e-3)
    late.note_sent(10, now=1.0)
    assert late.free_at == pytest.approx(1.0 - CATCH_UP_S + 0.01)
    idle = Pacer(cpu_s_per_byte=1e-3, free_at=1.0)
    idle.note_sent(10, now=1.0)
    assert idle.free_at == pytest.approx(1.01)


def test_bottleneck_link_gets_bytes_early_after_set_up() -> None:
    pacer = Pacer(setup_s=0.1, cpu_s_per_byte=1e-3, link_s_per_byte=1e-3)
    pacer.start_message(ready_at=5.0)
    assert pacer.next_send_at == pytest.approx(5.1)
    pacer.note_sent(200, now=5.1)
    assert pacer.free_at == pytest.approx(5.3)
    assert pacer.next_send_at == pytest.approx(5.3 - LEAD_S)
    pacer.start_message(ready_at=5.2)
    assert pacer.next_send_at == pytest.approx(5.4)


def sent_through(pacer: Pacer, messages: int, size: int) -> tuple[bytes, float]:
    """Return what arrives of messages, each of one frame, and how long that takes."""
    here, there = socket.socketpair()
    came = bytearray()
    for sock in (here, there):
        sock.setblocking(False)
    problems: list[str] = []
    links = Links(lambda _, why: problems.append(why))
    out = Framed(here, lambda header: memoryview(bytearray(header.length)), lambda *_: None, pacer)
    into = Framed(there, lambda header: memoryview(bytearray(header.length)), lambda _, view: came.extend(view))
    links.add(out)
    links.add(into)
    began = time.monotonic()
    for number in range(messages):
        links.put(out, Header(DATA, seq=number, length=size), bytes([number]) * size, starts_message=True)
    while len(came) < messages * size and time.monotonic() < began + 10:
        links.poll(0.01)
    took = time.monotonic() - began
    assert not problems
    links.close()
    here.close()
    there.close()
    return bytes(came), took


@pytest.fixture
def many_files() -> Iterator[None]:
    """So many are open that the next one's number is beyond what select takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_links_work_above_the_limit_of_select() -> None:
    came, took = sent_through(Pacer(setup_s=0.02), 4, 1000)
    assert came == b"".join(bytes([number]) * 1000 for number in range(4))
    assert took >= 4 * 0.02


def test_sender_waits_for_set_up_and_processor_cost() -> None:
    next_send_at = b"".join(bytes([number]) * 100_000 for number in range(4))
    came, took = sent_through(Pacer(setup_s=0.02, cpu_s_per_byte=2e-7), 4, 100_000)
    assert came == next_send_at
    assert took >= 4 * 0.02 + 3 * 0.02  # the last message's last turn goes when its turn comes, not when it's through
    came, unpaced = sent_through(Pacer(), 4, 100_000)
    assert came == next_send_at
    assert unpaced < took
