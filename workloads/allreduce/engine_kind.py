"""Allreduce engines: the programs that run collectives on the nodes of a multi-rail fabric, Railyard's own and others.

An engine is one module of `engines/`, or a plugin. It is imported wherever names are looked up, so it loads other
libraries only in functions. An experiment's `policies` name allreduce policies, which Railyard's engine runs, and other
engines. An engine of another program derives its ranks from `PeerRanks`.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import psutil

from railyard.core import watch
from railyard.core.errors import BadInput, MissingRequirement, RailyardError, unknown_name_hint
from railyard.core.installation import PROJECT, module_command
from railyard.core.registry import Registry
from railyard.core.wait import poll
from railyard.core.worker import ANSWER_S, Failed, Message, Pipe, Ready
from railyard.topologies.multirail.plan import MultirailPlan
from railyard.topologies.multirail.spec import MultirailSpec, Nic
from railyard.topologies.rail_kind import RAIL_KINDS
from railyard.workloads.allreduce.balancing.costs import Rail, paper_rail, scaled
from railyard.workloads.allreduce.balancing.policy import ALLREDUCE_POLICIES, AllreducePolicy, policy_usages
from railyard.workloads.allreduce.engine import jobs

OWN: Final = "railyard"  # name of the engine that runs allreduce policies
PORT: Final = 21000
JOIN_S: Final = 60.0
END_S: Final = 5.0
# to draw inputs and to check results, on a machine that runs a rank late
SLACK_S: Final = 60.0
# beside other engines' on the same NICs
_VIRTUAL_PORT: Final = PORT + 16
# the sandbox's own, so nothing stays behind
_SHARED: Final = "/dev/shm"
_SOCKET = "ranks.sock"
_LOG = "log"
_LAST_LINES: Final = 3
_EXIT_WAIT_S: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: process, user and group of the other end
R = TypeVar("R", bound=Message)


class PlannedFabric(Protocol):
    """A built multi-rail fabric (MultirailNet), as far as an engine needs it."""

    plan: MultirailPlan


class Group:
    """Connected ranks that wait for requests. A context manager, or `start` and `stop`."""

    layout: jobs.Layout

    def start(self) -> None:
        """Start all processes and wait until they have joined."""
        raise NotImplementedError

    def run(self, operations: jobs.Operations) -> list[jobs.RankReport]:
        """Run operations on all ranks and return the report of each."""
        self.begin([operations] * self.layout.size)
        return self.finish()

    def begin(self, operations: Sequence[jobs.Operations]) -> None:
        """Let each rank begin its own operations; `finish` waits for all. A fault may be injected in between."""
        raise NotImplementedError

    def finish(self) -> list[jobs.RankReport]:
        """Return the report of each rank when all have ended the operations that they began."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all processes, whatever they are doing."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop all processes between operations: they use no CPU until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue all processes."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def rails_of(plan: MultirailPlan) -> tuple[Rail, ...]:
    """Return the rails of a fabric as the engine knows them, with rates of payload, as dilated as the fabric is.

    What the user did not give is the paper's, to the fabric's scale; nominal rates if no rate at all was given.
    """
    # a data sheet's rate can't be compared with a rate that the user gave for the emulation
    all_auto = all(spec.rate == "auto" for spec in plan.rails)
    rails = []
    for number, spec in enumerate(plan.rails):
        full_rate = paper_rail(spec.kind)
        slowed = scaled(full_rate, plan.scale)
        setup_s = slowed.setup_s if spec.setup is None else spec.setup
        cpu = slowed.cpu_s_per_byte if spec.cpu is None else spec.cpu
        rate = plan.payload_bps(number) / 8
        nominal = full_rate.rate if all_auto else 0.0
        rails.append(Rail(spec.name, spec.kind, rate, setup_s * plan.dilation, cpu * plan.dilation, nominal))
    return tuple(rails)


def layout(plan: MultirailPlan, channels: Sequence[int] = (), port: int = PORT) -> jobs.Layout:
    """Return the addresses of a fabric.

    `channels`: the rail whose NIC each of several virtual rails uses, if any.
    """
    rails = rails_of(plan)
    if channels:
        return _virtual_layout(plan, rails, channels)
    aggregators: list[jobs.Address | None] = []
    for aggregator in plan.aggregators:
        aggregators.append((aggregator.ip, port) if aggregator else None)
    rows = [_addresses(plan, rail, port) for rail in range(len(rails))]
    return jobs.Layout(rails, tuple(rows), tuple(aggregators))


def _virtual_layout(plan: MultirailPlan, rails: Sequence[Rail], channels: Sequence[int]) -> jobs.Layout:
    virtual_rails = []
    rows = []
    for number, rail in enumerate(channels):
        virtual_rails.append(replace(rails[rail], name=f"{rails[rail].name}.{number}"))
        rows.append(_addresses(plan, rail, _VIRTUAL_PORT + number))
    return jobs.Layout(tuple(virtual_rails), tuple(rows), (None,) * len(channels))


def _addresses(plan: MultirailPlan, rail: int, port: int) -> tuple[jobs.Address, ...]:
    return tuple((Nic(rail, node).ip, port) for node in range(plan.spec.nodes))


def placement(plan: MultirailPlan, node: int | None, rail: int = 0, nics: Sequence[int] = ()) -> jobs.ProcessPlacement:
    """Return the place of a node's process; for node None that of a rail's aggregator.

    `nics`: by virtual rail.
    """
    interfaces = tuple(Nic(each, node).interface for each in nics or range(len(plan.rails)))
    return jobs.ProcessPlacement(Nic(rail, node).namespace, interfaces)


def peer_rail(fabric: MultirailSpec) -> int:
    """Return the rail on which engines of one rail run: the first ordinary TCP rail, else the first."""
    for number, rail in enumerate(fabric.rails):
        if RAIL_KINDS[rail.kind].is_tcp:
            return number
    return 0


class PeerRanks(Group):
    """Ranks of another engine, one in each node's namespace: `with GlooRanks(net, rails=[0]) as ranks: ...`.

    `rails`: by default the first ordinary TCP rail, or all if it `uses_all_rails`.
    `program`: the module that has its `PROGRAM` (engine/worker.py).
    `timeout_s`: of one operation, in the fabric's own time.
    """

    program: ClassVar[str]
    replies: ClassVar[tuple[type[Message], ...]] = (jobs.Report,)
    uses_all_rails: ClassVar[bool] = False
    port: ClassVar[int] = PORT

    def __init__(self, net: PlannedFabric, rails: Sequence[int] | None = None, timeout_s: float = 60.0) -> None:
        self._plan = net.plan
        self.layout = layout(net.plan, port=self.port)
        if rails is None and self.uses_all_rails:
            rails = range(len(self.layout.rails))
        elif rails is None:
            rails = [peer_rail(net.plan.spec)]
        for rail in rails:
            if not 0 <= rail < len(self.layout.rails):
                raise BadInput("rails", rail, f"must be from 0 to {len(self.layout.rails) - 1}")
        self._rails = tuple(rails)
        self.timeouts = jobs.Timeouts(operation_s=timeout_s * net.plan.dilation)
        self._pipes: dict[int, Pipe] = {}
        # the process that was started, then its ranks
        self._watched: list[watch.Watched] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""
        # of the operations that were begun
        self._limit_s = SLACK_S

    @property
    def name(self) -> str:
        """Name of the engine in messages."""
        return self.program.rpartition(".")[2]

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """Return what this machine lacks for it, None if it can run here."""
        return None

    def start(self) -> None:
        """Start the ranks and wait until they have joined. MissingRequirement without their library, RailyardError."""
        if missing_requirement := self.missing_requirement():
            raise missing_requirement
        self._folder = tempfile.mkdtemp(prefix="peers-", dir=_SHARED)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(f"{self._folder}/{_SOCKET}")
                listener.listen(self.layout.size)
                listener.setblocking(False)
                with Path(self._folder, _LOG).open("wb") as log:
                    self._process = subprocess.Popen(
                        self.command(),
                        cwd=PROJECT,
                        env={**os.environ, "TMPDIR": self._folder},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        process_group=0,
                    )
                process = self._process
                launcher = watch.add(f"{self.name}'s launcher", process.pid, may_exit=True)
                self._watched.append(launcher)
                starting = self._watch_starting(process.pid)
                poll(lambda: self._all_connected(listener) or launcher.is_over() or next(starting), JOIN_S)
            if len(self._pipes) < self.layout.size:
                # names the launcher if it was killed
                watch.check()
                raise RailyardError(f"{self.name}: its ranks didn't start{self._log_tail()}")
            for rank, pipe in self._pipes.items():
                place = placement(self._plan, rank)
                task = jobs.RankConfig(rank, self.layout, place, self.timeouts, "", self._rails, self._folder)
                pipe.send(jobs.Join(task=task))
            self._receive(Ready, JOIN_S)
        except BaseException:
            self.stop()
            raise

    def begin(self, operations: Sequence[jobs.Operations]) -> None:
        """Let each rank begin its own operations. RailyardError if one has died."""
        longest = max(request.count for request in operations)
        self._limit_s = SLACK_S + longest * self.timeouts.operation_s
        self._send([jobs.Run(operations=request) for request in operations])

    def finish(self) -> list[jobs.RankReport]:
        """Return the report of each rank. RailyardError if one has died, or is late."""
        return [reply.report for reply in self._receive(jobs.Report, self._limit_s)]

    def ask(self, request: Message, reply: type[R], within_s: float) -> list[R]:
        """Send a message to all ranks and return their answers. RailyardError if one fails, has died, or is late."""
        self._send([request] * len(self._pipes))
        return self._receive(reply, within_s)

    def _send(self, requests: Sequence[Message]) -> None:
        """Send each rank its own message."""
        try:
            for (_, pipe), request in zip(sorted(self._pipes.items()), requests, strict=True):
                pipe.send(request)
        except OSError:
            raise RailyardError(f"{self.name}: a rank died{self._log_tail()}") from None

    def stop(self) -> None:
        """Let the ranks leave, then end what is left of them. A second call does nothing."""
        self.resume()
        while self._watched:
            self._watched.pop().release()
        with suppress(OSError):
            for pipe in self._pipes.values():
                pipe.send(jobs.Leave())
        process = self._process
        self._process = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in self._pipes.values():
            pipe.socket.close()
        self._pipes.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def command(self) -> list[str]:
        """Return the command that starts all ranks; `_folder` has the socket that they connect to."""
        return self.worker_command(*map(str, range(self.layout.size)))

    def worker_command(self, *ranks: str) -> list[str]:
        """Return the command of a process that starts these ranks; without them, a rank that its launcher numbers."""
        module = "railyard.workloads.allreduce.engine.worker"
        return module_command(module, self.program, f"{self._folder}/{_SOCKET}", *ranks)

    def _watch_starting(self, launcher: int) -> Iterator[bool]:
        """Watch ranks that are stopped before they have connected, and have no number yet. Yield False, each time."""
        # only stopped ones: a death at that time ends the launcher, which is watched
        looked = time.monotonic()
        while True:
            if time.monotonic() > looked + watch.STEP_S:
                watched_pids = {watched.pid for watched in self._watched}
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    for process in psutil.Process(launcher).children(recursive=True):
                        if process.pid not in watched_pids and process.status() == psutil.STATUS_STOPPED:
                            self._watched.append(watch.add(f"{self.name}: rank", process.pid, is_child=False))
                looked = time.monotonic()
            yield False

    def _all_connected(self, listener: socket.socket) -> bool:
        """Accept the ranks that have connected; return whether all have."""
        process = self._process
        with suppress(BlockingIOError):
            while True:
                sock = listener.accept()[0]
                sock.setblocking(True)
                pipe = Pipe(sock, [jobs.Rank, Ready, Failed, *self.replies], deadline_s=ANSWER_S)
                rank = pipe.receive(time.monotonic() + JOIN_S).number
                self._pipes[rank] = pipe
                pid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
                # it is watched already if it was stopped while it started
                stopped = [watched for watched in self._watched[1:] if watched.pid == pid]
                if stopped:
                    stopped[0].name = f"{self.name}: rank {rank}"
                elif process is not None and pid != process.pid:
                    with suppress(ProcessLookupError):
                        self._watched.append(watch.add(f"{self.name}: rank {rank}", pid, is_child=False))
        return len(self._pipes) == self.layout.size

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            for watched in self._watched:
                watch.expect_signal(watched.pid, number)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _log_tail(self) -> str:
        """Return the last lines that the programs wrote, also after they closed their connections."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_WAIT_S)
        lines = Path(self._folder, _LOG).read_text(errors="replace").split("\n")
        text_lines = list(filter(None, map(str.strip, lines)))
        return "".join(f" / {line}" for line in text_lines[-_LAST_LINES:])

    def _receive(self, reply: type[R], within_s: float) -> list[R]:
        deadline = time.monotonic() + within_s
        answers = []
        for rank, pipe in sorted(self._pipes.items()):
            try:
                answer: Any = pipe.receive(deadline)
            except TimeoutError:
                raise RailyardError(f"{self.name}: rank {rank} didn't answer in {within_s:g} s") from None
            except (EOFError, OSError):
                raise RailyardError(f"{self.name}: rank {rank} died{self._log_tail()}") from None
            if isinstance(answer, Failed):
                raise RailyardError(answer.why)
            if not isinstance(answer, reply):
                raise RailyardError(f"{self.name}: rank {rank} sent {answer!r:.200}, and not {reply.__name__}")
            answers.append(answer)
        return answers


class AllreduceEngine:
    """Definition of an engine.

    `equation`: what its prediction follows.
    `colour`: a name of results/plots/style.py.

    `ranks`: of another program's engine, its ranks.
    `runs_policies`: it runs the allreduce policies, which an experiment names in its place; its group can change its
    policy between operations.
    `survives_faults`: its operations go on when a rail dies.
    """

    equation: ClassVar[str] = ""
    colour: ClassVar[str] = ""
    ranks: ClassVar[type[PeerRanks] | None] = None
    runs_policies: ClassVar[bool] = False
    survives_faults: ClassVar[bool] = False
    learns: Final = False
    relearns: Final = False

    def missing_requirement(self) -> MissingRequirement | None:
        """Return what this machine lacks for it, None if it can run here."""
        return self.ranks.missing_requirement() if self.ranks else None

    def check(self, policy: str, field: str, fabric: MultirailSpec) -> None:
        """Raise BadInput for `field` unless it can run `policy` on a fabric; by default it can."""

    def definition(self, policy: str) -> "AllreducePolicy | AllreduceEngine":
        """Return the definition that has the equation and colour of `policy`."""
        return self

    def start(self, net: PlannedFabric, policy: str) -> Group:
        """Return ranks on a built fabric, not yet started. Entering raises MissingRequirement or RailyardError."""
        if self.ranks is None:
            raise NotImplementedError
        return self.ranks(net)

    def seconds(self, rails: Sequence[Rail], nodes: int, size: int, rail: int, policy: str = "") -> float:
        """Predict the seconds of an allreduce of `size` bytes: by default Eq. 1 on rail `rail`, without set-up."""
        return 2 * (nodes - 1) / nodes * size / rails[rail].rate


def _problems(name: str, engine: AllreduceEngine) -> Iterator[str]:
    if type(engine).start is AllreduceEngine.start and engine.ranks is None:
        yield "`ranks` or the method start(net, policy) is missing"
    if name in ALLREDUCE_POLICIES:
        yield f"an allreduce policy is called {name} too"


ALLREDUCE_ENGINES: Final = Registry[AllreduceEngine](
    "allreduce engine", "railyard.workloads.allreduce.engines", AllreduceEngine, ["equation"], _problems
)


def engine_of(policy: str) -> AllreduceEngine:
    """Return the engine of this name, or else Railyard's, which runs policies."""
    if policy in ALLREDUCE_ENGINES:
        return ALLREDUCE_ENGINES[policy]
    return ALLREDUCE_ENGINES[OWN]


def check_policy(
    policy: str, field: str, fabrics: Sequence[MultirailSpec], own_only: bool = False, faulted: bool = False
) -> None:
    """Raise BadInput unless every one of these fabrics can run a policy or engine.

    `own_only`: no other engine. `faulted`: no engine whose operations end when a rail dies.
    """
    if own_only and not engine_of(policy).runs_policies:
        raise BadInput(field, policy, unknown_name_hint(policy, policy_usages()))
    if faulted and not engine_of(policy).survives_faults:
        names = [name for name, engine in ALLREDUCE_ENGINES.items() if engine.survives_faults and name != OWN]
        raise BadInput(field, policy, unknown_name_hint(policy, sorted([*policy_usages(), *names])))
    for fabric in fabrics:
        engine_of(policy).check(policy, field, fabric)


def definition_of(policy: str) -> AllreducePolicy | AllreduceEngine:
    """Return the definition of a policy or engine. KeyError if its name is not registered."""
    return engine_of(policy).definition(policy)


def predicted_s(policy: str, rails: Sequence[Rail], nodes: int, size: int, rail: int = 0) -> float:
    """Predict the seconds of an allreduce of `size` bytes.

    `rail`: the one on which engines of one rail run.
    """
    return engine_of(policy).seconds(rails, nodes, size, rail, policy)
