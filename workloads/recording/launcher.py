"""Run a script as the ranks that are needed, pass small tensors between them, and collect what they did.

One child process in the script's interpreter imports PyTorch and forks for each rank (ranks/child.py). Rank 0 is run,
and as samples the last rank and one in the middle; a rank is added when another sends it a message, when it has data
that cannot be replaced, or when no rank of its kind was run. All talk to this process alone, over sockets that have
no name: there are no temporary files and no ports, and whatever ends this process ends all of them.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, Protocol

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.installation import PROJECT, python_extra
from railyard.workloads.recording.command_line import TrainingCommand, interpreter
from railyard.workloads.recording.coordinator import Coordinator, Wait
from railyard.workloads.recording.exchanges import with_even_exchanges
from railyard.workloads.recording.iterations import Iteration, cut, find_iteration
from railyard.workloads.recording.messages import Buffer, encode, joined
from railyard.workloads.recording.symmetry import Families, Program, Recorded, Symmetry, families_of, program_of

MAX_RUN: Final = 128
"""Ranks that are run at the same time: each takes some hundred megabytes."""
LOG_LINES: Final = 200
RECEIVE_BYTES: Final = 1 << 20
CHILD: Final = """import sys
del sys.path[0]
from railyard.workloads.recording.ranks.child import main
main()
"""
"""Starts ranks/child.py without the working folder in Python's path: files in it would hide modules of Python."""
POLL_S: Final = 0.5
GPU_ERRORS: Final = (
    "Torch not compiled with CUDA enabled", "No NVIDIA driver", "no NVIDIA driver", "'CUDA' backend", "CUDA error",
    "libcuda", "triton", "flash_attn", "transformer_engine", "CUDA_HOME", "active drivers",
    "dummy base class CUDAGraph",
)  # fmt: skip
"""Parts of messages of what needs a real GPU."""


@dataclass(frozen=True)
class Request:
    """Settings of a recording.

    `only`: the ranks that are run, or None to choose them. `steps`: optimizer steps after which a rank is stopped; 0:
    run the script to its end. `keep_all`: keep every operation, not one iteration. `limit_s`: for the whole recording.
    `fake`: large tensors have no contents. `balanced`: a `topk` takes its columns in turn. `real`:
    over Gloo, with all contents.
    """

    command: TrainingCommand
    ranks: int
    ranks_per_node: int
    platform: str
    only: tuple[int, ...] | None
    steps: int
    keep_all: bool
    limit_s: float
    fake: bool = False
    balanced: bool = False
    real: bool = False


class Child(Protocol):
    """The process that runs ranks."""

    pid: int
    stderr: IO[str] | None

    def kill(self) -> None:
        """Kill it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, `timeout` s at most."""


class Gpus(Protocol):
    """GPUs of a fabric, for the ranks of a real run. `addresses`: by name, in the order of the ranks."""

    addresses: Mapping[str, str]

    def start(self, argv: Sequence[str], environment: Mapping[str, str], control: socket.socket) -> Child:
        """Start the process that runs ranks, at the first GPU, with `control` as its standard input."""


def start_here(argv: Sequence[str], environment: Mapping[str, str], control: socket.socket) -> Child:
    """Start the process that runs ranks on this machine, with `control` as its standard input."""
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


@dataclass
class Recording:
    """The programs of all ranks. `sources`: of each rank the rank that was run whose program it has.

    `whole`: everything that the ranks which were run did, from the first operation to the last.
    """

    request: Request
    families: Families
    programs: dict[int, Program]
    sources: dict[int, int]
    iteration: Iteration | None
    torch_version: str
    whole: dict[int, Program] = field(default_factory=dict)


@dataclass
class _Rank:
    """A rank that is run. `steps` and `operations`: as it last said."""

    number: int
    connection: socket.socket
    output: int
    buffer: Buffer = field(default_factory=Buffer)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    text: str = ""
    steps: int = 0
    operations: int = 0
    recorded: Recorded | None = None
    failure: BadInput | None = None


def initial_ranks(request: Request) -> list[int]:
    """Return the ranks to begin with: those that were asked for, or rank 0 with two samples."""
    if request.only is not None:
        return list(request.only)
    middle = request.ranks // 2 + 1
    last = request.ranks - 1
    return sorted({0, min(middle, last), last})


def record(
    request: Request,
    report: Callable[[str], None],
    show: Callable[[int, str], None],
    gpus: Gpus | None = None,
) -> Recording:
    """Run the script and return what its ranks do.

    `report`: gets a line of progress. `show`: gets each line that a rank prints. `gpus`: of a fabric, where a real run
    takes place. BadInput says why it can't be recorded; MissingRequirement if there is no PyTorch.
    """
    session = _Session(request, report, show, gpus)
    try:
        return session.record()
    finally:
        session.close()


class _Session:
    """The child process and the ranks of one recording."""

    def __init__(
        self,
        request: Request,
        report: Callable[[str], None],
        show: Callable[[int, str], None],
        gpus: Gpus | None = None,
    ) -> None:
        self._request = request
        self._gpus = gpus
        self._script = request.command.name
        self._report = report
        self._show = show
        self._ranks: dict[int, _Rank] = {}
        self._coordinator = Coordinator(self._script)
        self._selector = selectors.DefaultSelector()
        self._deadline = time.monotonic() + request.limit_s
        self._torch_version = ""
        self._control: socket.socket
        self._process: Child

    def record(self) -> Recording:
        """Start the child and the ranks, and run until every kind of rank is recorded."""
        self._start_child()
        for rank in initial_ranks(self._request):
            self._start(rank)
        while True:
            self._run_until_ended()
            recording = self._assembled()
            symmetry = Symmetry(self._request.ranks, recording.families, recording.programs)
            missing = symmetry.missing()
            if not missing:
                recording.sources = symmetry.sources(self._script)
                return recording
            if self._request.only is not None:
                allowed = f"leaves out rank {missing[0]}, whose sends and receives none of them has: add it"
                raise BadInput("--only", ",".join(map(str, self._request.only)), allowed)
            for rank in missing:
                self._start(rank)

    def _start_child(self) -> None:
        """Start the interpreter of the script, and wait until it has imported PyTorch."""
        python = interpreter(self._request.command.python)
        self._control, childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        # PyTorch makes the folder of its compiler when it is imported, though nothing is compiled: one that is there
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
        # the package alone is looked for there: child.py takes the folder out again
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
        with childs_end:
            start = start_here if self._gpus is None else self._gpus.start
            self._process = start([python, "-c", CHILD], environment, childs_end)
        command = self._request.command
        job = {
            "project": str(PROJECT),
            "script": command.script,
            "is_module": command.is_module,
            "arguments": list(command.arguments),
            "ranks": self._request.ranks,
            "ranks_per_node": self._request.ranks_per_node,
            "steps": self._request.steps,
            "fake": self._request.fake,
            "balanced": self._request.balanced,
            "real": self._request.real,
            "addresses": dict(self._gpus.addresses) if self._gpus else {},
        }
        self._report(f"importing PyTorch in {python}")
        self._control.send(json.dumps(job).encode())
        answer = self._control.recv(RECEIVE_BYTES)
        message = json.loads(answer) if answer else {"kind": "unusable", "error": self._error_of_child()}
        if message["kind"] == "no-namespace":
            problem = f"a real run needs a network namespace: {message['error']}"
            raise MissingRequirement(problem, "run it as root, or allow user namespaces")
        if message["kind"] != "ready":
            problem = f"PyTorch of {python} can't be imported: {message['error']}"
            raise MissingRequirement(problem, python_extra("record"))
        self._torch_version = message["torch"]
        self._selector.register(self._control, selectors.EVENT_READ, None)

    def _error_of_child(self) -> str:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "its Python ended"

    def _start(self, rank: int) -> None:
        """Start a rank, unless it was started before."""
        if rank in self._ranks:
            return
        if len(self._ranks) >= MAX_RUN:
            allowed = f"are more than {MAX_RUN} ranks that all differ by whom they send to: record fewer ranks"
            raise BadInput("--ranks", self._request.ranks, allowed)
        ours, ranks_end = socket.socketpair()
        output, ranks_output = os.pipe()
        with ranks_end:
            text = json.dumps({"rank": rank}).encode()
            socket.send_fds(self._control, [text], [ranks_end.fileno(), ranks_output])
        os.close(ranks_output)
        started = _Rank(rank, ours, output)
        self._ranks[rank] = started
        self._coordinator.started.add(rank)
        self._selector.register(ours, selectors.EVENT_READ, started)
        self._selector.register(output, selectors.EVENT_READ, started)

    def _run_until_ended(self) -> None:
        """Serve all ranks until each has sent its recording. BadInput for the first that can't go on."""
        reported = time.monotonic()
        while any(rank.recorded is None for rank in self._ranks.values()):
            for key, _ in self._selector.select(POLL_S):
                self._serve(key)
            for rank in self._coordinator.ranks_to_start():
                self._require(rank)
            for number, parts in self._coordinator.answers():
                self._answer(number, parts)
            self._coordinator.check_progress()
            now = time.monotonic()
            if now > self._deadline:
                raise BadInput("--limit", f"{self._request.limit_s:g} s", self._reason_for_limit())
            if now - reported > 1:
                reported = now
                self._report(self._progress())

    def _reason_for_limit(self) -> str:
        """Return which rank is farthest behind, and what it waits for if it waits."""
        running = [rank for rank in self._ranks.values() if rank.recorded is None]
        last = min(running, key=lambda rank: rank.steps)
        steps = f"rank {last.number} had done {last.steps} optimizer steps"
        waits = self._coordinator.description(last.number)
        where = f"and {waits}" if waits else "and computed, or looped for ever"
        return f"was reached when {steps} {where}: give more time, or a smaller model"

    def _progress(self) -> str:
        ended = sum(rank.recorded is not None for rank in self._ranks.values())
        steps = min(rank.steps for rank in self._ranks.values())
        operations = sum(rank.operations for rank in self._ranks.values())
        return f"{len(self._ranks)} ranks run, {ended} done; {steps} steps, {operations:,} operations"

    def _serve(self, key: selectors.SelectorKey) -> None:
        """Read what has arrived at one file descriptor."""
        rank: _Rank | None = key.data
        if rank is None:
            self._serve_child()
        elif key.fileobj == rank.output:
            self._serve_output(rank)
        else:
            try:
                chunk = rank.connection.recv(RECEIVE_BYTES)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self._selector.unregister(rank.connection)
            for header, content in rank.buffer.add(chunk):
                self._handle(rank, header, content)

    def _serve_child(self) -> None:
        """Read which rank has ended; a rank that ended without a word was killed."""
        text = self._control.recv(RECEIVE_BYTES)
        if not text:
            raise BadInput(self._script, "the recorder's process", f"ended: {self._error_of_child()}")
        message = json.loads(text)
        rank = self._ranks[message["rank"]]
        for chunk in iter(lambda: _received(rank.connection), b""):
            for header, content in rank.buffer.add(chunk):
                self._handle(rank, header, content)
        if rank.recorded is None:
            status = message["status"]
            how = f"was killed by signal {-status}: out of memory?" if status < 0 else f"ended with status {status}"
            raise BadInput(self._script, f"rank {rank.number}", how)

    def _serve_output(self, rank: _Rank) -> None:
        chunk = os.read(rank.output, RECEIVE_BYTES)
        if not chunk:
            self._selector.unregister(rank.output)
        lines = (rank.text + chunk.decode(errors="replace")).split("\n")
        rank.text = lines.pop()
        for line in lines:
            rank.log.append(line)
            self._show(rank.number, line)

    def _handle(self, rank: _Rank, header: dict[str, Any], content: bytes) -> None:
        """Act on a message of a rank."""
        match header["kind"]:
            case "post":
                parts: list[bytes] = []
                start = 0
                for length in header["lengths"]:
                    parts.append(content[start : start + length])
                    start += length
                self._coordinator.post(rank.number, header["key"], header["signature"], parts)
            case "take":
                wait = Wait(header["key"], tuple(header["ranks"]), header["name"], header["required"])
                self._coordinator.wait(rank.number, wait)
            case "peer":
                if self._request.only is None:
                    self._start(header["rank"])
            case "progress":
                rank.steps = header["steps"]
                rank.operations = header["operations"]
            case "done":
                data = json.loads(content)
                rank.recorded = Recorded(rank.number, data["operations"], data["communicators"], data["steps"])
                self._coordinator.ended[rank.number] = len(rank.recorded.operations)
            case "failed":
                raise self._failure(rank, header)

    def _require(self, rank: int) -> None:
        """Start a rank whose data others need."""
        if self._request.only is not None:
            allowed = f"leaves out rank {rank}, whose data another rank needs to go on: add it"
            raise BadInput("--only", ",".join(map(str, self._request.only)), allowed)
        self._start(rank)

    def _answer(self, number: int, parts: dict[int, list[bytes]]) -> None:
        """Send a rank the parts that it waits for."""
        lengths: list[tuple[int, list[int]]] = []
        contents: list[bytes] = []
        for peer, peer_parts in parts.items():
            part_lengths, content = joined(peer_parts)
            lengths.append((peer, part_lengths))
            contents.append(content)
        try:
            self._ranks[number].connection.sendall(encode({"parts": lengths}, b"".join(contents)))
        except (BrokenPipeError, ConnectionResetError):
            # the rank has ended meanwhile, which the child reports
            return

    def _failure(self, rank: _Rank, header: dict[str, Any]) -> BadInput:
        """Return the error of a script that failed."""
        error = str(header["error"])
        where = header["where"] or self._script
        name = header.get("name", "")
        if name == "TooManyOperations":
            return BadInput("--steps", self._request.steps, f"takes {error} on rank {rank.number}: record fewer")
        if name == "WorldSizeError" or "Mesh should not be bigger than default world size" in error:
            return BadInput("--ranks", self._request.ranks, f"are not what {where} wants: {error}")
        # Triton can be imported without a GPU, so a script that lacks it may run once it is installed
        lacks_triton = "No module named 'triton'" in error
        if any(part in error for part in GPU_ERRORS) and not lacks_triton:
            return BadInput(where, error, f"needs a real GPU, on rank {rank.number}: nothing can take its place")
        return BadInput(where, error, f"ended the script on rank {rank.number}; --show prints all of its output")

    def _assembled(self) -> Recording:
        """Return the programs of the ranks that were run, cut to one iteration."""
        records = [rank.recorded for rank in self._ranks.values() if rank.recorded is not None]
        records.sort(key=lambda recorded: recorded.rank)
        first = records[0]
        if not first.communicators:
            raise BadInput(self._script, "the script", "never called torch.distributed.init_process_group")
        iteration = None
        if not self._request.keep_all:
            iteration = find_iteration(first.operations, first.steps)
            if iteration is None:
                steps = f"ended after {len(first.steps)} optimizer steps, no two of which send the same"
                raise BadInput(self._script, "the script", f"{steps}: do more with --steps, or keep all with --whole")
        programs: dict[int, Program] = {}
        whole: dict[int, Program] = {}
        for recorded in records:
            whole[recorded.rank] = program_of(recorded, recorded.operations)
            operations = recorded.operations
            if iteration is not None:
                if len(recorded.steps) < iteration.last:
                    steps = f"did {len(recorded.steps)} optimizer steps, and rank {first.rank} {len(first.steps)}"
                    raise BadInput(self._script, f"rank {recorded.rank}", steps)
                operations = cut(operations, recorded.steps, iteration)
            programs[recorded.rank] = program_of(recorded, operations)
        programs = with_even_exchanges(programs)
        families = families_of(records)
        return Recording(self._request, families, programs, {}, iteration, self._torch_version, whole)

    def close(self) -> None:
        """Kill whatever still runs."""
        if hasattr(self, "_process"):
            if self._gpus is None:
                # ranks, and programs that they have started: all are in the session of this process
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._control.close()
        self._selector.close()
        for rank in self._ranks.values():
            rank.connection.close()
            os.close(rank.output)


def _received(connection: socket.socket) -> bytes:
    """Return what has arrived, without waiting."""
    try:
        return connection.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
    except (BlockingIOError, ConnectionResetError):
        return b""
