"""The process of a rank: `python -m railyard.workloads.allreduce.peers.rank MODULE FOLDER [RANK...]`; mpirun gives
the number.

It loads what its program needs once, then there is a process a rank. Each knocks at the door in FOLDER (a UNIX socket,
which is no network's), is told its `RankConfig`, enters its node's namespace, makes its engine, answers what it is
told until that is None, and ends then, or when nobody is there any more.
"""

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any, Final

import numpy as np

from railyard.core.errors import RailyardError
from railyard.core.plugins import load_inherited
from railyard.workloads.allreduce.engine.jobs import pin_to_core
from railyard.workloads.allreduce.peers.rank_config import RankConfig

SOCKET_NAME: Final = "ranks.sock"
_PR_SET_TIMERSLACK: Final = 29


@dataclass(frozen=True, slots=True)
class Program:
    """What an engine's module gives as `PROGRAM`: each loads other libraries.

    `load` is called once, before there is a process a rank; `make` in each, and `do` and `end` with what it gave.
    """

    load: Callable[[], object]
    make: Callable[[RankConfig], Any]
    do: Callable[[Any, RankConfig, Any], object]
    end: Callable[[Any], object]


def serve(sock: Connection, program: Program) -> None:
    """A rank's life. RailyardErrors are answers too; what else goes wrong while joining is told as one."""
    config: RankConfig = sock.recv()
    config.placement.enter()
    pin_to_core(config.rank)
    try:
        engine = program.make(config)
    except Exception as problem:  # another library's
        sock.send(RailyardError(f"{type(problem).__name__}: {problem}"))
        return
    sock.send(None)
    gc.collect()
    gc.freeze()  # what is there stays: no need to look at it again and again
    while (request := sock.recv()) is not None:
        try:
            sock.send(program.do(engine, config, request))
        except RailyardError as problem:  # of whatever kind: not all can be pickled
            sock.send(RailyardError(str(problem)))
    program.end(engine)


def fork_ranks(ranks: Sequence[int]) -> tuple[int, list[int]]:
    """A process for each: which one this is, and of the first, who the others are."""
    others = []
    for rank in ranks[1:]:
        others.append(os.fork())
        if others[-1] == 0:
            return rank, []
    return ranks[0], others


def main() -> None:
    name, folder, *ranks = sys.argv[1:]
    np.seterr(over="ignore", invalid="ignore")  # as for worker.py's
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # ns
    load_inherited()  # a plugin's module is imported by now
    program: Program = importlib.import_module(name).PROGRAM
    program.load()
    rank, others = fork_ranks([int(each) for each in ranks or [os.environ["OMPI_COMM_WORLD_RANK"]]])
    with (
        Client(f"{folder}/{SOCKET_NAME}", "AF_UNIX") as sock,
        suppress(EOFError, ConnectionError),
    ):  # nobody is there any more
        sock.send(rank)
        serve(sock, program)
    for other in others:
        os.waitpid(other, 0)


if __name__ == "__main__":
    main()
