"""Functions that a sweep calls in a Dask worker. They return bytes, since the sweep reads no objects of a worker."""

from typing import Final

from distributed import Scheduler, Worker
from distributed.core import Server
from tornado.ioloop import PeriodicCallback

from railyard.core.errors import printable
from railyard.experiments.sweep import machine
from railyard.experiments.sweep.answers import FACTS, MOST_LINE, OUTCOME, Outcome
from railyard.experiments.sweep.machine import Task

QUIET_S: Final = 10.0
"""Between two heartbeats, and the like, of a worker: Dask does some 50 times per second, beside what is measured."""
_HEARTBEAT: Final = "railyard-heartbeat"


def do(task: Task) -> bytes:
    """Do a run, and return its Outcome as JSON; also of an error, which Dask would pickle."""
    try:
        outcome = machine.execute(task)
    except Exception as error:
        line = printable(f"{type(error).__name__}: {error}"[:MOST_LINE])
        outcome = Outcome(70, line, 0, 0, machine.identify(), None)
    return OUTCOME.dump_json(outcome)


def join(dask_worker: Worker) -> bytes:
    """Let a worker be quiet, and return the facts of its machine as JSON."""
    be_quiet(dask_worker)
    return FACTS.dump_json(machine.identify())


def be_quiet(dask_worker: Server) -> None:
    """Let a worker, nanny or scheduler do every 10 s what it does periodically, and not measure itself."""
    callbacks = dask_worker.periodic_callbacks
    for name in ("profile", "tick", "ticks"):
        if name in callbacks:
            callbacks[name].stop()
    for callback in callbacks.values():
        callback.callback_time = max(callback.callback_time, QUIET_S * 1000)
    if (
        isinstance(dask_worker, Worker) and _HEARTBEAT not in callbacks
    ):  # each of Dask's own sets when the next one comes
        callbacks["heartbeat"].stop()
        callbacks[_HEARTBEAT] = PeriodicCallback(dask_worker.heartbeat, QUIET_S * 1000)
        callbacks[_HEARTBEAT].start()


def let_scheduler_be_quiet(dask_scheduler: Scheduler) -> None:
    """Let the scheduler be quiet."""
    be_quiet(dask_scheduler)
