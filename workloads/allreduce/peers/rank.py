"""The process of a rank: `python -m railyard.workloads.allreduce.peers.rank PROGRAM FOLDER [RANK...]`; mpirun gives
the number.

It loads what its program needs once, then there is a process a rank. Each knocks at the door in FOLDER (a UNIX socket,
which is no network's), is told its `Seat`, enters its node's namespace, makes its engine, answers what it is told until
that is None, and ends then, or when nobody is there any more.
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
from railyard.workloads.allreduce.peers.rank_config import Seat
from railyard.workloads.allreduce.transport.placement import keep_to_core

DOOR: Final = "door"
_PR_SET_TIMERSLACK: Final = 29


@dataclass(frozen=True, slots=True)
class Program:
    """What a module of this folder gives as `PROGRAM`: each needs other libraries.

    `load` is called once, before there is a process a rank; `make` in each, and `do` and `end` with what it gave.
    """

    load: Callable[[], object]
    make: Callable[[Seat], Any]
    do: Callable[[Any, Seat, Any], object]
    end: Callable[[Any], object]


def serve(door: Connection, program: Program) -> None:
    """A rank's life. RailyardErrors are answers too; what else goes wrong while joining is told as one."""
    seat: Seat = door.recv()
    seat.place.enter()
    keep_to_core(seat.rank)
    try:
        engine = program.make(seat)
    except Exception as problem:  # another library's
        door.send(RailyardError(f"{type(problem).__name__}: {problem}"))
        return
    door.send(None)
    gc.collect()
    gc.freeze()  # what is there stays: no need to look at it again and again
    while (told := door.recv()) is not None:
        try:
            door.send(program.do(engine, seat, told))
        except RailyardError as problem:  # of whatever kind: not all can be pickled
            door.send(RailyardError(str(problem)))
    program.end(engine)


def forked(ranks: Sequence[int]) -> tuple[int, list[int]]:
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
    program: Program = importlib.import_module(f"railyard.workloads.allreduce.peers.{name}").PROGRAM
    program.load()
    rank, others = forked([int(each) for each in ranks or [os.environ["OMPI_COMM_WORLD_RANK"]]])
    with Client(f"{folder}/{DOOR}", "AF_UNIX") as door, suppress(EOFError, ConnectionError):  # nobody is there any more
        door.send(rank)
        serve(door, program)
    for other in others:
        os.waitpid(other, 0)


if __name__ == "__main__":
    main()
