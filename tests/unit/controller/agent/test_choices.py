"""Choices of agents, requested over a socket: an answer, no choice, and no agent."""

import socket
import threading
from pathlib import Path as File

import pytest

from railyard.controller.agent import steering
from railyard.controller.agent.steering import ask, serve_choices
from railyard.topologies.addresses import Gpu
from railyard.topologies.forwarding import Path, Share, Shares

SRC, DST = Gpu(0, 1), Gpu(3, 2)


@pytest.fixture(autouse=True)
def place(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> File:
    where = tmp_path / "run" / "choices.sock"
    monkeypatch.setattr(steering, "SOCKET", where)
    return where


@pytest.mark.parametrize(
    ("held", "reported"),
    [
        (None, None),
        ((), []),
        ((Share(Path("dr", 2)),), [Path("dr", 2)]),
        ((Share(Path("rd", 1), 3), Share(Path("drd", 0))), [Path("rd", 1), Path("drd", 0)]),
    ],
)
def test_agent_answers_with_the_choices_it_holds(held: Shares | None, reported: list[Path] | None) -> None:
    asked: list[tuple[Gpu, Gpu]] = []

    def chosen(src: Gpu, dst: Gpu) -> Shares | None:
        asked.append((src, dst))
        return held

    serve_choices(chosen)
    assert ask(SRC, DST) == reported
    assert asked == [(SRC, DST)]


def test_many_may_ask_at_once() -> None:
    together = threading.Barrier(8)

    def chosen(src: Gpu, dst: Gpu) -> Shares:
        together.wait(10)
        return (Share(Path("rd", src.rank)),)

    serve_choices(chosen)
    found: list[list[Path] | None] = []
    threads = [threading.Thread(target=lambda: found.append(ask(SRC, DST))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[Path("rd", 1)]] * 8


def test_without_agents_there_is_no_answer(place: File) -> None:
    assert ask(SRC, DST) is None
    serve_choices(lambda src, dst: ())
    assert ask(SRC, DST) == []
    serve_choices(lambda src, dst: None)  # takes the place of one that died
    assert ask(SRC, DST) is None
    place.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))  # but doesn't listen
        assert ask(SRC, DST) is None


def test_agent_that_dies_during_a_request_has_no_answer(place: File) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(place))
        dying.listen()

        def die() -> None:
            for reads in (False, True):  # a reset, and an end
                connection, _ = dying.accept()
                if reads:
                    connection.recv(100)
                connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        assert [ask(SRC, DST), ask(SRC, DST)] == [None, None]
        thread.join()
