"""Machines that Dask workers are on: `tcp://SCHEDULER`, or `ssh:h1,h2`, where the workers are started by ssh.

A machine may have several workers; it gets one run at a time, on a worker with the resource `railyard`. A run that is
lost with its worker is given to another one.
"""

import asyncio
import logging
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from distributed import Client, Future, SSHCluster
from distributed.comm import CommClosedError, connect
from distributed.security import Security

import railyard
from railyard.core.errors import BadInput, MissingRequirement, printable
from railyard.experiments.sweep import machine, worker
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
from railyard.experiments.sweep.machine import Task

RESOURCE: Final = "railyard"
GONE: Final = "its worker is gone"
ASK_EVERY_S: Final = 1.0
TIMEOUT_S: Final = 10.0  # for the scheduler to answer, and for workers to come
ANSWER_S: Final = 30.0  # for the scheduler to answer later: as long as Dask gives a connection
GONE_S: Final = 60.0  # without a worker, after which a sweep ends
_START: Final = f"dask worker SCHEDULER --resources {RESOURCE}=1"
_UNTIL_EOF: Final = """sh -c '"$@" & exec >&- 2>&-; cat >/dev/null; kill $!' sh"""
"""Begins a command that ends with the connection that started it, also if the sweep was killed: its input ends."""


class Lost(Exception):
    """A call that a worker has not done: why, in a line."""


class _Client(Client):  # type: ignore[misc]
    """A client that shows no events: what they print, any worker may have sent."""

    def subscribe_topic(self, topic: str, handler: object) -> None:
        """Ask for no events. Dask's own handlers unpickle them, and print them unescaped."""


class Cluster:
    """The machines of a Dask cluster."""

    def __init__(self, where: str) -> None:
        """Connect. MissingRequirement if no scheduler answers, or it has no worker of our version."""
        self._where, self._sweep = where, secrets.token_hex(8)
        refuse_pickles()
        logging.disable(logging.CRITICAL)  # Dask has tracebacks for workers that come and go, and for a lost scheduler
        with ExitStack() as undo:
            address: Any = where
            if where.startswith("ssh:"):
                address = undo.enter_context(_by_ssh(where))
            else:
                _check_answers(where)
            try:
                self._client = undo.enter_context(_Client(address, timeout=TIMEOUT_S, set_as_default=False))
            except (OSError, TimeoutError) as error:
                raise _no_answer(where) from error
            with suppress(Exception):  # a scheduler may be on a machine without Railyard
                self._client.run_on_scheduler(worker.let_scheduler_be_quiet)
            self._machines: dict[str, str] = {}  # worker -> machine
            self._is_lost = False  # whether the scheduler didn't answer
            self._asked, self._seen = 0.0, time.monotonic()  # when workers were asked for, and there; monotonic, s
            self._await_workers()
            self._undo = undo.pop_all()

    def _await_workers(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.names():
            if time.monotonic() > deadline:
                what = f"--on: {self._where} has no worker with the resource {RESOURCE}"
                raise MissingRequirement(what, f"start them with: {_START}")
            time.sleep(0.2)

    def names(self) -> Sequence[str]:
        """Return the machines that have a worker, at most 1 s ago. MissingRequirement if the scheduler is gone."""
        if time.monotonic() < self._asked + ASK_EVERY_S and self._machines and self._client.status == "running":
            return sorted(set(self._machines.values()))
        self._asked = time.monotonic()
        found = self._ask_for_workers()
        alive = {address for address, facts in found.items() if facts["resources"].get(RESOURCE)}
        if alive:
            self._seen = time.monotonic()
        elif time.monotonic() > self._seen + GONE_S:
            raise MissingRequirement(f"--on: {self._where} has had no worker for {GONE_S:g} s", f"start one: {_START}")
        for address in set(self._machines) - alive:
            del self._machines[address]
        if new := [address for address in alive if address not in self._machines]:
            self._identify(new)
        return sorted(set(self._machines.values()))

    def _ask_for_workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers; `scheduler_info` would wait for it without a limit."""
        with suppress(OSError, TimeoutError):
            if self._client.status == "running" and not self._client.scheduler_comm.comm.closed():
                known = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
                return dict(known["workers"])
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
                self._client.run(worker.be_quiet, workers=[address], nanny=True, on_error="ignore")
            except (OSError, TimeoutError, Refused):
                continue  # gone in the meantime; asked again if not
            if address in answers:
                self._machines[address] = _machine_of(address, answers[address])

    def submit(self, name: str, task: Task) -> "Run":
        """Start a task on a worker of a machine."""
        workers = [address for address, own in self._machines.items() if own == name]
        own = replace(task, sweep=self._sweep)
        future = self._client.submit(worker.do, own, workers=workers, resources={RESOURCE: 1}, pure=False)
        return Run(future, workers, self._machines)

    def start(self, name: str, function: Callable[..., Any], *arguments: object) -> "Started":
        """Call a function on a worker of a machine, which gets nothing else meanwhile."""
        workers = [address for address, own in self._machines.items() if own == name]
        return Started(self._client.submit(function, *arguments, workers=workers, resources={RESOURCE: 1}, pure=False))

    def worker_names(self) -> dict[str, str]:
        """Return the name of a worker on each machine; the host's name for workers that were given none."""
        found = self._client.scheduler_info(n_workers=-1)["workers"]
        names = dict[str, str]()
        for address, name in self._machines.items():
            given = printable(str(found.get(address, {}).get("name", address)))
            names[name] = name.rpartition("-")[0] if given == address else given
        return names

    def lost(self, error: Exception) -> str:
        """Return why a run was lost; raise another error than that of a lost worker."""
        if isinstance(error, Lost):
            return str(error)
        if isinstance(error, CommClosedError):  # while it handed out the result
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
        self._future, self._workers, self._alive = future, workers, alive

    def done(self) -> bool:
        """Return whether it has ended, or all of its workers have."""
        return bool(self._future.done()) or not any(address in self._alive for address in self._workers)

    def result(self) -> Outcome:
        """Return what became of it. One of the errors for which `Cluster.lost` has a reason if its workers are gone."""
        if not any(address in self._alive for address in self._workers) and not self._future.done():
            self._future.cancel()
            raise Lost(GONE)
        answer = _result(self._future)
        self._future.release()  # Dask would do the run again if the worker that has its result died
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


def _machine_of(address: str, answer: object) -> str:
    """Return the name of a worker's machine. MissingRequirement if it is of another version."""
    worker_name = f"--on: the worker {printable(address)}"
    if isinstance(answer, Exception):  # such as an ImportError, which only a pickle would say
        what = f"{worker_name} has another version of Railyard, or none, and this is {railyard.__version__}"
        raise MissingRequirement(what, "install the same version there")
    try:
        facts: Facts = read(FACTS, answer)
    except BadAnswer as error:
        raise MissingRequirement(f"{worker_name}: {error}", "end it") from error
    if facts["version"] != railyard.__version__:
        what = f"{worker_name} has Railyard {facts['version']}, and this is {railyard.__version__}"
        raise MissingRequirement(what, "install the same version there")
    return facts["machine"]


def _no_answer(where: str) -> MissingRequirement:
    return MissingRequirement(f"--on: no Dask scheduler answers at {where}", "start one with: dask scheduler")


def _check_answers(where: str) -> None:
    """Shake hands with a scheduler, and disconnect. `Client` would wait for ever for one that never says a word."""

    async def shake() -> None:
        options = Security().get_connection_args("client")
        comm = await asyncio.wait_for(connect(where, timeout=TIMEOUT_S, **options), TIMEOUT_S)
        await comm.close()

    try:
        asyncio.run(shake())
    except (ValueError, OverflowError) as error:  # of the port
        raise BadInput("--on", where, "must be local, tcp://SCHEDULER:PORT or ssh:HOST,HOST") from error
    except TypeError as error:
        what = f"--on: {where} needs certificates"
        raise MissingRequirement(what, "name them in Dask's configuration: distributed.comm.tls") from error
    except Exception as error:  # whatever is there that isn't Dask makes any error of its decoder
        raise _no_answer(where) from error


def _by_ssh(where: str) -> SSHCluster:
    """Start a scheduler on the first host, and a worker on each. MissingRequirement if a host can't be reached."""
    hosts = [host for host in where.removeprefix("ssh:").split(",") if host]
    if not hosts:
        raise BadInput("--on", where, "must name hosts, such as ssh:h1,h2")
    options = {}
    with suppress(OSError):  # such as an alias of ~/.ssh/config
        own = socket.gethostbyname(hosts[0])
        if not own.startswith("127."):
            options["host"] = own  # without it, a host that has no route to the Internet gives out 127.0.0.1
    options_of_workers = {"nthreads": 1, "resources": {RESOURCE: 1}}
    python = f"{_UNTIL_EOF} {shlex.quote(sys.executable)}"
    try:
        return SSHCluster(
            [hosts[0], *hosts], worker_options=options_of_workers, scheduler_options=options, remote_python=python
        )
    except Exception as error:
        what = f"--on: Dask can't be started on {', '.join(hosts)}: {' '.join(str(error).split())[:120]}"
        raise MissingRequirement(what, f"try: ssh {hosts[0]} true") from error
