"""Ranks of another engine on the nodes of a multi-rail fabric: started, told what to do, ended.

with GlooRanks(net, rail=0) as ranks:
    reports = ranks.run(Operations("allreduce", "float32", 8 << 20, count=20, seed=1))
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from railyard.core.errors import BadInput, MissingRequirement, RailyardError
from railyard.core.host import PROJECT
from railyard.workloads.allreduce.engine.emulated import layout, placement
from railyard.workloads.allreduce.engine.jobs import Operations, RankReport
from railyard.workloads.allreduce.engine.worker import checked
from railyard.workloads.allreduce.engine_kind import PlannedFabric
from railyard.workloads.allreduce.peers.rank import SOCKET_NAME
from railyard.workloads.allreduce.peers.rank_config import RankConfig

JOIN_S: Final = 60.0
END_S: Final = 5.0
_SLACK_S: Final = 60.0  # to draw numbers, and to check them
_SHARED: Final = "/dev/shm"  # the sandbox's own: nothing stays behind, however a run ends
_LOG: Final = "log"
_LAST_LINES: Final = 3
_EXIT_WAIT_S: Final = 1.0


class PeerRanks:
    """Ranks of an engine, one in each node's namespace.

    `rails`: those that the engine uses. `program`: the module that has its `PROGRAM` (rank.py). `timeout_s`: of one
    operation, in the fabric's own time: in a dilated fabric ranks wait for each other as many times longer.
    """

    program: ClassVar[str]

    def __init__(self, net: PlannedFabric, rails: Sequence[int], timeout_s: float = 60.0) -> None:
        self._plan, self.layout = net.plan, layout(net.plan)
        for rail in rails:
            if not 0 <= rail < len(self.layout.rails):
                raise BadInput("rails", rail, f"must be from 0 to {len(self.layout.rails) - 1}")
        self._rails, self._timeout_s = tuple(rails), timeout_s * net.plan.dilation
        self._connections: dict[int, Connection] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""

    @property
    def name(self) -> str:
        """Of the engine, in messages."""
        return self.program.rpartition(".")[2]

    @classmethod
    def missing_requirement(cls) -> MissingRequirement | None:
        """What this machine hasn't got for it, None if it can be used."""
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Return when all ranks have met. MissingRequirement if their library isn't here; RailyardError if they
        can't."""
        if missing_requirement := self.missing_requirement():
            raise missing_requirement
        self._folder = tempfile.mkdtemp(prefix="peers-", dir=_SHARED)
        try:
            with Listener(f"{self._folder}/{SOCKET_NAME}", "AF_UNIX", backlog=self.layout.size) as sock:
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
                self._accept_ranks(sock)
            self._send({rank: self._rank_config(rank) for rank in self._connections})
            self._receive(JOIN_S)
        except BaseException:
            self.stop()
            raise

    def run(self, operations: Operations) -> list[RankReport]:
        """Do them on all ranks, and return what each tells. BadInput for what nobody can do; RailyardError if a rank
        has died."""
        checked(operations)
        reports: list[RankReport] = self.ask(operations, _SLACK_S + operations.count * self._timeout_s)
        return reports

    def ask(self, request: object, within_s: float) -> list[Any]:
        """Every rank's answer to the same. RailyardError if one says so, has died, or takes longer."""
        try:
            self._send(dict.fromkeys(self._connections, request))
        except OSError:
            raise RailyardError(f"{self.name}: a rank died{self._log_tail()}") from None
        return self._receive(within_s)

    def pause(self) -> None:
        """Stop all ranks between operations: they take nothing of the machine."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End them: kindly first. Doing it twice is no harm."""
        self.resume()
        with suppress(OSError):
            self._send(dict.fromkeys(self._connections))
        process, self._process = self._process, None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whoever of them is left
            process.wait()
        for sock in self._connections.values():
            sock.close()
        self._connections.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def command(self) -> list[str]:
        """What starts all ranks."""
        ranks = [str(rank) for rank in range(self.layout.size)]
        return [sys.executable, "-m", "railyard.workloads.allreduce.peers.rank", self.program, self._folder, *ranks]

    def _rank_config(self, rank: int) -> RankConfig:
        return RankConfig(rank, self.layout, placement(self._plan, rank), self._rails, self._folder, self._timeout_s)

    def _accept_ranks(self, sock: Listener) -> None:
        """Until every rank has knocked and said who it is."""
        assert self._process is not None
        deadline = time.monotonic() + JOIN_S
        while len(self._connections) < self.layout.size:
            if not wait([sock._listener._socket], 0.1):  # type: ignore[attr-defined]  # a Listener can't be waited for
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RailyardError(f"{self.name}: its ranks didn't start{self._log_tail()}")
                continue
            connection = sock.accept()
            self._connections[connection.recv()] = connection

    def _log_tail(self) -> str:
        """What the programs wrote last. Who hangs up first may write after that."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_WAIT_S)
        lines = Path(self._folder, _LOG).read_text(errors="replace").split("\n")
        lines_written = [line.strip() for line in lines if line.strip()]
        return "".join(f" / {line}" for line in lines_written[-_LAST_LINES:])

    def _send(self, request: dict[int, Any]) -> None:
        for rank, each in request.items():
            self._connections[rank].send(each)

    def _receive(self, within_s: float) -> list[Any]:
        deadline = time.monotonic() + within_s
        answers = []
        for rank, sock in sorted(self._connections.items()):
            try:
                answer = sock.recv() if sock.poll(max(0.0, deadline - time.monotonic())) else TimeoutError()
            except (EOFError, ConnectionError):
                raise RailyardError(f"{self.name}: rank {rank} died{self._log_tail()}") from None
            if isinstance(answer, TimeoutError):
                raise RailyardError(f"{self.name}: rank {rank} didn't answer in {within_s:g} s")
            if isinstance(answer, RailyardError):
                raise answer
            answers.append(answer)
        return answers
