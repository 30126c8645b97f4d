"""Process that serves a script's fabric: outside the sandbox it starts one, inside it builds the fabric and answers.

    script ── this process, outside ── unshare ── sandbox init: this program again, process 1 of the sandbox

The script's socket is inherited by the sandbox init, which ends when the socket closes; a thread outside waits for the
end of the script's process too, since a forked child of the script may hold the socket open. The kernel then removes
the sandbox. Requests that take long are served by the main thread, one at a time, so that a signal interrupts them;
those on programs of the script are served at once.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from select import select
from typing import Any

from railyard.core.config import parse_model
from railyard.core.errors import BadInput, RailyardError
from railyard.core.host import raise_open_file_limit
from railyard.core.sandbox import init, launcher
from railyard.core.worker import Message, Pipe
from railyard.experiments.api import messages as m
from railyard.topologies.build import programs
from railyard.topologies.capacity import Capacity


def main() -> None:
    """Serve one script. The arguments are the sockets for messages and for files."""
    requests, files = map(int, sys.argv[1:3])
    if init.inside():
        _Server(requests, files).serve()
    else:
        sys.exit(_outside(requests, files))


def _outside(requests: int, files: int) -> int:
    """Start the sandbox, or run an experiment, and return the exit status. Errors are sent to the script."""
    pipe = Pipe(socket.socket(fileno=requests), [m.Build, m.RunExperiment])
    order = pipe.receive()
    _end_with(order.caller)
    try:
        if isinstance(order, m.RunExperiment):
            return _run_experiment(order, pipe)
        return _enter(order, requests, files)
    except Exception as error:
        pipe.send(m.Refused.of(m.STARTED, error))
        return 1


def _end_with(caller: int) -> None:
    """Kill this process, and with it the sandbox, when the script's process ends."""
    pidfd = os.pidfd_open(caller)
    if os.getppid() != caller:
        os._exit(128 + signal.SIGKILL)

    def wait() -> None:
        select([pidfd], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="ends with the script", daemon=True).start()


def _enter(order: m.Build, requests: int, files: int) -> int:
    from railyard.experiments.live.launch import opened_page
    from railyard.experiments.machines.joining import refuse_several
    from railyard.experiments.run.sandboxed import check_machine
    from railyard.experiments.spec.experiment import ExperimentSpec
    from railyard.experiments.spec.fabric_checks import check_fabrics

    spec = parse_model(ExperimentSpec, order.spec)
    check_fabrics(spec)
    refuse_several(spec, "a script's fabric")
    check_machine(spec)
    task = {"spec": spec.resolved(), "reroute": order.reroute, "capacity": order.capacity}
    command = m.start_command(requests, files)
    visible = [Path(path) for path in order.visible]
    with opened_page(order.live, None) as page:
        task |= {"live": page.task, "live_url": page.url}
        return launcher.enter(command, task, run=order.name, visible=visible, inherited=[requests, files, *page.fds])


def _run_experiment(order: m.RunExperiment, pipe: Pipe) -> int:
    from railyard.experiments.commands.run import RunOptions, run
    from railyard.experiments.run import folder
    from railyard.experiments.spec.loading import load_any

    spec = load_any(order.name, order.overrides, order.seed)
    out = Path(order.out) if order.out else folder.default_choices(spec.name)[0]
    # `ps` shows these words
    sys.argv = ["railyard", "run", order.name]
    options = RunOptions(
        name=order.name,
        overrides=order.overrides,
        out=out,
        seed=order.seed,
        quiet=order.quiet,
        no_queue=order.no_queue,
    )
    status = run(options, tell=lambda line: pipe.send(m.Queued(line=line)))
    pipe.send(m.Answer(number=m.STARTED, value=[str(out.absolute()), status]))
    return status


class _Server:
    """Requests of a script, in the sandbox init."""

    def __init__(self, requests: int, files: int) -> None:
        self._task = init.prepare()
        for fd in (requests, files):
            os.set_inheritable(fd, False)
        self._pipe = Pipe(socket.socket(fileno=requests), m.REQUESTS)
        self._files = socket.socket(fileno=files)
        self._waiting: queue.SimpleQueue[m.Request] = queue.SimpleQueue()
        # the number of the request that the main thread serves
        self._lock = threading.Lock()
        self._serving = -1
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # a group may outlive the program that began it, so groups of ended programs stay here
        self._groups: set[int] = set()
        self._live: Any = None

    def serve(self) -> None:
        """Build the fabric and serve until the script ends or closes it."""
        from railyard.experiments.api.session import live_fabric
        from railyard.experiments.live import page
        from railyard.experiments.spec.experiment import nominal_plans
        from railyard.experiments.spec.parsing import restored

        init.install_signal_handlers(interactive=True)
        threading.Thread(target=self._receive, name="receives requests", daemon=True).start()
        raise_open_file_limit()
        try:
            spec = restored(self._task["spec"])
            init.add_hosts({host: ip for plan in nominal_plans(spec) for host, ip in plan.addresses.items()})
            measured = self._task["capacity"]
            how = (self._task["reroute"], Capacity(*measured) if measured else None, self._task["live_url"])
            with page.served(self._task["live"], self._task["spec"]), live_fabric(spec, *how) as (self._live, info):
                self._pipe.send(m.Answer(number=m.STARTED, value=info))
                while True:
                    self._serve_next()
        except Exception as error:
            self._pipe.send(m.Refused.of(m.STARTED, error))
            os._exit(2)

    def _receive(self) -> None:
        """In a thread: queue requests, serve those that don't wait, and end with the connection."""
        while True:
            try:
                request = self._pipe.receive()
            except (EOFError, OSError):
                os._exit(0)
            if isinstance(request, m.Cancel):
                with self._lock:
                    if self._serving == request.number:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            elif isinstance(request, m.StartProcess | m.SignalProcess):
                self._answer(request)
            else:
                self._waiting.put(request)

    def _serve_next(self) -> None:
        # an interrupt may be meant for a request that has just ended
        with suppress(KeyboardInterrupt):
            request = self._waiting.get()
            with self._lock:
                self._serving = request.number
            self._answer(request)

    def _answer(self, request: m.Request) -> None:
        reply: Message
        try:
            try:
                reply = m.Answer(number=request.number, value=self._handlers[type(request)](request))
            finally:
                with self._lock:
                    if self._serving == request.number:
                        self._serving = -1
        except (Exception, KeyboardInterrupt) as error:
            reply = m.Refused.of(request.number, error)
        self._pipe.send(reply)

    @cached_property
    def _handlers(self) -> dict[type[m.Request], Callable[[Any], Any]]:
        live = self._live
        return {
            m.RunWorkload: lambda r: live.run(r.workload, r.repeats, r.seed),
            m.Probe: lambda r: live.ping(r.src, r.dst, r.count, r.timeout),
            m.Iperf: lambda r: live.iperf(r.src, r.dst, r.seconds),
            m.InjectFault: lambda r: live.inject(r.number, r.fault),
            m.ObserveFault: lambda r: live.observe(r.fault),
            m.RepairFault: lambda r: live.repair(r.fault),
            m.Draw: lambda _: live.draw(),
            m.StartProcess: self._start_process,
            m.SignalProcess: self._signal_process,
        }

    def _start_process(self, request: m.StartProcess) -> int:
        """Start a program, with the node's name as its host name; write its exit status to the last of its files."""
        number = -1
        fds = list[int]()
        # a start that was interrupted has left its files
        while number != request.number:
            for fd in fds:
                os.close(fd)
            data, fds, _, _ = socket.recv_fds(self._files, m.NUMBER.size, 4)
            (number,) = m.NUMBER.unpack(data)
        try:
            if not Path(request.cwd).is_dir():
                raise BadInput("cwd", request.cwd, "is not visible in the sandbox: name it in `visible`")
            try:
                process = programs.start(
                    request.node, request.argv, (fds[0], fds[1], fds[2]), request.environment, request.cwd
                )
            except FileNotFoundError:
                raise BadInput("args", request.argv[0], "is no program that the sandbox sees") from None
            # such as for a folder that is missing, or a zero byte in an argument
            except (OSError, ValueError) as error:
                raise BadInput("args", request.argv[0], f"can't be started: {error}") from None
            self._processes[process.pid] = process
            self._groups.add(process.pid)
            threading.Thread(target=self._report_end, args=(process, os.dup(fds[3])), daemon=True).start()
            return process.pid
        finally:
            for fd in fds:
                os.close(fd)

    def _report_end(self, process: "subprocess.Popen[bytes]", status_fd: int) -> None:
        status = process.wait()
        self._processes.pop(process.pid, None)
        with suppress(OSError), os.fdopen(status_fd, "wb") as pipe:
            pipe.write(b"%d" % status)

    def _signal_process(self, request: m.SignalProcess) -> None:
        process = self._processes.get(request.pid)
        with suppress(ProcessLookupError):
            # what the program started may outlive it
            if request.group and request.pid in self._groups:
                os.killpg(request.pid, request.signal)
            elif process is not None:
                process.send_signal(request.signal)


if __name__ == "__main__":
    try:
        main()
    except RailyardError as problem:
        sys.exit(str(problem))
