"""Fabrics, faults and programs in a script: handles on a fabric that another process serves in a sandbox of its own."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import count
from pathlib import Path
from select import select
from typing import IO, Any, Final, Literal, Self

from railyard.core.errors import BadInput, MissingRequirement, RailyardError, unknown_name_hint
from railyard.core.records import Recovery
from railyard.core.worker import Message, Pipe
from railyard.experiments.api import messages as m
from railyard.experiments.api.results import Results, load
from railyard.results.runs.records import Run
from railyard.topologies.spec import FabricSpec as BaseSpec
from railyard.workloads.spec import Workload

NAME: Final = "script"
"""The experiment's name in the records of a fabric that a script built."""
END_S: Final = 10.0  # for a sandbox to end by itself
CANCEL_S: Final = 30.0  # for a request that was interrupted to end
PORT: Final = 29500
_numbers: Final = count(1)
_carries: Final[dict[str, float]] = {}  # frames a second that this machine was measured to carry


class _Connection:
    """A serving process and its answers, received by a thread. It ends with the script's process."""

    def __init__(self, order: Message) -> None:
        ours, theirs = socket.socketpair()
        self.files, their_files = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        self._pipe = Pipe(ours, [m.Answer, m.Refused], reads_ahead=True)
        self._owner, self._numbers = os.getpid(), count(1)
        self._lock, self._sending = threading.Lock(), threading.Lock()
        started: Future[Any] = Future()
        self._waiting: dict[int, Future[Any]] = {m.STARTED: started}
        with theirs, their_files:
            descriptors = (theirs.fileno(), their_files.fileno())
            self.process = subprocess.Popen(
                m.start_command(*descriptors),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the script, which decides what ends
            )
        threading.Thread(target=self._receive, name="receives answers", daemon=True).start()
        self._pipe.send(order)
        self.started = started

    def ask(self, kind: type[m.Request], files: Sequence[int] = (), **fields: Any) -> Any:
        """Send a request, and files for it, and return its answer. Raises its error; KeyboardInterrupt cancels it."""
        if os.getpid() != self._owner:
            raise RailyardError("a fabric can be used by the process that built it alone, and not by a forked one")
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            with self._sending:
                if files:
                    socket.send_fds(self.files, [m.NUMBER.pack(number)], files)
                self._send(kind(number=number, **fields))
            return future.result()
        except KeyboardInterrupt:
            with suppress(RailyardError):
                self._send(m.Cancel(number=number))
            wait([future], CANCEL_S)
            raise

    def _send(self, message: Message) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._ended() from None

    def _receive(self) -> None:
        """In a thread: hand out answers; at the end, requests without one fail."""
        with suppress(EOFError, OSError):
            while True:
                reply = self._pipe.receive()
                with self._lock:
                    future = self._waiting.pop(reply.number, None)
                if future is not None and isinstance(reply, m.Refused):
                    future.set_exception(reply.error)
                elif future is not None:
                    future.set_result(reply.value)
        with self._lock:
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(self._ended())

    def _ended(self) -> RailyardError:
        """Return the error of a serving process that has ended, with the last line of its output."""
        last = self.last_line()
        return RailyardError(f"the fabric's sandbox has ended{f': {last}' if last else ''}")

    def last_line(self) -> str:
        """Return the last line that the serving process has written, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        with suppress(OSError, ValueError):
            self._output.seek(0)
            return (self._output.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        return ""

    def close(self) -> None:
        """End the sandbox, and return when it is gone. Nothing in a forked child, whose parent uses it."""
        if os.getpid() != self._owner:
            return
        with suppress(OSError):
            self._pipe.socket.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._pipe.socket.close()
        self.files.close()
        self._output.close()


class Fabric:
    """A running fabric, in a sandbox of its own; close it, or use it as a context manager.

    `addresses`: of its GPUs, by name. `switches`: the names of its switches and HB bridges. Rates are bit/s. Several
    threads may use it: workloads, faults and measurements are served one after the other, programs at once.
    """

    def __init__(self, connection: _Connection, info: m.FabricInfo, spec: BaseSpec, seed: int) -> None:
        self._connection, self._info, self.spec, self.seed = connection, info, spec, seed
        self.addresses, self.switches = dict(info.addresses), info.switches
        self.rail_bps, self.hb_bps, self.datapath, self.build_s = (
            info.rail_bps,
            info.hb_bps,
            info.datapath,
            info.build_s,
        )
        self.live_url = info.live_url
        """Address of its live page; empty without one."""
        self.on_result: Callable[[Results], object] = lambda _: None  # called with whatever is measured
        self.turn: AbstractContextManager[object] = nullcontext()  # entered while anything is measured
        self._started: list[Process] = []
        self._close = weakref.finalize(self, connection.close)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of its GPUs."""
        return tuple(self.addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, with all programs in it."""
        self._close()

    def ping(self, src: str, dst: str, count: int = 3, timeout: float = 1.0) -> m.Ping:
        """Send `count` datagrams there and back, each with `timeout` s: true if all returned."""
        found: m.Ping = self._measure(m.Probe, src=src, dst=dst, count=count, timeout_s=timeout)
        return found

    def iperf(self, src: str, dst: str, seconds: int = 2) -> float:
        """Return the payload rate of one TCP flow, bit/s, measured by iperf3."""
        return float(self._measure(m.Iperf, src=src, dst=dst, seconds=seconds))

    def exec(
        self, node: str, command: str | Sequence[str], *, timeout: float | None = None, check: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command at a GPU or switch, text by a shell, and return its output and exit status.

        subprocess.TimeoutExpired after `timeout` s. With `check`, subprocess.CalledProcessError for another status
        than 0.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        with self.processes(node).popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            output, errors = process.communicate(timeout=timeout)
        done = subprocess.CompletedProcess(argv, process.returncode or 0, output, errors)
        if check:
            done.check_returncode()
        return done

    def run(self, workload: Workload, repeats: int = 1, seed: int | None = None) -> Results:
        """Replay a workload and return what was measured, with predictions and the verdict.

        While a fault is active there are no predictions: detours cross the same links.
        """
        data = workload.model_dump(mode="json", exclude_none=True)
        seed = self.seed if seed is None else seed
        with self.turn:
            return self._result(self._ask(m.RunWorkload, workload=data, repeats=repeats, seed=seed))

    def fault(self, kind: str, target: str, **parameters: Any) -> "Fault":
        """Inject a fault, which its context repairs at the end. BadInput if the fabric has no such target."""
        return Fault(self, {"kind": kind, "target": target, **parameters})

    def processes(self, node: str) -> "Processes":
        """Return the starter of programs at a GPU or switch."""
        known = (*self.addresses, *self.switches)
        if node not in known:
            raise BadInput("node", node, unknown_name_hint(node, known))
        return Processes(self, node)

    def ranks(
        self,
        args: Sequence[str],
        gpus: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        **options: Any,
    ) -> "list[Process]":
        """Start a program at each GPU, as torch.distributed expects it; by default at all GPUs.

        RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR (the first GPU's) and MASTER_PORT are set. `options`: see `popen`.
        """
        names = list(self.gpus if gpus is None else gpus)
        shared = {"WORLD_SIZE": str(len(names)), "LOCAL_RANK": "0", "MASTER_PORT": str(port)}
        shared["MASTER_ADDR"] = self.addresses.get(names[0], "") if names else ""
        found: list[Process] = []
        with ExitStack() as on_error:
            for rank, name in enumerate(names):
                own = {**(os.environ if env is None else env), **shared, "RANK": str(rank)}
                found.append(self.processes(name).popen(args, env=own, **options))
                on_error.callback(found[-1].close)
            on_error.pop_all()
        return found

    def end_processes(self) -> None:
        """Kill every program that was started here and still runs."""
        while self._started:
            self._started.pop().close()

    def _ask(self, kind: type[m.Request], **fields: Any) -> Any:
        return self._connection.ask(kind, **fields)

    def _measure(self, kind: type[m.Request], **fields: Any) -> Any:
        """Return the value of a measurement; its records, with the machine's load, go to `on_result`."""
        with self.turn:
            value, run = self._ask(kind, **fields)
        self._result(run)
        return value

    def _result(self, run: Run) -> Results:
        found = Results(run)
        self.on_result(found)
        return found

    def __repr__(self) -> str:
        return (
            f"<Fabric {self._info.title}: {len(self.addresses)} GPUs, {'running' if self._close.alive else 'closed'}>"
        )

    def _repr_html_(self) -> str:
        """Return the drawing for a notebook."""
        return str(self._ask(m.Draw)) if self._close.alive else f"<code>{self!r}</code>"


class Fault:
    """An active fault of a fabric, repaired by `repair` or at the end of its context."""

    def __init__(self, fabric: Fabric, data: dict[str, Any]) -> None:
        self._fabric, self._data = fabric, data
        self._repaired: Results | None = None
        self._turn = ExitStack()
        with ExitStack() as on_error:
            on_error.enter_context(fabric.turn)
            self._number: int = fabric._ask(m.InjectFault, fault=data)
            self._turn = on_error.pop_all()

    @property
    def results(self) -> Results:
        """Records of the fault: its recovery until now, or all of it once it is repaired, and the verdict.

        While the fault is active, this waits until packets flow again, 5 s at most.
        """
        return self._repaired or self._fabric._result(self._fabric._ask(m.ObserveFault, fault=self._number))

    @property
    def recovery(self) -> Recovery:
        """Times of the recovery, ms: `detect_ms`, `reroute_ms`, `first_packet_ms`, ...; None for what never came."""
        return self.results.analysis.run.recoveries[0]

    def repair(self) -> Results:
        """Repair it, wait until its detours are withdrawn, and return its records."""
        if self._repaired is None:
            with self._turn:
                self._repaired = self._fabric._result(self._fabric._ask(m.RepairFault, fault=self._number))
        return self._repaired

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.repair()

    def __repr__(self) -> str:
        return f"<Fault {self._data['kind']} {self._data['target']}: {'repaired' if self._repaired else 'active'}>"


class Processes:
    """Starter of programs in the network of a GPU or switch."""

    def __init__(self, fabric: Fabric, node: str) -> None:
        self._fabric, self._node = fabric, node

    def popen(
        self,
        args: str | Sequence[str],
        *,
        stdin: "int | IO[Any] | None" = subprocess.DEVNULL,
        stdout: "int | IO[Any] | None" = None,
        stderr: "int | IO[Any] | None" = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        text: bool = True,
    ) -> "Process":
        """Start a program as subprocess.Popen does; text is split as by a shell. `python` is this Python.

        Its environment and working folder are those of the script; its host name is the node's.
        """
        argv = shlex.split(args) if isinstance(args, str) else [os.fspath(arg) for arg in args]
        if argv and argv[0] in ("python", "python3"):
            argv[0] = sys.executable
        process = Process(self._fabric, self._node, argv, (stdin, stdout, stderr), env, str(cwd or Path.cwd()), text)
        self._fabric._started.append(process)
        return process


class Process:
    """A program in a fabric, used like subprocess.Popen. `pid` is its process id in the sandbox.

    `stdin`, `stdout` and `stderr` are files if they were given as PIPE. It ends with the fabric.
    """

    def __init__(
        self,
        fabric: Fabric,
        node: str,
        args: list[str],
        streams: "tuple[int | IO[Any] | None, ...]",
        env: Mapping[str, str] | None,
        cwd: str,
        text: bool,
    ) -> None:
        self._fabric, self.node, self.args = fabric, node, args
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        with ExitStack() as given:
            fds: list[int] = []
            for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
                if stream == subprocess.PIPE:
                    read, write = os.pipe()
                    theirs, ours = (read, write) if number == 0 else (write, read)
                    mode = "w" if number == 0 else "r"
                    file = (
                        os.fdopen(ours, mode, encoding="utf-8", errors="replace")
                        if text
                        else os.fdopen(ours, mode + "b")
                    )
                    setattr(self, name, file)
                elif stream == subprocess.STDOUT:
                    theirs = os.dup(fds[1])
                elif stream == subprocess.DEVNULL:
                    theirs = os.open(os.devnull, os.O_RDWR)
                else:
                    theirs = os.dup(
                        number if stream is None else stream if isinstance(stream, int) else stream.fileno()
                    )
                fds.append(theirs)
                given.callback(os.close, theirs)
            self._status_fd, their_end = os.pipe()
            given.callback(os.close, their_end)
            environment = dict(os.environ if env is None else env)
            what = {"node": node, "argv": tuple(args), "environment": environment, "cwd": cwd}
            self.pid: int = fabric._connection.ask(m.StartProcess, [*fds, their_end], **what)

    def poll(self) -> int | None:
        """Return the exit status if the program has ended, negative for a signal; else None."""
        return self._await(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when the program has ended. subprocess.TimeoutExpired after `timeout` s."""
        status = self._await(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _await(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select([self._status_fd], [], [], timeout)[0]:
                written = os.read(self._status_fd, 16)
                os.close(self._status_fd)
                self.returncode = int(written) if written else -signal.SIGKILL  # the sandbox has ended
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002 - as in Popen
        """Send `input`, read to the end, and return what was written to stdout and stderr; None for what is no pipe."""
        read: dict[str, Any] = {}

        def collect(name: str, stream: IO[Any]) -> None:
            read[name] = stream.read()

        pipes = [(name, stream) for name in ("stdout", "stderr") if (stream := getattr(self, name)) is not None]
        readers = [threading.Thread(target=collect, args=pipe, daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin as stdin:
                stdin.write(input or ("" if hasattr(stdin, "encoding") else b""))
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return read.get("stdout"), read.get("stderr")

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it still runs."""
        if self.poll() is None:
            self._fabric._ask(m.SignalProcess, pid=self.pid, signal=int(number))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill the program and the processes that it started, and close its pipes."""
        with suppress(RailyardError):
            self._fabric._ask(m.SignalProcess, pid=self.pid, signal=int(signal.SIGKILL), group=True)
        self.wait(END_S)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Process {self.pid} at {self.node}: {shlex.join(self.args)}>"


def fabric(
    spec: BaseSpec,
    *,
    reroute: bool = True,
    seed: int = 1,
    visible: Iterable[str | Path] = (),
    live: bool | Literal["control"] = False,
) -> Fabric:
    """Build a fabric in a sandbox of its own and return it when traffic can flow.

    `reroute`: the controller finds detours around faults. `visible`: folders of /tmp and /var/tmp that programs need,
    besides the working folder. `live`: serve its live page and print the address; "control": with controls. BadInput,
    MachineLacks with the remedy, or another RailyardError.
    """
    mode = live if isinstance(live, str) else "" if live else None
    data = {"name": NAME, "fabrics": [spec.model_dump(mode="json", exclude_none=True)], "seed": seed}
    frames, shown = _carries.get("frames_per_s"), tuple(str(Path(path).absolute()) for path in visible)
    name = f"{NAME} {NAME}-{os.getpid()}-{next(_numbers)}"
    how: dict[str, Any] = {"reroute": reroute, "frames_per_s": frames, "visible": shown, "live": mode}
    order = m.Build(spec=data, caller=os.getpid(), name=name, **how)
    connection = _Connection(order)
    try:
        info: m.FabricInfo = connection.started.result()
    except BaseException:
        connection.close()
        raise
    if info.frames_per_s:
        _carries["frames_per_s"] = info.frames_per_s
    if info.live_url:
        print(f"live page: {info.live_url}", file=sys.stderr)
    return Fabric(connection, info, spec, seed)


def run(
    name: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    check: bool = False,
) -> Results:
    """Run an experiment, by name or file, and return its results; `overrides` are those of `-o`.

    Its folder is `out`, by default runs/<utc time>-NAME. BadInput, MachineLacks; with `check`, CheckFailed if a check
    of the experiment failed. KeyboardInterrupt stops the run, and its folder has what was measured until then.
    """
    changes = tuple(f"{key}={json.dumps(value, default=str)}" for key, value in (overrides or {}).items())
    order = m.RunExperiment(
        name=str(name), caller=os.getpid(), overrides=changes, out=None if out is None else str(out), seed=seed
    )
    connection = _Connection(order)
    try:
        folder, status = connection.started.result()
        if not Path(folder, "run.json").exists():
            raise _failure(status, connection.last_line())
    except KeyboardInterrupt:
        connection.process.send_signal(signal.SIGINT)
        wait([connection.started], CANCEL_S)
        raise
    finally:
        connection.close()
    found = load(folder)
    return found.check() if check else found


def _failure(status: int, line: str) -> RailyardError:
    """Return the exception for a run that ended without records: of its exit status and its line."""
    text = line.removeprefix("error: ")
    if status == BadInput.exit_status and (parts := re.match(r"([^:]+): ('[^']*'|\S+) (.*)", text)):
        return BadInput(parts[1], parts[2].strip("'"), parts[3])
    if status == MissingRequirement.exit_status:
        what, _, remedy = text.partition("; ")
        return MissingRequirement(what, remedy)
    error = RailyardError(text or f"the run ended with exit status {status} and left no records")
    error.exit_status = status
    return error
