"""Dask's programs, and clients of a sweep, as processes that are forked from one Python, which has their modules.

    with Programs(folder) as programs:
        scheduler = programs.start("scheduler", "distributed.cli.dask_scheduler", "--port", "0")

Each is a process of its own, with a log `NAME.log` in the folder. New Pythons would take a second each to load Dask.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

ROOT = Path(__file__).parents[1]


class Programs:
    """Programs that run in the background until the end of a `with` block."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for logs and temporary files."""
        self.folder = folder
        self._pids: list[int] = []
        environment = os.environ | {"TMPDIR": str(folder), "HOME": str(folder)}
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.dask_programs"], cwd=ROOT, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._parent.communicate()

    def start(
        self, name: str, module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> int:
        """Start `python -m MODULE ARGUMENTS`; return its process id."""
        log = str(self.folder / f"{name}.log")
        order = {"module": module, "arguments": arguments, "log": log, "environment": dict(environment)}
        pid = self._ask(order)
        self._pids.append(pid)
        return pid

    def end(self, pid: int) -> None:
        """Kill a program, and wait for its end."""
        os.kill(pid, signal.SIGKILL)
        self._wait(pid)

    def log(self, name: str) -> str:
        """Return what a program has printed so far."""
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def run(
        self, name: str, module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, str]:
        """Start a program and wait for its end; return its exit status and what it has printed."""
        pid = self.start(name, module, *arguments, environment=environment)
        return self._wait(pid), self.log(name)

    def _wait(self, pid: int) -> int:
        self._pids.remove(pid)
        return self._ask({"wait": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._parent.stdin
        assert self._parent.stdout
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())


def serve() -> None:
    """Load the modules, and start a program for each line of the input."""
    import railyard.experiments.sweep.cluster
    import railyard.experiments.sweep.remote  # noqa: F401 (loaded for the programs)

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
        print(answer, flush=True)


def _become(order: dict[str, Any]) -> None:
    """Be a program: with its arguments, variables and log, and without the parent's input."""
    import runpy

    import dask
    from setproctitle import setproctitle

    status = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, stream in ((null, 0), (log, 1), (log, 2)):
            os.dup2(number, stream)
        os.environ.update(order["environment"])
        dask.config.refresh()  # reads the variables
        sys.argv = [order["module"], *order["arguments"]]
        setproctitle(" ".join([sys.executable, "-m", *sys.argv]))
        runpy.run_module(order["module"], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
