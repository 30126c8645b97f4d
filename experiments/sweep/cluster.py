"""Machines that Dask workers are on: `tls://SCHEDULER`, or `ssh:h1,h2`, where the workers are started by ssh.

A machine may have several workers; it gets one run at a time, on a worker with the resource `railyard`. A run that is
lost with its worker is given to another one.
"""

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from distributed import Client, Future
from distributed.comm import CommClosedError
from distributed.security import Security

import railyard
from railyard.core.errors import MissingRequirement, printable
from railyard.experiments.sweep import connecting, machine, worker
from railyard.experiments.sweep.answers import (
    FACTS,
    MOST_LINE,
    OUTCOME,
    BadAnswer,
    Facts,
    Outcome,
    Refused,
    read,
    refuse_pickles,
)
from railyard.experiments.sweep.connecting import TIMEOUT_S
from railyard.experiments.sweep.keys import Keys, dask_options
from railyard.experiments.sweep.machine import Task
from railyard.experiments.sweep.remote import RESOURCE

GONE: Final = "its worker is gone"
ASK_EVERY_S: Final = 1.0
WORKERS_S: Final = 10.0  # for workers to come
ANSWER_S: Final = 30.0  # for the scheduler to answer later: as long as Dask gives a connection
GONE_S: Final = 60.0  # without a worker, after which a sweep ends
_START: Final = f"dask worker SCHEDULER --resources {RESOURCE}=1"


class Lost(Exception):
    """A call that a worker has not done: why, in a line."""


class _Client(Client):  # type: ignore[misc]
    """A client that shows no events: what they print, any worker may have sent."""

    def subscribe_topic(self, topic: str, handler: object) -> None:
        """Ask for no events. Dask's own handlers unpickle them, and print them unescaped."""


class Cluster:
    """The machines of a Dask cluster."""

    def __init__(self, where: str, keys: Keys | None = None) -> None:
        """Connect. MissingRequirement if no scheduler answers, or it has no worker of our version.

        Without `keys`, `tls://` uses the certificates of Dask's configuration. `ssh:` has keys of its own.
        """
        self._where, self._sweep = where, secrets.token_hex(8)
        refuse_pickles()
        # Dask has tracebacks for workers that come and go, and for a lost scheduler
        logging.disable(logging.CRITICAL)
        with ExitStack() as undo:
            address, security = _scheduler(where, keys, undo)
            try:
                client = _Client(address, timeout=TIMEOUT_S, set_as_default=False, security=security)
                self._client = undo.enter_context(client)
            except (OSError, TimeoutError) as error:
                raise connecting.no_answer(where, keys) from error
            # a scheduler may be on a machine without Railyard
            with suppress(Exception):
                self._client.run_on_scheduler(worker.let_scheduler_be_quiet)
            # machine of each worker, by the worker's address
            self._machines: dict[str, str] = {}
            # reason why a worker gets no runs, by its address
            self._refused: dict[str, MissingRequirement] = {}
            # refused workers that were named to the user
            self._named = set[str]()
            # True once the scheduler didn't answer
            self._is_lost = False
            # when workers were last asked for, and last there; monotonic, s
            self._asked, self._seen = 0.0, time.monotonic()
            self._await_workers(keys)
            self._undo = undo.pop_all()

    def _await_workers(self, keys: Keys | None) -> None:
        deadline = time.monotonic() + WORKERS_S
        while not self.names():
            if self._refused:
                raise next(iter(self._refused.values()))
            if time.monotonic() > deadline:
                options = f" {dask_options(keys.path)}" if keys and keys.path else ""
                problem = f"--on: {self._where} has no worker with the resource {RESOURCE}"
                raise MissingRequirement(problem, f"start them with: {_START}{options}")
            time.sleep(0.2)

    def names(self) -> Sequence[str]:
        """Return the machines that have a worker, at most 1 s ago. MissingRequirement if the scheduler is gone.

        A worker that doesn't fit is named once on standard error, and gets no runs.
        """
        if time.monotonic() < self._asked + ASK_EVERY_S and self._machines and self._client.status == "running":
            return sorted(set(self._machines.values()))
        self._asked = time.monotonic()
        workers = self._ask_for_workers()
        fitting = {address: facts for address, facts in workers.items() if address not in self._refused}
        alive = {address for address, facts in fitting.items() if facts["resources"].get(RESOURCE)}
        if alive:
            self._seen = time.monotonic()
        elif time.monotonic() > self._seen + GONE_S:
            raise MissingRequirement(f"--on: {self._where} has had no worker for {GONE_S:g} s", f"start one: {_START}")
        for address in set(self._machines) - alive:
            del self._machines[address]
        if new := [address for address in alive if address not in self._machines]:
            self._identify(new)
        # if no worker is accepted, the first refusal ends the sweep
        if self._machines:
            self._name_refused()
        return sorted(set(self._machines.values()))

    def _ask_for_workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers; `scheduler_info` would wait for it without a limit."""
        with suppress(OSError, TimeoutError):
            if self._client.status == "running" and not self._client.scheduler_comm.comm.closed():
                identity = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
                return dict(identity["workers"])
        raise self._without_scheduler()

    def _without_scheduler(self) -> MissingRequirement:
        """Return the error of a scheduler that is gone."""
        self._is_lost = True
        remedy = "call the sweep again to run the rest"
        return MissingRequirement(f"--on: the Dask scheduler at {self._where} no longer answers", remedy)

    def _identify(self, workers: Sequence[str]) -> None:
        for address in workers:
            try:
                answers = self._client.run(worker.join, workers=[address], on_error="return")
                # a nanny may refuse anything
                with suppress(Refused):
                    self._client.run(worker.be_quiet, workers=[address], nanny=True, on_error="ignore")
            except Refused:  # a pickled ImportError, from a worker that lacks the function or all of Railyard
                self._refused[address] = _other_version(address)
                continue
            except (OSError, TimeoutError):
                # the worker may be gone; one that isn't is asked again
                continue
            if address not in answers:
                continue
            try:
                self._machines[address] = _machine_of(address, answers[address])
            except MissingRequirement as error:
                self._refused[address] = error

    def _name_refused(self) -> None:
        for address, error in self._refused.items():
            if address not in self._named:
                self._named.add(address)
                print(f"it gets no runs: {str(error).removeprefix('--on: ')}", file=sys.stderr, flush=True)

    def submit(self, name: str, task: Task) -> "Run":
        """Start a task on a worker of a machine."""
        workers = [address for address, machine in self._machines.items() if machine == name]
        machine = replace(task, sweep=self._sweep)
        future = self._client.submit(worker.do, machine, workers=workers, resources={RESOURCE: 1}, pure=False)
        return Run(future, workers, self._machines)

    def start(self, name: str, function: Callable[..., Any], *arguments: object) -> "Started":
        """Call a function on a worker of a machine, which gets nothing else meanwhile."""
        workers = [address for address, machine in self._machines.items() if machine == name]
        return Started(self._client.submit(function, *arguments, workers=workers, resources={RESOURCE: 1}, pure=False))

    def worker_names(self) -> dict[str, str]:
        """Return the name of a worker on each machine; the host's name for workers that were given none."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        names = dict[str, str]()
        for address, name in self._machines.items():
            worker_name = printable(str(workers.get(address, {}).get("name", address)))
            names[name] = name.rpartition("-")[0] if worker_name == address else worker_name
        return names

    def lost(self, error: Exception) -> str:
        """Return why a run was lost; raise another error than that of a lost worker."""
        if isinstance(error, Lost):
            return str(error)
        # the worker was lost while it sent the result
        if isinstance(error, CommClosedError):
            raise self._without_scheduler() from None
        raise error

    def stop(self) -> bool:
        """End the runs under way; return whether the scheduler still answers."""
        if self._is_lost or self._client.status != "running":
            return False
        with suppress(OSError, TimeoutError, Refused):
            self._client.run(machine.stop, self._sweep, on_error="ignore")
            return True
        return False

    def close(self) -> None:
        """Disconnect, and end the workers that were started by ssh."""
        with suppress(Exception):
            self._undo.close()


class Started:
    """A call that `Cluster.start` has started."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def result(self, within_s: float) -> str:
        """Return what the function has returned; that its worker is gone, or that it isn't done in time."""
        try:
            return printable(str(_result(self._future, within_s))[:MOST_LINE])
        except TimeoutError:
            return "an agent is still there"
        except (Lost, CommClosedError):
            return f"an agent: {GONE}"


class Run:
    """A run on one of some workers."""

    def __init__(self, future: Future, workers: Sequence[str], alive: Mapping[str, str]) -> None:
        """`alive`: the workers that are there, which changes. Dask itself would wait for a worker to come back."""
        self._future = future
        self._workers = workers
        self._alive = alive

    def done(self) -> bool:
        """Return whether it has ended, or all of its workers have."""
        return bool(self._future.done()) or not any(address in self._alive for address in self._workers)

    def result(self) -> Outcome:
        """Return what became of it. One of the errors for which `Cluster.lost` has a reason if its workers are gone."""
        if not any(address in self._alive for address in self._workers) and not self._future.done():
            self._future.cancel()
            raise Lost(GONE)
        answer = _result(self._future)
        # Dask would do the run again if the worker that has its result died
        self._future.release()
        outcome: Outcome = read(OUTCOME, answer)
        return outcome


def _result(future: Future, within_s: float | None = None) -> object:
    """Return what a worker has returned. Lost if it has not: why it raised an error, only a pickle would say."""
    try:
        return future.result(timeout=within_s)
    except (TimeoutError, CommClosedError):
        raise
    except Refused as error:
        raise Lost("it answered with a pickled object, which isn't read") from error
    except (Exception, asyncio.CancelledError) as error:
        raise Lost(GONE) from error


def _other_version(address: str) -> MissingRequirement:
    """Return the error of a worker that doesn't know the functions of a sweep: only a pickle would say why."""
    worker_name = f"--on: the worker {printable(address)}"
    problem = f"{worker_name} has another version of Railyard, or none, and this is {railyard.__version__}"
    return MissingRequirement(problem, "install the same version there")


def _machine_of(address: str, answer: object) -> str:
    """Return the name of a worker's machine. MissingRequirement if it is of another version."""
    worker_name = f"--on: the worker {printable(address)}"
    if isinstance(answer, Exception):
        raise _other_version(address)
    try:
        facts: Facts = read(FACTS, answer)
    except BadAnswer as error:
        raise MissingRequirement(f"{worker_name}: {error}", "end it") from error
    if facts["version"] != railyard.__version__:
        problem = f"{worker_name} has Railyard {facts['version']}, and this is {railyard.__version__}"
        raise MissingRequirement(problem, "install the same version there")
    return facts["machine"]


def _scheduler(where: str, keys: Keys | None, undo: ExitStack) -> tuple[str, Security]:
    """Return the address of a scheduler, which is started for `ssh:`, and the settings to reach it."""
    if not where.startswith("ssh:"):
        return where, connecting.connected_security(where, keys)
    # this import loads asyncssh
    from railyard.experiments.sweep import ssh

    address, own_keys = undo.enter_context(ssh.started(where))
    return address, connecting.connected_security(address, own_keys)
