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

from distributed import Client, Future, KilledWorker, Scheduler, SSHCluster, Worker
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError, connect
from distributed.core import Server
from distributed.scheduler import NoValidWorkerError
from distributed.security import Security
from tornado.ioloop import PeriodicCallback

import railyard
from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.sweep import machine
from railyard.experiments.sweep.machine import Outcome, Task

RESOURCE: Final = "railyard"
GONE: Final = "its worker is gone"
ASK_EVERY_S: Final = 1.0
TIMEOUT_S: Final = 10.0  # for the scheduler to answer, and for workers to come
ANSWER_S: Final = 30.0  # for the scheduler to answer later: as long as Dask gives a connection
GONE_S: Final = 60.0  # without a worker, after which a sweep ends
_START: Final = f"dask worker SCHEDULER --resources {RESOURCE}=1"
QUIET_S: Final = 10.0
"""Between two heartbeats, and the like, of a worker: Dask does some 50 times per second, beside what is measured."""
_UNTIL_EOF: Final = """sh -c '"$@" & exec >&- 2>&-; cat >/dev/null; kill $!' sh"""
"""Begins a command that ends with the connection that started it, also if the sweep was killed: its input ends."""
_HEARTBEAT: Final = "railyard-heartbeat"
_LOST: Final = (KilledWorker, FutureCancelledError, NoValidWorkerError, asyncio.CancelledError)


class Cluster:
    """The machines of a Dask cluster."""

    def __init__(self, where: str) -> None:
        """Connect. MissingRequirement if no scheduler answers, or it has no worker of our version."""
        self._where, self._sweep = where, secrets.token_hex(8)
        logging.disable(logging.ERROR)  # Dask has tracebacks for workers that come and go, and for a lost scheduler
        with ExitStack() as undo:
            address: Any = where
            if where.startswith("ssh:"):
                address = undo.enter_context(_by_ssh(where))
            else:
                _check_answers(where)
            try:
                self._client = undo.enter_context(Client(address, timeout=TIMEOUT_S, set_as_default=False))
            except (OSError, TimeoutError) as error:
                raise _no_answer(where) from error
            with suppress(ImportError):  # a scheduler may be on a machine without Railyard
                self._client.run_on_scheduler(_let_scheduler_be_quiet)
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
        alive = {address for address, worker in found.items() if worker["resources"].get(RESOURCE)}
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
            if self._client.status == "running":
                known = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
                return dict(known["workers"])
        raise self._without_scheduler()

    def _without_scheduler(self) -> MissingRequirement:
        """Return the error of a scheduler that is gone."""
        self._is_lost = True
        remedy = "call the sweep again to run the rest"
        return MissingRequirement(f"--on: the Dask scheduler at {self._where} no longer answers", remedy)

    def _identify(self, workers: Sequence[str]) -> None:
        try:
            answers = self._client.run(_join, workers=list(workers), on_error="return")
            self._client.run(_be_quiet, workers=list(workers), nanny=True, on_error="ignore")
        except (OSError, TimeoutError):
            return  # gone in the meantime; asked again if not
        for address, answer in answers.items():
            if isinstance(answer, OSError):
                continue
            version = answer.get("version") if isinstance(answer, dict) else f"none ({type(answer).__name__})"
            if version != railyard.__version__:
                what = f"--on: the worker {address} has Railyard {version}, and this is {railyard.__version__}"
                raise MissingRequirement(what, "install the same version there")
            self._machines[address] = str(answer["machine"])

    def submit(self, name: str, task: Task) -> "Run":
        """Start a task on a worker of a machine."""
        workers = [address for address, own in self._machines.items() if own == name]
        own = replace(task, sweep=self._sweep)
        future = self._client.submit(machine.execute, own, workers=workers, resources={RESOURCE: 1}, pure=False)
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
            given = str(found.get(address, {}).get("name", address))
            names[name] = name.rpartition("-")[0] if given == address else given
        return names

    def lost(self, error: Exception) -> str:
        """Return why a run was lost; raise another error than that of a lost worker."""
        if isinstance(error, _LOST):
            return GONE
        if isinstance(error, CommClosedError):  # while it handed out the result
            raise self._without_scheduler() from None
        raise error

    def stop(self) -> bool:
        """End the runs under way; return whether the scheduler still answers."""
        if self._is_lost or self._client.status != "running":
            return False
        with suppress(OSError, TimeoutError):
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
            return str(self._future.result(timeout=within_s))
        except TimeoutError:
            return "an agent is still there"
        except _LOST:
            return f"an agent: {GONE}"


class Run:
    """A run on one of some workers."""

    def __init__(self, future: Future, workers: Sequence[str], alive: Mapping[str, str]) -> None:
        """`alive`: the workers that are there, which changes. Dask itself would wait for a worker to come back."""
        self._future, self._workers, self._alive = future, workers, alive

    def done(self) -> bool:
        """Return whether it has ended, or all of its workers have."""
        return bool(self._future.done()) or not any(worker in self._alive for worker in self._workers)

    def result(self) -> Outcome:
        """Return what became of it. One of the errors for which `Cluster.lost` has a reason if its workers are gone."""
        if not any(worker in self._alive for worker in self._workers) and not self._future.done():
            self._future.cancel()
            raise FutureCancelledError(self._future.key, GONE)
        outcome: Outcome = self._future.result()
        self._future.release()  # Dask would do the run again if the worker that has its result died
        return outcome


def _join(dask_worker: Worker) -> dict[str, Any]:
    """Let a worker be quiet, and return the facts of its machine."""
    _be_quiet(dask_worker)
    return machine.identify()


def _be_quiet(dask_worker: Server) -> None:
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


def _let_scheduler_be_quiet(dask_scheduler: Scheduler) -> None:
    _be_quiet(dask_scheduler)


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
    worker = {"nthreads": 1, "resources": {RESOURCE: 1}}
    python = f"{_UNTIL_EOF} {shlex.quote(sys.executable)}"
    try:
        return SSHCluster([hosts[0], *hosts], worker_options=worker, scheduler_options=options, remote_python=python)
    except Exception as error:
        what = f"--on: Dask can't be started on {', '.join(hosts)}: {' '.join(str(error).split())[:120]}"
        raise MissingRequirement(what, f"try: ssh {hosts[0]} true") from error
