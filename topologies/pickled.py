"""A process of the project's own that is told things and answers, in pickles over its pipes: the end that starts it."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from topologies.errors import RailyardError

PROJECT: Final = Path(__file__).resolve().parent.parent


class PickledProcess:
    """`python -m module`, called `name` in messages."""

    def __init__(self, module: str, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, what: object) -> None:
        """RailyardError if it has died."""
        assert self._process.stdin
        try:
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RailyardError(f"{self._name} died") from None

    def hear(self) -> Any:
        """Wait for its answer. RailyardError if it has died, or answers with a RuntimeError."""
        assert self._process.stdout
        try:
            said = pickle.load(self._process.stdout)
        except EOFError:
            raise RailyardError(f"{self._name} died") from None
        if isinstance(said, RuntimeError):
            raise RailyardError(f"{self._name}: {said}") from said
        return said

    def end(self) -> None:
        """End it, whatever it is doing; nothing if it has ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
